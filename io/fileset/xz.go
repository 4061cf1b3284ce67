package fileset

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"hash/crc64"
	"io"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/ulikunitz/xz/lzma"
)

// xzReader reads the xz format (version 1.2.1 of its specification) with the LZMA2 filter alone, which is what compressors of text
// write. The container is read here, so that the size of a dictionary is checked before memory is taken for it; spend counts that.
type xzReader struct {
	in    *bufio.Reader
	n     int64 // bytes read of the stream
	spend func(bytes int64) error

	flags   [2]byte
	check   func() hash.Hash // nil: none
	width   int64            // of a check
	index   hash.Hash        // of the records that the index must hold
	records uint64

	block io.Reader // nil between blocks
	sum   hash.Hash
	size  int64 // bytes of the block so far
	begin int64 // of the block
	data  int64 // where its compressed bytes begin
	sizes [2]uint64
	given byte // which of sizes its header gives
	open  bool // inside a stream
	some  bool // a stream has been there
}

var (
	xzMagic  = []byte("\xfd7zXZ\x00")
	errXZ    = errors.New("the xz structure is damaged")
	xzECMA   = crc64.MakeTable(crc64.ECMA)
	xzChecks = map[byte]struct {
		new   func() hash.Hash
		width int64
	}{
		0:  {nil, 0},
		1:  {func() hash.Hash { return crc32.NewIEEE() }, 4},
		4:  {func() hash.Hash { return crc64.New(xzECMA) }, 8},
		10: {sha256.New, 32},
	}
)

// ReadByte and ReadFull of the stream count.
func (x *xzReader) ReadByte() (byte, error) {
	b, err := x.in.ReadByte()
	if err == nil {
		x.n++
	} else if err == io.EOF {
		err = io.ErrUnexpectedEOF
	}
	return b, err
}

func (x *xzReader) full(p []byte) error {
	n, err := io.ReadFull(x.in, p)
	x.n += int64(n)
	if err == io.EOF && len(p) > 0 {
		err = io.ErrUnexpectedEOF
	}
	return err
}

// counted is the stream for the LZMA2 decoder, which reads no more than it needs.
type counted struct{ x *xzReader }

func (c counted) ReadByte() (byte, error) { return c.x.ReadByte() }
func (c counted) Read(p []byte) (int, error) {
	n, err := c.x.in.Read(p)
	c.x.n += int64(n)
	return n, err
}

func (x *xzReader) Read(p []byte) (int, error) {
	for len(p) > 0 {
		switch {
		case x.block != nil:
			n, err := x.block.Read(p)
			x.size += int64(n)
			if x.sum != nil {
				x.sum.Write(p[:n])
			}
			if err == io.EOF {
				err = x.endBlock()
			}
			if n > 0 || err != nil {
				return n, err
			}
		case x.open:
			if err := x.next(); err != nil {
				return 0, err
			}
		default:
			if err := x.stream(); err != nil {
				return 0, err
			}
		}
	}
	return 0, nil
}

// stream begins the next stream, behind padding; io.EOF: there is none.
func (x *xzReader) stream() error {
	var head [12]byte
	for {
		if _, err := x.in.Peek(1); err == io.EOF && x.some {
			return io.EOF
		}
		if err := x.full(head[:4]); err != nil {
			return err
		}
		if !x.some || head[0]|head[1]|head[2]|head[3] != 0 {
			break
		}
	}
	if err := x.full(head[4:]); err != nil {
		return err
	}
	if !bytes.Equal(head[:6], xzMagic) || head[6] != 0 || crc32.ChecksumIEEE(head[6:8]) != binary.LittleEndian.Uint32(head[8:]) {
		return errXZ
	}
	c, ok := xzChecks[head[7]]
	if !ok {
		return fault.New(fault.Unsupported, "xz data has the check %d, which is unknown; compress again with --check=crc64", head[7])
	}
	x.flags, x.check, x.width = [2]byte(head[6:8]), c.new, c.width
	x.index, x.records = sha256.New(), 0
	x.open, x.some, x.n = true, true, 0
	return nil
}

// next begins the next block, or ends the stream.
func (x *xzReader) next() error {
	x.begin = x.n
	size, err := x.ReadByte()
	if err != nil {
		return err
	}
	if size == 0 {
		return x.end()
	}
	h := make([]byte, 4*(int(size)+1))
	h[0] = size
	if err := x.full(h[1:]); err != nil {
		return err
	}
	body, sum := h[:len(h)-4], h[len(h)-4:]
	if crc32.ChecksumIEEE(body) != binary.LittleEndian.Uint32(sum) || body[1]&0x3c != 0 {
		return errXZ
	}
	if body[1]&3 != 0 {
		return fault.New(fault.Unsupported, "xz data has filters beside LZMA2; compress again without them")
	}
	r := bytes.NewReader(body[2:])
	x.given = body[1] >> 6
	for k := range x.sizes {
		if x.given&(1<<k) != 0 {
			if x.sizes[k], err = xzNumber(r); err != nil {
				return errXZ
			}
		}
	}
	id, err1 := xzNumber(r)
	n, err2 := xzNumber(r)
	dict, err3 := r.ReadByte()
	if err1 != nil || err2 != nil || err3 != nil {
		return errXZ
	}
	if id != 0x21 || n != 1 {
		return fault.New(fault.Unsupported, "xz data has the filter %#x; compress again with LZMA2", id)
	}
	rest := body[len(body)-r.Len():]
	if len(bytes.Trim(rest, "\x00")) > 0 {
		return errXZ
	}
	window, err := lzma.DecodeDictCap(dict)
	if err != nil {
		return errXZ
	}
	if window > maxWindow {
		return fault.New(fault.Unsupported, "the xz dictionary is %d MiB, over %d; compress again with --lzma2=dict=%dMiB", window>>20, maxWindow>>20, maxWindow>>20)
	}
	if x.given&2 != 0 { // no more is looked back at
		window = min(window, int64(min(x.sizes[1], maxWindow)))
	}
	window = max(window, lzma.MinDictCap)
	if err := x.spend(window); err != nil {
		return err
	}
	x.data = x.n
	dec, err := lzma.Reader2Config{DictCap: int(window)}.NewReader2(counted{x})
	if err != nil {
		return err
	}
	x.block, x.size, x.sum = dec, 0, nil
	if x.check != nil {
		x.sum = x.check()
	}
	return nil
}

// endBlock checks a block that is read.
func (x *xzReader) endBlock() error {
	x.block = nil
	end := x.n
	if x.given&1 != 0 && x.sizes[0] != uint64(end-x.data) || x.given&2 != 0 && x.sizes[1] != uint64(x.size) {
		return errXZ
	}
	var pad [3]byte
	if p := pad[:(4-(x.n-x.begin)%4)%4]; len(p) > 0 {
		if err := x.full(p); err != nil {
			return err
		}
	}
	want := make([]byte, x.width)
	if err := x.full(want); err != nil {
		return err
	}
	if x.sum != nil {
		got := x.sum.Sum(nil)
		if x.width < 32 { // the CRCs are little-endian
			for i, j := 0, len(got)-1; i < j; i, j = i+1, j-1 {
				got[i], got[j] = got[j], got[i]
			}
		}
		if !bytes.Equal(got, want) {
			return errors.New("a checksum of the xz data is wrong")
		}
	}
	if pad != [3]byte{} {
		return errXZ
	}
	x.records++
	x.record(uint64(end-x.begin+x.width), uint64(x.size))
	return nil
}

func (x *xzReader) record(unpadded, size uint64) {
	x.index.Write(binary.AppendUvarint(binary.AppendUvarint(nil, unpadded), size))
}

// end reads the index, whose first byte is read, and the footer of a stream.
func (x *xzReader) end() error {
	sum := crc32.NewIEEE()
	sum.Write([]byte{0})
	in := teeByte{x, sum}
	have := x.index.Sum(nil)
	n, err := xzNumber(in)
	if err != nil {
		return err
	}
	if n != x.records {
		return errXZ
	}
	x.index.Reset()
	for range n {
		a, err1 := xzNumber(in)
		b, err2 := xzNumber(in)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		x.record(a, b)
	}
	for (x.n-x.begin)%4 != 0 {
		if _, err := in.ReadByte(); err != nil {
			return err
		}
	}
	size := x.n - x.begin
	var foot [16]byte
	if err := x.full(foot[:]); err != nil {
		return err
	}
	u32 := binary.LittleEndian.Uint32
	if !bytes.Equal(have, x.index.Sum(nil)) || u32(foot[:]) != sum.Sum32() || u32(foot[4:]) != crc32.ChecksumIEEE(foot[8:14]) ||
		(int64(u32(foot[8:]))+1)*4 != size+4 || [2]byte(foot[12:14]) != x.flags || string(foot[14:]) != "YZ" {
		return errXZ
	}
	x.open = false
	return nil
}

type teeByte struct {
	in  io.ByteReader
	out io.Writer
}

func (t teeByte) ReadByte() (byte, error) {
	b, err := t.in.ReadByte()
	if err == nil {
		t.out.Write([]byte{b})
	}
	return b, err
}

// xzNumber reads a number of at most 63 bits, as long as it must be.
func xzNumber(r io.ByteReader) (v uint64, err error) {
	for shift := 0; shift < 63; shift += 7 {
		b, err := r.ReadByte()
		if err != nil {
			return 0, err
		}
		if b == 0 && shift > 0 {
			break
		}
		if v |= uint64(b&0x7f) << shift; b < 0x80 {
			return v, nil
		}
	}
	return 0, errXZ
}
