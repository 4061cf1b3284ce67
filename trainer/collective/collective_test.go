package collective

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if cfg := os.Getenv("PENSTOCK_COLLECTIVE_CHILD"); cfg != "" {
		child(cfg)
	}
	goleak.VerifyTestMain(m)
}

// folder is one with a short path.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "co")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// join joins world ranks; they are closed at the end of the test.
func join(t testing.TB, world int) []*Group {
	t.Helper()
	dir := folder(t)
	gs := make([]*Group, world)
	errs := each(world, func(r int) (err error) {
		gs[r], err = Join(context.Background(), dir, r, world, &Options{Timeout: 30 * time.Second})
		return err
	})
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
	t.Cleanup(func() {
		for _, g := range gs {
			g.Close()
		}
	})
	return gs
}

// each runs f on all ranks at once.
func each(world int, f func(r int) error) []error {
	errs := make([]error, world)
	var wg sync.WaitGroup
	for r := range world {
		wg.Go(func() { errs[r] = f(r) })
	}
	wg.Wait()
	return errs
}

func must(t testing.TB, errs []error) {
	t.Helper()
	for r, err := range errs {
		if err != nil {
			t.Fatalf("rank %d: %v", r, err)
		}
	}
}

func random[T Number](rng *rand.Rand, n int) []T {
	x := make([]T, n)
	for i := range x {
		switch p := any(&x[i]).(type) {
		case *float32:
			*p = float32(rng.NormFloat64())
		case *float64:
			*p = rng.NormFloat64()
		case *int32:
			*p = int32(rng.Uint32())
		case *int64:
			*p = int64(rng.Uint64())
		}
	}
	return x
}

// checkReduce compares with a plain loop over the ranks, and all ranks with each other, to the bit.
func checkReduce[T Number](t *testing.T, gs []*Group, rng *rand.Rand, n int, op Op) {
	t.Helper()
	world := len(gs)
	in := make([][]T, world)
	for r := range in {
		in[r] = random[T](rng, n)
	}
	var first [][]byte
	for range 2 {
		out := make([][]T, world)
		must(t, each(world, func(r int) error {
			out[r] = append([]T{}, in[r]...)
			return AllReduce(context.Background(), gs[r], out[r], op)
		}))
		for i := range n {
			want, scale := float64(in[0][i]), math.Abs(float64(in[0][i]))
			exact := in[0][i]
			for _, x := range in[1:] {
				switch op {
				case Min:
					want, exact = min(want, float64(x[i])), min(exact, x[i])
				case Max:
					want, exact = max(want, float64(x[i])), max(exact, x[i])
				default:
					want += float64(x[i])
					exact += x[i]
				}
				scale += math.Abs(float64(x[i]))
			}
			if op == Mean {
				want /= float64(world)
			}
			got := out[0][i]
			var near bool
			switch any(got).(type) {
			case float32:
				near = math.Abs(float64(got)-want) <= scale*1e-6
			case float64:
				near = math.Abs(float64(got)-want) <= scale*1e-14
			default:
				near = got == exact
			}
			if !near {
				t.Fatalf("%d ranks, %d numbers, %s of %T: element %d is %v, want %v", world, n, op, got, i, got, want)
			}
		}
		for r := range out {
			b := bytes.Clone(view(out[r]))
			if r == 0 && first == nil {
				first = append(first, b)
			}
			if !bytes.Equal(b, first[0]) {
				t.Fatalf("%d ranks, %d numbers, %s: rank %d has other bits than rank 0 had at first", world, n, op, r)
			}
		}
	}
}

func TestAllReduceIsThePlainSum(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for world := 1; world <= 9; world++ {
		rng := rand.New(rand.NewPCG(seed, uint64(world)))
		gs := join(t, world)
		lens := []int{0, 1, 2, world - 1, world, world + 1, 1 + rng.IntN(5000), world*(plainMost/4+1) - 1, world * (plainMost/4 + 1), 20_000 + rng.IntN(100_000)}
		if world == 3 {
			lens = append(lens, 3*segment/4*3+7) // several segments per chunk
		}
		for _, n := range lens {
			op := Sum + Op(rng.IntN(4))
			checkReduce[float32](t, gs, rng, n, op)
			checkReduce[float64](t, gs, rng, n, op)
			if op == Mean {
				op = Sum
			}
			checkReduce[int32](t, gs, rng, n, op)
			checkReduce[int64](t, gs, rng, n, op)
		}
	}
}

func TestSpecialFloats(t *testing.T) {
	gs := join(t, 3)
	inf := float32(math.Inf(1))
	nan := float32(math.NaN())
	for op, want := range map[Op][3]float32{Sum: {nan, nan, inf}, Min: {nan, -inf, 1}, Max: {nan, inf, inf}, Mean: {nan, nan, inf}} {
		in := [][]float32{{1, inf, 1}, {nan, -inf, 1}, {2, 0, inf}}
		must(t, each(3, func(r int) error { return AllReduce(context.Background(), gs[r], in[r], op) }))
		for r := range in {
			for i, w := range want {
				if got := in[r][i]; got != w && !(got != got && w != w) {
					t.Errorf("%s: rank %d has %v at %d, want %v", op, r, got, i, w)
				}
			}
		}
	}
}

func TestGatherAndBroadcast(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for world := 1; world <= 9; world++ {
		rng := rand.New(rand.NewPCG(seed, uint64(world)))
		gs := join(t, world)
		for round := range 4 {
			in := make([][]byte, world)
			for r := range in {
				in[r] = make([]byte, rng.IntN(1<<rng.IntN(20)))
				for i := range in[r] {
					in[r][i] = byte(rng.Uint32())
				}
			}
			must(t, each(world, func(r int) error {
				all, err := gs[r].AllGather(context.Background(), in[r])
				if err != nil {
					return err
				}
				for i := range in {
					if !bytes.Equal(all[i], in[i]) {
						return fmt.Errorf("block of rank %d differs", i)
					}
				}
				return nil
			}))
			root := rng.IntN(world)
			if round == 3 {
				in[root] = nil
			}
			must(t, each(world, func(r int) error {
				got, err := gs[r].Broadcast(context.Background(), root, in[r])
				if err == nil && !bytes.Equal(got, in[root]) {
					err = fmt.Errorf("has %d other bytes than root %d sent", len(got), root)
				}
				return err
			}))
		}
	}
}

func TestBarrierHoldsEverybodyBack(t *testing.T) {
	for world := 1; world <= 9; world++ {
		gs := join(t, world)
		var came atomic.Int64
		must(t, each(world, func(r int) error {
			rng := rand.New(rand.NewPCG(1, uint64(r)))
			for n := range 50 {
				for range rng.IntN(3000) {
					_ = rng.Uint64() // ranks are of different speed
				}
				came.Add(1)
				if err := gs[r].Barrier(context.Background()); err != nil {
					return err
				}
				if c := came.Load(); c < int64((n+1)*world) {
					return fmt.Errorf("passed barrier %d when %d of %d had come", n, c, (n+1)*world)
				}
			}
			return nil
		}))
	}
}

// Ranks that call different things learn who called what; all of them.
func TestDifferentCallsAreErrors(t *testing.T) {
	bg := context.Background()
	calls := []struct {
		says string
		call func(g *Group) error
	}{
		{"Barrier", func(g *Group) error { return g.Barrier(bg) }},
		{"AllGather", func(g *Group) error { _, err := g.AllGather(bg, []byte("x")); return err }},
		{"Broadcast from rank 0", func(g *Group) error { _, err := g.Broadcast(bg, 0, []byte("x")); return err }},
		{"Broadcast from rank 1", func(g *Group) error { _, err := g.Broadcast(bg, 1, []byte("x")); return err }},
		{"AllReduce (sum of 0 float32)", func(g *Group) error { return AllReduce(bg, g, []float32{}, Sum) }},
		{"AllReduce (sum of 100000 float32)", func(g *Group) error { return AllReduce(bg, g, make([]float32, 100_000), Sum) }},
		{"AllReduce (sum of 100001 float32)", func(g *Group) error { return AllReduce(bg, g, make([]float32, 100_001), Sum) }},
		{"AllReduce (max of 100000 float32)", func(g *Group) error { return AllReduce(bg, g, make([]float32, 100_000), Max) }},
		{"AllReduce (sum of 100000 float64)", func(g *Group) error { return AllReduce(bg, g, make([]float64, 100_000), Sum) }},
		{"AllReduce (sum of 100000 int32)", func(g *Group) error { return AllReduce(bg, g, make([]int32, 100_000), Sum) }},
	}
	for i, a := range calls {
		for j, b := range calls {
			if i == j || (i*j+i+j)%3 != 0 { // a third of the pairs
				continue
			}
			world := 2 + (i+j)%4
			odd := (i * j) % world
			gs := join(t, world)
			errs := each(world, func(r int) error {
				call := a.call
				if r == odd {
					call = b.call
				}
				if err := call(gs[r]); err != nil {
					return err
				}
				// What needs nobody behind a rank may be over before it is noticed: the next call is not.
				return gs[r].Barrier(bg)
			})
			for r, err := range errs {
				if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), a.says) || !strings.Contains(err.Error(), b.says) ||
					!strings.Contains(err.Error(), fmt.Sprintf("rank %d ", odd)) {
					t.Errorf("%s, but rank %d of %d calls %s: rank %d has %v: %v", a.says, odd, world, b.says, r, fault.CodeOf(err), err)
				}
			}
		}
	}
}

func TestRefusedArguments(t *testing.T) {
	gs := join(t, 2)
	bg := context.Background()
	_, err := gs[0].Broadcast(bg, 2, nil)
	for _, err := range []error{err, AllReduce(bg, gs[0], []int64{1}, Mean), AllReduce(bg, gs[0], []float32{1}, 0), AllReduce(bg, gs[0], []float32{1}, 9)} {
		if fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%v: %v", fault.CodeOf(err), err)
		}
	}
	// The group is as good as before.
	must(t, each(2, func(r int) error { return gs[r].Barrier(bg) }))
}

// A context that ends in a call ends the group, and the others learn which rank it was; one that has ended before does nothing.
func TestContextEndsACall(t *testing.T) {
	gs := join(t, 4)
	cause := errors.New("enough")
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(cause)
	if err := gs[2].Barrier(ctx); !errors.Is(err, cause) {
		t.Fatal(err)
	}
	must(t, each(4, func(r int) error { return gs[r].Barrier(context.Background()) }))
	ctx, cancel = context.WithCancelCause(context.Background())
	errs := each(4, func(r int) error {
		switch r {
		case 0: // never calls
			gs[1].mu.Lock()
			for gs[1].seq < 3 { // until another is in its call
				gs[1].mu.Unlock()
				gs[1].mu.Lock()
			}
			gs[1].mu.Unlock()
			cancel(cause)
			<-gs[0].failed
			return gs[0].Barrier(context.Background())
		case 1:
			return AllReduce(ctx, gs[1], make([]float32, 1<<20), Sum)
		}
		return AllReduce(context.Background(), gs[r], make([]float32, 1<<20), Sum)
	})
	for r, err := range errs {
		if fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), "rank 1 gave up") || !strings.Contains(err.Error(), "enough") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
}

// A rank that leaves when others go on: their next call is an error that names it.
func TestLeaving(t *testing.T) {
	for round := range 30 {
		world := 2 + round%4
		gs := join(t, world)
		gone := round % world
		var common sync.WaitGroup // the failure of a rank that is a call ahead would end this call
		common.Add(world)
		errs := each(world, func(r int) error {
			x := make([]float32, 30_000)
			if err := AllReduce(context.Background(), gs[r], x, Sum); err != nil {
				return fmt.Errorf("last common call: %w", err)
			}
			common.Done()
			common.Wait()
			if r == gone {
				return gs[r].Close()
			}
			err := gs[r].Barrier(context.Background())
			if fault.CodeOf(err) != fault.WorkerLost || !strings.Contains(err.Error(), fmt.Sprintf("rank %d ", gone)) {
				return fmt.Errorf("after rank %d left: %v: %w", gone, fault.CodeOf(err), err)
			}
			return nil
		})
		must(t, errs)
		if err := gs[gone].Barrier(context.Background()); err != errClosed {
			t.Fatal(err)
		}
	}
}

// All ranks leave right after their last call: those that are still in it are not disturbed.
func TestLeavingTogether(t *testing.T) {
	for round := range 100 {
		world := 2 + round%5
		gs := join(t, world)
		must(t, each(world, func(r int) error {
			if err := gs[r].Barrier(context.Background()); err != nil {
				return err
			}
			if err := AllReduce(context.Background(), gs[r], []float64{1}, Mean); err != nil {
				return err
			}
			return gs[r].Close()
		}))
	}
}

// Close wakes a call of the same rank.
func TestCloseInACall(t *testing.T) {
	gs := join(t, 2)
	done := make(chan error)
	go func() { done <- gs[0].Barrier(context.Background()) }()
	gs[0].mu.Lock()
	for gs[0].seq < 2 {
		gs[0].mu.Unlock()
		gs[0].mu.Lock()
	}
	gs[0].mu.Unlock()
	gs[0].Close()
	if err := <-done; err != errClosed {
		t.Fatal(err)
	}
	if err := gs[1].Barrier(context.Background()); fault.CodeOf(err) != fault.WorkerLost {
		t.Fatal(err)
	}
}
