package shard_test

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	pqfile "github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// A Parquet file of one row group of a million rows and one of ten, in both orders: every row once in every epoch,
// also where the job stops in the middle and goes on with other ranks.
func TestMillionBesideTen(t *testing.T) {
	const million = 1_000_000
	for name, groups := range map[string][]int{"large first": {million, 10}, "small first": {10, million}} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "a.parquet")
			writeNumbers(t, file, groups)
			all := dataset.ReadParquet(file)
			for _, filter := range []string{"", "id % 3 != 0"} {
				ds, want := all, func(int) bool { return true }
				if filter != "" {
					ds, want = all.Filter(filter), func(id int) bool { return id%3 != 0 }
				}
				o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7}, Options: shard.Options{GlobalBatch: 8192, Tail: shard.TailPad, Epochs: 1,
					Form: shard.Form{Tensors: true}, Shuffle: &shard.Shuffle{Lanes: 16, WindowRows: 4096}}}
				seen := make([]uint8, million+10)
				given := 0
				// read gives up to n steps of all ranks; false at the epoch's end.
				read := func(its []*shard.Iterator, n int) bool {
					for range n {
						for r, it := range its {
							b, err := it.Next(t.Context())
							if err == io.EOF && r == len(its)-1 {
								return false
							}
							if err == io.EOF {
								continue
							}
							if err != nil {
								t.Fatal(err)
							}
							data := b.Tensors()[0].Data // the mask follows
							for i := range b.Real() {
								id := binary.LittleEndian.Uint32(data[4*i:])
								if id >= uint32(len(seen)) {
									t.Fatalf("row %d", id)
								}
								seen[id]++
								given++
							}
							b.Release()
						}
					}
					return true
				}
				its := open(t, ds, 3, o)
				if !read(its, 40) {
					t.Fatal("the epoch ended")
				}
				text, err := json.Marshal(its[1].State())
				if err != nil {
					t.Fatal(err)
				}
				state, err := shard.ParseState(text)
				if err != nil {
					t.Fatal(err)
				}
				if state.Sample != int64(given) || given != 40*8192 {
					t.Errorf("%s: %d samples, the state has %d", filter, given, state.Sample)
				}
				o.State = &state
				if read(open(t, ds, 5, o), 1<<20) {
					t.Fatal("the epoch does not end")
				}
				for id, n := range seen {
					if (n == 1) != want(id) || n > 1 {
						t.Fatalf("%s: row %d came %d times", filter, id, n)
					}
				}
			}
		})
	}
}

// writeNumbers writes a column of int32 that counts from 0, in these row groups.
func writeNumbers(t testing.TB, file string, groups []int) {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int32}}, nil)
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w, err := pqarrow.NewFileWriter(schema, f, parquet.NewWriterProperties(parquet.WithMaxRowGroupLength(1<<30), parquet.WithDictionaryDefault(false)), pqarrow.DefaultWriterProps())
	if err != nil {
		t.Fatal(err)
	}
	id := int32(0)
	for _, n := range groups {
		b := array.NewInt32Builder(memory.DefaultAllocator)
		for range n {
			b.Append(id)
			id++
		}
		col := b.NewArray()
		rec := array.NewRecordBatch(schema, []arrow.Array{col}, int64(n))
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
		rec.Release()
		col.Release()
		b.Release()
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	r, err := pqfile.OpenParquetFile(file, false)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var got []int
	for i := range r.NumRowGroups() {
		got = append(got, int(r.MetaData().RowGroup(i).NumRows()))
	}
	if !slices.Equal(got, groups) {
		t.Fatalf("%s has row groups of %v rows", file, got)
	}
}
