//go:build assert

package parquetio

import "github.com/apache/arrow-go/v18/parquet/compress"

// Built with assertions, arrow-go refuses to compress the empty dictionary of a
// column of nulls with zstd, which it does rightly without. For test builds only.
func init() {
	c, err := compress.GetCodec(compress.Codecs.Zstd)
	if err != nil {
		panic(err)
	}
	compress.RegisterCodec(compress.Codecs.Zstd, emptyZstd{c.(streamCodec)})
}

type streamCodec interface {
	compress.ErrorCodec
	compress.StreamingCodec
}

type emptyZstd struct{ streamCodec }

func (z emptyZstd) CompressBound(n int64) int64 { return z.streamCodec.CompressBound(max(n, 1)) }
