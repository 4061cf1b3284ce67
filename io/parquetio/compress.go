package parquetio

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"sync"

	"github.com/andybalholm/brotli"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/snappy"
	"github.com/pierrec/lz4/v4"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	codecNone   = 0
	codecSnappy = 1
	codecGzip   = 2
	codecBrotli = 4
	codecLZ4    = 5
	codecZstd   = 6
	codecLZ4Raw = 7
)

// notDecompressed is the error of a page that decompress fails on. What a library says of its bytes is left out.
func notDecompressed(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return fault.New(fault.CodeOf(err), "a page does not decompress: %w", err)
	}
	return fault.New(fault.Corrupt, "a page does not decompress: its compressed bytes are damaged")
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

// decompress fills dst and returns the bytes written. It may write up to 16 bytes
// behind dst, as far as its capacity reaches, and is faster if it does.
func decompress(codec int8, dst, src []byte) (n int, err error) {
	defer recovered(&err, "a compressed page")
	switch codec {
	case codecZstd:
		out, err := zstds.decode(src, dst[:0:min(cap(dst), len(dst)+16)])
		if err == nil && (len(out) > len(dst) || len(out) > 0 && &out[0] != &dst[0]) {
			return 0, fault.New(fault.Corrupt, "there are more than %d bytes", len(dst))
		}
		return len(out), err
	case codecSnappy:
		// The decoder allocates what the block claims.
		if size, k := binary.Uvarint(src); k <= 0 || size != uint64(len(dst)) {
			return 0, fault.New(fault.Corrupt, "the block claims %d bytes, not %d", size, len(dst))
		}
		out, err := snappy.Decode(dst, src)
		return len(out), err
	case codecGzip:
		return gunzip(dst, src)
	case codecBrotli:
		return unbrotli(dst, src)
	case codecLZ4:
		if n, ok := decodeHadoop(dst, src); ok {
			return n, nil
		}
		return lz4.UncompressBlock(src, dst)
	case codecLZ4Raw:
		return lz4.UncompressBlock(src, dst)
	}
	c, err := compress.GetCodec(compress.Compression(codec))
	if err != nil {
		return 0, err
	}
	out, err := compress.Decode(c, dst, src)
	return len(out), err
}

// gunzipper holds 40 KiB and more, so that it is used again.
type gunzipper struct {
	src bytes.Reader
	gzip.Reader
}

var gunzippers = sync.Pool{New: func() any { return new(gunzipper) }}

func gunzip(dst, src []byte) (n int, err error) {
	z := gunzippers.Get().(*gunzipper)
	defer gunzippers.Put(z)
	z.src.Reset(src)
	defer z.src.Reset(nil)
	if err := z.Reset(&z.src); err != nil {
		return 0, err
	}
	if n, err = io.ReadFull(z, dst); err != nil {
		return n, err
	}
	return n, ended(z, n) // reads the checksum, too
}

// brotliReader holds windows and tables of some hundred KiB, so that it is used again.
type brotliReader struct {
	src bytes.Reader
	brotli.Reader
}

var brotliReaders = sync.Pool{New: func() any { return new(brotliReader) }}

func unbrotli(dst, src []byte) (n int, err error) {
	z := brotliReaders.Get().(*brotliReader)
	z.src.Reset(src)
	if err := z.Reset(&z.src); err != nil {
		return 0, err
	}
	if n, err = io.ReadFull(z, dst); err == nil {
		err = ended(z, n)
	}
	if err == nil { // after an error, and after a panic, what it holds is not trusted
		z.src.Reset(nil)
		brotliReaders.Put(z)
	}
	return n, err
}

// ended reads the end of a stream that has given n bytes: nil if there is nothing more.
func ended(z io.Reader, n int) error {
	var more [1]byte
	k, err := io.ReadFull(z, more[:])
	switch {
	case k > 0:
		return fault.New(fault.Corrupt, "there are more than %d bytes", n)
	case err != io.EOF:
		return err
	}
	return nil
}

// decodeHadoop reads the framing of Hadoop's LZ4: blocks, each behind its sizes
// decompressed and compressed, big endian.
func decodeHadoop(dst, src []byte) (n int, ok bool) {
	for len(src) > 0 {
		if len(src) < 8 {
			return 0, false
		}
		want, have := binary.BigEndian.Uint32(src), binary.BigEndian.Uint32(src[4:])
		src = src[8:]
		if uint64(want) > uint64(len(dst)-n) || uint64(have) > uint64(len(src)) {
			return 0, false
		}
		k, err := lz4.UncompressBlock(src[:have], dst[n:n+int(want):n+int(want)])
		if err != nil || k != int(want) {
			return 0, false
		}
		src = src[have:]
		n += k
	}
	return n, true
}
