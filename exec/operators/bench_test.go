package operators

import (
	"context"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/ops"
)

const benchRows = 16384

// benchBlock has a (int64), x, y, z (double), s (string) and l (list<double> of 4).
func benchBlock() *exec.Block {
	f64 := arrow.PrimitiveTypes.Float64
	s := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64}, {Name: "x", Type: f64}, {Name: "y", Type: f64}, {Name: "z", Type: f64},
		{Name: "s", Type: arrow.BinaryTypes.String}, {Name: "l", Type: arrow.ListOf(f64)}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	rng := rand.New(rand.NewPCG(1, 1))
	for i := range benchRows {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		for k := 1; k < 4; k++ {
			b.Field(k).(*array.Float64Builder).Append(rng.Float64())
		}
		b.Field(4).(*array.StringBuilder).Append("some text of a row")
		l := b.Field(5).(*array.ListBuilder)
		l.Append(true)
		for range 4 {
			l.ValueBuilder().(*array.Float64Builder).Append(rng.Float64())
		}
	}
	return &exec.Block{Batch: b.NewRecordBatch(), Origin: testOrigin, Span: benchRows}
}

func BenchmarkOperators(b *testing.B) {
	in := benchBlock()
	defer in.Release()
	s := in.Batch.Schema()
	proj, projSchema := items(b, s, "a = a", "t = x * y + z", "u = sqrt(x)")
	plain, plainSchema := items(b, s, "a = a", "x = x")
	flat := arrow.NewSchema(append(s.Fields()[:5:5], arrow.Field{Name: "l", Type: arrow.PrimitiveTypes.Float64, Nullable: true}), nil)
	echo := NewExec(step, s, &ops.ExecSpec{Command: testExec(b, "echo", nil).spec.Command, Env: []string{"PENSTOCK_TEST_CHILD=echo"}, Workers: 1, BatchRows: benchRows, Out: s})
	defer echo.Close()
	for _, c := range []struct {
		name  string
		op    exec.Operator
		track bool
	}{
		{"filter-half-2-columns", must[*Filter](b)(NewFilter(step, s, parse(b, "x > 0.5"), []string{"a", "x"})), false},
		{"filter-half-2-columns-tracked", must[*Filter](b)(NewFilter(step, s, parse(b, "x > 0.5"), []string{"a", "x"})), true},
		{"filter-half-6-columns", must[*Filter](b)(NewFilter(step, s, parse(b, "x > 0.5"), nil)), false},
		{"filter-all", must[*Filter](b)(NewFilter(step, s, parse(b, "x >= 0.0"), nil)), false},
		{"project-3", must[*Project](b)(NewProject(step, s, proj, projSchema)), false},
		{"project-plain", must[*Project](b)(NewProject(step, s, plain, plainSchema)), false},
		{"explode-4", NewExplode(step, 5, false, flat), true},
		{"sample-half", must[*Sample](b)(NewSample(step, s, 0, 0.5, 1, nil, []string{"a", "x"})), true},
		{"sample-half-by-key", must[*Sample](b)(NewSample(step, s, 0, 0.5, 1, []string{"s"}, []string{"a", "x"})), true},
		{"map", NewMap(step, ops.MapOf(func(_ context.Context, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
			rec.Retain()
			return rec, nil
		}), 0, s), false},
		{"exec-echo", echo, true},
	} {
		b.Run(c.name, func(b *testing.B) {
			env := testEnv(memory.DefaultAllocator)
			env.TrackRows = c.track
			task := must[exec.Task](b)(c.op.NewTask(env))
			defer task.Close()
			b.SetBytes(exec.SizeOf(in.Batch))
			b.ReportAllocs()
			before := cpu()
			for b.Loop() {
				if err := task.Process(b.Context(), in, func(b *exec.Block) error { b.Release(); return nil }); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(b.N)*benchRows/b.Elapsed().Seconds()/1e6, "Mrows/s")
			b.ReportMetric(float64(b.N)*benchRows/(cpu()-before)/1e6, "Mrows/cpu-s")
		})
	}
}

// cpu is the time that this process has computed, in seconds: on a busy machine the better clock.
func cpu() float64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}
