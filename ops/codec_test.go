package ops_test

import (
	"context"
	"encoding/json"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

func registry() *ops.Registry {
	var r ops.Registry
	r.Map("pass", "1", func([]byte) (ops.MapFunc, error) { return pass, nil })
	r.FlatMap("flat", "1", func([]byte) (ops.FlatMapFunc, error) { return flat, nil })
	r.Filter("nothing", "", func([]byte) (ops.FilterFunc, error) { return nothing, nil })
	return &r
}

func decodeOptions() *ops.DecodeOptions {
	return &ops.DecodeOptions{Formats: []driver.Format{fakeFormat}, Registry: registry()}
}

// everyPlan are plans with every type of node: one that runs, and one for shards.
func everyPlan(t testing.TB) []ops.Node { return []ops.Node{everyNode(t), mixed(t)} }

// mixed is a plan with every field of pack and mix.
func mixed(t testing.TB) ops.Node {
	t.Helper()
	return must(t, `mix stop=all at=1000:1;2;0 at=5000:0;0;7
		a 3: read a: tokens list<int32>, m list<bool>, id int
			filter id > 3
			pack tokens length=8 method=best_fit overlong=drop pad=-1 eos=2 mask=m
		b-2.x 1 repeat: read b: ids large_list<int32>
			union
			pack ids length=8 loss_mask
		c 0: read c: ids fixed_size_list<int32>(5), id int
			pack ids length=8 loss_mask`)
}

// everyNode is a plan with every type of node that a plain run knows.
func everyNode(t testing.TB) ops.Node {
	t.Helper()
	ctx := t.Context()
	fn := func(name string) *ops.Func {
		g, err := registry().Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		f, err := g.Func([]byte(`{"x":1}`))
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	n := must(t, `read t: id int not null, text string, l list<struct<a: int, b: double>>, odd_col double
		filter id > 3 on_error=skip
		with_columns n = size(text); r = random()
		explode l keep
		sample 0.1 0.7 text
		limit 10`)
	check := func(m ops.Node, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		n = m
	}
	pf := fn("pass")
	pf.UsesRandom, pf.Passes = true, []string{"id"}
	check(ops.NewMap(ctx, n, pf, 7, ops.Meta{Pos: 7, Verb: "map"}))
	check(ops.NewMap(ctx, n, fn("flat"), 0, ops.Meta{Pos: 8, Verb: "flat_map"}))
	check(ops.NewFilterFunc(n, fn("nothing"), ops.Meta{Pos: 9, Verb: "filter"}))
	check(ops.NewExec(n, &ops.ExecSpec{Command: []string{"python", "-c", "x y"}, Env: []string{"A", "B=c"}, Program: "/usr/bin/python", Local: []string{"C", "D=e"}, Workers: 3, BatchRows: 5, TimeoutMS: 100, Flat: true,
		Out: n.Schema()}, ops.Meta{Pos: 10, Verb: "exec", OnError: &ops.OnError{Policy: "skip", Retries: 2, MaxRows: 5, MaxRate: 0.25}}))
	check(ops.NewUnion([]ops.Node{n, must(t, "read u: id int")}, ops.Meta{Pos: 11, Verb: "union"}))
	return n
}

func TestCodec(t *testing.T) {
	for _, n := range everyPlan(t) {
		testCodec(t, n)
	}
}

func testCodec(t *testing.T, n ops.Node) {
	for _, rules := range []bool{false, true} {
		if rules {
			var err error
			if n, _, err = ops.Optimize(n, nil); err != nil {
				t.Fatal(err)
			}
		}
		data, err := ops.Encode(n)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ops.Decode(t.Context(), data, decodeOptions())
		if err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
		if d := cmp.Diff(ops.Format(n), ops.Format(m)); d != "" {
			t.Error(d)
		}
		if !m.Schema().Equal(n.Schema()) {
			t.Errorf("schema %v, was %v", m.Schema(), n.Schema())
		}
		again, err := ops.Encode(m)
		if err != nil || string(again) != string(data) {
			t.Errorf("encoded again it differs: %v\n%s\n%s", err, data, again)
		}
	}
}

func TestFingerprint(t *testing.T) {
	const text = "read t: a int, b double\nfilter a > 1\nlimit 5"
	fp := func(n ops.Node) string {
		t.Helper()
		s, err := ops.Fingerprint(n)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	base := fp(must(t, text))
	opt, did, err := ops.Optimize(must(t, text), nil)
	if err != nil || len(did) == 0 {
		t.Fatalf("%v, %v", did, err)
	}
	if fp(opt) != base {
		t.Error("what rules fill in changes the fingerprint")
	}
	if fp(must(t, text)) != base {
		t.Error("not stable")
	}
	for _, other := range []string{"read t: a int, b double\nfilter a > 2\nlimit 5", "read t: a int, b double\nfilter a > 1\nlimit 6", "read u: a int, b double\nfilter a > 1\nlimit 5"} {
		if fp(must(t, other)) == base {
			t.Errorf("another plan has the same fingerprint: %s", other)
		}
	}
	verb := "exec"
	e := func(spec ops.ExecSpec) ops.Node {
		in := must(t, text)
		spec.Command, spec.Out = append([]string{"x"}, spec.Command...), in.Schema()
		n, err := ops.NewExec(in, &spec, ops.Meta{Pos: 3, Verb: verb})
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	if fp(e(ops.ExecSpec{Workers: 1})) != fp(e(ops.ExecSpec{Workers: 2, Program: "/opt/x", Local: []string{"DIR=/a"}, BatchRows: 7, TimeoutMS: 5})) {
		t.Error("how a command runs changes the fingerprint")
	}
	plain := fp(e(ops.ExecSpec{}))
	if verb = "python"; fp(e(ops.ExecSpec{})) != plain {
		t.Error("how a command is written changes the fingerprint")
	}
	verb = "exec"
	if plain == fp(e(ops.ExecSpec{Command: []string{"y"}})) || plain == fp(e(ops.ExecSpec{Env: []string{"A=1"}})) {
		t.Error("another command has the same fingerprint")
	}
	const mix = "mix stop=all\na 3: read a: t list<int>\n pack t length=8\nb 1 repeat: read b: t list<int>\n pack t length=8"
	base = fp(must(t, mix))
	for old, repl := range map[string]string{"a 3": "c 3", "=all": "=first", " repeat": "", "length=8": "length=9", "length": "eos=0 length", "length=8 ": "loss_mask length=8", "8\nb": "8 method=best_fit\nb",
		"8\n": "8 overlong=drop\n", "t length": "t pad=1 length"} {
		if other := strings.ReplaceAll(mix, old, repl); other != mix && fp(must(t, other)) == base {
			t.Errorf("another plan has the same fingerprint: %s", other)
		}
	}
	for _, same := range []string{strings.Replace(mix, "a 3", "a 7", 1), strings.Replace(mix, "=all", "=all at=9:1;2", 1), strings.ReplaceAll(mix, "=8", "=8 method=concat pad=0")} {
		if fp(must(t, same)) != base {
			t.Errorf("the weights, or defaults written out, change the fingerprint: %s", same)
		}
	}
}

func TestEncodeRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"read t: a int\nmap":                     "step 1 (map): a closure is known to this process only and cannot be part of an encoded plan; register it: ops.RegisterMap(",
		"read t: a int\nfilter a > 1\nflat_map":  "step 2 (flat_map): a closure",
		"read t: a int\nfilter_func":             "ops.RegisterFilter(",
		"read memory: a int\nfilter_func\nmap a": "source (fake): records in memory",
	} {
		_, err := ops.Encode(must(t, text))
		if err == nil || !strings.Contains(err.Error(), want) || fault.CodeOf(err) != fault.Unsupported {
			t.Errorf("%s: got %v (%v)", text, err, fault.CodeOf(err))
		}
	}
}

func TestDecodeRefuses(t *testing.T) {
	const read = `{"op":"read","kind":"fake","config":{"cols":["a int"]}}`
	for _, c := range []struct {
		plan, want string
		code       fault.Code
	}{
		{`x`, "invalid character", fault.Corrupt},
		{`{"version":2,"plan":[]}`, "version 2; this build reads version 1", fault.Unsupported},
		{`{"version":1,"plan":[]}`, "0 nodes", fault.Corrupt},
		{`{"version":1,"plan":[` + read + `],"more":1}`, "unknown field", fault.Corrupt},
		{`{"version":1,"plan":[` + read + `]} {}`, "after top-level value", fault.Corrupt},
		{`{"version":1,"plan":[{"op":"read","kind":"nope"}]}`, `no format "nope"`, fault.Unsupported},
		{`{"version":1,"plan":[{"op":"limit","in":[0]}]}`, "does not come before it", fault.Corrupt},
		{`{"version":1,"plan":[` + read + `,{"op":"union","in":[0,0]}]}`, "used twice", fault.Corrupt},
		{`{"version":1,"plan":[` + read + `,` + read + `,{"op":"limit","in":[0],"n":1}]}`, "node 1 is not used", fault.Corrupt},
		{`{"version":1,"plan":[` + read + `,{"op":"sort","in":[0],"pos":3,"verb":"sort"}]}`, `step 3 (sort): this build knows no step "sort"`, fault.Unsupported},
		{`{"version":1,"plan":[` + read + `,{"op":"filter","in":[0],"expr":"b > 1","pos":1,"verb":"filter"}]}`, `step 1 (filter): `, fault.Invalid},
		{`{"version":1,"plan":[` + read + `,{"op":"map","in":[0],"func":{"name":"gone","kind":"map"}}]}`, `function "gone" is not registered in this binary; have flat, nothing, pass`, fault.Invalid},
		{`{"version":1,"plan":[` + read + `,{"op":"map","in":[0],"func":{"name":"pass","kind":"map","version":"2"}}]}`, `this binary as map version "1"`, fault.Invalid},
		{`{"version":1,"plan":[` + read + `,{"op":"exec","in":[0],"command":["x"],"schema":"AAAA"}]}`, "schema", fault.Corrupt},
		{`{"version":1,"plan":[{"op":"read","kind":"fake","config":{"cols":["a int"]},"pushed":{"columns":["b"]}}]}`, `unknown column "b"`, fault.Invalid},
		{`{"version":1,"plan":[{"op":"read","kind":"fake","config":{"cols":["a int"]},"files":[{"column":"a","op":"=="}]}]}`, `"==" with 0 values`, fault.Corrupt},
	} {
		_, err := ops.Decode(t.Context(), []byte(c.plan), decodeOptions())
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.CodeOf(err) != c.code {
			t.Errorf("%s: got %v (%v), want %q (%v)", c.plan, err, fault.CodeOf(err), c.want, c.code)
		}
	}
}

// A plan that does not decode leaves no table open.
func TestDecodeCloses(t *testing.T) {
	var tables []*fakeTable
	f := driver.Format{Kind: "fake", Open: func(c json.RawMessage) (driver.Source, error) {
		s, err := fakeFormat.Open(c)
		return spy{s, &tables}, err
	}}
	plan := `{"version":1,"plan":[{"op":"read","kind":"fake","config":{"cols":["a int"]}},{"op":"limit","in":[0],"n":-1}]}`
	_, err := ops.Decode(t.Context(), []byte(plan), &ops.DecodeOptions{Formats: []driver.Format{f}})
	if err == nil || len(tables) != 1 || !tables[0].closed {
		t.Errorf("got %v; %d tables", err, len(tables))
	}
}

type spy struct {
	driver.Source
	tables *[]*fakeTable
}

func (s spy) Resolve(ctx context.Context, o *driver.ResolveOptions) (driver.Table, error) {
	t, err := s.Source.Resolve(ctx, o)
	if err == nil {
		*s.tables = append(*s.tables, t.(*fakeTable))
	}
	return t, err
}

func TestPredicateCodec(t *testing.T) {
	n := must(t, "read t: a int, u uint64, d double, s string, b bool").(*ops.Read)
	n.Predicate = driver.Predicate{
		{Column: "a", Op: driver.Ge, Values: []any{int64(math.MinInt64)}},
		{Column: "u", Op: driver.Lt, Values: []any{uint64(math.MaxUint64)}},
		{Column: "d", Op: driver.Ne, Values: []any{math.Inf(-1)}},
		{Column: "d", Op: driver.In, Values: []any{0.1, math.Copysign(0, -1)}},
		{Column: "s", Op: driver.Eq, Values: []any{"a\xffb\n"}},
		{Column: "b", Op: driver.Eq, Values: []any{true}},
		{Column: "s", Op: driver.IsNull},
	}
	n.Files = driver.Predicate{{Column: "s", Op: driver.NotNull}}
	data, err := ops.Encode(n)
	if err != nil {
		t.Fatal(err)
	}
	m, err := ops.Decode(t.Context(), data, decodeOptions())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(n.Predicate, m.(*ops.Read).Predicate); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff(n.Files, m.(*ops.Read).Table.(*fakeTable).files); d != "" {
		t.Error(d)
	}
}

func TestFilesPredicate(t *testing.T) {
	parse := func(s string) *expr.Expr {
		e, err := expr.Parse(s)
		if err != nil {
			t.Fatal(err)
		}
		return e
	}
	got := ops.FilesPredicate([]*expr.Expr{parse(`year >= 2020 && country == "de" && a < b && random() < 0.5`), parse(`month in [1, 2] && x + 1 > 2`), parse(`is_not_null(day) || day == 3`)})
	if want := `year >= 2020 && country == "de" && month in [1, 2]`; got.String() != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

func TestSplit(t *testing.T) {
	in := must(t, "read t: a int")
	m := ops.Meta{Pos: 1, Verb: "split"}
	s, err := ops.NewSplit(in, []float64{0.7, 0.2, 0.1}, 3, nil, m)
	if err != nil {
		t.Fatal(err)
	}
	if s[0].Lo != 0 || s[0].Hi != s[1].Lo || s[1].Hi != s[2].Lo || s[2].Hi != 1 {
		t.Errorf("got %v", s)
	}
	for _, bad := range [][]float64{nil, {0.5, 0.6}, {0}, {-1}, {math.NaN()}} {
		if _, err := ops.NewSplit(in, bad, 3, nil, m); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%v: got %v", bad, err)
		}
	}
}

// The same dataset twice in a union is two sources.
func TestUnionRenumbers(t *testing.T) {
	n := must(t, "read t: a int\nfilter a > 1")
	u, err := ops.NewUnion([]ops.Node{n, n}, ops.Meta{Pos: 2, Verb: "union"})
	if err != nil {
		t.Fatal(err)
	}
	u, err = ops.NewUnion([]ops.Node{u, n}, ops.Meta{Pos: 3, Verb: "union"})
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range ops.Reads(u) {
		if r.Ordinal != i {
			t.Errorf("read %d has ordinal %d", i, r.Ordinal)
		}
	}
	if err := ops.Close(u); err != nil {
		t.Fatal(err)
	}
}

func TestWiden(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"int8", "int64", "int64"}, {"uint8", "int16", "int16"}, {"uint8", "int8", ""}, {"uint64", "int64", ""}, {"float", "double", "double"},
		{"int32", "double", "double"}, {"int64", "double", ""}, {"int32", "float", ""}, {"uint32", "double", "double"}, {"null", "string", "string"},
		{"string", "int", ""}, {"date", "timestamp", ""}, {"bool", "int", ""}, {"float16", "float", "float"}, {"int16", "uint32", ""},
	} {
		for range 2 {
			u, err := ops.NewUnion([]ops.Node{must(t, "read t: a "+c.a), must(t, "read t: a "+c.b)}, ops.Meta{Pos: 1, Verb: "union"})
			switch {
			case c.want == "" && (err == nil || !strings.Contains(err.Error(), "input 2") || !strings.Contains(err.Error(), `"a"`)):
				t.Errorf("%s and %s: got %v", c.a, c.b, err)
			case c.want != "" && err != nil:
				t.Errorf("%s and %s: %v", c.a, c.b, err)
			case c.want != "" && expr.TypeName(u.Schema().Field(0).Type) != c.want:
				t.Errorf("%s and %s: got %v", c.a, c.b, u.Schema())
			}
			c.a, c.b = c.b, c.a
		}
	}
}

func FuzzDecode(f *testing.F) {
	for _, n := range everyPlan(f) {
		data, err := ops.Encode(n)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
		m, _, err := ops.Optimize(n, nil)
		if err != nil {
			f.Fatal(err)
		}
		if data, err = ops.Encode(m); err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte(`{"version":1,"plan":[{"op":"read","kind":"fake","config":{"cols":["a int"]}},{"op":"filter","in":[0],"expr":"a > 1 && true"},{"op":"project","in":[1],"items":[{"name":"x","expr":"a"}]},{"op":"limit","in":[2],"n":1}]}`))
	o := decodeOptions()
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := ops.Decode(t.Context(), data, o)
		if err != nil {
			if fe, ok := errors.AsType[*fault.Error](err); !ok || fe.Code == fault.Internal {
				t.Fatalf("%v", err)
			}
			return
		}
		_ = ops.Format(n)
		once, err := ops.Encode(n)
		if err != nil {
			t.Fatal(err)
		}
		m, err := ops.Decode(t.Context(), once, o)
		if err != nil {
			t.Fatalf("what was decoded and encoded does not decode: %v\n%s", err, once)
		}
		if twice, err := ops.Encode(m); err != nil || string(once) != string(twice) {
			t.Fatalf("%v\n%s\n%s", err, once, twice)
		}
		opt, _, err := ops.Optimize(n, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !opt.Schema().Equal(n.Schema()) {
			t.Fatalf("rules changed the schema\n%s\n%s", ops.Format(n), ops.Format(opt))
		}
	})
}
