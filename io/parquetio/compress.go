package parquetio

import (
	"encoding/binary"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/klauspost/compress/zstd"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	codecNone   = 0
	codecSnappy = 1
	codecLZ4    = 5
	codecZstd   = 6
	codecLZ4Raw = 7
)

// decompressor turns page bodies into scratch memory, bounded by what the page
// header said and what was checked before. Not safe for concurrent use.
type decompressor struct {
	gen     uint64 // counts uses of scratch
	alloc   memory.Allocator
	scratch []byte
}

// zstdDecoder never writes more than the destination holds.
var zstdDecoder = sync.OnceValues(func() (*zstd.Decoder, error) {
	return zstd.NewReader(nil, zstd.WithDecodeAllCapLimit(true), zstd.WithDecoderConcurrency(0))
})

// page returns a body of raw bytes: plain bytes of comp as they are, the rest
// decompressed. Valid until the next call.
func (d *decompressor) page(codec int8, comp []byte, plain, raw int) ([]byte, error) {
	if codec == codecNone {
		if len(comp) != raw {
			return nil, fault.New(fault.Corrupt, "a page of %d bytes claims %d", len(comp), raw)
		}
		return comp, nil
	}
	if len(d.scratch) < raw {
		d.close()
		d.scratch = d.alloc.Allocate(raw)
	}
	d.gen++
	out := d.scratch[:raw:raw]
	copy(out, comp[:plain])
	want := raw - plain
	if want == 0 {
		return out, nil // some writers leave out what is empty
	}
	n, err := decompress(codec, out[plain:], comp[plain:])
	if err != nil {
		return nil, fault.New(codeOf(err), "a page does not decompress: %w", err)
	}
	if n != want {
		return nil, fault.New(fault.Corrupt, "a page of %d bytes has %d", want, n)
	}
	return out, nil
}

func codeOf(err error) fault.Code {
	if c := fault.CodeOf(err); c != fault.Unknown {
		return c
	}
	return fault.Corrupt
}

func (d *decompressor) close() {
	if d.scratch != nil {
		d.alloc.Free(d.scratch)
		d.scratch = nil
	}
}

// checkCodec reports a codec that cannot be read.
func checkCodec(codec int8) error {
	if codec == codecLZ4 {
		return nil
	}
	if codec < 0 {
		return fault.New(fault.Corrupt, "the column chunk has an unknown compression")
	}
	if _, err := compress.GetCodec(compress.Compression(codec)); err != nil {
		return fault.New(fault.Unsupported, "compression %s is not supported", compress.Compression(codec))
	}
	return nil
}

// decompress fills dst and returns the bytes written.
func decompress(codec int8, dst, src []byte) (n int, err error) {
	defer recovered(&err, "panic")
	switch codec {
	case codecZstd:
		dec, err := zstdDecoder()
		if err != nil {
			return 0, err
		}
		out, err := dec.DecodeAll(src, dst[:0])
		if err == nil && len(out) > 0 && &out[0] != &dst[0] {
			return copy(dst, out), nil
		}
		return len(out), err
	case codecSnappy:
		// The decoder allocates what the block claims.
		if size, k := binary.Uvarint(src); k <= 0 || size != uint64(len(dst)) {
			return 0, fault.New(fault.Corrupt, "the block claims %d bytes, not %d", size, len(dst))
		}
	case codecLZ4:
		if n, ok := decodeHadoop(dst, src); ok {
			return n, nil
		}
		codec = codecLZ4Raw
	}
	c, err := compress.GetCodec(compress.Compression(codec))
	if err != nil {
		return 0, err
	}
	out, err := compress.Decode(c, dst, src)
	return len(out), err
}

// decodeHadoop reads the framing of Hadoop's LZ4: blocks, each behind its sizes
// decompressed and compressed, big endian.
func decodeHadoop(dst, src []byte) (n int, ok bool) {
	raw, err := compress.GetCodec(compress.Codecs.Lz4Raw)
	if err != nil {
		return 0, false
	}
	for len(src) > 0 {
		if len(src) < 8 {
			return 0, false
		}
		want, have := binary.BigEndian.Uint32(src), binary.BigEndian.Uint32(src[4:])
		src = src[8:]
		if uint64(want) > uint64(len(dst)-n) || uint64(have) > uint64(len(src)) {
			return 0, false
		}
		out, err := compress.Decode(raw, dst[n:n+int(want):n+int(want)], src[:have])
		if err != nil || len(out) != int(want) {
			return 0, false
		}
		src = src[have:]
		n += int(want)
	}
	return n, true
}
