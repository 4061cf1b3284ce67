package ops_test

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// fake is a source of a given schema and without data. Its configuration is the schema as text.
type fake struct {
	Name string   `json:"name"`
	Cols []string `json:"cols"` // "a int", "b string not null"
}

var fakeFormat = driver.Format{Kind: "fake", Open: func(config json.RawMessage) (driver.Source, error) {
	var f fake
	if err := json.Unmarshal(config, &f); err != nil {
		return nil, driver.Errorf(driver.Invalid, "fake: %w", err)
	}
	if len(f.Cols) > 1000 {
		return nil, driver.Errorf(driver.Invalid, "fake: %d columns", len(f.Cols))
	}
	return f, nil
}}

func (fake) Kind() string { return "fake" }
func (f fake) Config() (json.RawMessage, error) {
	if f.Name == "memory" {
		return nil, driver.Errorf(driver.Unsupported, "records in memory cannot be part of an encoded plan")
	}
	return json.Marshal(f)
}

func (f fake) Resolve(_ context.Context, o *driver.ResolveOptions) (driver.Table, error) {
	var fields []arrow.Field
	for _, c := range f.Cols {
		c, notNull := strings.CutSuffix(c, " not null")
		name, typ, _ := strings.Cut(c, " ")
		name = strings.ReplaceAll(name, "_", " ")
		t, err := typename.Parse(typ)
		if err != nil {
			return nil, err
		}
		fields = append(fields, arrow.Field{Name: name, Type: t, Nullable: !notNull})
	}
	return &fakeTable{schema: arrow.NewSchema(fields, nil), files: o.Files}, nil
}

type fakeTable struct {
	schema *arrow.Schema
	files  driver.Predicate
	closed bool
}

func (t *fakeTable) Schema() *arrow.Schema  { return t.schema }
func (t *fakeTable) Splits() []driver.Split { return []driver.Split{{ID: "0", Rows: 10}} }
func (t *fakeTable) Open(context.Context, int, *driver.ScanOptions) (driver.Reader, error) {
	return nil, driver.Errorf(driver.Unsupported, "no data")
}
func (t *fakeTable) Fingerprint(context.Context) (string, error) { return "f", nil }
func (t *fakeTable) Close() error                                { t.closed = true; return nil }

// plans builds plans from text: a line per verb, the read first. Names defined by
// def can be used by union. A first line "mix stop=S at=SAMPLE:W;W" makes a mix of what follows:
// "NAME WEIGHT [repeat]: read ..." begins a source.
type plans struct {
	t     testing.TB
	named map[string]ops.Node
}

func (p *plans) build(text string) (ops.Node, error) {
	if head, rest, ok := strings.Cut(strings.TrimSpace(text), "\n"); ok && (head == "mix" || strings.HasPrefix(head, "mix ")) {
		return p.mix(head, rest)
	}
	var n ops.Node
	pos := 0
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if line == "" {
			continue
		}
		verb, rest, _ := strings.Cut(line, " ")
		if verb != "read" {
			pos++
		}
		m := ops.Meta{Pos: pos, Verb: verb}
		if before, policy, ok := strings.Cut(rest, " on_error="); ok {
			rest, m.OnError = before, &ops.OnError{Policy: policy}
		}
		next, err := p.step(n, verb, strings.TrimSpace(rest), m)
		if err != nil {
			return nil, err
		}
		n = next
	}
	return n, nil
}

func (p *plans) mix(head, rest string) (ops.Node, error) {
	var s ops.MixSpec
	var texts []string
	for line := range strings.Lines(rest) {
		if name, read, ok := strings.Cut(line, ": read "); ok {
			f := strings.Fields(name)
			w, err := strconv.ParseInt(f[1], 10, 64)
			if err != nil {
				return nil, err
			}
			s.Names, s.Weights, s.Repeat = append(s.Names, f[0]), append(s.Weights, w), append(s.Repeat, len(f) > 2)
			texts = append(texts, "")
			line = "read " + read
		}
		texts[len(texts)-1] += line
	}
	ins, pos := make([]ops.Node, len(texts)), 1
	for i, text := range texts {
		var err error
		if ins[i], err = p.build(text); err != nil {
			return nil, err
		}
		pos = max(pos, strings.Count(strings.TrimSpace(text), "\n")+1)
	}
	for _, o := range strings.Fields(head)[1:] {
		k, v, _ := strings.Cut(o, "=")
		if k == "stop" {
			s.Stop = v
			continue
		}
		at, ws, _ := strings.Cut(v, ":")
		var w ops.WeightsAt
		fmt.Sscan(at, &w.At)
		for _, x := range strings.Split(ws, ";") {
			k, err := strconv.ParseInt(x, 10, 64)
			if err != nil {
				return nil, err
			}
			w.Weights = append(w.Weights, k)
		}
		s.Schedule = append(s.Schedule, w)
	}
	return ops.NewMix(ins, s, ops.Meta{Pos: pos, Verb: "mix"})
}

// packSpec reads `COLUMN key=value ...`.
func packSpec(text string) (ops.PackSpec, error) {
	f := strings.Fields(text)
	s := ops.PackSpec{Column: f[0]}
	for _, o := range f[1:] {
		k, v, _ := strings.Cut(o, "=")
		x, _ := strconv.ParseInt(v, 10, 64)
		switch k {
		case "length":
			s.Length = int(x)
		case "method":
			s.Method = v
		case "overlong":
			s.Overlong = v
		case "pad":
			s.PadID = x
		case "eos":
			s.EOS = &x
		case "mask":
			s.MaskColumn = v
		case "loss_mask":
			s.LossMask = true
		default:
			return s, fmt.Errorf("unknown option %q", o)
		}
	}
	return s, nil
}

func list(s string) []string {
	var out []string
	depth, from := 0, 0
	for i, r := range s + "," {
		switch {
		case strings.ContainsRune("<(", r):
			depth++
		case strings.ContainsRune(">)", r):
			depth--
		case r == ',' && depth == 0:
			if part := strings.TrimSpace(s[from:i]); part != "" {
				out = append(out, part)
			}
			from = i + 1
		}
	}
	return out
}

func pairs(s string) map[string]string {
	m := map[string]string{}
	for _, part := range list(s) {
		k, v, _ := strings.Cut(part, "=")
		m[k] = v
	}
	return m
}

func (p *plans) step(in ops.Node, verb, rest string, m ops.Meta) (ops.Node, error) {
	ctx := p.t.Context()
	switch verb {
	case "read":
		name, cols, _ := strings.Cut(rest, ":")
		n, err := ops.Resolve(ctx, fake{name, list(cols)}, nil, 0, ops.Meta{}, nil)
		return n, err
	case "filter":
		e, err := expr.Parse(rest)
		if err != nil {
			return nil, err
		}
		return ops.NewFilter(in, e, m)
	case "filter_func":
		return ops.NewFilterFunc(in, ops.FilterOf(nothing), m)
	case "with_columns":
		var entries []string
		for _, e := range strings.Split(rest, ";") {
			if e = strings.TrimSpace(e); e != "" {
				entries = append(entries, e)
			}
		}
		return ops.WithColumns(in, entries, m)
	case "select":
		return ops.Select(in, list(rest), m)
	case "drop":
		return ops.Drop(in, list(rest), m)
	case "rename":
		return ops.Rename(in, pairs(rest), m)
	case "cast":
		return ops.Cast(in, pairs(rest), m)
	case "limit":
		k, err := strconv.ParseInt(rest, 10, 64)
		if err != nil {
			return nil, err
		}
		return ops.NewLimit(in, k, m)
	case "explode":
		col, keep, _ := strings.Cut(rest, " ")
		return ops.NewExplode(in, col, keep != "", m)
	case "map":
		return ops.NewMap(ctx, in, &ops.Func{Map: pass, Passes: list(rest)}, 0, m)
	case "flat_map":
		return ops.NewMap(ctx, in, ops.FlatMapOf(flat), 64, m)
	case "exec":
		return ops.NewExec(in, &ops.ExecSpec{Command: strings.Fields(rest), Out: in.Schema()}, m)
	case "sample":
		var lo, hi float64
		var key string
		fmt.Sscan(rest, &lo, &hi, &key)
		return ops.NewSample(in, lo, hi, 7, list(key), m)
	case "union":
		ins := []ops.Node{in}
		for _, name := range list(rest) {
			if p.named[name] == nil {
				p.t.Fatalf("no plan %q", name)
			}
			ins = append(ins, p.named[name])
		}
		return ops.NewUnion(ins, m)
	case "pack":
		s, err := packSpec(rest)
		if err != nil {
			return nil, err
		}
		return ops.NewPack(in, s, m)
	}
	p.t.Fatalf("unknown verb %q", verb)
	return nil, nil
}

// must builds or fails.
func must(t testing.TB, text string) ops.Node {
	t.Helper()
	n, err := (&plans{t: t}).build(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
