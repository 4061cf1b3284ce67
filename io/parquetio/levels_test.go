package parquetio

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// runLevels are n levels in the encoding RLE, without its length.
func runLevels(b []byte, width, n int) (out []uint32) {
	for len(out) < n {
		head, k := binary.Uvarint(b)
		b = b[k:]
		if head&1 == 0 {
			v := uint32(0)
			for i := range (width + 7) / 8 {
				v |= uint32(b[i]) << (8 * i)
			}
			b = b[(width+7)/8:]
			out = append(out, slices.Repeat([]uint32{v}, int(head>>1))...)
			continue
		}
		for i := range int(head>>1) * 8 {
			v := uint32(0)
			for k := range width {
				bit := i*width + k
				v |= uint32(b[bit/8]>>(bit%8)&1) << k
			}
			out = append(out, v)
		}
		b = b[int(head>>1)*width:]
	}
	return out[:n]
}

// packLevels is levels in the encoding BIT_PACKED: one behind the other, each and each byte from the highest bit on.
func packLevels(levels []uint32, width int) []byte {
	out := make([]byte, (len(levels)*width+7)/8)
	for i, v := range levels {
		for k := range width {
			bit := i*width + k
			out[bit/8] |= byte(v>>(width-1-k)&1) << (7 - bit%8)
		}
	}
	return out
}

// withPackedLevels returns file, whose first column c is one page of version 1 that is not compressed, with its definition levels and,
// if rep is set, its repetition levels in the encoding BIT_PACKED.
func withPackedLevels(t testing.TB, file []byte, c *chunk, leaf *leaf, rep bool) []byte {
	t.Helper()
	var h pageHeader
	head := int64(h.parse(file[c.start:]))
	if head == 0 || h.typ != pageData || head+int64(h.comp) != c.size || h.repEnc != encRLE && leaf.maxRep > 0 || h.defEnc != encRLE {
		t.Fatalf("the column is not one page of version 1: %+v", h)
	}
	src, body := file[c.start+head:c.start+c.size], []byte{}
	encs := [2]int64{encRLE, encRLE}
	for i, most := range []int16{leaf.maxRep, leaf.maxDef} {
		if most == 0 {
			continue
		}
		n := 4 + int(binary.LittleEndian.Uint32(src))
		width := len(fmt.Sprintf("%b", most))
		if i == 0 && !rep {
			body = append(body, src[:n]...)
		} else {
			body = append(body, packLevels(runLevels(src[4:n], width, int(h.values)), width)...)
			encs[i] = encBitPacked
		}
		src = src[n:]
	}
	body = append(body, src...)
	num := func(b []byte, vs ...int64) []byte { // fields 1, 2, ... or those that follow
		for _, v := range vs {
			b = binary.AppendVarint(append(b, 1<<4|tI32), v)
		}
		return b
	}
	page := append(num(nil, pageData, int64(len(body)), int64(len(body))), 2<<4|tStruct)
	page = append(num(page, int64(h.values), encPlain, encs[1], encs[0]), tStop, tStop)
	page = append(page, body...)
	gone := max(c.size-int64(len(page)), 0) // the footer has the old length
	out := slices.Concat(file[:c.start], page, make([]byte, gone), file[c.start+c.size:])
	c.size = int64(len(page))
	return out
}

// TestBitPackedLevels: levels in the deprecated encoding BIT_PACKED are those of RLE, to readers of local files and to those that read
// pages in slices, whatever their widths, from any row on.
func TestBitPackedLevels(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	str, in := arrow.BinaryTypes.String, func(t arrow.DataType) arrow.DataType {
		return arrow.StructOf(arrow.Field{Name: "x", Type: t, Nullable: true})
	}
	sliced := 0
	for _, typ := range []arrow.DataType{
		arrow.PrimitiveTypes.Int64, str, in(arrow.PrimitiveTypes.Float64), in(in(in(str))), arrow.ListOf(str), arrow.ListOf(arrow.PrimitiveTypes.Int32), arrow.ListOf(arrow.ListOf(str)),
	} {
		for _, rep := range []bool{false, true} {
			file, f := onePage(t, arrow.Field{Name: "c", Type: typ, Nullable: true})
			path := filepath.Join(t.TempDir(), "f.parquet")
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			all := allOf(t, mustOpen(t, nil, path), driver.ScanOptions{Alloc: memory.DefaultAllocator})
			g := f.group(0)
			file = withPackedLevels(t, file, &g.chunks[0], &f.schema.leaves[0], rep)
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			for i, p := range []string{path, path, bucketFile(t, path), bucketFile(t, path)} {
				tab := mustOpen(t, nil, p).(*table)
				o := (&driver.ScanOptions{Alloc: memtest.New(t), BatchRows: 1 + rng.IntN(9000), AheadBytes: 1}).WithDefaults()
				if i%2 == 1 {
					o.FromRow = rng.Int64N(g.rows)
				}
				name := fmt.Sprintf("%v, repetition levels %t, %s from %d, batches of %d", typ, rep, p, o.FromRow, o.BatchRows)
				r, err := newReader(t.Context(), scan{in: tab.input(0, o.Stats), s: f.schema, g: g, fields: []int{0}, o: o})
				if err != nil {
					t.Fatal(err)
				}
				at := o.FromRow
				for {
					b, err := r.Next(t.Context())
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Fatalf("%s: row %d: %v", name, at, err)
					}
					if c := r.dec.cols[0]; c.slices.open {
						sliced++
					}
					to := at + b.Record.NumRows()
					if !array.SliceEqual(b.Record.Column(0), 0, to-at, all.Column(0), at, to) {
						t.Errorf("%s: rows %d to %d differ", name, at, to)
					}
					at = to
					b.Record.Release()
				}
				if err := r.Close(); err != nil || at != g.rows {
					t.Errorf("%s: %d rows, %v", name, at, err)
				}
			}
			all.Release()
		}
	}
	if t.Logf("%d batches of pages in slices", sliced); sliced < 50 {
		t.Error("the test does not test")
	}
}
