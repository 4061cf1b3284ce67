package parquetio

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// TestDeepFooter: maps in maps, which a reader must skip, two bytes a level, do not
// overflow the stack: that would end the process.
func TestDeepFooter(t *testing.T) {
	foot := append([]byte{1<<4 | tMap}, bytes.Repeat([]byte{1, tMap<<4 | tByte}, 16<<20)...)
	b := append([]byte("PAR1"), foot...)
	b = binary.LittleEndian.AppendUint32(b, uint32(len(foot)))
	b = append(b, "PAR1"...)
	if err := readBytes(t.Context(), b, memtest.New(t)); fault.CodeOf(err) != fault.Corrupt {
		t.Errorf("got %v, want Corrupt", err)
	}
}

// TestIndexOfDictionary: a page index whose first page is the dictionary is not used; a decoder
// that is given one ends.
func TestIndexOfDictionary(t *testing.T) {
	alloc := memtest.New(t)
	sc := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64}}, nil)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, sc)
	defer rb.Release()
	for i := range 1000 {
		rb.Field(0).(*array.Int64Builder).Append(int64(i % 7))
	}
	rec := rb.NewRecordBatch()
	defer rec.Release()
	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(sc, &out, parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Uncompressed)), pqarrow.DefaultWriterProps())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(rec); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	f, err := readFooter(t.Context(), bytesBlob(out.Bytes()), make([]byte, tailBytes), new(schemaCache))
	if err != nil {
		t.Fatal(err)
	}
	g := f.group(0)
	c := &g.chunks[0]
	index := func(off, size int64) []byte { // one page, from row 0 on
		b := binary.AppendVarint([]byte{1<<4 | tList, 1<<4 | tStruct, 1<<4 | tI64}, off)
		b = binary.AppendVarint(append(b, 1<<4|tI32), size)
		return append(b, 1<<4|tI64, 0, tStop, tStop)
	}
	if ps := parseOffsetIndex(index(c.start+1, c.size-1), c, g.rows); len(ps) != 1 {
		t.Fatalf("the index has %v", ps)
	}
	if ps := parseOffsetIndex(index(c.start, c.size), c, g.rows); ps != nil {
		t.Errorf("an index that begins with the dictionary is used: %v", ps)
	}
	pages := map[int][]pageLoc{0: {{off: c.start, size: c.size}}}
	d, err := newDecoder(f.schema, g, []int{0}, bytesWindows(out.Bytes(), f.schema, g, []int{0}, alloc, 1<<20), pages, alloc)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	if _, err := d.read(ctx, 500, 10, 1<<30); fault.CodeOf(err) != fault.Corrupt {
		t.Errorf("got %v, want Corrupt", err)
	}
}

// largest is the largest allocation.
type largest struct {
	memory.Allocator
	n int
}

func (l *largest) Allocate(n int) []byte {
	if l.n = max(l.n, n); n > maxRowBytes {
		panic(fmt.Sprintf("%d bytes", n))
	}
	return l.Allocator.Allocate(n)
}

// TestHugeFixedLists: null lists of a size that only the schema claims take no more memory than a row may.
func TestHugeFixedLists(t *testing.T) {
	for _, elem := range []arrow.DataType{
		arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString, arrow.PrimitiveTypes.Int64,
		arrow.ListOf(arrow.PrimitiveTypes.Int8),
		arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true}),
		arrow.StructOf(arrow.Field{Name: "a", Type: arrow.FixedSizeListOf(1<<20, arrow.PrimitiveTypes.Int8), Nullable: true}),
	} {
		for _, size := range []int32{3, 1 << 30, math.MaxInt32} {
			stored := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.FixedSizeListOf(size, elem), Nullable: true}}, nil)
			plain := arrow.NewSchema([]arrow.Field{{Name: "a", Type: asWritten(stored.Field(0).Type), Nullable: true}}, nil)
			kv, err := storedSchema(stored)
			if err != nil {
				t.Fatal(err)
			}
			rb := array.NewRecordBuilder(memory.DefaultAllocator, plain)
			rb.Field(0).AppendNulls(2)
			rec := rb.NewRecordBatch()
			var out bytes.Buffer
			w, err := pqarrow.NewFileWriter(plain, &out, nil, pqarrow.DefaultWriterProps())
			if err != nil {
				t.Fatal(err)
			}
			for i, k := range kv.Keys() {
				if err := w.AppendKeyValueMetadata(k, kv.Values()[i]); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Write(rec); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			alloc := &largest{Allocator: memory.NewGoAllocator()}
			err = readBytes(t.Context(), out.Bytes(), alloc)
			if size == 3 && err != nil && elem.ID() != arrow.STRUCT || size > 3 && fault.CodeOf(err) != fault.Unsupported {
				t.Errorf("%v: %v", stored.Field(0).Type, err)
			}
			if size > 3 && alloc.n > 1<<20 {
				t.Errorf("%v: %d bytes were allocated", stored.Field(0).Type, alloc.n)
			}
			rec.Release()
			rb.Release()
		}
	}
}
