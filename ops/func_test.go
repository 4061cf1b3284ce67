package ops_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

func pass(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
	in.Retain()
	return in, nil
}

func flat(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, []int32, error) {
	in.Retain()
	parents := make([]int32, in.NumRows())
	for i := range parents {
		parents[i] = int32(i)
	}
	return in, parents, nil
}

func nothing(ctx context.Context, in arrow.RecordBatch) (*array.Boolean, error) {
	b := array.NewBooleanBuilder(ops.Allocator(ctx))
	defer b.Release()
	b.AppendValues(make([]bool, in.NumRows()), nil)
	return b.NewBooleanArray(), nil
}

func TestProbe(t *testing.T) {
	in := must(t, "read t: a int")
	m := ops.Meta{Pos: 4, Verb: "map_batches"}
	for _, c := range []struct {
		name string
		f    *ops.Func
		want string
		code fault.Code
	}{
		{"panic", ops.MapOf(func(context.Context, arrow.RecordBatch) (arrow.RecordBatch, error) { panic("at the disco") }),
			"step 4 (map_batches): the function panicked on an empty batch", fault.UserCode},
		{"nil", ops.MapOf(func(context.Context, arrow.RecordBatch) (arrow.RecordBatch, error) { return nil, nil }), "returned no batch", fault.UserCode},
		{"error", ops.MapOf(func(context.Context, arrow.RecordBatch) (arrow.RecordBatch, error) { return nil, errors.New("no") }), "fails on an empty batch", fault.UserCode},
		{"none", &ops.Func{}, "exactly one of Map and FlatMap", fault.Invalid},
		{"two", &ops.Func{Map: pass, FlatMap: flat}, "exactly one of Map and FlatMap", fault.Invalid},
		{"filter", ops.FilterOf(nothing), "exactly one of Map and FlatMap", fault.Invalid},
		{"passes", &ops.Func{Map: pass, Passes: []string{"b"}}, `unknown column "b"; have a`, fault.Invalid},
	} {
		_, err := ops.NewMap(t.Context(), in, c.f, 0, m)
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.CodeOf(err) != c.code {
			t.Errorf("%s: got %v (%v), want %q (%v)", c.name, err, fault.CodeOf(err), c.want, c.code)
		}
	}

	calls := 0
	n, err := ops.NewMap(t.Context(), in, ops.MapOf(func(_ context.Context, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
		calls++
		s := arrow.NewSchema([]arrow.Field{{Name: "z", Type: arrow.PrimitiveTypes.Int64}}, nil)
		return array.NewRecordBatch(s, rec.Columns(), rec.NumRows()), nil
	}), 0, m)
	if err != nil || calls != 1 || n.Schema().Field(0).Name != "z" {
		t.Errorf("got %v, %v after %d calls", n, err, calls)
	}
	if _, err := n.WithInputs([]ops.Node{must(t, "read t: b int")}); err == nil {
		t.Error("other columns were accepted without a call")
	}
}

func TestRandFor(t *testing.T) {
	rows := expr.Rows{Seed: 7, Epoch: 2, Source: 1, Split: "a#3", Row: 100}
	draw := func(r expr.Rows, site, i int) uint64 {
		ctx := ops.WithCall(t.Context(), &ops.Call{Rows: r, Site: site, Random: true})
		return ops.RandFor(ctx, i).Uint64()
	}
	base := draw(rows, 5, 10)
	if base != 0xc10383a61ebf8f52 {
		t.Errorf("the generator of functions changed: %#x", base)
	}
	// The same row in another batch.
	at := rows
	at.Row, at.At = 0, []int64{3, 110}
	if got := draw(at, 5, 1); got != base {
		t.Errorf("row 110 gives %#x by position, %#x before", got, base)
	}
	seen := map[uint64]string{base: "base"}
	for name, f := range map[string]func(r *expr.Rows, site, i *int){
		"seed":   func(r *expr.Rows, _, _ *int) { r.Seed++ },
		"epoch":  func(r *expr.Rows, _, _ *int) { r.Epoch++ },
		"source": func(r *expr.Rows, _, _ *int) { r.Source++ },
		"split":  func(r *expr.Rows, _, _ *int) { r.Split = "a#4" },
		"row":    func(_ *expr.Rows, _, i *int) { *i++ },
		"site":   func(_ *expr.Rows, s, _ *int) { *s++ },
		"ord":    func(r *expr.Rows, _, _ *int) { r.Ords = make([]uint64, 20); r.Ords[10] = 9 },
	} {
		r, site, i := rows, 5, 10
		f(&r, &site, &i)
		v := draw(r, site, i)
		if by, dup := seen[v]; dup {
			t.Errorf("%s gives the number of %s", name, by)
		}
		seen[v] = name
	}
	defer func() {
		if recover() == nil {
			t.Error("RandFor without UsesRandom did not panic")
		}
	}()
	ops.RandFor(ops.WithCall(t.Context(), &ops.Call{}), 0)
}

func TestAllocator(t *testing.T) {
	a := memtest.New(t)
	ctx := ops.WithCall(t.Context(), &ops.Call{Random: true})
	ctx = ops.WithAllocator(ctx, a)
	if ops.Allocator(ctx) != a {
		t.Error("another allocator")
	}
	ops.RandFor(ctx, 0) // is still there
	if ops.Allocator(t.Context()) == nil {
		t.Error("no default")
	}
}

func TestRegistry(t *testing.T) {
	var r, other ops.Registry
	double := r.Map("double", "1", func(config []byte) (ops.MapFunc, error) {
		if string(config) == "bad" {
			return nil, errors.New("cannot read it")
		}
		if string(config) == "nil" {
			return nil, nil
		}
		if string(config) == "panic" {
			panic("oh")
		}
		return pass, nil
	})
	f, err := double.Func([]byte("x"))
	if err != nil || f.Map == nil || f.Name != "double" || f.Version != "1" || string(f.Config) != "x" || f.String() != "double@1" {
		t.Errorf("got %+v, %v", f, err)
	}
	for config, want := range map[string]string{"bad": "refuses its configuration: cannot read it", "nil": "returned nil", "panic": "panicked"} {
		if _, err := double.Func([]byte(config)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v", config, err)
		}
	}
	if _, err := r.Lookup("treble"); err == nil || !strings.Contains(err.Error(), "have double") {
		t.Errorf("got %v", err)
	}
	if r.Digest() == other.Digest() {
		t.Error("the digest does not see names")
	}
	other.Map("double", "2", func([]byte) (ops.MapFunc, error) { return pass, nil })
	if r.Digest() == other.Digest() {
		t.Error("the digest does not see versions")
	}
	func() {
		defer func() {
			msg, _ := recover().(string)
			if strings.Count(msg, "func_test.go:") != 2 {
				t.Errorf("a second registration gave %q", msg)
			}
		}()
		r.Filter("double", "1", func([]byte) (ops.FilterFunc, error) { return nothing, nil })
	}()
	if ops.DefaultRegistry() == nil {
		t.Error("no default registry")
	}
}
