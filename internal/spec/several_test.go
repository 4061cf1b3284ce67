package spec

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// An output or a dead letter where a source reads is a mistake like others, told with them at its line.
func TestOutputWhereASourceReads(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/a.csv", []byte("id\n1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{
		"sink: {parquet: {path: DIR/out, mode: append}}":                                          "s:3:24: sink: DIR/out is written to, and the plan reads DIR: in, at and above the folder of a source nothing is written, as the next run would read it; write to a folder beside it, such as DIR-out",
		"sink: {count: {}}\nrun: {on_error: {policy: skip, dead_letter: DIR/dead}}":               "s:4:45: DIR/dead is written to",
		"steps: [{filter: id >}]\nsink: {csv: {path: DIR}}":                                       "s:4:20: sink: DIR is written to",
		"steps: [{union: [{source: {csv: {paths: ['DIR/*/b.csv']}}}]}]\nsink: {csv: {path: DIR}}": "no file",
	} {
		text = "version: 1\nsource: {csv: {paths: [DIR]}}\n" + text + "\n"
		s, err := parse(t, "s", []byte(strings.ReplaceAll(text, "DIR", dir)), nil)
		if err == nil {
			err = check(t, s)
		}
		if err != nil && !strings.Contains(err.Error(), "sink") {
			err = s.Mistakes(t.Context(), err)
		}
		if want = strings.ReplaceAll(want, "DIR", dir); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s\n got %v\nwant %s", text, err, want)
		}
		if err != nil && strings.Contains(err.Error(), "mode") {
			t.Errorf("a mode is offered: %v", err)
		}
	}
}

// All that can be told of a spec without the columns, or else with them, is told at once, in the order of its lines.
func TestSeveralMistakes(t *testing.T) {
	const head = "version: 1\nsource: {range: {n: 5}}\n"
	many := head + "steps:\n"
	for range 30 {
		many += "  - filter: id >\n"
	}
	for name, c := range map[string]struct {
		text string
		sets []string
		want []string
	}{
		"keys, types, ranges and expressions": {
			head + "steps:\n  - filter: id >\n  - filtr: id > 1\n  - with_columns: {a: id +}\n  - limit: many\nrun: {memory: 1KiB}\nsink: {count: {}}\n", []string{"run.seed=-1"}, []string{
				"s:4:13: step 1 (filter): expression: ", `s:5:5: steps[2]: unknown key "filtr"`, "s:6:23: step 3 (with_columns), column \"a\": expression: ",
				"s:7:12: steps[4].limit: want a whole number", "s:8:15: run.memory: must be at least", "s: --set run.seed: want a whole number"}},
		"keys together and expressions": {
			head + "steps:\n  - filter: id >\n  - union: [{source: {range: {n: 1}}, steps: [{filter: id <}]}]\nrun: {cpus: -1}\nsink: {csv: {path: ''}}\n", nil, []string{
				"s:4:13: step 1 (filter)", "s:5:56: step 1 (filter)", "s:6:13: run.cpus", "s:7:20: sink.csv.path"}},
		"a value that is not known": {
			head + "steps:\n  - filter: ${env:PENSTOCK_NO_SUCH} >\n", nil, []string{"s:4:13: environment variable PENSTOCK_NO_SUCH is not set"}},
		"without columns": {
			head + "steps:\n  - filter: id >\n  - split: {fractions: [0.5, 0.5], take: 3}\n  - filter: id <\nrun: {on_error: {retries: -1}}\n", nil, []string{
				"s:4:13: step 1 (filter)", "s:5:12: step 2: split: take 3", "s:6:13: step 3 (filter)", "s:7:27: on_error: retries"}},
		"in a mix": {
			"version: 1\nsource:\n  mix:\n    sources:\n      - {name: a, weight: 1, source: {range: {n: 1}}, steps: [{filter: id >}]}\n      - {name: b, weight: 1, source: {range: {n: 1}}, steps: [{filter: id <}]}\nshards: {global_batch: 1}\n", nil, []string{
				`source "a" of the mix: s:5:72: step 1 (filter)`, `source "b" of the mix: s:6:72: step 1 (filter)`}},
		"keys, and columns up to the first step that leaves them open": {
			head + "steps:\n  - filter: idd > 1\n  - filter: id >\n  - cast: {id: flot, ix: int}\n  - filter: nope > 1\n  - limit: -1\nsink: {csvv: {path: out/}}\n", nil, []string{
				`s:4:13: step 1 (filter): unknown column "idd"`, "s:5:13: step 2 (filter): expression: ", `s:6:16: step 3 (cast), column "id": type "flot"`,
				"s:8:12: step 5 (limit): the limit must not be negative", `s:9:8: sink: unknown key "csvv"`}},
		"keys of the sink, and the columns of all steps": {
			head + "steps:\n  - with_columns: {a: nope + 1, b: no(id), c: id}\n  - filter: d > 1\nrun: {cpus: -1}\n", nil, []string{
				`s:4:36: step 1 (with_columns), column "b": expression: `, "s:6:13: run.cpus"}},
		"several in a step": {
			head + "steps:\n  - with_columns: {a: nope + 1, b: id + 1, c: nop}\n  - cast: {d: int}\n", nil, []string{
				`s:4:23: step 1 (with_columns), column "a": unknown column "nope"`, `s:4:19: step 1 (with_columns): unknown column "nop"`}},
		"with columns": {
			head + "steps:\n  - filter: idd > 1\n  - filter: iddd > 1\n  - union: [{source: {range: {n: 1}}, steps: [{select: [ix]}, {filter: id > 1}]}]\n", nil, []string{
				`s:4:13: step 1 (filter): unknown column "idd"`, `s:5:13: step 2 (filter): unknown column "iddd"`, `s:6:56: step 1 (select): unknown column "ix"`}},
		"the sink and the shards": {
			head + "shards: {global_batch: 1, columns: {x: int32}}\nsink: {csv: {path: out/, partition_by: [idd]}}\n", nil, []string{
				`s:3:40: shards, column "x": no such column; have id`, `s:4:41: sink: partition_by: unknown column "idd"`}},
		"an alias": {
			head + "steps:\n  - filter: &a id >\n  - filter: *a\n", nil, []string{"s:4:13: step 1 (filter)", "s:5:13: step 2 (filter)"}},
		"many": {many, nil, nil},
	} {
		s, err := parse(t, "s", []byte(c.text), c.sets)
		if err == nil {
			err = check(t, s)
		} else if s != nil {
			err = s.Mistakes(t.Context(), err)
		}
		if err == nil || fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
			continue
		}
		lines := slices.DeleteFunc(strings.Split(err.Error(), "\n"), func(l string) bool { return strings.HasPrefix(l, "  ") }) // a picture of the expression
		if name == "many" {
			for i := range 20 {
				c.want = append(c.want, fmt.Sprintf("s:%d:13: step %d (filter)", i+4, i+1))
			}
			c.want = append(c.want, "and 10 more")
		}
		if len(lines) != len(c.want) {
			t.Errorf("%s: %d mistakes:\n%v", name, len(lines), err)
			continue
		}
		for i, l := range lines {
			if !strings.HasPrefix(l, c.want[i]) {
				t.Errorf("%s: %q, want %q", name, l, c.want[i])
			}
		}
	}
}
