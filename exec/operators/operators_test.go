package operators

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv("PENSTOCK_TEST_CHILD"); mode != "" {
		childMain(mode)
		return
	}
	goleak.VerifyTestMain(m)
}

var testSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "x", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true},
	{Name: "f", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float32), Nullable: true},
	{Name: "ll", Type: arrow.LargeListOf(arrow.BinaryTypes.String), Nullable: true},
}, nil)

// testBatch makes n random rows; id counts from 0.
func testBatch(rng *rand.Rand, n int, alloc memory.Allocator) arrow.RecordBatch {
	b := array.NewRecordBuilder(alloc, testSchema)
	defer b.Release()
	for i := range n {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		if rng.IntN(5) == 0 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.Float64Builder).Append(float64(rng.IntN(100)) / 10)
		}
		if rng.IntN(7) == 0 {
			b.Field(2).AppendNull()
		} else {
			b.Field(2).(*array.StringBuilder).Append(strings.Repeat("ab", rng.IntN(4)))
		}
		l := b.Field(3).(*array.ListBuilder)
		ll := b.Field(5).(*array.LargeListBuilder)
		if rng.IntN(6) == 0 {
			l.AppendNull()
			ll.AppendNull()
		} else {
			l.Append(true)
			ll.Append(true)
			for k := range rng.IntN(5) {
				l.ValueBuilder().(*array.Int64Builder).Append(int64(i*10 + k))
				ll.ValueBuilder().(*array.StringBuilder).Append(fmt.Sprint(i, k))
			}
		}
		f := b.Field(4).(*array.FixedSizeListBuilder)
		if rng.IntN(6) == 0 {
			f.AppendNull()
		} else {
			f.Append(true)
			f.ValueBuilder().(*array.Float32Builder).AppendValues([]float32{float32(i), -float32(i)}, nil)
		}
	}
	return b.NewRecordBatch()
}

func testEnv(alloc memory.Allocator) *exec.Env {
	return &exec.Env{Alloc: alloc, Seed: 7, Epoch: 1, Origin: testOrigin, Attempt: 1, TrackRows: true, Log: slog.New(slog.DiscardHandler)}
}

var testOrigin = exec.Origin{Source: 2, Split: "dir/a.parquet#1", File: "dir/a.parquet", Index: 1}

// run feeds blocks to one task of op, takes them over, and returns what came out as text: one line per
// row, "position ordinal | values". It checks the spans.
func run(t testing.TB, op exec.Operator, env *exec.Env, blocks ...*exec.Block) ([]string, error) {
	t.Helper()
	task, err := op.NewTask(env)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		for range 2 {
			if err := task.Close(); err != nil {
				t.Error(err)
			}
		}
	}()
	var lines []string
	defer func() {
		for _, b := range blocks {
			b.Release()
		}
	}()
	for len(blocks) > 0 {
		in := blocks[0]
		at := in.Row
		err := task.Process(t.Context(), in, func(b *exec.Block) error {
			defer b.Release()
			if b.Row != at || b.Origin != in.Origin || b.Span < 0 {
				t.Errorf("a block of %v begins at %d, the last one ended at %d", b.Origin, b.Row, at)
			}
			at += b.Span
			if !b.Batch.Schema().Equal(op.Schema()) {
				t.Errorf("got schema %v, want %v", b.Batch.Schema(), op.Schema())
			}
			if err := array.ValidateRecordFull(b.Batch); err != nil {
				t.Error(err)
			}
			n := int(b.Batch.NumRows())
			if b.Rows != nil && len(b.Rows) != n || b.Ords != nil && len(b.Ords) != n {
				t.Fatalf("%d rows, %d positions, %d ordinals", n, len(b.Rows), len(b.Ords))
			}
			for i := range n {
				row := b.RowAt(i)
				if env.TrackRows && (row < b.Row || row >= b.Row+b.Span) {
					t.Errorf("row at %d in a block of %d to %d", row, b.Row, b.Row+b.Span)
				}
				var ord uint64
				if b.Ords != nil {
					ord = b.Ords[i]
				}
				line := fmt.Sprintf("%d %x |", row, ord)
				if !env.TrackRows {
					line = ""
				}
				for _, c := range b.Batch.Columns() {
					line += " " + c.ValueStr(i)
				}
				lines = append(lines, line)
			}
			return nil
		})
		if err != nil {
			return lines, err
		}
		if at != in.Row+in.Span {
			t.Errorf("the blocks end at %d, their input ended at %d", at, in.Row+in.Span)
		}
		in.Release()
		blocks = blocks[1:]
	}
	return lines, nil
}

// cut makes blocks of rec, cut at random. Positions have gaps where tracked is set, as after a filter.
func cut(rng *rand.Rand, rec arrow.RecordBatch, pieces int, gaps bool) []*exec.Block {
	n := int(rec.NumRows())
	edges := []int{0, n}
	for range pieces - 1 {
		edges = append(edges, rng.IntN(n+1))
	}
	slices.Sort(edges)
	at := func(i int) int64 {
		if gaps {
			return int64(i*3 + 1)
		}
		return int64(i)
	}
	base := int64(1000)
	var blocks []*exec.Block
	for k := range len(edges) - 1 {
		lo, hi := edges[k], edges[k+1]
		b := &exec.Block{Batch: rec.NewSlice(int64(lo), int64(hi)), Origin: testOrigin, Row: base + at(lo), Span: at(hi) - at(lo)}
		if k == 0 && gaps {
			b.Row, b.Span = base, at(hi)
		}
		if gaps {
			b.Rows = make([]int64, hi-lo)
			for i := range b.Rows {
				b.Rows[i] = base + at(lo+i)
			}
		}
		blocks = append(blocks, b)
	}
	return blocks
}

func parse(t testing.TB, s string) *expr.Expr {
	t.Helper()
	e, err := expr.Parse(s)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func must[T any](t testing.TB) func(v T, err error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

func items(t testing.TB, in *arrow.Schema, entries ...string) ([]ops.Named, *arrow.Schema) {
	t.Helper()
	var out []ops.Named
	var fields []arrow.Field
	for _, e := range entries {
		it, err := ops.ParseNamed(e)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, it)
		if c, ok := it.Expr.IsCol(); ok {
			f := in.Field(in.FieldIndices(c)[0])
			f.Name = it.Name
			fields = append(fields, f)
			continue
		}
		p, err := it.Expr.Bind(in, 0)
		if err != nil {
			t.Fatal(err)
		}
		fields = append(fields, arrow.Field{Name: it.Name, Type: p.Type(), Nullable: true})
	}
	return out, arrow.NewSchema(fields, nil)
}

var step = Step{Name: "test", Step: "step 1 (test)", Site: 1 << 32}

// double repeats every row id%3 times, of the columns id and x.
func double(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, []int32, error) {
	ids := in.Column(0).(*array.Int64)
	var parents []int32
	for i, id := range ids.Int64Values() {
		for range id % 3 {
			parents = append(parents, int32(i))
		}
	}
	two := choose(in, []int{0, 1}, arrow.NewSchema(in.Schema().Fields()[:2], nil))
	defer two.Release()
	out, err := expr.Take(two, parents, ops.Allocator(ctx))
	return out, parents, err
}

// noisy adds a random column "r".
func noisy(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
	b := array.NewFloat64Builder(ops.Allocator(ctx))
	defer b.Release()
	for i := range int(in.NumRows()) {
		b.Append(ops.RandFor(ctx, i).Float64())
	}
	r := b.NewArray()
	defer r.Release()
	s := arrow.NewSchema([]arrow.Field{{Name: "r", Type: arrow.PrimitiveTypes.Float64}}, nil)
	return array.NewRecordBatch(s, []arrow.Array{r}, in.NumRows()), nil
}

func odd(ctx context.Context, in arrow.RecordBatch) (*array.Boolean, error) {
	b := array.NewBooleanBuilder(ops.Allocator(ctx))
	defer b.Release()
	for _, id := range in.Column(0).(*array.Int64).Int64Values() {
		b.Append(id%2 == 1)
	}
	return b.NewBooleanArray(), nil
}

// all are operators over testSchema (or over the output of explode where named).
func all(t testing.TB) map[string]exec.Operator {
	proj, projSchema := items(t, testSchema, "id = id", "y = x * 2.0 + 1.0", "name = s", "r = random()", "n = size(l)")
	rand1 := arrow.NewSchema([]arrow.Field{{Name: "r", Type: arrow.PrimitiveTypes.Float64}}, nil)
	nullable := slices.Clone(testSchema.Fields())
	for i := range nullable {
		nullable[i].Nullable = true
	}
	exploded := func(col int) *arrow.Schema {
		f := slices.Clone(testSchema.Fields())
		f[col].Type = f[col].Type.(arrow.ListLikeType).Elem()
		f[col].Nullable = true
		return arrow.NewSchema(f, nil)
	}
	filter := must[*Filter](t)
	sample := must[*Sample](t)
	return map[string]exec.Operator{
		"filter":          filter(NewFilter(step, testSchema, parse(t, "x > 3.0 && id % 3 != 0"), nil)),
		"filter columns":  filter(NewFilter(step, testSchema, parse(t, "x > 3.0"), []string{"s", "f"})),
		"filter count":    filter(NewFilter(step, testSchema, parse(t, "x > 3.0"), []string{})),
		"filter random":   filter(NewFilter(step, testSchema, parse(t, "random() < 0.5"), nil)),
		"filter all":      filter(NewFilter(step, testSchema, parse(t, "id >= 0"), nil)),
		"filter none":     filter(NewFilter(step, testSchema, parse(t, "id < 0"), nil)),
		"filter func":     must[*FilterFunc](t)(NewFilterFunc(step, testSchema, ops.FilterOf(odd), []string{"x"})),
		"project":         must[*Project](t)(NewProject(step, testSchema, proj, projSchema)),
		"relabel":         must[*Relabel](t)(NewRelabel(step, testSchema, arrow.NewSchema(nullable, nil))),
		"map":             NewMap(step, &ops.Func{Map: noisy, UsesRandom: true}, 0, rand1),
		"map small":       NewMap(step, &ops.Func{Map: noisy, UsesRandom: true}, 3, rand1),
		"flat map":        NewMap(step, ops.FlatMapOf(double), 0, arrow.NewSchema(testSchema.Fields()[:2], nil)),
		"flat map small":  NewMap(step, ops.FlatMapOf(double), 2, arrow.NewSchema(testSchema.Fields()[:2], nil)),
		"explode list":    NewExplode(step, 3, false, exploded(3)),
		"explode empty":   NewExplode(step, 3, true, exploded(3)),
		"explode fixed":   NewExplode(step, 4, false, exploded(4)),
		"explode fixed 0": NewExplode(step, 4, true, exploded(4)),
		"explode large":   NewExplode(step, 5, true, exploded(5)),
		"sample":          sample(NewSample(step, testSchema, 0.2, 0.6, 3, nil, nil)),
		"sample key":      sample(NewSample(step, testSchema, 0, 0.5, 3, []string{"s", "x"}, []string{"s", "x"})),
	}
}

// What an operator makes of rows does not depend on where blocks were cut.
func TestRowWise(t *testing.T) {
	for name, op := range all(t) {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(12) {
				alloc := memtest.New(t)
				rng := rand.New(rand.NewPCG(seed, 1))
				rec := testBatch(rng, rng.IntN(200), alloc)
				for _, gaps := range []bool{false, true} {
					want, err := run(t, op, testEnv(alloc), cut(rng, rec, 1, gaps)...)
					if err != nil {
						t.Fatal(err)
					}
					got, err := run(t, op, testEnv(alloc), cut(rng, rec, 1+rng.IntN(20), gaps)...)
					if err != nil {
						t.Fatal(err)
					}
					if d := cmp.Diff(want, got); d != "" {
						t.Fatalf("seed %d: %s", seed, d)
					}
					// Untracked, the rows are the same.
					env := testEnv(alloc)
					if n, ok := op.(exec.Tracks); !ok || !n.NeedsRows() {
						env.TrackRows = false
						plain, err := run(t, op, env, cut(rng, rec, 3, false)...)
						if err != nil {
							t.Fatal(err)
						}
						for i := range want {
							_, values, _ := strings.Cut(want[i], "|")
							if plain[i] != values {
								t.Fatalf("seed %d: untracked row %d is %q, not %q", seed, i, plain[i], values)
							}
						}
					}
				}
				rec.Release()
			}
		})
	}
}

// An operator gets the rows right: against a plain Go loop.
func TestRows(t *testing.T) {
	alloc := memtest.New(t)
	rec := testBatch(rand.New(rand.NewPCG(9, 9)), 300, alloc)
	defer rec.Release()
	o := all(t)
	ids := func(name string, keep func(i int) int) {
		t.Helper()
		got, err := run(t, o[name], testEnv(alloc), cut(nil, rec, 1, false)...)
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i := range 300 {
			for range keep(i) {
				want = append(want, fmt.Sprint(1000+i))
			}
		}
		for i := range got {
			got[i], _, _ = strings.Cut(got[i], " ")
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s: %s", name, d)
		}
	}
	one := func(b bool) int {
		if b {
			return 1
		}
		return 0
	}
	x := rec.Column(1).(*array.Float64)
	l := rec.Column(3).(*array.List)
	size := func(i int) int {
		if l.IsNull(i) {
			return 0
		}
		a, b := l.ValueOffsets(i)
		return int(b - a)
	}
	ids("filter", func(i int) int { return one(x.IsValid(i) && x.Value(i) > 3 && i%3 != 0) })
	ids("filter count", func(i int) int { return one(x.IsValid(i) && x.Value(i) > 3) })
	ids("filter none", func(int) int { return 0 })
	ids("filter func", func(i int) int { return i % 2 })
	ids("project", func(int) int { return 1 })
	ids("flat map", func(i int) int { return i % 3 })
	ids("flat map small", func(i int) int { return i % 3 })
	ids("explode list", size)
	ids("explode empty", func(i int) int { return max(1, size(i)) })
	ids("explode fixed", func(i int) int { return 2 * one(rec.Column(4).IsValid(i)) })
}

// Explode of an explode: positions repeat, ordinals do not, and pieces end between source rows.
func TestExplodeTwice(t *testing.T) {
	alloc := memtest.New(t)
	in := arrow.NewSchema([]arrow.Field{{Name: "k", Type: arrow.PrimitiveTypes.Int64}, {Name: "m", Type: arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Int64))}}, nil)
	mid := arrow.NewSchema([]arrow.Field{in.Field(0), {Name: "m", Type: arrow.ListOf(arrow.PrimitiveTypes.Int64), Nullable: true}}, nil)
	end := arrow.NewSchema([]arrow.Field{in.Field(0), {Name: "m", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)
	b := array.NewRecordBuilder(alloc, in)
	defer b.Release()
	for i := range 20 {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		outer := b.Field(1).(*array.ListBuilder)
		outer.Append(true)
		for j := range i % 4 {
			inner := outer.ValueBuilder().(*array.ListBuilder)
			inner.Append(true)
			for k := range j + 1 {
				inner.ValueBuilder().(*array.Int64Builder).Append(int64(100*i + 10*j + k))
			}
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	first := NewExplode(step, 1, false, mid)
	var middle []*exec.Block
	task := must[exec.Task](t)(first.NewTask(testEnv(alloc)))
	src := &exec.Block{Batch: rec, Origin: testOrigin, Row: 0, Span: 20}
	if err := task.Process(t.Context(), src, func(b *exec.Block) error { middle = append(middle, b); return nil }); err != nil {
		t.Fatal(err)
	}
	lines, err := run(t, NewExplode(step, 1, false, end), testEnv(alloc), middle...)
	if err != nil {
		t.Fatal(err)
	}
	want := 0
	for i := range 20 {
		for j := range i % 4 {
			want += j + 1
		}
	}
	seen := map[string]bool{}
	for _, l := range lines {
		pos, _, _ := strings.Cut(l, "|")
		if seen[pos] {
			t.Errorf("position and ordinal %s twice", pos)
		}
		seen[pos] = true
	}
	if len(lines) != want {
		t.Errorf("%d rows, want %d", len(lines), want)
	}
}

// Functions that slice rows of one source row are joined again.
func TestPiecesJoin(t *testing.T) {
	alloc := memtest.New(t)
	rng := rand.New(rand.NewPCG(3, 3))
	rec := testBatch(rng, 40, alloc)
	defer rec.Release()
	rows, ords := make([]int64, 40), make([]uint64, 40)
	for i := range rows {
		rows[i], ords[i] = int64(i/7), uint64(i%7) // source rows of seven rows each
	}
	blocks := func() *exec.Block {
		rec.Retain()
		return &exec.Block{Batch: rec, Origin: testOrigin, Row: 0, Span: 9, Rows: rows, Ords: ords}
	}
	want, err := run(t, all(t)["map"], testEnv(alloc), blocks())
	if err != nil {
		t.Fatal(err)
	}
	got, err := run(t, all(t)["map small"], testEnv(alloc), blocks())
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
	// One that gives up in between frees what it held back.
	calls := 0
	failing := NewMap(step, ops.MapOf(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
		if calls++; calls == 2 {
			return nil, errors.New("no more")
		}
		in.Retain()
		return in, nil
	}), 3, testSchema)
	if _, err := run(t, failing, testEnv(alloc), blocks()); fault.CodeOf(err) != fault.UserCode {
		t.Errorf("got %v", err)
	}
}

func TestErrors(t *testing.T) {
	alloc := memtest.New(t)
	rec := testBatch(rand.New(rand.NewPCG(4, 4)), 20, alloc)
	defer rec.Release()
	of := func(f ops.MapFunc) exec.Operator { return NewMap(step, ops.MapOf(f), 4, testSchema) }
	flat := func(parents ...int32) exec.Operator {
		return NewMap(step, ops.FlatMapOf(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, []int32, error) {
			in.Retain()
			return in, parents, nil
		}), 0, testSchema)
	}
	div, divSchema := items(t, testSchema, "q = 9223372036854775806 + id")
	for _, c := range []struct {
		name string
		op   exec.Operator
		want string
		code fault.Code
	}{
		{"overflow", must[*Project](t)(NewProject(step, testSchema, div, divSchema)), `step 1 (test), dir/a.parquet, row group 1, row 1002, column "q": `, fault.RowError},
		{"filter", must[*Filter](t)(NewFilter(step, testSchema, parse(t, "9223372036854775800 + id > 1"), nil)), `step 1 (test), dir/a.parquet, row group 1, row 1008: `, fault.RowError},
		{"plain error", of(func(context.Context, arrow.RecordBatch) (arrow.RecordBatch, error) { return nil, errors.New("boom") }), "boom", fault.UserCode},
		{"own deadline", of(func(context.Context, arrow.RecordBatch) (arrow.RecordBatch, error) {
			return nil, context.DeadlineExceeded
		}), "deadline", fault.UserCode},
		{"row", of(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
			if in.Column(0).(*array.Int64).Value(0) == 8 {
				return nil, fault.New(fault.RowError, "bad").At(fault.Place{Row: fault.N(2)})
			}
			in.Retain()
			return in, nil
		}), "row 1010: bad", fault.RowError},
		{"nil", of(func(context.Context, arrow.RecordBatch) (arrow.RecordBatch, error) { return nil, nil }), "returned no batch", fault.Invalid},
		{"rows", of(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
			return in.NewSlice(0, 1), nil
		}), "made 1 rows of 4; use a flat map", fault.Invalid},
		{"more rows", of(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
			return testBatch(rand.New(rand.NewPCG(4, 4)), int(in.NumRows())+1, alloc), nil
		}), "made 5 rows of 4; use a flat map", fault.Invalid},
		{"no rows of the last", of(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
			if in.Column(0).(*array.Int64).Value(0) == 16 {
				return in.NewSlice(0, 0), nil
			}
			in.Retain()
			return in, nil
		}), "made 0 rows of 4; use a flat map", fault.Invalid},
		{"columns", of(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
			return choose(in, []int{0}, arrow.NewSchema(testSchema.Fields()[:1], nil)), nil
		}), "other columns than it should: 1 column where 6 columns should be", fault.Invalid},
		{"few parents", flat(1, 2), "2 for 20 rows", fault.Invalid},
		{"descending", flat(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 3, 19), "row 18 has parent 3", fault.Invalid},
		{"out of range", flat(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 20), "row 19 has parent 20", fault.Invalid},
		{"mask", must[*FilterFunc](t)(NewFilterFunc(step, testSchema, ops.FilterOf(func(ctx context.Context, in arrow.RecordBatch) (*array.Boolean, error) {
			part := in.NewSlice(0, 3)
			defer part.Release()
			return odd(ctx, part)
		}), nil)), "returned 3 values for 20 rows", fault.Invalid},
	} {
		_, err := run(t, c.op, testEnv(alloc), cut(nil, rec, 1, false)...)
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.CodeOf(err) != c.code {
			t.Errorf("%s: got %v (%v), want %q (%v)", c.name, err, fault.CodeOf(err), c.want, c.code)
		}
		if s := fault.PlaceOf(err).Step; s != "step 1 (test)" {
			t.Errorf("%s: step %q", c.name, s)
		}
	}
}

// Where downstream wants no more, ErrDone comes back as it is.
func TestErrDone(t *testing.T) {
	alloc := memtest.New(t)
	rec := testBatch(rand.New(rand.NewPCG(4, 4)), 20, alloc)
	defer rec.Release()
	for name, op := range all(t) {
		task := must[exec.Task](t)(op.NewTask(testEnv(alloc)))
		in := cut(nil, rec, 1, false)[0]
		err := task.Process(t.Context(), in, func(b *exec.Block) error { b.Release(); return exec.ErrDone })
		if err != exec.ErrDone {
			t.Errorf("%s: got %v", name, err)
		}
		in.Release()
		task.Close()
	}
}

// The sample is part of the format: the same rows for ever.
func TestSampleGolden(t *testing.T) {
	alloc := memtest.New(t)
	rec := testBatch(rand.New(rand.NewPCG(4, 4)), 64, alloc)
	defer rec.Release()
	pick := func(op exec.Operator) string {
		got, err := run(t, op, testEnv(alloc), cut(nil, rec, 1, false)...)
		if err != nil {
			t.Fatal(err)
		}
		for i := range got {
			got[i], _, _ = strings.Cut(got[i], " ")
		}
		return strings.Join(got, " ")
	}
	got := pick(must[*Sample](t)(NewSample(step, testSchema, 0, 0.2, 3, nil, nil)))
	if want := "1004 1006 1007 1009 1014 1020 1022 1026 1033 1034 1037 1040 1044 1051 1052 1055 1056 1059"; got != want {
		t.Errorf("by position: %s", got)
	}
	got = pick(must[*Sample](t)(NewSample(step, testSchema, 0, 0.2, 3, []string{"id"}, nil)))
	if want := "1001 1013 1015 1026 1042 1044 1045 1046 1048 1052 1055 1056 1059 1062 1063"; got != want {
		t.Errorf("by key: %s", got)
	}
}

// Parts are disjoint, cover everything, and have about the right size; equal keys stay together.
func TestSampleParts(t *testing.T) {
	alloc := memtest.New(t)
	const n = 20000
	rec := testBatch(rand.New(rand.NewPCG(4, 4)), n, alloc)
	defer rec.Release()
	for _, key := range [][]string{nil, {"id"}} {
		total := 0
		seen := map[string]bool{}
		for _, r := range [][2]float64{{0, 0.7}, {0.7, 0.9}, {0.9, 1}, {1, 1}, {0.5, 0.5}} {
			got, err := run(t, must[*Sample](t)(NewSample(step, testSchema, r[0], r[1], 11, key, []string{"id"})), testEnv(alloc), cut(nil, rec, 1, false)...)
			if err != nil {
				t.Fatal(err)
			}
			if want := (r[1] - r[0]) * n; float64(len(got)) < want-400 || float64(len(got)) > want+400 {
				t.Errorf("%v by %v: %d rows of %d", r, key, len(got), n)
			}
			total += len(got)
			for _, l := range got {
				seen[l] = true
			}
		}
		if total != n || len(seen) != n {
			t.Errorf("by %v: %d rows, %d of them different", key, total, len(seen))
		}
	}
	got, err := run(t, must[*Sample](t)(NewSample(step, testSchema, 0, 0.5, 11, []string{"s"}, []string{"s"})), testEnv(alloc), cut(nil, rec, 1, false)...)
	if err != nil {
		t.Fatal(err)
	}
	in := map[string]int{}
	for _, l := range got {
		_, v, _ := strings.Cut(l, "|")
		in[v]++
	}
	all := map[string]int{}
	s := rec.Column(2)
	for i := range n {
		all[" "+s.ValueStr(i)]++
	}
	for v, k := range in {
		if all[v] != k {
			t.Errorf("%d rows with key %q of %d", k, v, all[v])
		}
	}
	if len(in) == 0 || len(in) == len(all) {
		t.Errorf("%d of %d keys", len(in), len(all))
	}
}
