package parquetio

import (
	"cmp"
	"fmt"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/io/driver"
)

// TestFilters filters every column of every shared file, by values that are there, between them and just outside: what a scan with
// the predicate leaves out are rows for which a scan without it shows that it is not true. All filters with PENSTOCK_SOAK=1.
func TestFilters(t *testing.T) {
	f := filters{rng: rand.New(rand.NewPCG(26, 2)), share: 0.2}
	if os.Getenv("PENSTOCK_SOAK") != "" {
		f.share = 1
	}
	dirs := []string{datatest.Dir(t), "testdata"}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(path string, e fs.DirEntry, err error) error {
			if err != nil || e.IsDir() || !strings.HasSuffix(path, ".parquet") {
				return err
			}
			f.file(t, path)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("%d filters over %d files; %d of %d splits are not opened", f.tried, f.files, f.pruned, f.tried)
	if f.files < 60 || f.pruned == 0 {
		t.Error("the filters do not test")
	}
}

// filters counts filters of files.
type filters struct {
	rng                  *rand.Rand
	share                float64 // of the filters that are tried
	files, tried, pruned int
}

// file filters one file, if it can be read.
func (f *filters) file(t *testing.T, path string) {
	t.Helper()
	tab, err := open(t, nil, path)
	if err != nil || driver.CheckReadable(tab.Schema(), nil) != nil {
		return
	}
	defer tab.Close()
	f.table(t, tab, path)
}

// table filters all columns of a table.
func (f *filters) table(t *testing.T, tab driver.Table, path string) {
	t.Helper()
	f.files++
	for i := range tab.Splits() {
		for _, field := range tab.Schema().Fields() {
			var rows []any // of the column; nil: null
			known := true
			err := readAll(t.Context(), tab, i, &driver.ScanOptions{Columns: []string{field.Name}}, func(b driver.Batch) {
				for r := range b.Record.Column(0).Len() {
					v, ok := valueOf(b.Record.Column(0), r)
					rows, known = append(rows, v), known && ok
				}
			})
			if err != nil || !known || f.rng.Float64() > 3*f.share {
				continue
			}
			for _, term := range f.terms(field.Name, rows) {
				if f.rng.Float64() <= f.share {
					f.try(t, tab, i, path, term, rows)
				}
			}
		}
	}
}

// terms are comparisons with values of rows, and with those beside them.
func (f *filters) terms(column string, rows []any) []driver.Term {
	ts := []driver.Term{{Column: column, Op: driver.IsNull}, {Column: column, Op: driver.NotNull}}
	var vals []any
	for _, v := range rows {
		if x, is := v.(float64); v != nil && !(is && math.IsNaN(x)) {
			vals = append(vals, v)
		}
	}
	if len(vals) == 0 {
		return ts
	}
	slices.SortFunc(vals, compareAny)
	lits := []any{vals[0], vals[len(vals)-1], vals[f.rng.IntN(len(vals))], vals[f.rng.IntN(len(vals))]}
	for _, v := range slices.Clone(lits) {
		lits = append(lits, beside(v)...)
	}
	for _, v := range lits {
		for _, op := range []driver.Op{driver.Eq, driver.Ne, driver.Lt, driver.Le, driver.Gt, driver.Ge} {
			ts = append(ts, driver.Term{Column: column, Op: op, Values: []any{v}})
		}
		ts = append(ts, driver.Term{Column: column, Op: driver.In, Values: []any{v, lits[f.rng.IntN(len(lits))]}})
	}
	return ts
}

// try scans a split with a term, whole and with pages alone.
func (f *filters) try(t *testing.T, tab driver.Table, split int, path string, term driver.Term, rows []any) {
	t.Helper()
	f.tried++
	p := driver.Predicate{term}
	got := make([]bool, len(rows))
	o := &driver.ScanOptions{Columns: []string{term.Column}, Predicate: p, Gaps: true}
	err := readAll(t.Context(), tab, split, o, func(b driver.Batch) {
		for k := range b.Record.NumRows() {
			r := b.Row + k
			if b.Rows != nil {
				r = b.Rows[k]
			}
			got[r] = true
		}
	})
	keep, err2 := tab.(driver.Pruner).Keep(t.Context(), p)
	if err != nil || err2 != nil {
		t.Fatalf("%s: split %d where %v: %v, %v", path, split, p, err, err2)
	}
	if !keep[split] {
		f.pruned++
	}
	missing := 0
	for r, v := range rows {
		if (!got[r] || !keep[split]) && trueOf(&term, v) {
			missing++
		}
	}
	if missing > 0 {
		t.Errorf("%s: split %d where %v: %d rows of %d are missing (kept: %t)", filepath.Base(path), split, p, missing, len(rows), keep[split])
	}
}

// trueOf reports whether a term is true of a value.
func trueOf(t *driver.Term, v any) bool {
	switch {
	case t.Op == driver.IsNull:
		return v == nil
	case v == nil:
		return false
	case t.Op == driver.NotNull:
		return true
	case t.Op == driver.In:
		return slices.ContainsFunc(t.Values, func(l any) bool { return v == l })
	}
	if x, is := v.(float64); is && math.IsNaN(x) {
		return t.Op == driver.Ne
	}
	return compared(t.Op, compareAny(v, t.Values[0]))
}

func compareAny(a, b any) int {
	switch a := a.(type) {
	case int64:
		return cmp.Compare(a, b.(int64))
	case uint64:
		return cmp.Compare(a, b.(uint64))
	case float64:
		switch b := b.(float64); {
		case a < b:
			return -1
		case a > b:
			return 1
		}
		return 0
	case string:
		return cmp.Compare(a, b.(string))
	case bool:
		return b2i(a) - b2i(b.(bool))
	}
	panic(fmt.Sprintf("%T", a))
}

// beside are literals next to v.
func beside(v any) []any {
	switch v := v.(type) {
	case int64:
		return []any{v - min(1, v-math.MinInt64), v + min(1, math.MaxInt64-v)}
	case uint64:
		return []any{v - min(1, v), v + min(1, math.MaxUint64-v)}
	case float64:
		return []any{math.Nextafter(v, math.Inf(-1)), math.Nextafter(v, math.Inf(1)), v + 1}
	case string:
		return []any{v + "\x00", v[:len(v)/2], v + "~"}
	case bool:
		return []any{!v}
	}
	return nil
}

// valueOf is a value as predicates have it, nil for null; false for types that have no literals.
func valueOf(a arrow.Array, r int) (any, bool) {
	null := a.IsNull(r)
	switch a := a.(type) {
	case *array.Int8:
		return orNil(null, int64(a.Value(r))), true
	case *array.Int16:
		return orNil(null, int64(a.Value(r))), true
	case *array.Int32:
		return orNil(null, int64(a.Value(r))), true
	case *array.Int64:
		return orNil(null, a.Value(r)), true
	case *array.Date32:
		return orNil(null, int64(a.Value(r))), true
	case *array.Time32:
		return orNil(null, int64(a.Value(r))), true
	case *array.Time64:
		return orNil(null, int64(a.Value(r))), true
	case *array.Timestamp:
		return orNil(null, int64(a.Value(r))), true
	case *array.Duration:
		return orNil(null, int64(a.Value(r))), true
	case *array.Uint8:
		return orNil(null, uint64(a.Value(r))), true
	case *array.Uint16:
		return orNil(null, uint64(a.Value(r))), true
	case *array.Uint32:
		return orNil(null, uint64(a.Value(r))), true
	case *array.Uint64:
		return orNil(null, a.Value(r)), true
	case *array.Float32:
		return orNil(null, float64(a.Value(r))), true
	case *array.Float64:
		return orNil(null, a.Value(r)), true
	case *array.String:
		return orNil(null, strings.Clone(a.Value(r))), true
	case *array.LargeString:
		return orNil(null, strings.Clone(a.Value(r))), true
	case *array.Binary:
		return orNil(null, string(a.Value(r))), true
	case *array.FixedSizeBinary:
		return orNil(null, string(a.Value(r))), true
	case *array.Boolean:
		return orNil(null, a.Value(r)), true
	}
	return nil, false
}

func orNil(null bool, v any) any {
	if null {
		return nil
	}
	return v
}
