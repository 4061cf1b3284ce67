package dataset_test

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// The plan of shards reads what becomes tensors, and what steps need: explained, measured, and of each source of a mix.
func TestExplainOfShards(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "in")
	wide := dataset.Range(100_000).WithColumns("a = double(id)", "b = double(id) * 3.0", "c = sqrt(double(id))", "d = id * 7", "e = id % 10")
	if _, err := wide.WriteParquet(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	ds := dataset.ReadParquet(dir).Filter("e != 3")
	form := &shard.Form{Tensors: true, Columns: map[string]shard.Column{"x": {Stack: []string{"a", "b"}}}}
	explain := func(ds *dataset.Dataset, o *dataset.ExplainOptions) string {
		t.Helper()
		text, err := ds.Explain(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	text := explain(ds, &dataset.ExplainOptions{Form: form})
	for _, want := range []string{"project a, b    [shards]\n", "columns: 3 of 6 [a, b, e]\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	// Batches of Arrow records, and tensors of all columns, take all.
	for _, f := range []*shard.Form{{}, {Tensors: true}, nil} {
		if text := explain(ds, &dataset.ExplainOptions{Form: f}); text != explain(ds, nil) {
			t.Errorf("%+v:\n%s", f, text)
		}
	}
	read := func(text string) string {
		t.Helper()
		m := regexp.MustCompile(` out, ([0-9.]+ MiB) read,`).FindStringSubmatch(text)
		if m == nil {
			t.Fatal(text)
		}
		return m[1]
	}
	few, all := read(explain(ds, &dataset.ExplainOptions{Form: form, Analyze: true})), read(explain(ds, &dataset.ExplainOptions{Analyze: true}))
	if few == all {
		t.Errorf("the shards read %s of %s", few, all)
	}
	mix := dataset.Mix(dataset.MixSource{Name: "one", Weight: 1, Data: ds}, dataset.MixSource{Name: "two", Weight: 1, Data: dataset.ReadParquet(dir)})
	text = explain(mix, &dataset.ExplainOptions{Form: form})
	for _, want := range []string{"columns: 3 of 6 [a, b, e]\n", "columns: 2 of 6 [a, b]\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("mix: no %q in\n%s", want, text)
		}
	}
}
