package ops_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
)

func TestSources(t *testing.T) {
	n := must(t, `mix at=10:0;1;1 stop=all
		a 3: read a: id int, tokens list<int>, m list<int8>, x double
			filter x > 1
			pack tokens length=8 mask=m
		b 1 repeat: read b: m list<int8>, tokens list<int>
			pack tokens length=8 mask=m
		c 0: read c: tokens list<int>
			pack tokens length=8 loss_mask`)
	sources, mix, err := ops.Sources(n)
	if err != nil || mix != n || len(sources) != 3 {
		t.Fatalf("%v, %v, %v", sources, mix, err)
	}
	var b strings.Builder
	for i, s := range sources {
		opt, _, err := ops.Optimize(s.Plan, nil)
		if err != nil {
			t.Fatal(err)
		}
		if !opt.Schema().Equal(s.Plan.Schema()) || s.Pack != mix.Ins[i] {
			t.Errorf("source %d: %v, pack %v", i, opt.Schema(), s.Pack)
		}
		fmt.Fprintf(&b, "%s %d %v: %v of source %d\n", s.Name, s.Weight, s.Repeat, s.Plan.Schema().Fields(), ops.Reads(opt)[0].Ordinal)
		fmt.Fprint(&b, ops.Format(opt))
	}
	want := `a 3 false: [tokens: type=list<item: int64, nullable>, nullable m: type=list<item: int8, nullable>, nullable] of source 0
project tokens, m    [step 2 (pack)]
  filter x > 1    [step 1 (filter)]
    read fake {"name":"a","cols":["id int","tokens list\u003cint\u003e","m list\u003cint8\u003e","x double"]} columns [tokens, m, x] where x > 1    [source (fake)]
b 1 true: [m: type=list<item: int8, nullable>, nullable tokens: type=list<item: int64, nullable>, nullable] of source 1
read fake {"name":"b","cols":["m list\u003cint8\u003e","tokens list\u003cint\u003e"]}    [source (fake)]
c 0 false: [tokens: type=list<item: int64, nullable>, nullable] of source 2
read fake {"name":"c","cols":["tokens list\u003cint\u003e"]}    [source (fake)]
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Error(d)
	}

	plain := must(t, "read t: a int\nlimit 5")
	sources, mix, err = ops.Sources(plain)
	if err != nil || mix != nil || len(sources) != 1 || sources[0] != (ops.Source{Name: "data", Weight: 1, Plan: plain}) {
		t.Errorf("%v, %v, %v", sources, mix, err)
	}
	if err := ops.Plain(plain); err != nil {
		t.Error(err)
	}
	if err := ops.Plain(n); fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "step 3 (mix): mix works on shards") {
		t.Error(err)
	}
}

// A union in the second source keeps the ordinals that the mix gave its reads, whatever
// rules make of it.
func TestSourcesKeepOrdinals(t *testing.T) {
	union := must(t, "read a: x int, y int")
	for pos := range 2 {
		var err error
		if union, err = ops.NewUnion([]ops.Node{must(t, "read b: x int"), union}, ops.Meta{Pos: pos + 1, Verb: "union"}); err != nil {
			t.Fatal(err)
		}
	}
	union, err := ops.Select(union, []string{"x"}, ops.Meta{Pos: 3, Verb: "select"})
	if err != nil {
		t.Fatal(err)
	}
	mix, err := ops.NewMix([]ops.Node{must(t, "read c: x int"), union}, ops.MixSpec{Names: []string{"a", "b"}, Weights: []int64{1, 1}}, ops.Meta{Pos: 4, Verb: "mix"})
	if err != nil {
		t.Fatal(err)
	}
	sources, _, err := ops.Sources(mix)
	if err != nil {
		t.Fatal(err)
	}
	opt, did, err := ops.Optimize(sources[1].Plan, nil)
	if err != nil || len(did) == 0 {
		t.Fatalf("%v, %v", did, err)
	}
	for i, r := range ops.Reads(opt) {
		if r.Ordinal != i+1 {
			t.Errorf("read %d has ordinal %d after %v", i, r.Ordinal, did)
		}
	}
}

func TestEndless(t *testing.T) {
	in := []ops.Node{must(t, "read a: x int"), must(t, "read b: x int")}
	for _, c := range []struct {
		stop, repeat string // r for each that repeats
		last         [2]int64
		want         bool
	}{
		{"first", "..", [2]int64{1, 1}, false},
		{"first", "r.", [2]int64{1, 1}, false},
		{"first", "rr", [2]int64{1, 1}, true},
		{"first", "..", [2]int64{0, 1}, false},
		{"first", ".r", [2]int64{0, 1}, true},
		{"all", "..", [2]int64{1, 1}, false},
		{"all", ".r", [2]int64{1, 1}, false},
		{"all", "..", [2]int64{0, 1}, true},
		{"all", "r.", [2]int64{0, 1}, false},
		{"all", "rr", [2]int64{1, 1}, true},
	} {
		s := ops.MixSpec{Names: []string{"a", "b"}, Weights: []int64{3, 4}, Stop: c.stop, Repeat: []bool{c.repeat[0] == 'r', c.repeat[1] == 'r'},
			Schedule: []ops.WeightsAt{{At: 5, Weights: c.last[:]}}}
		n, err := ops.NewMix(in, s, ops.Meta{Pos: 1, Verb: "mix"})
		if err != nil {
			t.Fatal(err)
		}
		if n.Endless() != c.want {
			t.Errorf("%+v: got %v", c, n.Endless())
		}
	}
}

// The schema of a pack follows from the token type, and pad and eos are values of it.
func TestPackTypes(t *testing.T) {
	m := ops.Meta{Pos: 1, Verb: "pack"}
	types := map[string][2]int64{"int8": {-128, 127}, "int16": {-1 << 15, 1<<15 - 1}, "int32": {-1 << 31, 1<<31 - 1}, "int64": {-1 << 63, 1<<63 - 1},
		"uint8": {0, 255}, "uint16": {0, 1<<16 - 1}, "uint32": {0, 1<<32 - 1}, "uint64": {0, 1<<63 - 1}}
	for typ, lim := range types {
		for _, form := range []string{"list<%s>", "large_list<%s>", "fixed_size_list<%s>(3)"} {
			in := must(t, "read t: x "+fmt.Sprintf(form, typ))
			try := func(v int64) error {
				p, err := ops.NewPack(in, ops.PackSpec{Column: "x", Length: 4, PadID: v}, m)
				q, err2 := ops.NewPack(in, ops.PackSpec{Column: "x", Length: 4, EOS: &v}, m)
				if (err == nil) != (err2 == nil) {
					t.Errorf("%s: %d as pad: %v, as eos: %v", typ, v, err, err2)
				}
				if err != nil {
					return err
				}
				for i, f := range p.Schema().Fields() {
					l := f.Type.(*arrow.FixedSizeListType)
					want := "int32"
					if i == 0 {
						want = typ
					}
					if f.Nullable || l.Len() != 4 || l.ElemField().Nullable || l.ElemField().Name != "item" || l.Elem().Name() != want {
						t.Errorf("%s: %v", typ, f)
					}
				}
				if names := fmt.Sprint(p.Schema().Field(0).Name, p.Schema().Field(1).Name, p.Schema().Field(2).Name); p.Schema().NumFields() != 3 || names != "input_idssegment_idsposition_ids" {
					t.Errorf("%v", p.Schema())
				}
				if !p.Schema().Equal(q.Schema()) {
					t.Error("eos changes the schema")
				}
				return nil
			}
			for i, v := range lim {
				if err := try(v); err != nil {
					t.Errorf("%s: %d: %v", typ, v, err)
				}
				if v == -1<<63 || v == 1<<63-1 {
					continue
				}
				if err := try(v + int64(2*i-1)); fault.CodeOf(err) != fault.Invalid {
					t.Errorf("%s: %d: got %v", typ, v+int64(2*i-1), err)
				}
			}
		}
	}
}

// What is written down is read back, field by field, for random packs and mixes.
func TestShardsCodec(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 4))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	for range 300 {
		k := 1 + rng.IntN(4)
		s := ops.MixSpec{Stop: []string{"", "first", "all"}[rng.IntN(3)]}
		weights := func() []int64 {
			w := make([]int64, k)
			for i := range w {
				w[i] = rng.Int64N(1 << 20 / int64(k))
			}
			w[rng.IntN(k)] = 1
			return w
		}
		s.Weights = weights()
		for at := int64(0); rng.IntN(3) > 0; {
			at += 1 + rng.Int64N(1<<40)
			s.Schedule = append(s.Schedule, ops.WeightsAt{At: at, Weights: weights()})
		}
		var ins []ops.Node
		packed, mask, length := rng.IntN(2) == 0, rng.IntN(2) == 0, 1+rng.IntN(1<<24)
		for i := range k {
			s.Names = append(s.Names, fmt.Sprintf("s_%d.x-", i))
			n := must(t, "read t: tokens list<int>, m list<bool>\nfilter size(tokens) > 1")
			if packed {
				p := ops.PackSpec{Column: "tokens", Length: length, PadID: rng.Int64() - 1<<62, LossMask: mask,
					Method: []string{"", "concat", "best_fit"}[rng.IntN(3)], Overlong: []string{"", "split", "drop"}[rng.IntN(3)]}
				if mask && rng.IntN(2) == 0 {
					p.MaskColumn = "m"
				}
				if rng.IntN(2) == 0 {
					eos := rng.Int64() - 1<<62
					p.EOS = &eos
				}
				var err error
				if n, err = ops.NewPack(n, p, ops.Meta{Pos: 2, Verb: "pack"}); err != nil {
					t.Fatal(err)
				}
			}
			ins = append(ins, n)
		}
		if rng.IntN(2) == 0 {
			for range k {
				s.Repeat = append(s.Repeat, rng.IntN(2) == 0)
			}
		}
		n, err := ops.NewMix(ins, s, ops.Meta{Pos: 3, Verb: "mix"})
		if err != nil {
			t.Fatal(err)
		}
		data, err := ops.Encode(n)
		if err != nil {
			t.Fatal(err)
		}
		back, err := ops.Decode(t.Context(), data, decodeOptions())
		if err != nil {
			t.Fatalf("%v\n%s", err, data)
		}
		m := back.(*ops.Mix)
		if d := cmp.Diff(n.MixSpec, m.MixSpec); d != "" {
			t.Errorf("%s\n%s", data, d)
		}
		for i := range n.Ins {
			if p, ok := n.Ins[i].(*ops.Pack); ok {
				if d := cmp.Diff(p.PackSpec, m.Ins[i].(*ops.Pack).PackSpec); d != "" {
					t.Errorf("%s\n%s", data, d)
				}
			}
		}
		if d := cmp.Diff(ops.Format(n), ops.Format(m)); d != "" || !n.Schema().Equal(m.Schema()) {
			t.Error(d)
		}
		// The caller's slices are not the plan's.
		before := n.String()
		s.Names[0], s.Weights[0] = "other", 7
		for _, w := range s.Schedule {
			w.Weights[0]++
		}
		if n.String() != before {
			t.Errorf("%s became %s", before, n)
		}
	}
}
