package parquetio

import (
	"context"
	"encoding/binary"
	"math"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/metadata"

	"github.com/penstock-data/penstock/io/driver"
)

const (
	maxBloom    = 4 << 20 // larger filters are not read
	bloomHeader = 64      // bytes read for the header where no length is known
	bloomBlock  = 32
)

// bloomSalt makes eight bits of a hash, one per word of a block.
var bloomSalt = [8]uint32{0x47b6137b, 0x44974d91, 0x8824ad5b, 0xa2b7289d, 0x705495c7, 0x2df1424b, 0x9efc4947, 0x5c6bfb31}

var bloomHash = metadata.NewBloomFilter(bloomBlock, bloomBlock, memory.NewGoAllocator()).Hasher()

// hasBloom reports whether reading bloom filters may help.
func (s *fileSchema) hasBloom(g *rowGroup, p driver.Predicate) bool {
	for i := range p {
		if l, ok := s.bloomTerm(g, &p[i]); ok && l >= 0 {
			return true
		}
	}
	return false
}

func (s *fileSchema) bloomTerm(g *rowGroup, t *driver.Term) (leaf int, ok bool) {
	if t.Op != driver.Eq && t.Op != driver.In || len(t.Values) == 0 {
		return 0, false
	}
	l, ok := s.term(t)
	return l, ok && g.chunks[l].bloom > 0 && g.chunks[l].flags&(encrypted|external|beyond) == 0
}

// bloomExcludes reports whether the filters say that no row matches p. A filter
// that cannot be understood excludes nothing.
func (s *fileSchema) bloomExcludes(ctx context.Context, in *input, g *rowGroup, p driver.Predicate) (bool, error) {
	for i := range p {
		l, ok := s.bloomTerm(g, &p[i])
		if !ok {
			continue
		}
		bits, err := s.readBloom(ctx, in, l, &g.chunks[l])
		if err != nil {
			return false, err
		}
		if bits != nil && !s.leaves[l].mayHold(bits, p[i].Values) {
			return true, nil
		}
	}
	return false, nil
}

// readBloom returns the blocks of a filter, nil if it is of another kind or cannot be right.
func (s *fileSchema) readBloom(ctx context.Context, in *input, leaf int, c *chunk) ([]byte, error) {
	n := int64(c.bloomLen)
	if n == 0 {
		n = bloomHeader
	}
	if n = min(n, in.Size()-c.bloom); n > maxBloom {
		return nil, nil
	}
	b := make([]byte, n)
	if err := readFull(ctx, in, b, c.bloom); err != nil {
		return nil, err
	}
	r := &thriftReader{b: b}
	size, known := int64(0), 0
	r.fields(func(id int16, typ byte) {
		switch {
		case id == 1 && typ == tI32:
			size = int64(r.i32())
		case id >= 2 && id <= 4 && typ == tStruct: // block split, xxhash, not compressed: member 1
			r.fields(func(member int16, typ byte) {
				if member == 1 {
					known++
				}
				r.skip(typ, false)
			})
		default:
			r.skip(typ, false)
		}
	})
	if r.bad || known != 3 || size < bloomBlock || size%bloomBlock != 0 || size > maxBloom {
		return nil, nil
	}
	at := c.bloom + int64(r.i)
	switch {
	case int64(len(b)-r.i) >= size:
		b = b[r.i : int64(r.i)+size]
	case size > in.Size()-at:
		return nil, nil
	default:
		b = make([]byte, size)
		if err := readFull(ctx, in, b, at); err != nil {
			return nil, err
		}
	}
	if !s.gate.bloom(&s.leaves[leaf], c, r.i, b) {
		return nil, nil
	}
	return b, nil
}

// mayHold is false if none of values can be in the filter.
func (l *leaf) mayHold(bits []byte, values []any) bool {
	for _, v := range values {
		enc, ok := l.encode(v)
		if !ok {
			return true
		}
		if inBloom(bits, enc) {
			return true
		}
	}
	return false
}

// inBloom is false if the filter lacks an encoded value.
func inBloom(bits, enc []byte) bool {
	h := bloomHash.Sum64(enc)
	blocks := uint64(len(bits) / bloomBlock)
	block := bits[(h>>32)*blocks>>32*bloomBlock:]
	for i, salt := range bloomSalt {
		if binary.LittleEndian.Uint32(block[4*i:])&(1<<(uint32(h)*salt>>27)) == 0 {
			return false
		}
	}
	return true
}

// encode gives a literal as the filter hashes it; false where an equal value may
// have another encoding or the literal is out of the type's range.
func (l *leaf) encode(v any) ([]byte, bool) {
	switch l.kind {
	case kindInt, kindUint:
		var u uint64
		switch v := v.(type) {
		case int64:
			if v < 0 && l.kind == kindUint {
				return nil, false
			}
			u = uint64(v)
			if l.physical == parquet.Types.Int32 && l.kind == kindInt && v != int64(int32(v)) {
				return nil, false
			}
		case uint64:
			if l.kind == kindInt && v > math.MaxInt32 {
				return nil, false
			}
			u = v
		default:
			return nil, false
		}
		if l.physical == parquet.Types.Int32 {
			if l.kind == kindUint && u > math.MaxUint32 {
				return nil, false
			}
			return binary.LittleEndian.AppendUint32(nil, uint32(u)), true
		}
		return binary.LittleEndian.AppendUint64(nil, u), true
	case kindFloat:
		f, ok := v.(float64)
		if !ok || f == 0 || math.IsNaN(f) { // two zeros
			return nil, false
		}
		if l.physical == parquet.Types.Float {
			if float64(float32(f)) != f {
				return nil, false
			}
			return binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(f))), true
		}
		return binary.LittleEndian.AppendUint64(nil, math.Float64bits(f)), true
	case kindBytes:
		s, ok := v.(string)
		return []byte(s), ok
	}
	return nil, false
}
