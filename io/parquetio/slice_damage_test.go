package parquetio

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// TestDamageSeenAlike: of a damaged file every way to read it gives the rows that plain reading gives, or an error that says Corrupt or
// Unsupported; where plain reading fails, they do, too, and each of them reads some files to their end and fails on others.
func TestDamageSeenAlike(t *testing.T) {
	const rows = 12_000
	fs := []arrow.Field{{Name: "d", Type: &arrow.Decimal128Type{Precision: 38}, Nullable: true}, {Name: "few", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "list", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true}}
	rec := rowsOf(fs, rows, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		for i := range fs {
			if i == 1 {
				b.Field(i).(*array.StringBuilder).Append(fmt.Sprint("value", rng.IntN(50)))
			} else {
				appendRandom(rng, b.Field(i), true, 3, 1000)
			}
		}
	})
	defer rec.Release()
	var errs, oks, alone [3]int // of each reader; alone: it fails where plain reading does not
	for _, v2 := range []bool{false, true} {
		var file bytes.Buffer
		fileLayout{v2: v2, index: true, codec: compress.Codecs.Uncompressed, page: 1 << 30}.write(t, &file, rec)
		f, err := readFooter(t.Context(), bytesBlob(file.Bytes()), make([]byte, tailBytes), new(schemaCache))
		if err != nil {
			t.Fatal(err)
		}
		end := f.group(0).chunks[3].start + f.group(0).chunks[3].size
		for seed := range uint64(60) {
			rng := rand.New(rand.NewPCG(seed, 11))
			data := bytes.Clone(file.Bytes())
			for range 1 + rng.IntN(2) {
				at := 4 + rng.Int64N(end-4)
				if c := &f.group(0).chunks[rng.IntN(4)]; rng.IntN(3) > 0 { // header, levels, first values
					at = c.start + rng.Int64N(int64(20)<<rng.IntN(10))
				}
				data[at] ^= byte(1) << rng.IntN(8)
			}
			path := filepath.Join(t.TempDir(), "f.parquet")
			if err := os.WriteFile(path, data, 0o600); err != nil {
				t.Fatal(err)
			}
			type result struct {
				cols []arrow.Array
				err  error
			}
			read := func(p string, dict bool, o driver.ScanOptions) (r result) {
				tab, err := open(t, &Options{Dictionary: Dictionary{All: dict}}, p)
				if err != nil {
					return result{err: err}
				}
				defer tab.Close()
				o.Alloc = memtest.New(t)
				var parts [4][]arrow.Array
				rd, err := tab.Open(t.Context(), 0, &o)
				for err == nil {
					var b driver.Batch
					if b, err = rd.Next(t.Context()); err == nil {
						for i, c := range b.Record.Columns() {
							parts[i] = append(parts[i], undone(t, c))
						}
						b.Record.Release()
					}
					if rng.IntN(4) == 0 {
						rd.(driver.Rester).Shrink()
					}
				}
				if rd != nil {
					rd.Close()
				}
				if r.err = err; err == io.EOF {
					r.err = nil
				}
				for _, p := range parts {
					if len(p) > 0 {
						c, err := array.Concatenate(p, memory.DefaultAllocator)
						if err != nil {
							t.Fatal(err)
						}
						r.cols = append(r.cols, c)
						releaseAll(p)
					}
				}
				return r
			}
			plain := read(path, false, driver.ScanOptions{})
			remote := bucketFile(t, path)
			for i, other := range []result{
				read(path, true, driver.ScanOptions{BatchRows: 700}),
				read(remote, false, driver.ScanOptions{BatchRows: 700, AheadBytes: 1}),
				read(remote, true, driver.ScanOptions{BatchRows: 5000, AheadBytes: 1}),
			} {
				name := fmt.Sprintf("v2 %t, seed %d, reader %d", v2, seed, i)
				if other.err == nil && plain.err != nil { // the other way round some see damage that others pass over
					t.Errorf("%s: all is read; of the local file %v", name, plain.err)
				}
				if c := fault.CodeOf(other.err); other.err != nil && c != fault.Corrupt && c != fault.Unsupported {
					t.Errorf("%s: %v", name, other.err)
				}
				if other.err != nil && plain.err == nil {
					alone[i]++
				}
				if other.err != nil {
					errs[i]++
				} else {
					oks[i]++
				}
				if other.err == nil && plain.err == nil && len(other.cols) != len(plain.cols) {
					t.Errorf("%s: %d columns, want %d", name, len(other.cols), len(plain.cols))
				}
				for k := range min(len(plain.cols), len(other.cols)) {
					if rows := other.cols[k].Len(); other.err == nil && plain.err == nil && rows != plain.cols[k].Len() {
						t.Errorf("%s: %s has %d rows, want %d", name, fs[k].Name, rows, plain.cols[k].Len())
					}
					n := int64(min(plain.cols[k].Len(), other.cols[k].Len()))
					if !array.SliceEqual(plain.cols[k], 0, n, other.cols[k], 0, n) {
						t.Errorf("%s: %s differs in the first %d rows", name, fs[k].Name, n)
					}
				}
			}
		}
	}
	t.Logf("%d errors, %d of them alone, %d readable", errs, alone, oks)
	for i := range errs {
		if min(errs[i], oks[i]) == 0 || alone[i] > 12 {
			t.Errorf("reader %d: the test does not test, or the reader takes for damage what is none", i)
		}
	}
}
