package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"time"
	"unsafe"

	"golang.org/x/sync/errgroup"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/trainer/collective"
)

// allReduce is the sum of float32 over ranks that are processes, beside a bare ring of unix sockets between the same processes, in which each rank sends and receives as many bytes (2(N-1)/N of
// them), from and to the same memory, and does nothing with them. They take turns in short rounds; a ratio is of one round, and the median is printed.
func allReduce(b *bench) error {
	for _, world := range []int{2, 4} {
		for _, n := range []int{64 << 10, 1 << 20, 4 << 20} { // float32
			rounds, calls := 9, (32<<20)/n
			if b.Quick {
				rounds, calls = 3, 2
			}
			rs, err := b.ring(world, n, rounds, min(calls, 64))
			if err != nil {
				return err
			}
			var ratio, again, own, raw []float64
			for _, r := range rs {
				ratio, again = append(ratio, r.Raw/r.Own), append(again, r.Raw/r.Again)
				own, raw = append(own, 1e6*r.Own), append(raw, 1e6*r.Raw)
			}
			b.Add(fmt.Sprintf("all-reduce of %s, %d ranks: speed / a bare ring of unix sockets", kib(4*n), world), ">= 50 %", "%.0f %% (%.0f to %.0f %%; A/A of the ring %.0f %%); %.0f us, the ring %.0f us",
				100*kit.Median(ratio), 100*slices.Min(ratio), 100*slices.Max(ratio), 100*kit.Median(again), kit.Median(own), kit.Median(raw))
		}
	}
	return nil
}

func kib(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%d MiB", n>>20)
	}
	return fmt.Sprintf("%d KiB", n>>10)
}

// round is the seconds per call of a round.
type round struct{ Own, Raw, Again float64 }

// ring starts the ranks, of which rank 0 measures.
func (b *bench) ring(world, n, rounds, calls int) (all []round, err error) {
	dir, err := os.MkdirTemp("", "penstock-bench-") // sockets have short names; mode 0700
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	g := new(errgroup.Group)
	for rank := range world {
		g.Go(func() error {
			cmd := exec.CommandContext(b.Ctx, b.self, "reduce", dir, strconv.Itoa(rank), strconv.Itoa(world), strconv.Itoa(n), strconv.Itoa(rounds), strconv.Itoa(calls))
			cmd.Stderr = os.Stderr
			text, err := cmd.Output()
			if err == nil && rank == 0 {
				err = json.Unmarshal(text, &all)
			}
			return err
		})
	}
	return all, g.Wait()
}

// reduceRole is a rank: reduce DIR RANK WORLD N ROUNDS CALLS. Rank 0 prints what it measured.
func reduceRole(args []string) error {
	var nums []int
	for _, a := range args[1:] {
		v, err := strconv.Atoi(a)
		if err != nil {
			return err
		}
		nums = append(nums, v)
	}
	dir, rank, world, n, rounds, calls := args[0], nums[0], nums[1], nums[2], nums[3], nums[4]
	ctx := context.Background()
	g, err := collective.Join(ctx, dir, rank, world, &collective.Options{Group: "bench"})
	if err != nil {
		return err
	}
	defer g.Close()
	raw, err := joinRaw(dir, rank, world, func() error { return g.Barrier(ctx) })
	if err != nil {
		return err
	}
	defer raw.close()
	x := make([]float32, n)
	for i := range x {
		x[i] = 0 // written, so that it is memory; sums stay as they are
	}
	bytes := unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), 4*n)
	time1 := func(f func() error) (float64, error) {
		if err := f(); err != nil { // memory and caches
			return 0, err
		}
		if err := g.Barrier(ctx); err != nil {
			return 0, err
		}
		begin := time.Now()
		for range calls {
			if err := f(); err != nil {
				return 0, err
			}
		}
		if err := g.Barrier(ctx); err != nil {
			return 0, err
		}
		return time.Since(begin).Seconds() / float64(calls), nil
	}
	var all []round
	for range rounds {
		var r round
		for _, w := range []struct {
			to *float64
			f  func() error
		}{{&r.Raw, func() error { return raw.pass(bytes) }}, {&r.Own, func() error { return collective.AllReduce(ctx, g, x, collective.Sum) }}, {&r.Again, func() error { return raw.pass(bytes) }}} {
			if *w.to, err = time1(w.f); err != nil {
				return err
			}
		}
		all = append(all, r)
	}
	if rank == 0 {
		return json.NewEncoder(os.Stdout).Encode(all)
	}
	return nil
}

// rawRing has a connection to each neighbour, with the buffers that package collective sets.
type rawRing struct {
	world       int
	left, right *net.UnixConn
}

func joinRaw(dir string, rank, world int, barrier func() error) (_ *rawRing, err error) {
	r := &rawRing{world: world}
	path := func(rank int) *net.UnixAddr {
		return &net.UnixAddr{Net: "unix", Name: filepath.Join(dir, fmt.Sprintf("raw%d", rank))}
	}
	l, err := net.ListenUnix("unix", path(rank))
	if err != nil {
		return nil, err
	}
	defer l.Close()
	if err := barrier(); err != nil { // all listen
		return nil, err
	}
	if r.right, err = net.DialUnix("unix", nil, path((rank+1)%world)); err != nil {
		return nil, err
	}
	if r.left, err = l.AcceptUnix(); err != nil {
		return nil, err
	}
	return r, r.right.SetWriteBuffer(1 << 20)
}

func (r *rawRing) close() {
	r.left.Close()
	r.right.Close()
}

// pass sends 2(N-1)/N of the bytes to the right, out of the first half of m, and as many from the left come into the second.
func (r *rawRing) pass(m []byte) error {
	total := 2 * (r.world - 1) * (len(m) / r.world)
	g := new(errgroup.Group)
	g.Go(func() error { return through(m[:len(m)/2], total, r.right.Write) })
	err := through(m[len(m)/2:], total, r.left.Read)
	if werr := g.Wait(); err == nil {
		err = werr
	}
	return err
}

// through moves n bytes by f, in pieces of 512 KiB, around in m.
func through(m []byte, n int, f func([]byte) (int, error)) error {
	const piece = 512 << 10
	at := 0
	for n > 0 {
		k, err := f(m[at:min(len(m), at+piece, at+n)])
		if err != nil {
			return err
		}
		if k == 0 {
			return io.ErrNoProgress
		}
		n -= k
		if at += k; at == len(m) {
			at = 0
		}
	}
	return nil
}
