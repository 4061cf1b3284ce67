package ipcio

import (
	"bytes"
	"context"
	"errors"
	"io"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
)

// readBytes decodes all of b and touches every value that it gives out.
func readBytes(t *testing.T, b []byte) (rows int64, err error) {
	alloc := memtest.New(t)
	ctx := context.Background()
	open := func() *raw {
		m := append([]byte(nil), b...)
		return &raw{st: new(driver.ScanStats), size: int64(len(m)), mapped: m, owner: newOwner(func() { clear(m) })}
	}
	r := open()
	f, err := learn(ctx, r, 1)
	r.close()
	if err != nil {
		return 0, err
	}
	f.as(func(_ string, t arrow.DataType) arrow.DataType { return t })
	frames := len(f.frames)
	if f.stream {
		frames = 1
	}
	for k := range frames {
		rd := &reader{f: f, frameNo: k, o: (&driver.ScanOptions{Alloc: alloc, BatchRows: 64}).WithDefaults(), left: 4096, raw: open()}
		readable := []string{} // nil would mean all
		for _, c := range f.plain.Fields() {
			if _, odd := c.Type.(*driver.Unreadable); !odd {
				readable = append(readable, c.Name)
			}
		}
		rd.idx, rd.schema, err = cut.Columns(f.plain, readable)
		if err != nil {
			t.Fatal(err)
		}
		rd.start()
		for {
			var rec arrow.RecordBatch
			if rec, _, err = rd.next(ctx, new(fileset.BadRows)); err != nil {
				break
			}
			rows += rec.NumRows()
			for _, c := range rec.Columns() {
				if c.Len() != int(rec.NumRows()) {
					t.Fatalf("a column of %d rows in a batch of %d", c.Len(), rec.NumRows())
				}
				for i := range c.Len() {
					_ = c.ValueStr(i)
				}
				if v, ok := c.(interface{ ValidateFull() error }); ok {
					if err := v.ValidateFull(); err != nil && c.DataType().ID() != arrow.STRING && c.DataType().ID() != arrow.LARGE_STRING {
						t.Fatalf("an invalid column of %v: %v", c.DataType(), err)
					}
				}
			}
			rec.Release()
		}
		rd.Close()
		if n := alloc.CurrentAlloc(); n != 0 {
			t.Fatalf("%d bytes leak after %v", n, err)
		}
		if err != io.EOF {
			return rows, err
		}
	}
	return rows, nil
}

func seeds(t testing.TB, layout string) (out [][]byte) {
	rec := drivertest.Records(drivertest.Schema(), 1, 0, 5)
	defer rec.Release()
	dict := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Uint8, ValueType: arrow.BinaryTypes.String}
	nested := arrow.NewSchema([]arrow.Field{
		{Name: "d", Type: dict, Nullable: true},
		{Name: "l", Type: arrow.ListOf(dict), Nullable: true},
		{Name: "v", Type: arrow.BinaryTypes.StringView, Nullable: true},
		{Name: "f", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int8), Nullable: true},
		{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64), Nullable: true},
		{Name: "n", Type: arrow.Null, Nullable: true},
		{Name: "ls", Type: arrow.BinaryTypes.LargeString, Nullable: true},
	}, nil)
	small, _, err := array.RecordFromJSON(memory.DefaultAllocator, nested, bytes.NewReader([]byte(
		`[{"d":"x","l":["a","b"],"v":"a text of more than twelve bytes","f":[1,2],"m":[{"key":"k","value":1}],"ls":"y"},{"d":"y","l":[],"v":"s"},{}]`)))
	if err != nil {
		t.Fatal(err)
	}
	defer small.Release()
	for _, r := range []arrow.RecordBatch{rec, small} {
		for _, codec := range []string{"", "zstd", "lz4"} {
			e, err := NewEncoding(&EncodingOptions{Layout: layout, Compression: codec})
			if err != nil {
				t.Fatal(err)
			}
			var b bytes.Buffer
			w, err := e.NewEncoder(&b, r.Schema(), memory.DefaultAllocator)
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := w.Write(r); err != nil {
					t.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			out = append(out, b.Bytes())
		}
	}
	return out
}

func fuzz(f *testing.F, layout string) {
	for _, b := range append(seeds(f, layout), foreign(f, layout == "stream")...) {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		_, err := readBytes(t, b)
		isOurs(t, err)
	})
}

// isOurs checks that an error is one of ours, and no panic of a decoder was behind it.
func isOurs(t *testing.T, err error) {
	t.Helper()
	if err != nil && fault.CodeOf(err) == fault.Unknown {
		t.Errorf("an error without a code: %v", err)
	}
	if u, ok := errors.AsType[unforeseen](err); ok {
		t.Errorf("a panic: %v", u)
	}
}

func FuzzFile(f *testing.F)   { fuzz(f, "file") }
func FuzzStream(f *testing.F) { fuzz(f, "stream") }

func TestSeedsRead(t *testing.T) {
	for _, layout := range []string{"file", "stream"} {
		for i, b := range seeds(t, layout) {
			want := int64(10)
			if i >= 3 {
				want = 6
			}
			if rows, err := readBytes(t, b); rows != want || err != nil {
				t.Errorf("%s %d: %d rows, %v", layout, i, rows, err)
			}
		}
	}
}

// Every single-byte change of small files is survived.
func TestEveryByte(t *testing.T) {
	for _, layout := range []string{"file", "stream"} {
		for _, b := range append(seeds(t, layout)[3:4], foreign(t, layout == "stream")...) {
			for i := range b {
				old := b[i]
				for _, v := range []byte{b[i] ^ 0x80, 0xff} {
					b[i] = v
					_, err := readBytes(t, b)
					isOurs(t, err)
				}
				b[i] = old
			}
		}
	}
}

// What is claimed is not allocated.
func TestClaims(t *testing.T) {
	c := codecs{}
	defer c.close()
	b := seeds(t, "file")[1]
	alloc := &peak{Allocator: memory.DefaultAllocator}
	frame := append([]byte{0, 0, 0, 0, 1, 0, 0, 0}, b[:100]...) // claims 4 GiB
	if _, err := c.decompress(context.Background(), codecZstd, frame, alloc); fault.CodeOf(err) != fault.Corrupt {
		t.Errorf("got %v", err)
	}
	if alloc.most > 1<<20 {
		t.Errorf("%d bytes were allocated", alloc.most)
	}
	canceled, cancel := context.WithCancelCause(context.Background())
	cancel(errors.New("enough"))
	if _, err := c.decompress(canceled, codecLZ4, frame, alloc); err == nil {
		t.Error("no error after cancel")
	}
}

type peak struct {
	memory.Allocator
	most int
}

func (p *peak) Allocate(n int) []byte { p.most = max(p.most, n); return p.Allocator.Allocate(n) }
func (p *peak) Reallocate(n int, b []byte) []byte {
	p.most = max(p.most, n)
	return p.Allocator.Reallocate(n, b)
}
