package operators

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	osexec "os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/ops"
)

// childMain is the program that the exec tests run: this binary, with PENSTOCK_TEST_CHILD set.
func childMain(mode string) {
	die := func(err error) {
		if err != nil {
			fmt.Fprintln(os.Stderr, "child:", err)
			os.Exit(4)
		}
	}
	switch mode {
	case "garbage":
		fmt.Println("hello, I print to stdout: " + strings.Repeat("x", 1000))
		time.Sleep(time.Minute)
	case "unpacked": // as an interpreter without the package
		fmt.Fprintln(os.Stderr, "ModuleNotFoundError: No module named 'penstock'")
		os.Exit(1)
	case "quit":
		os.Exit(9)
	case "env":
		fmt.Fprintln(os.Stderr, strings.Join(os.Environ(), "\n"))
		os.Exit(5)
	}
	r, err := ipc.NewReader(os.Stdin)
	die(err)
	var w *ipc.Writer
	both := bufio.NewWriterSize(os.Stdout, 32<<10) // so that answers that belong together come together
	for k := 0; r.Next(); k++ {
		rec := r.RecordBatch()
		var out arrow.RecordBatch
		switch mode {
		case "echo", "deaf", "short", "damaged", "twice":
			out = rec
			out.Retain()
			if mode == "short" {
				out = rec.NewSlice(0, rec.NumRows()-1)
			}
			if mode == "damaged" {
				out = damaged(rec)
			}
		case "types":
			b := array.NewBooleanBuilder(memory.DefaultAllocator)
			b.AppendValues(make([]bool, rec.NumRows()), nil)
			out = array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.FixedWidthTypes.Boolean}}, nil), []arrow.Array{b.NewArray()}, rec.NumRows())
		case "flat", "badflat":
			two, parents, err := double(context.Background(), rec)
			die(err)
			p := array.NewInt64Builder(memory.DefaultAllocator)
			for _, v := range parents {
				if mode == "badflat" {
					v += 1000
				}
				p.Append(int64(v))
			}
			f := append(two.Schema().Fields(), arrow.Field{Name: ops.ParentColumn, Type: arrow.PrimitiveTypes.Int64})
			out = array.NewRecordBatch(arrow.NewSchema(f, nil), append(two.Columns(), p.NewArray()), two.NumRows())
		case "refuse": // every second batch
			out = rec
			if k%2 == 1 {
				md := arrow.NewMetadata([]string{errorKey, codeKey}, []string{"ValueError: batch " + strconv.Itoa(k), "row_error"})
				out = array.NewRecordBatchWithMetadata(rec.Schema(), rec.NewSlice(0, 0).Columns(), 0, md)
			}
		case "useless": // it has no function
			md := arrow.NewMetadata([]string{errorKey, codeKey}, []string{"module fn has no 'nosuch'", "invalid"})
			out = array.NewRecordBatchWithMetadata(rec.Schema(), rec.NewSlice(0, 0).Columns(), 0, md)
		case "told": // what it was told of its answer
			md := rec.Schema().Metadata()
			packed, _ := md.GetValue(answerKey)
			b, err := base64.StdEncoding.DecodeString(packed)
			die(err)
			answer, err := ipc.NewReader(bytes.NewReader(b))
			die(err)
			fmt.Fprintln(os.Stderr, "told:", answer.Schema().Fields())
			os.Exit(1)
		case "crash": // in the middle of the second batch
			out = rec
			if k == 1 {
				fmt.Fprintln(os.Stderr, "segmentation fault, or so")
				os.Exit(3)
			}
		case "torn": // dies in the middle of its answer
			os.Stdout.Write([]byte{0xff, 0xff, 0xff, 0xff, 0, 1, 0, 0, 1, 2, 3})
			os.Exit(7)
		case "kill":
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		case "hang":
			time.Sleep(time.Hour)
		case "close":
			os.Stdout.Close()
			time.Sleep(time.Hour)
		case "flood":
			for range 2000 {
				fmt.Fprintln(os.Stderr, strings.Repeat("noise ", 20))
			}
			fmt.Fprintln(os.Stderr, "the end of it")
			if k == 1 {
				os.Exit(6)
			}
			out = rec
		case "grandchild": // leaves a process behind that holds the pipes
			c := osexec.Command("sleep", "1000")
			c.Stdout, c.Stderr = os.Stdout, os.Stderr
			die(c.Start())
			fmt.Fprintln(os.Stderr, "grandchild", c.Process.Pid)
			os.Exit(8)
		}
		if w == nil {
			w = ipc.NewWriter(both, ipc.WithSchema(out.Schema()))
		}
		die(w.Write(out))
		if mode == "twice" {
			die(w.Write(out))
		}
		die(both.Flush())
		if mode == "useless" {
			os.Exit(1)
		}
	}
	die(r.Err())
	if mode == "deaf" {
		time.Sleep(time.Hour)
	}
	die(w.Close())
	die(both.Flush())
}

// damaged has an offset that points outside of the strings.
func damaged(rec arrow.RecordBatch) arrow.RecordBatch {
	offsets := make([]int32, rec.NumRows()+1)
	d := array.NewData(arrow.BinaryTypes.String, int(rec.NumRows()),
		[]*memory.Buffer{nil, memory.NewBufferBytes(arrow.Int32Traits.CastToBytes(offsets)), memory.NewBufferBytes([]byte("abc"))}, nil, 0, 0)
	cols := slices.Clone(rec.Columns())
	cols[2] = array.MakeFromData(d)
	offsets[1] = 1_000_000
	return array.NewRecordBatch(rec.Schema(), cols, rec.NumRows())
}

func testExec(t testing.TB, mode string, change func(*ops.ExecSpec)) *Exec {
	spec := &ops.ExecSpec{Command: []string{os.Args[0], "-test.run=^$"}, Env: []string{"PENSTOCK_TEST_CHILD=" + mode}, Workers: 2, BatchRows: 16, TimeoutMS: 20_000, Out: testSchema}
	if change != nil {
		change(spec)
	}
	return NewExec(step, testSchema, spec)
}

func TestExec(t *testing.T) {
	alloc := memtest.New(t)
	rng := rand.New(rand.NewPCG(5, 5))
	rec := testBatch(rng, 100, alloc)
	defer rec.Release()
	var want []string
	for i := range 100 {
		l := fmt.Sprintf("%d 0 |", 1000+i)
		for _, c := range rec.Columns() {
			l += " " + c.ValueStr(i)
		}
		want = append(want, l)
	}
	op := testExec(t, "echo", nil)
	if op.Tasks() != 2 {
		t.Errorf("%d tasks", op.Tasks())
	}
	for range 3 { // over one pool; the third time after a Close
		got, err := run(t, op, testEnv(alloc), cut(rng, rec, 5, false)...)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Fatal(d)
		}
		if n := len(op.pool.idle); n != 1 {
			t.Errorf("%d children for one task", n)
		}
		op.Close()
	}
	for range 2 {
		if err := op.Close(); err != nil {
			t.Error(err)
		}
	}

	flat := testExec(t, "flat", func(s *ops.ExecSpec) { s.Flat = true; s.Out = arrow.NewSchema(testSchema.Fields()[:2], nil) })
	defer flat.Close()
	got, err := run(t, flat, testEnv(alloc), cut(rng, rec, 5, false)...)
	if err != nil {
		t.Fatal(err)
	}
	want, err = run(t, all(t)["flat map"], testEnv(alloc), cut(rng, rec, 1, false)...)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// Tasks at work at the same time have children of their own, and no more than Workers.
func TestExecParallel(t *testing.T) {
	alloc := memtest.New(t)
	rec := testBatch(rand.New(rand.NewPCG(5, 5)), 200, alloc)
	defer rec.Release()
	op := testExec(t, "echo", nil)
	defer op.Close()
	done := make(chan error)
	for range 5 {
		go func() {
			got, err := run(t, op, testEnv(alloc), cut(nil, rec, 1, false)...)
			if err == nil && len(got) != 200 {
				err = fmt.Errorf("%d rows", len(got))
			}
			done <- err
		}()
	}
	for range 5 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	if n := len(op.pool.idle); n < 1 || n > 2 {
		t.Errorf("%d children", n)
	}
}

func TestExecFailures(t *testing.T) {
	alloc := memtest.New(t)
	rec := testBatch(rand.New(rand.NewPCG(5, 5)), 3000, alloc)
	defer rec.Release()
	short := func(s *ops.ExecSpec) { s.TimeoutMS = 300 }
	for _, c := range []struct {
		mode   string
		change func(*ops.ExecSpec)
		want   string
		code   fault.Code
	}{
		{"crash", nil, "died: exit status 3; stderr: segmentation fault, or so", fault.WorkerLost},
		{"quit", nil, "died: exit status 9", fault.WorkerLost},
		{"unpacked", nil, "No module named 'penstock'; install the package for /", fault.WorkerLost},
		{"quit", func(s *ops.ExecSpec) { s.BatchRows = 3000 }, "died: exit status 9", fault.WorkerLost},
		{"torn", nil, "died: exit status 7", fault.WorkerLost},
		{"kill", nil, "died: signal: killed", fault.WorkerLost},
		{"hang", short, "gave no answer for 300ms", fault.WorkerLost},
		{"close", nil, "closed its stdin or stdout", fault.WorkerLost},
		{"garbage", nil, "only that may be written to stdout", fault.UserCode},
		{"flood", nil, "died: exit status 6; stderr: ...", fault.WorkerLost},
		{"types", nil, "answered with other columns than it should: 1 column where 6 columns should be; where the command changes columns, declare those it gives back in schema", fault.Invalid},
		{"short", nil, "answered 16 rows with 15; a command that changes rows must be declared flat", fault.Invalid},
		{"damaged", nil, "damaged", fault.UserCode},
		{"twice", nil, "answered with more batches than it was given", fault.Invalid},
		{"badflat", func(s *ops.ExecSpec) { s.Flat = true; s.Out = arrow.NewSchema(testSchema.Fields()[:2], nil) }, "wrong column __parent", fault.Invalid},
		{"refuse", nil, ": ValueError: batch 1", fault.RowError},
		{"told", func(s *ops.ExecSpec) { s.Flat = true; s.Out = arrow.NewSchema(testSchema.Fields()[:1], nil) }, "told: [id: type=int64 __parent: type=int64]", fault.WorkerLost},
		{"echo", func(s *ops.ExecSpec) { s.Command = []string{"/no/such/program"} }, "/no/such/program: cannot start", fault.Invalid},
		{"grandchild", nil, "died: exit status 8", fault.WorkerLost},
		{"env", nil, "PENSTOCK_TEST_CHILD=env", fault.WorkerLost},
	} {
		t.Run(c.mode, func(t *testing.T) {
			op := testExec(t, c.mode, c.change)
			defer op.Close()
			start := time.Now()
			_, err := run(t, op, testEnv(alloc), cut(nil, rec, 1, false)...)
			if err == nil || !strings.Contains(err.Error(), c.want) || fault.CodeOf(err) != c.code {
				t.Fatalf("got %v (%v), want %q (%v)", err, fault.CodeOf(err), c.want, c.code)
			}
			if !strings.HasPrefix(err.Error(), "step 1 (test), dir/a.parquet, row group 1: ") {
				t.Errorf("no place: %v", err)
			}
			if d := time.Since(start); d > 10*time.Second {
				t.Errorf("took %v", d)
			}
			switch c.mode {
			case "flood":
				if !strings.HasSuffix(err.Error(), "the end of it") || len(err.Error()) > keepStderr+300 {
					t.Errorf("%d bytes: %v", len(err.Error()), err)
				}
			case "env":
				if !strings.Contains(err.Error(), "\nPENSTOCK_WORKER=0") {
					t.Errorf("no number: %v", err)
				}
				for _, v := range os.Environ() {
					name, _, _ := strings.Cut(v, "=")
					if name != "PATH" && name != "HOME" && strings.Contains(err.Error(), "\n"+name+"=") {
						t.Errorf("%s was passed on", name)
					}
				}
			case "grandchild":
				f := strings.Fields(err.Error()[strings.Index(err.Error(), "grandchild"):])
				pid, convErr := strconv.Atoi(f[1])
				if convErr != nil {
					t.Fatal(convErr)
				}
				for start := time.Now(); ; {
					if errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) || zombie(pid) {
						break
					}
					if time.Since(start) > 5*time.Second {
						t.Fatal("the grandchild is still there")
					}
				}
			}
		})
	}
}

func zombie(pid int) bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err != nil || strings.Contains(string(b), ") Z")
}

// A cancelled run does not wait for a child that hangs.
func TestExecCancel(t *testing.T) {
	alloc := memtest.New(t)
	rec := testBatch(rand.New(rand.NewPCG(5, 5)), 40, alloc)
	defer rec.Release()
	op := testExec(t, "hang", func(s *ops.ExecSpec) { s.Workers = 1 })
	defer op.Close()
	ctx, cancel := context.WithCancelCause(t.Context())
	cause := errors.New("enough")
	errs := make(chan error)
	for range 2 { // one at work, one waiting for a child
		go func() {
			task := must[exec.Task](t)(op.NewTask(testEnv(alloc)))
			in := cut(nil, rec, 1, false)[0]
			err := task.Process(ctx, in, func(b *exec.Block) error { b.Release(); return nil })
			in.Release() // before the test can end
			errs <- err
		}()
	}
	for len(op.pool.slots) == 0 {
		runtime.Gosched()
	}
	start := time.Now()
	cancel(cause)
	for range 2 {
		if err := <-errs; !errors.Is(err, cause) {
			t.Errorf("got %v", err)
		}
	}
	if d := time.Since(start); d > 3*time.Second {
		t.Errorf("took %v", d)
	}
}

// A child that refuses a batch is used for the next one.
func TestExecRefuses(t *testing.T) {
	alloc := memtest.New(t)
	rec := testBatch(rand.New(rand.NewPCG(5, 5)), 16, alloc)
	defer rec.Release()
	op := testExec(t, "refuse", nil)
	defer op.Close()
	var pid int
	for i := range 6 {
		got, err := run(t, op, testEnv(alloc), cut(nil, rec, 1, false)...)
		if i%2 == 0 && (err != nil || len(got) != 16) || i%2 == 1 && (err == nil || !strings.Contains(err.Error(), fmt.Sprintf("ValueError: batch %d", i))) {
			t.Errorf("batch %d: %d rows, error %v", i, len(got), err)
		}
		if len(op.pool.idle) != 1 || pid != 0 && op.pool.idle[0].proc.Process.Pid != pid {
			t.Fatalf("batch %d: another child", i)
		}
		pid = op.pool.idle[0].proc.Process.Pid
	}
}

// A child that has no function ends with its answer: the next batch hears it from another one.
func TestExecUseless(t *testing.T) {
	alloc := memtest.New(t)
	rec := testBatch(rand.New(rand.NewPCG(5, 5)), 16, alloc)
	defer rec.Release()
	op := testExec(t, "useless", nil)
	defer op.Close()
	for i := range 3 {
		_, err := run(t, op, testEnv(alloc), cut(nil, rec, 1, false)...)
		if fault.CodeOf(err) != fault.Invalid || !strings.HasSuffix(err.Error(), ": module fn has no 'nosuch'") || len(op.pool.idle) != 0 {
			t.Errorf("batch %d: %v, %d idle", i, err, len(op.pool.idle))
		}
	}
}

// A child that does not end when its input does is killed.
func TestExecDeaf(t *testing.T) {
	alloc := memtest.New(t)
	rec := testBatch(rand.New(rand.NewPCG(5, 5)), 40, alloc)
	defer rec.Release()
	op := testExec(t, "deaf", nil)
	if _, err := run(t, op, testEnv(alloc), cut(nil, rec, 1, false)...); err != nil {
		t.Fatal(err)
	}
	c := op.pool.idle[0]
	start := time.Now()
	op.Close()
	if d := time.Since(start); d < graceExit || d > graceExit+3*time.Second {
		t.Errorf("took %v", d)
	}
	if s := c.proc.ProcessState.String(); s != "signal: killed" {
		t.Errorf("it ended with %s", s)
	}
}

func TestTail(t *testing.T) {
	var w tail
	var all []byte
	rng := rand.New(rand.NewPCG(1, 2))
	for range 200 {
		p := make([]byte, rng.IntN(300))
		for i := range p {
			p[i] = 'a' + byte(rng.IntN(26))
		}
		if rng.IntN(50) == 0 {
			p = slices.Repeat([]byte("long"), 3000)
		}
		all = append(all, p...)
		if n, err := w.Write(p); n != len(p) || err != nil {
			t.Fatal(n, err)
		}
		want := string(all)
		if len(all) > keepStderr {
			want = "..." + string(all[len(all)-keepStderr:])
		}
		if w.String() != want {
			t.Fatalf("got %q, want %q", w.String(), want)
		}
	}
}

// Children have numbers below that of the workers, and none has that of another that lives, whatever fails.
func TestChildNumbers(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	p := newPool(4, nil)
	var busy []int
	living := map[int]bool{} // and idle?
	for range 10_000 {
		switch k := rng.IntN(4); {
		case k == 0 && len(busy) < 4:
			c, number := p.take()
			if idle, there := living[number]; number < 0 || number > 3 || there != (c != nil) || there && !idle {
				t.Fatalf("seed %d: number %d is given, %v", seed, number, living)
			}
			living[number] = false
			busy = append(busy, number)
		case k == 1 && len(busy) > 0: // it failed
			number := busy[len(busy)-1]
			busy = busy[:len(busy)-1]
			delete(living, number)
			p.freed(number)
		case k == 2 && len(busy) > 0:
			number := busy[0]
			busy = busy[1:]
			living[number] = true
			p.idle = append(p.idle, &child{number: number})
		}
	}
}
