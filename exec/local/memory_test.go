package local_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/memtest"
)

// load is a run that strains memory, in a process of its own.
type load struct {
	Name     string
	Limit    int64
	Splits   int
	Rows     int
	Min, Max int // bytes of a row, log-uniform
	Factor   int
	Heap     bool // the map allocates on the Go heap
	CPUs     int
	Batch    int64         // BatchBytes
	Pause    time.Duration // the consumer's, per MiB
	Largest  int64         // allowed on top, for single outputs beyond the budget
}

type outcome struct {
	HWM, Peak int64
	Rows      int
	Skew      float64 // most by which charged and allocated differed, of the budget
}

const loadEnv = "PENSTOCK_TEST_LOAD"

// TestResident: with a budget of 512 MiB, a map that inflates 20 times, rows of
// 1 KiB to 16 MiB and a slow consumer, the process stays within 1.25 times the
// budget and 150 MiB; where rows inflate beyond the budget, plus the largest.
func TestResident(t *testing.T) {
	if raw := os.Getenv(loadEnv); raw != "" {
		child(t, raw)
		return
	}
	if _, err := os.Stat("/proc/self/status"); err != nil {
		memtest.Skip(t, "%v", err)
	}
	if exec.NewBudget(1<<20).OffHeap() == false {
		memtest.Skip(t, "no memory outside the Go heap here")
	}
	const pause = 200 * time.Microsecond
	loads := []load{
		{Name: "small rows", Limit: 128 << 20, Splits: 8, Rows: 300, Min: 1 << 10, Max: 64 << 10, Factor: 20, CPUs: 4, Pause: pause},
		{Name: "mixed rows, heap", Limit: 128 << 20, Splits: 8, Rows: 6, Min: 1 << 10, Max: 4 << 20, Factor: 20, Heap: true, CPUs: 2},
		{Name: "huge rows", Limit: 64 << 20, Splits: 3, Rows: 1, Min: 8 << 20, Max: 8 << 20, Factor: 20, CPUs: 2, Largest: 20 * 8 << 20},
	}
	if os.Getenv("PENSTOCK_SOAK") != "" { // the figures of docs/design/0001-memory.md
		loads = []load{
			{Name: "small rows", Limit: 512 << 20, Splits: 64, Rows: 400, Min: 1 << 10, Max: 64 << 10, Factor: 20, CPUs: 4, Pause: 10 * pause},
			{Name: "small rows, heap", Limit: 512 << 20, Splits: 64, Rows: 400, Min: 1 << 10, Max: 64 << 10, Factor: 20, Heap: true, CPUs: 4, Pause: 10 * pause},
			{Name: "mixed rows", Limit: 512 << 20, Splits: 32, Rows: 6, Min: 1 << 10, Max: 16 << 20, Factor: 20, CPUs: 4, Pause: 10 * pause},
			{Name: "mixed rows, heap", Limit: 512 << 20, Splits: 32, Rows: 6, Min: 1 << 10, Max: 16 << 20, Factor: 20, Heap: true, CPUs: 2, Pause: 10 * pause},
			{Name: "huge rows", Limit: 512 << 20, Splits: 4, Rows: 1, Min: 64 << 20, Max: 64 << 20, Factor: 20, CPUs: 2, Largest: 20 * 64 << 20},
		}
	} else if testing.Short() {
		loads = loads[:1]
	}
	for _, l := range loads {
		t.Run(l.Name, func(t *testing.T) {
			raw, err := json.Marshal(l)
			if err != nil {
				t.Fatal(err)
			}
			cmd := osexec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestResident$")
			cmd.Env = append(os.Environ(), loadEnv+"="+string(raw))
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			_, line, _ := strings.Cut(string(out), "outcome ")
			var o outcome
			if err := json.NewDecoder(strings.NewReader(line)).Decode(&o); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			bound := l.Limit + l.Limit/4 + 150<<20 + l.Largest
			t.Logf("resident %s of %s, budget peak %s of %s, skew %.1f %%", exec.Bytes(o.HWM), exec.Bytes(bound), exec.Bytes(o.Peak), exec.Bytes(l.Limit), 100*o.Skew)
			if o.HWM > bound && !memtest.Race {
				t.Errorf("resident %s, allowed %s", exec.Bytes(o.HWM), exec.Bytes(bound))
			}
			if o.Rows != l.Splits*l.Rows {
				t.Errorf("%d rows", o.Rows)
			}
			if o.Skew > 0.05 {
				t.Errorf("charged and allocated bytes differ by %.1f %% of the budget", 100*o.Skew)
			}
		})
	}
}

func child(t *testing.T, raw string) {
	var l load
	if err := json.Unmarshal([]byte(raw), &l); err != nil {
		t.Fatal(err)
	}
	tb := exectest.NewTable(l.Splits, l.Rows)
	tb.Width = func(id int) int {
		r := rand.New(rand.NewPCG(uint64(id), 1))
		return int(float64(l.Min) * math.Pow(float64(l.Max)/float64(l.Min), r.Float64()))
	}
	b := exec.NewBudget(l.Limit)
	defer b.Close()
	s, err := local.New(nil).Run(t.Context(), exectest.Scan(tb, exectest.Inflate(l.Factor, l.Heap)), &exec.Options{Budget: b, CPUs: l.CPUs, BatchBytes: l.Batch})
	if err != nil {
		t.Fatal(err)
	}
	var o outcome
	for {
		blk, err := s.Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		o.Rows += int(blk.Batch.NumRows())
		time.Sleep(l.Pause * time.Duration(exec.SizeOf(blk.Batch)>>20)) // the load's consumer is slow
		charged, allocated := b.Used()-b.Leased(), b.Allocated()
		o.Skew = max(o.Skew, math.Abs(float64(charged-allocated))/float64(l.Limit))
		blk.Release()
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	checkEmpty(t, b)
	o.Peak = b.Peak()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); f[0] == "VmHWM:" {
			fmt.Sscan(f[1], &o.HWM)
			o.HWM <<= 10
		}
	}
	js, _ := json.Marshal(o)
	fmt.Printf("outcome %s\n", js)
}

// TestHeapOutputIsCopied: what a user's function allocates on the Go heap comes out in the
// budget's memory; what a source holds itself is neither copied nor charged.
func TestHeapOutputIsCopied(t *testing.T) {
	b := exec.NewBudget(64 << 20)
	defer b.Close()
	if !b.OffHeap() {
		memtest.Skip(t, "no memory outside the Go heap here")
	}
	rec := bigBatch(memory.NewGoAllocator(), 100000)
	defer rec.Release()
	own := rec.Column(0).Data().Buffers()[1].Bytes()
	plus := &exectest.Op{Label: "plus", Out: rec.Schema(), Process: func(_ context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
		n := bigBatch(memory.NewGoAllocator(), int(in.Batch.NumRows()))
		cols := []arrow.Array{in.Batch.Column(0), n.Column(1)}
		out := array.NewRecordBatch(rec.Schema(), cols, in.Batch.NumRows())
		n.Release()
		return emit(in.With(out, in.Rows, in.Ords))
	}}
	tb := &exectest.Held{Batch: rec}
	s, err := local.New(nil).Run(t.Context(), &exec.Graph{Schema: rec.Schema(), Root: &exec.Stage{Scan: &exec.Scan{Table: tb}, Ops: exectest.Fuse(plus)}}, &exec.Options{Budget: b})
	if err != nil {
		t.Fatal(err)
	}
	probe, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	probe.Release()
	blk, err := s.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if got := blk.Batch.Column(0).Data().Buffers()[1].Bytes(); &got[0] != &own[0] {
		t.Error("the source's own column was copied")
	}
	if got := blk.Batch.Column(1).Data().Buffers()[1].Bytes(); !b.Owns(got) {
		t.Error("the function's column lies outside the budget")
	}
	if used := b.Used(); used < 800000 || used > 1100000 {
		t.Errorf("%d bytes charged", used)
	}
	blk.Release()
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	checkEmpty(t, b)
}

func bigBatch(a memory.Allocator, n int) arrow.RecordBatch {
	bld := array.NewRecordBuilder(a, arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64}, {Name: "b", Type: arrow.PrimitiveTypes.Int64}}, nil))
	defer bld.Release()
	for c := range 2 {
		f := bld.Field(c).(*array.Int64Builder)
		for i := range n {
			f.Append(int64(i))
		}
	}
	return bld.NewRecordBatch()
}
