package spec

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
	"go.yaml.in/yaml/v3"
)

// published is the schema as other tools have it.
var published = sync.OnceValue(func() *jsonschema.Schema {
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(JSONSchema()))
	c := jsonschema.NewCompiler()
	if err == nil {
		err = c.AddResource("spec.json", doc)
	}
	if err != nil {
		panic(err)
	}
	return c.MustCompile("spec.json")
})

// parse is Parse, and holds the schema to it: a text that Parse takes, the schema takes.
func parse(t testing.TB, file string, data []byte, sets []string) (*Spec, error) {
	t.Helper()
	s, err := Parse(file, data, sets, Trust{Typed: true})
	ok := err == nil
	if len(sets) > 0 { // the schema sees the text alone
		_, err := Parse(file, data, nil, Trust{})
		ok = err == nil
	}
	if ok {
		if err := published().Validate(instance(t, data)); err != nil {
			if _, wrong := s.Dataset(); wrong != nil { // seen behind Parse
				return s, nil
			}
			t.Errorf("%s: the schema has %v\n%s", file, err, data)
		}
	}
	return s, err
}

// instance is a spec as an editor gives it to the schema.
func instance(t testing.TB, data []byte) any {
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		t.Fatal(err)
	}
	var of func(n *yaml.Node) any
	of = func(n *yaml.Node) any {
		switch n.Kind {
		case yaml.AliasNode:
			return of(n.Alias)
		case yaml.SequenceNode:
			list := []any{}
			for _, e := range n.Content {
				list = append(list, of(e))
			}
			return list
		case yaml.MappingNode:
			m := map[string]any{}
			for i := 0; i < len(n.Content); i += 2 {
				m[n.Content[i].Value] = of(n.Content[i+1])
			}
			return m
		}
		var v any
		if n.Tag == "!!timestamp" || n.Decode(&v) != nil {
			return n.Value // JSON has no other
		}
		return v
	}
	return of(doc.Content[0])
}

// Numbers that validate refuses, the schema refuses.
func TestSchemaRanges(t *testing.T) {
	for text, ok := range map[string]bool{
		"steps: [{limit: 0}, {sample: {fraction: 1}}]": true, "steps: [{limit: -1}]": false, "steps: [{sample: {fraction: 1.5}}]": false, "steps: [{sample: {fraction: -1}}]": false,
		"steps: [{split: {fractions: [0.5], take: -1}}]": false, "run: {cpus: -1}": false, "run: {on_error: {policy: skip, max_rate: 1}}": true, "run: {on_error: {policy: skip, max_rate: 2}}": false,
		"run: {on_error: {policy: skip, max_rows: -1}}": false, "run: {on_error: {retries: -1}}": false,
		"steps: [{exec: {command: [x], workers: 5000, schema: {id: int64}}}]": false, "steps: [{exec: {command: [x], batch_rows: -1, schema: {id: int64}}}]": false,
	} {
		data := []byte("version: 1\nsource: {range: {n: 5}}\n" + text)
		s, err := Parse("s", data, nil, Trust{})
		if err == nil {
			err = check(t, s)
		}
		if schema := published().Validate(instance(t, data)); (err == nil) != ok || (schema == nil) != ok {
			t.Errorf("%s: validate says %v, the schema %v", text, err, schema)
		}
	}
}

// What a spec may say, the schema lets it say. The tests of the package go through parse, too.
func TestSchemaTakes(t *testing.T) {
	for name, value := range map[string]string{"TEXT": "hush", "SIZE": "64MiB", "WHOLE": "3", "RATE": "0.5", "YES": "true", "TIME": "5m", "MODE": "append"} {
		t.Setenv("PENSTOCK_TEST_"+name, value)
	}
	const refer = `version: 1
name: ${env:PENSTOCK_TEST_TEXT}
source: {parquet: {paths: ["${env:PENSTOCK_TEST_TEXT}"], hidden: "${env:PENSTOCK_TEST_YES}", dictionary: "${env:PENSTOCK_TEST_YES}"}}
steps: [{sample: {fraction: "${env:PENSTOCK_TEST_RATE}", seed: "${env:PENSTOCK_TEST_WHOLE}"}}, {limit: "${env:PENSTOCK_TEST_WHOLE}"}, {with_columns: {x: 1, y: true, z: 2020-01-01}}]
sink: {parquet: {path: out/, mode: "${env:PENSTOCK_TEST_MODE}", target_size: "${env:PENSTOCK_TEST_WHOLE}GiB", row_group_bytes: "${env:PENSTOCK_TEST_SIZE}"}}
run: {memory: "${env:PENSTOCK_TEST_SIZE}", cpus: "${env:PENSTOCK_TEST_WHOLE}", stall_timeout: "${env:PENSTOCK_TEST_TIME}", ordered: "${env:PENSTOCK_TEST_YES}"}
`
	s, err := parse(t, "references", []byte(refer), nil)
	if err != nil {
		t.Fatal(err)
	}
	if !s.Source.Parquet.Hidden || !s.Source.Parquet.Dictionary.All || s.Steps[0].Sample.Fraction != 0.5 || s.Sink.Parquet.TargetSize != 3<<30 || s.Run.CPUs != 3 || !*s.Run.Ordered {
		t.Errorf("%+v", s)
	}
	for _, text := range []string{
		"run:\n", "run: {on_error: }", "sink: {count: }", "steps:\n  - explode: 5\n    on_error:\n", "run: {cpus: '2', seed: 0x10}", "run: {memory: 1_048_576, epoch: 1_0}",
		"run: {memory: 2_000 KB, stall_timeout: 0, call_timeout: 1h2m3.5s}", "shards: {global_batch: 1, shuffle: , columns: {x: , y: auto, z: {dtype: auto}}}",
		"shards: {global_batch: 1}\ntrain: {hang_timeout: 0, resources: , config: {a: , b: [1, {c: d}]}}", "name: &a id\nsteps: [{with_columns: {x: *a}}]", "steps: [{map: {function: f, config: [1, x]}}, {rename: {1: 2}}, {select: [1, true]}]",
	} {
		if _, err := parse(t, "s", []byte("version: 1\nsource: {range: {n: 5}}\n"+text), nil); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The specs of the documentation and the examples.
func TestSchemaTakesDocs(t *testing.T) {
	t.Setenv("WANDB_API_KEY", "hush")
	const root = "../../"
	files := []string{root + "README.md"}
	for _, glob := range []string{"docs/*.md", "examples/*.md", "examples/*.yaml", "examples/*/*.yaml"} {
		found, err := filepath.Glob(root + glob)
		if err != nil || found == nil {
			t.Fatal(glob, err)
		}
		files = append(files, found...)
	}
	specs := 0
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		texts := []string{string(data)}
		if filepath.Ext(file) == ".md" {
			texts = strings.Split("\n"+string(data), "\n```yaml\n")[1:]
		}
		for _, text := range texts {
			text, _, _ = strings.Cut(text, "\n```")
			if filepath.Ext(file) == ".md" && !strings.HasPrefix(text, "version:") {
				text = "version: 1\nsource: {range: {n: 1}}\n" + text // a part of one
			}
			if _, err := parse(t, file, []byte(text), nil); err != nil {
				t.Errorf("%v:\n%s", err, text)
			}
			specs++
		}
	}
	if specs < 12 {
		t.Errorf("%d specs", specs)
	}
}

// The mistakes that a schema can see.
func TestSchemaRefuses(t *testing.T) {
	for _, text := range []string{
		"source: {range: {n: 1}}", "version: one\nsource: {range: {n: 1}}", "version: 1", "version: 1\nsource: {range: {}}", "version: 1\nsource: ", "version: 1\nsource: {csv: {paths: x}}",
		"version: 1\nsource: {range: {n: 1}, text: {paths: [x]}}", "version: 1\nsource: {rang: {n: 1}}", "version: 1\nsource: [range]",
	} {
		refuses(t, text)
	}
	for _, text := range []string{
		"stpes: []", "name: [a]", "name: ", "run: {cpu: 1}", "run: {cpus: two}", "run: {cpus: 1.5}", "run: {memory: much}", "run: {memory: 5}", "run: {memory: -5}", "run: {ordered: 'true'}", "run: {ordered: 1}",
		"run: {seed: -7}", "run: {seed: '-7'}", "run: {stall_timeout: soon}", "run: {stall_timeout: 5}", "run: {on_error: skp}", "run: {on_error: {max_rate: much}}", "run: {on_error: 5}", "run: {cpus: $env}", "run: {cpus: '${NAME}'}",
		"steps: {filter: x}", "steps: [{}]", "steps: [{on_error: skip}]", "steps: [{filter: a, drop: [b]}]", "steps: [{filter: }]", "steps: [{with_columns: {x: [1]}}]", "steps: [{with_columns: {x: }}]", "steps: [{select: x}]", "steps: [{sample: {}}]",
		"steps: [{sample: {fraction: }}]", "steps: [{filter: a, on_error: {policy: }}]", "sink: ", "sink: {count: 1}", "sink: {csv: {path: x, mode: replace}}", "sink: {parquet: {mode: append}}", "sink: {parquet: {path: x, target_size: 0}}",
		"shards: {ranks: 0}", "shards: {columns: {x: float23}}", "shards: {columns: {x: {dtpe: auto}}}", "shards: {shuffle: [blocks]}", "train: {config: [lr]}", "train: {workers: many}", "train: {hang_timeout: 5}",
	} {
		refuses(t, "version: 1\nsource: {range: {n: 1}}\n"+text)
	}
}

func refuses(t *testing.T, text string) {
	t.Helper()
	if _, err := Parse("s", []byte(text), nil, Trust{}); err == nil {
		t.Errorf("no mistake: %s", text)
	}
	if published().Validate(instance(t, []byte(text))) == nil {
		t.Errorf("the schema takes %s", text)
	}
}
