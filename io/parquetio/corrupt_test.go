package parquetio

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

var damageSeeds = flag.Int("damage", 40, "seeds of TestDamage per file")

// bytesBlob is a file in memory.
type bytesBlob []byte

func (b bytesBlob) Size() int64 { return int64(len(b)) }

func (b bytesBlob) ReadAt(_ context.Context, p []byte, off int64) (int, error) {
	return bytes.NewReader(b).ReadAt(p, off)
}

// readBytes reads a file of the given bytes, all rows and columns, and then again with a predicate on
// the first column; all that also with columns as dictionaries. The error is the first.
func readBytes(ctx context.Context, b []byte, alloc memory.Allocator) error {
	in := &input{blob: bytesBlob(b)}
	f, err := readFooter(ctx, in, make([]byte, tailBytes), new(schemaCache))
	if err != nil {
		return err
	}
	err = readFile(ctx, in, f, f.schema, alloc)
	if err2 := readFile(ctx, in, f, allDictionaries(f.schema), alloc); err == nil {
		err = err2
	}
	return err
}

func readFile(ctx context.Context, in *input, f *footer, s *fileSchema, alloc memory.Allocator) error {
	for g := range f.groups {
		for try := range 2 {
			o := (&driver.ScanOptions{Alloc: alloc, BatchRows: 1000}).WithDefaults()
			c := scan{in: in, s: s, g: f.group(g), o: o}
			for i := range f.schema.fields {
				if f.schema.arrow.Field(i).Type.ID() != arrow.EXTENSION { // tables refuse the others
					c.fields = append(c.fields, i)
				}
			}
			if try == 1 && len(c.fields) > 0 && c.fields[0] == 0 {
				c.o.FromRow = f.groups[g].rows / 2
				c.terms = driver.Predicate{{Column: f.schema.arrow.Field(0).Name, Op: driver.Ge, Values: []any{int64(5)}}}
				if _, err := c.s.bloomExcludes(ctx, in, c.g, driver.Predicate{{Column: f.schema.arrow.Field(0).Name, Op: driver.Eq, Values: []any{int64(5)}}}); err != nil {
					return err
				}
			}
			if err := readGroup(ctx, c); err != nil {
				return err
			}
		}
	}
	return nil
}

func readGroup(ctx context.Context, c scan) error {
	r, err := newReader(ctx, c)
	if err != nil {
		return err
	}
	defer r.Close()
	for rows := 0; rows < 1<<20; { // what claims more would be read for ever
		b, err := r.Next(ctx)
		if err != nil {
			if err == io.EOF {
				return nil
			}
			return err
		}
		rows += int(b.Record.NumRows())
		b.Record.Release()
	}
	return nil
}

// smallFiles are files under limit bytes of the shared test data and of this
// package.
func smallFiles(t testing.TB, limit int64) map[string][]byte {
	out := map[string][]byte{}
	for _, dir := range []string{datatest.Dir(t, "parquet-testing", "data"), "testdata", filepath.Join("testdata", "odd")} {
		paths, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
		if err != nil {
			t.Fatal(err)
		}
		for _, p := range paths {
			if fi, err := os.Stat(p); err != nil || fi.Size() > limit || strings.Contains(p, "large_string_map") {
				continue
			}
			b, err := os.ReadFile(p)
			if err != nil {
				t.Fatal(err)
			}
			out[filepath.Base(p)] = b
		}
	}
	return out
}

// damage changes b at a few places.
func damage(rng *rand.Rand, b []byte) []byte {
	b = bytes.Clone(b)
	switch rng.IntN(8) {
	case 0:
		return b[:rng.IntN(len(b))]
	case 1: // the end stays
		at, n := rng.IntN(len(b)), rng.IntN(64)
		return append(b[:at], b[min(at+n, len(b)):]...)
	}
	for range 1 + rng.IntN(3) {
		at := rng.IntN(len(b))
		if rng.IntN(2) == 0 { // in the footer
			at = len(b) - 1 - rng.IntN(min(len(b), 600))
		}
		switch rng.IntN(3) {
		case 0:
			b[at] ^= 1 << rng.IntN(8)
		case 1:
			b[at] = byte(rng.IntN(256))
		case 2:
			b[at] = []byte{0, 0x7f, 0x80, 0xff}[rng.IntN(4)]
		}
	}
	return b
}

// TestDamage: files with bytes changed or missing give rows or an error with a
// code; they do not panic, hang, leak or take memory without bound.
func TestDamage(t *testing.T) {
	files := smallFiles(t, 20<<10)
	var worst uint64
	var worstName string
	errs, oks := 0, 0
	for name, b := range files {
		for seed := range uint64(*damageSeeds) {
			rng := rand.New(rand.NewPCG(seed, uint64(len(b))))
			bad := damage(rng, b)
			where := fmt.Sprintf("%s, seed %d", name, seed)
			alloc := memtest.New(t)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := func() error {
				defer func() {
					if p := recover(); p != nil {
						buf := make([]byte, 8<<10)
						t.Errorf("%s: panic: %v\n%s", where, p, buf[:runtime.Stack(buf, false)])
					}
				}()
				return readBytes(ctx, bad, alloc)
			}()
			cancel()
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > worst {
				worst, worstName = n, where
			}
			switch c := fault.CodeOf(err); {
			case err == nil:
				oks++
			case c != fault.Corrupt && c != fault.Unsupported && c != fault.RowError || insideText(err) != "":
				t.Errorf("%s: error %v of code %v", where, err, c)
			default:
				errs++
			}
			alloc.AssertSize(t, 0)
		}
	}
	t.Logf("%d files: %d errors, %d readable; at most %d MiB allocated (%s)", len(files), errs, oks, worst>>20, worstName)
	if worst > 16<<20 { // 1 MiB is seen
		t.Errorf("%d MiB were allocated for %s", worst>>20, worstName)
	}
}

func FuzzRead(f *testing.F) {
	for seed := range uint64(6) { // a corpus that needs no shared data
		rng := rand.New(rand.NewPCG(seed, 7))
		rec := propRows(rng, 12)
		cols := rng.Perm(int(rec.NumCols()))[:3]
		path := filepath.Join(f.TempDir(), "seed.parquet")
		part := pickColumns(rec, cols)
		writeVariant(f, path, rng, part)
		part.Release()
		rec.Release()
		b, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		if len(b) < 4<<10 {
			f.Add(b)
		}
	}
	if _, err := os.Stat("../../../shared/testdata"); err == nil {
		for _, b := range smallFiles(f, 4<<10) {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		err := readBytes(t.Context(), b, memtest.New(t))
		if c := fault.CodeOf(err); err != nil && (c != fault.Corrupt && c != fault.Unsupported && c != fault.RowError || insideText(err) != "") {
			t.Errorf("error %v of code %v", err, c)
		}
	})
}

func pickColumns(rec arrow.RecordBatch, cols []int) arrow.RecordBatch {
	var fields []arrow.Field
	var arrs []arrow.Array
	for _, c := range cols {
		fields = append(fields, rec.Schema().Field(c))
		arrs = append(arrs, rec.Column(c))
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), arrs, rec.NumRows())
}

// A chunk that lies where the file has no data is an error of who reads it alone, also where a filter judges it.
func TestChunkWithoutData(t *testing.T) {
	f := handFile{columns: []handColumn{
		{name: "a", physical: pInt32, pages: [][]*string{le32(1, 2, 3)}},
		{name: "b", physical: pInt32, pages: [][]*string{le32(4, 5, 6)}, away: 1 << 40}}}
	tab := mustOpen(t, nil, f.write(t))
	read := func(o driver.ScanOptions) (rows int64, err error) {
		o.Alloc = memtest.New(t)
		err = readAll(t.Context(), tab, 0, &o, func(b driver.Batch) { rows += b.Record.NumRows() })
		return rows, err
	}
	if rows, err := read(driver.ScanOptions{Columns: []string{"a"}}); rows != 3 || err != nil {
		t.Errorf("%d rows, %v", rows, err)
	}
	for _, o := range []driver.ScanOptions{{}, {Columns: []string{"b"}},
		{Columns: []string{"a", "b"}, Predicate: driver.Predicate{{Column: "b", Op: driver.Gt, Values: []any{int64(4)}}}}} {
		if _, err := read(o); fault.CodeOf(err) != fault.Corrupt || fault.PlaceOf(err).Column != "b" || !strings.Contains(err.Error(), "has no data") {
			t.Errorf("%v: %v", o.Columns, err)
		}
	}
}
