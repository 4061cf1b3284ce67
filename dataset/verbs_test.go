package dataset_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/ops"
)

// TestEntriesSeeInput: every entry of with_columns sees the columns as they were before the step, and those after it as they are then, whichever rules merge steps.
func TestEntriesSeeInput(t *testing.T) {
	for name, c := range map[string]struct {
		ds   *dataset.Dataset
		want []string
	}{
		"once":          {dataset.Range(2).WithColumns("id = id + 100", "z = id"), []string{"id=100 z=0 ", "id=101 z=1 "}},
		"twice":         {dataset.Range(2).WithColumns("id = id + 100", "z = id").WithColumns("id = z", "z = id"), []string{"id=0 z=100 ", "id=1 z=101 "}},
		"thrice":        {dataset.Range(2).WithColumns("z = id", "id = id + 100").WithColumns("id = z", "z = id").WithColumns("z = id", "y = z"), []string{"id=0 z=0 y=100 ", "id=1 z=1 y=101 "}},
		"then select":   {dataset.Range(2).WithColumns("id = id + 100", "z = id").Select("z", "id"), []string{"z=0 id=100 ", "z=1 id=101 "}},
		"after select":  {dataset.Range(2).WithColumns("z = id + 7").Select("z", "id").WithColumns("z = id", "id = z"), []string{"z=0 id=7 ", "z=1 id=8 "}},
		"behind rename": {dataset.Range(2).WithColumns("z = id + 7").Rename(map[string]string{"id": "z", "z": "id"}).WithColumns("z = id", "id = z"), []string{"z=7 id=0 ", "z=8 id=1 "}},
	} {
		for _, off := range [][]string{nil, ops.RuleNames()} {
			if got, err := rowsOf(c.ds, dataset.RunOptions{NoRules: off}); err != nil || !slices.Equal(got, c.want) {
				t.Errorf("%s without the rules %v: %q, want %q, %v", name, off, got, c.want, err)
			}
		}
	}
}

// TestVerbsChangeNothing: a dataset is the same, whatever was made of it: two continuations of it by each verb, with other arguments, see neither each other nor it.
func TestVerbsChangeNothing(t *testing.T) {
	pass := func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) { in.Retain(); return in, nil }
	twice := func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, []int32, error) {
		in.Retain()
		parents := make([]int32, in.NumRows())
		for i := range parents {
			parents[i] = int32(i)
		}
		return in, parents, nil
	}
	base := dataset.Range(30).WithColumns("a = id % 7", `l = split(string(id), "1")`).Filter("a != 3").Select("id", "a", "l")
	defer base.Close()
	look := func(d *dataset.Dataset) string {
		plan, err := d.Explain(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		rows, err := rowsOf(d, dataset.RunOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return plan + strings.Join(rows, "\n")
	}
	before := look(base)
	for verb, f := range map[string]func(d *dataset.Dataset, k int) *dataset.Dataset{
		"filter":       func(d *dataset.Dataset, k int) *dataset.Dataset { return d.Filter(fmt.Sprintf("a > %d", k)) },
		"with_columns": func(d *dataset.Dataset, k int) *dataset.Dataset { return d.WithColumns(fmt.Sprintf("b = a + %d", k)) },
		"select":       func(d *dataset.Dataset, k int) *dataset.Dataset { return d.Select([]string{"id", "a"}[k]) },
		"drop":         func(d *dataset.Dataset, k int) *dataset.Dataset { return d.Drop([]string{"id", "a"}[k]) },
		"rename": func(d *dataset.Dataset, k int) *dataset.Dataset {
			return d.Rename(map[string]string{"a": fmt.Sprint("b", k)})
		},
		"cast": func(d *dataset.Dataset, k int) *dataset.Dataset {
			return d.Cast(map[string]string{"a": []string{"int8", "string"}[k]})
		},
		"limit": func(d *dataset.Dataset, k int) *dataset.Dataset { return d.Limit(int64(5 + k)) },
		"explode": func(d *dataset.Dataset, k int) *dataset.Dataset {
			return d.WithColumns(fmt.Sprintf("m = slice(l, %d)", k)).Explode("m")
		},
		"sample": func(d *dataset.Dataset, k int) *dataset.Dataset { return d.Sample(0.5, uint64(k)) },
		"split": func(d *dataset.Dataset, k int) *dataset.Dataset {
			return d.Split(dataset.SplitOptions{Fractions: []float64{0.5, 0.5}})[k]
		},
		"union": func(d *dataset.Dataset, k int) *dataset.Dataset {
			return d.Union(slices.Repeat([]*dataset.Dataset{d}, k+1)...)
		},
		"on_error": func(d *dataset.Dataset, k int) *dataset.Dataset {
			return d.WithColumns("b = a / (a - 2)").OnError(ops.OnError{Policy: []string{"skip", "retry"}[k], Retries: k})
		},
		"map": func(d *dataset.Dataset, k int) *dataset.Dataset { return d.MapBatches(pass, nil).Limit(int64(5 + k)) },
		"flat_map": func(d *dataset.Dataset, k int) *dataset.Dataset {
			return d.FlatMapBatches(twice, nil).Limit(int64(5 + k))
		},
		"exec": func(d *dataset.Dataset, k int) *dataset.Dataset {
			return d.Exec(dataset.ExecOptions{Command: []string{"cat"}, Workers: 1 + k})
		},
	} {
		one := f(base, 0)
		first := look(one)
		other := f(base, 1)
		if second := look(other); second == first {
			t.Errorf("%s: two continuations are the same: %s", verb, second)
		}
		if again := look(one); again != first {
			t.Errorf("%s: another continuation changed the first:\n%s\nwas\n%s", verb, again, first)
		}
		for _, d := range []*dataset.Dataset{base, base.Refresh()} { // as it was looked up, and as it is written
			if now := look(d); now != before {
				t.Errorf("%s changed what it was called on:\n%s\nwas\n%s", verb, now, before)
			}
		}
	}
}
