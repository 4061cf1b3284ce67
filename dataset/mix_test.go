package dataset_test

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/memio"
	"github.com/penstock-data/penstock/ops"
)

func ExampleMix() {
	ds := dataset.Mix(
		dataset.MixSource{Name: "web", Weight: 3, Data: dataset.Range(1000).Filter("id % 2 == 0")},
		dataset.MixSource{Name: "books", Weight: 1, Data: dataset.Range(10), Repeat: true},
	)
	s, err := ds.Schema(context.Background())
	fmt.Println(s.Field(0).Name, err)
	_, err = ds.Count(context.Background(), nil)
	fmt.Println(err)
	// Output:
	// id <nil>
	// step 2 (mix): mix works on shards and iterators (Shards, Iterator, penstock batches), not in a plain run; use union to concatenate
}

func ExampleDataset_Pack() {
	schema := arrow.NewSchema([]arrow.Field{{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)}}, nil)
	ds := dataset.FromRecords(schema).Pack("tokens", &dataset.PackOptions{Length: 2048, LossMask: true})
	s, err := ds.Schema(context.Background())
	for _, f := range s.Fields() {
		fmt.Println(f.Name, f.Type)
	}
	fmt.Println(err)
	// Output:
	// input_ids fixed_size_list<item: int32>[2048]
	// segment_ids fixed_size_list<item: int32>[2048]
	// position_ids fixed_size_list<item: int32>[2048]
	// loss_mask fixed_size_list<item: uint8>[2048]
	// <nil>
}

// tokens is a source of rows id, t (lists of tokens).
func tokens(t *testing.T, rows int) driver.Source {
	t.Helper()
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "t", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for i := range rows {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.ListBuilder).Append(true)
		b.Field(1).(*array.ListBuilder).ValueBuilder().(*array.Int32Builder).Append(int32(i))
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	src, err := memio.Records(schema, rec)
	if err != nil {
		t.Fatal(err)
	}
	return src
}

// Every call that runs a plan refuses what only shards can run, and says so.
func TestMixIsNotAPlainRun(t *testing.T) {
	ctx := t.Context()
	pack := dataset.Read(tokens(t, 5)).Pack("t", &dataset.PackOptions{Length: 4})
	mix := dataset.Mix(dataset.MixSource{Name: "a", Weight: 1, Data: dataset.Range(5)}, dataset.MixSource{Name: "b", Weight: 1, Data: dataset.Range(5)})
	calls := map[string]func(*dataset.Dataset) error{
		"Count":   func(d *dataset.Dataset) error { _, err := d.Count(ctx, nil); return err },
		"Take":    func(d *dataset.Dataset) error { _, err := d.Take(ctx, 3, nil); return err },
		"Collect": func(d *dataset.Dataset) error { _, err := d.Collect(ctx, nil); return err },
		"Drain":   func(d *dataset.Dataset) error { _, err := d.Drain(ctx, nil); return err },
		"Write": func(d *dataset.Dataset) error {
			_, err := d.WriteParquet(ctx, filepath.Join(t.TempDir(), "out"), nil)
			return err
		},
		"Aggregate": func(d *dataset.Dataset) error { _, err := d.Aggregate(ctx, nil, dataset.Max("id")); return err },
		"IterBatches": func(d *dataset.Dataset) error {
			for _, err := range d.IterBatches(ctx, nil) {
				return err
			}
			return nil
		},
		"Rows": func(d *dataset.Dataset) error {
			for _, err := range dataset.Rows[struct{ ID int64 }](ctx, d, nil) {
				return err
			}
			return nil
		},
	}
	for name, call := range calls {
		for want, ds := range map[string]*dataset.Dataset{"step 1 (pack): pack works on shards": pack, "step 1 (mix): mix works on shards": mix} {
			if err := call(ds); fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), want) {
				t.Errorf("%s: got %v, want %q", name, err, want)
			}
		}
	}
}

func TestMixErrors(t *testing.T) {
	ctx := t.Context()
	src := func(name string, d *dataset.Dataset) dataset.MixSource {
		return dataset.MixSource{Name: name, Weight: 1, Data: d}
	}
	r := dataset.Range
	good := dataset.Mix(src("a", r(5)), src("b", r(5).Filter("id > 1").Sample(0.5, 1)))
	lists := func() *dataset.Dataset { return dataset.Read(tokens(t, 5)) }
	eight := &dataset.PackOptions{Length: 8}
	for _, c := range []struct {
		ds   *dataset.Dataset
		want string
		now  bool // seen without I/O
	}{
		{dataset.Mix(), "step 1 (mix): a mix needs 1 to 10000 sources, have 0", true},
		{dataset.Mix(src("a", nil)), `step 1 (mix): source "a" has no data`, true},
		{dataset.Mix(src("a", r(5)), src("", r(5))), "source 2 of the mix has no name", true},
		{dataset.Mix(src("a", r(5).Filter("id >")), src("b", r(5))), `source "a" of the mix: step 1 (filter)`, true},
		{dataset.Mix(src("a", r(5)), src("b", r(5).Filter("idd > 1"))), `source "b" of the mix: step 1 (filter): unknown column "idd"`, false},
		{dataset.Mix(src("a", r(5).Limit(3).Sample(0.5, 1)), src("b", r(5))), `step 3 (mix): source "a": limit 3 (step 1 (limit)) needs rows in order`, false},
		{dataset.Mix(dataset.MixSource{Name: "a", Data: r(5)}), "step 1 (mix): weights: they sum to 0", true},
		{dataset.MixWith(dataset.MixOptions{Stop: "last"}, src("a", r(5))), `stop "last"; have first, all`, true},
		{dataset.MixWith(dataset.MixOptions{Schedule: []ops.WeightsAt{{At: 3, Weights: []int64{1, 2}}}}, src("a", r(5))), "weights from sample 3 on: 2 for 1 sources", true},
		{good.Filter("id > 1"), "step 4 (filter): steps come before mix", false},
		{good.Union(r(5)), "step 4 (union): steps come before mix", false},
		{dataset.Mix(src("c", good)), `source "c" is a mix itself`, false},
		{lists().Pack("t", nil), "step 1 (pack): length must be 1 to", true},
		{lists().Pack("x", eight), `step 1 (pack): unknown column "x"; have id, t`, false},
		{lists().Pack("id", eight), "pack needs lists of an integer type", false},
		{lists().WithColumns("m = t").Pack("t", &dataset.PackOptions{Length: 8, MaskColumn: "m"}), `must be a list of uint8, int8 or bool: make it one, as by cast(m, "list<uint8>")`, false},
		{lists().Limit(3).Pack("t", eight), "step 2 (pack): limit 3 (step 1 (limit)) needs rows in order, which shards shuffle: use sample", false},
		{lists().Pack("t", eight).Limit(3), "step 2 (limit): steps come before pack", false},
		{lists().Pack("t", eight).MapBatches(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) { return in, nil }, nil), "steps come before pack", false},
		{dataset.Mix(src("a", lists().Pack("t", eight)), src("b", lists())), "pack all sources of a mix, or none", false},
	} {
		if err := c.ds.Err(); c.now != (err != nil) {
			t.Errorf("%s: Err gives %v", c.want, err)
		}
		if _, err := c.ds.Schema(ctx); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want) {
			t.Errorf("got %v, want %q", err, c.want)
		}
	}
}

// counted counts open tables.
type counted struct {
	driver.Source
	resolved, open *int
}

func (c counted) Resolve(ctx context.Context, o *driver.ResolveOptions) (driver.Table, error) {
	t, err := c.Source.Resolve(ctx, o)
	if err == nil {
		*c.resolved++
		*c.open++
	}
	return countedTable{t, c.open}, err
}

type countedTable struct {
	driver.Table
	open *int
}

func (t countedTable) Close() error { *t.open--; return t.Table.Close() }

// Resolving, looking up anew and closing reach every source of a mix, also one that is there twice.
func TestMixRefreshAndClose(t *testing.T) {
	resolved, open := 0, 0
	a := dataset.Read(counted{memio.Range(10), &resolved, &open})
	b := dataset.Read(counted{memio.Range(20), &resolved, &open}).Filter("id > 2")
	mix := dataset.Mix(dataset.MixSource{Name: "a", Weight: 1, Data: a}, dataset.MixSource{Name: "b", Weight: 1, Data: b},
		dataset.MixSource{Name: "again", Weight: 1, Data: a})
	check := func(d *dataset.Dataset, wantResolved, wantOpen int) {
		t.Helper()
		if _, err := d.Schema(t.Context()); err != nil {
			t.Fatal(err)
		}
		if resolved != wantResolved || open != wantOpen {
			t.Errorf("%d tables resolved, %d open; want %d, %d", resolved, open, wantResolved, wantOpen)
		}
	}
	check(mix, 2, 2)
	check(mix, 2, 2)
	fresh := mix.Refresh()
	check(fresh, 5, 5) // a is looked up for each of its places
	for _, d := range []*dataset.Dataset{mix, fresh} {
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if open != 0 {
		t.Errorf("%d tables are open", open)
	}
	check(mix, 7, 2)
	if err := mix.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestExplainMix(t *testing.T) {
	eos := int64(2)
	o := &dataset.PackOptions{Length: 8, EOS: &eos}
	ds := dataset.Mix(
		dataset.MixSource{Name: "web", Weight: 3, Data: dataset.Read(tokens(t, 9)).Filter("id > 3 && true").Pack("t", o)},
		dataset.MixSource{Name: "books", Weight: 1, Repeat: true, Data: dataset.Read(tokens(t, 2)).Pack("t", o)})
	eos = 3 // the plan is made
	got, err := ds.Explain(t.Context(), &dataset.ExplainOptions{RunOptions: dataset.RunOptions{Memory: 64 << 20, CPUs: 3}})
	if err != nil {
		t.Fatal(err)
	}
	var lines []string
	for line := range strings.Lines(got) {
		if !strings.Contains(line, "expected:") {
			lines = append(lines, strings.TrimRight(line, " \n"))
		}
	}
	want := `logical plan
  mix web 3, books 1 repeat; stop first    [step 3 (mix)]
    pack t to 8 by concat, overlong split, pad 0, eos 2    [step 2 (pack)]
      filter id > 3 && true    [step 1 (filter)]
        read records    [source (records)]
    pack t to 8 by concat, overlong split, pad 0, eos 2    [step 1 (pack)]
      read records    [source (records)]
rewritten
  mix web 3, books 1 repeat; stop first    [step 3 (mix)]
    pack t to 8 by concat, overlong split, pad 0, eos 2    [step 2 (pack)]
      filter id > 3    [step 1 (filter)]
        read records where id > 3    [source (records)]
    pack t to 8 by concat, overlong split, pad 0, eos 2    [step 1 (pack)]
      read records columns [t]    [source (records)]
  - fold: id > 3
  - projection: reads only [t]
  - predicate: id > 3 is known to source (records)
physical plan of source "web"
  scan 0    [source (records)]
    splits: 1 of 1, 9 rows
    columns: all 2
    where: id > 3
    -> filter id > 3    [step 1 (filter)]
  then in each window: pack t to 8 by concat, overlong split, pad 0, eos 2    [step 2 (pack)]
physical plan of source "books"
  scan 1    [source (records)]
    splits: 1 of 1, 2 rows
    columns: 1 of 2 [t]
  then in each window: pack t to 8 by concat, overlong split, pad 0, eos 2    [step 1 (pack)]
run
  memory: at most 64 MiB
  cpus: 3`
	if d := cmp.Diff(want, strings.Join(lines, "\n")); d != "" {
		t.Error(d)
	}
}
