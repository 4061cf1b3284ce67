package parquetio

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// judged are samples with columns to be filtered by: k counts up, the others are random, with nulls.
func judged(rng *rand.Rand, rows int) arrow.RecordBatch {
	fields := []arrow.Field{
		{Name: "k", Type: arrow.PrimitiveTypes.Int64},
		{Name: "s", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
		{Name: "f", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "flag", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
		{Name: "word", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "u", Type: arrow.PrimitiveTypes.Uint64},
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	b.Reserve(rows)
	for r := range rows {
		b.Field(0).(*array.Int64Builder).Append(int64(r) - 100)
		b.Field(5).(*array.Uint64Builder).Append(rng.Uint64() >> rng.IntN(64))
		if rng.IntN(10) == 0 {
			for i := 1; i < 5; i++ {
				b.Field(i).AppendNull()
			}
			continue
		}
		b.Field(1).(*array.Int32Builder).Append(rng.Int32N(1000) - 500)
		f := float64(rng.IntN(1000))
		if rng.IntN(20) == 0 {
			f = math.NaN()
		}
		b.Field(2).(*array.Float64Builder).Append(f)
		b.Field(3).(*array.BooleanBuilder).Append(rng.IntN(2) == 0)
		b.Field(4).(*array.StringBuilder).Append(fmt.Sprintf("w%0*d", rng.IntN(3)*3, rng.IntN(1000)))
	}
	first := b.NewRecordBatch()
	defer first.Release()
	more := samples(rows)
	defer more.Release()
	return array.NewRecordBatch(arrow.NewSchema(append(fields, more.Schema().Fields()...), nil),
		append(slices.Clone(first.Columns()), more.Columns()...), int64(rows))
}

// judgeBy is a predicate that holds for about share of the rows, beside nulls.
func judgeBy(rng *rand.Rand, share float64, rows int) (p driver.Predicate) {
	term := func(c string, op driver.Op, v ...any) { p = append(p, driver.Term{Column: c, Op: op, Values: v}) }
	switch rng.IntN(8) {
	case 0, 1: // clustered
		from := rng.IntN(rows)
		term("k", driver.Ge, int64(from-100))
		term("k", driver.Lt, int64(from-100+int(share*float64(rows))))
	case 2:
		term("s", driver.Lt, int64(share*1000)-500)
	case 3:
		term("f", driver.Ge, 1000*(1-share))
	case 4:
		term("word", []driver.Op{driver.Lt, driver.Gt, driver.Le, driver.Ge}[rng.IntN(4)], fmt.Sprintf("w%d", int(share*1000)))
	case 5:
		term("u", driver.Gt, uint64(math.MaxUint64*(1-share)*0.999))
	case 6:
		var in []any
		for range int(share * 100) {
			in = append(in, int64(rng.IntN(1000)-500))
		}
		term("s", driver.In, append(in, int64(3))...)
	case 7:
		term("word", driver.In, "w1", "w002", "w000003")
	}
	for range rng.IntN(2) {
		switch rng.IntN(6) {
		case 0:
			term("flag", driver.Eq, rng.IntN(2) == 0)
		case 1:
			term("f", driver.Ne, float64(rng.IntN(1000)))
		case 2:
			term("x", driver.IsNull)
		case 3:
			term("text", driver.NotNull)
		case 4:
			term("word", driver.Ne, "w7")
		case 5:
			term("f", driver.Eq, math.NaN())
		}
	}
	return p
}

// TestLateEqualsFilter: rows that match are those that match without a predicate, at their places, whatever
// is cut; batches are the same however much may be read ahead; and rows are cut.
func TestLateEqualsFilter(t *testing.T) {
	const rows = 20_000
	var cut, all int64
	sparse := false
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 77))
		rec := judged(rng, rows)
		l := fileLayout{index: seed%2 == 0, v2: seed%3 == 0, codec: compress.Codecs.Snappy, page: 1 << (9 + rng.IntN(12))}
		path := filepath.Join(t.TempDir(), "f.parquet")
		f, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		l.write(t, f, rec)
		f.Close()
		tab := mustOpen(t, nil, path)
		for try := range 16 {
			p := judgeBy(rng, []float64{0, 0.001, 0.01, 0.5, 1}[rng.IntN(5)], rows)
			match := make([]bool, rows)
			for r := range match {
				match[r] = true
				for k := range p {
					match[r] = match[r] && holds(&p[k], rec.Column(rec.Schema().FieldIndices(p[k].Column)[0]), r)
				}
			}
			o := driver.ScanOptions{Predicate: p, BatchRows: []int{100, 1000, 16384}[rng.IntN(3)], Alloc: memtest.New(t)}
			if rng.IntN(3) == 0 {
				o.BatchBytes = 20_000
			}
			if rng.IntN(3) == 0 {
				o.FromRow = rng.Int64N(rows)
			}
			if rng.IntN(3) > 0 {
				o.Columns = []string{}
				for _, i := range rng.Perm(int(rec.NumCols()))[:1+rng.IntN(6)] {
					o.Columns = append(o.Columns, rec.ColumnName(i))
				}
			}
			o.Gaps = rng.IntN(3) > 0
			name := fmt.Sprintf("seed %d, try %d: %v, columns %q where %v from %d, batches of %d rows, %d bytes, gaps %t",
				seed, try, l, o.Columns, p, o.FromRow, o.BatchRows, o.BatchBytes, o.Gaps)
			var before []int64
			for _, ahead := range []int64{0, 1} {
				o.Stats, o.AheadBytes = new(driver.ScanStats), ahead
				var cuts []int64
				got := make([]bool, rows)
				err := readAll(t.Context(), tab, 0, &o, func(b driver.Batch) {
					n := b.Record.NumRows()
					cuts = append(cuts, b.Row, n, b.End())
					if b.Rows != nil && (!o.Gaps || int64(len(b.Rows)) != n || b.Row != b.Rows[0]) {
						t.Fatalf("%s: %d rows from %d at %v", name, n, b.Row, b.Rows)
					}
					sparse = sparse || b.Rows != nil
					for from := int64(0); from < n; { // rows that follow each other
						to := from + 1
						for b.Rows == nil && to < n || to < n && b.Rows[to] == b.Rows[to-1]+1 {
							to++
						}
						run := b.Slice(from, to)
						for i, c := range run.Record.Columns() {
							whole := rec.Column(rec.Schema().FieldIndices(b.Record.ColumnName(i))[0])
							want := array.NewSlice(whole, run.Row, run.Row+to-from)
							if !array.ApproxEqual(c, want, array.WithNaNsEqual(true)) {
								t.Fatalf("%s: rows [%d, +%d) of %s differ", name, run.Row, to-from, b.Record.ColumnName(i))
							}
							want.Release()
						}
						for r := run.Row; r < run.Row+to-from; r++ {
							if got[r] {
								t.Fatalf("%s: row %d twice", name, r)
							}
							got[r] = true
						}
						run.Record.Release()
						from = to
					}
				})
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				for r := o.FromRow; r < rows; r++ {
					if match[r] && !got[r] {
						t.Fatalf("%s: row %d is missing", name, r)
					}
				}
				if s := o.Stats; s.Rows.Load()+s.Pruned.Load() != rows-o.FromRow {
					t.Fatalf("%s: %d rows, %d pruned of %d", name, s.Rows.Load(), s.Pruned.Load(), rows-o.FromRow)
				}
				if ahead > 0 && !slices.Equal(cuts, before) {
					t.Fatalf("%s: other batches if little is read ahead: %v, %v", name, before, cuts)
				}
				before = cuts
				cut += o.Stats.Pruned.Load()
				all += rows - o.FromRow
			}
		}
		rec.Release()
	}
	t.Logf("%d of %d rows cut", cut, all)
	if cut < all/4 || !sparse {
		t.Error("few rows are cut: the test does not test")
	}
}

// TestLatePages: of 1 % of the rows, side by side, without a page index, the pages of the other
// columns are not decompressed, and a predicate without a match decompresses only those of its column.
func TestLatePages(t *testing.T) {
	const rows = 200_000
	rec := samples(rows)
	defer rec.Release()
	kb := array.NewInt64Builder(memory.DefaultAllocator)
	defer kb.Release()
	for r := range int64(rows) {
		kb.Append(2 * r)
	}
	k := kb.NewArray()
	defer k.Release()
	rec = array.NewRecordBatch(arrow.NewSchema(append([]arrow.Field{{Name: "k", Type: k.DataType()}}, rec.Schema().Fields()...), nil),
		append([]arrow.Array{k}, rec.Columns()...), rows)
	defer rec.Release()
	for _, v2 := range []bool{false, true} {
		var b bytes.Buffer
		fileLayout{v2: v2, codec: compress.Codecs.Snappy, page: 16 << 10}.write(t, &b, rec)
		path := filepath.Join(t.TempDir(), "f.parquet")
		if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		tab := mustOpen(t, nil, path)
		pages := func(p driver.Predicate, columns ...string) (pages, found int64) {
			r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{Predicate: p, Columns: columns, BatchRows: 1000, Alloc: memtest.New(t)})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			for {
				b, err := r.Next(t.Context())
				if err == io.EOF {
					return r.(*reader).dec.pages, found
				}
				if err != nil {
					t.Fatal(err)
				}
				found += b.Record.NumRows()
				b.Record.Release()
			}
		}
		flat := []string{"id", "x", "label", "text", "pair"}
		all, _ := pages(nil, flat...)
		own, _ := pages(nil, "k")
		none, found := pages(driver.Predicate{{Column: "k", Op: driver.Eq, Values: []any{int64(1)}}}, flat...)
		if found != 0 || none > own {
			t.Errorf("v2=%t: no match: %d pages, %d rows; the column has %d pages", v2, none, found, own)
		}
		some, found := pages(driver.Predicate{{Column: "k", Op: driver.Ge, Values: []any{int64(rows)}}, {Column: "k", Op: driver.Lt, Values: []any{int64(rows + 2*rows/100)}}}, flat...)
		if found < rows/100 || found > rows/50 || some-own > all/25 {
			t.Errorf("v2=%t: 1 %% match: %d pages besides %d, of %d; %d rows", v2, some-own, own, all, found)
		}
		t.Logf("v2=%t: %d pages of all columns, %d of k; no match %d, 1 %% %d", v2, all, own, none, some)
	}
}

// Of a page of a remote file that is read in slices, rows are chosen slice by slice, also by batches with more rows than a slice has.
func TestChosenOfSlices(t *testing.T) {
	const rows = 100_000
	for _, nulls := range []bool{false, true} {
		for _, index := range []bool{false, true} {
			fs := []arrow.Field{{Name: "s", Type: arrow.PrimitiveTypes.Int64}, {Name: "x", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}
			rec := rowsOf(fs, rows, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
				b.Field(0).(*array.Int64Builder).Append(rng.Int64N(1000) * min(int64(r), 1)) // the first row passes: its page is opened as it is read
				if nulls && r%7 == 0 {
					b.Field(1).AppendNull()
				} else {
					b.Field(1).(*array.Int64Builder).Append(int64(r))
				}
			})
			defer rec.Release()
			path := filepath.Join(t.TempDir(), "f.parquet")
			f, err := os.Create(path)
			if err != nil {
				t.Fatal(err)
			}
			fileLayout{index: index, codec: compress.Codecs.Uncompressed, page: 1 << 30}.write(t, f, rec) // closes it
			want := 0
			for _, v := range rec.Column(0).(*array.Int64).Int64Values() {
				if v < 500 {
					want++
				}
			}
			tab := mustOpen(t, nil, bucketFile(t, path))
			for _, batch := range []int{4096, 16384, 65536} {
				for _, from := range []int64{0, 33_333} {
					o := driver.ScanOptions{Alloc: memtest.New(t), Predicate: between("s", 0, 500), BatchRows: batch, AheadBytes: 1 << 17, FromRow: from, Gaps: true, Stats: new(driver.ScanStats)}
					n := 0
					err := readAll(t.Context(), tab, 0, &o, func(b driver.Batch) {
						for i := range b.Record.NumRows() {
							row := b.Row + i
							if b.Rows != nil {
								row = b.Rows[i]
							}
							if s := b.Record.Column(0).(*array.Int64).Value(int(i)); s != rec.Column(0).(*array.Int64).Value(int(row)) {
								t.Fatalf("row %d: s is %d", row, s)
							} else if s < 500 {
								n++
							}
							x, is := b.Record.Column(1).(*array.Int64), rec.Column(1).(*array.Int64)
							if x.IsNull(int(i)) != is.IsNull(int(row)) || x.IsValid(int(i)) && x.Value(int(i)) != row {
								t.Fatalf("row %d: x is %s", row, x.ValueStr(int(i)))
							}
						}
					})
					if err != nil || from == 0 && n != want {
						t.Errorf("nulls %t, index %t, batches of %d, from row %d: %d rows, want %d: %v", nulls, index, batch, from, n, want, err)
					}
				}
			}
		}
	}
}
