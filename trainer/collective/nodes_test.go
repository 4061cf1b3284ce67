package collective

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// wires are the machines of a test: ranks of two of them are connected by TCP.
type wires struct {
	t     testing.TB
	dirs  []string
	nodes []int
	at    []*net.TCPListener // of each rank
}

func newWires(t testing.TB, nodes ...int) *wires {
	t.Helper()
	w := &wires{t: t, nodes: nodes, dirs: make([]string, len(nodes))}
	for i := range w.dirs {
		w.dirs[i] = folder(t)
	}
	for range nodes {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		w.at = append(w.at, l.(*net.TCPListener))
	}
	return w
}

func (w *wires) options(rank int) *Options {
	return &Options{Timeout: 30 * time.Second, Nodes: w.nodes,
		Left: func(ctx context.Context) (net.Conn, error) {
			w.at[rank].SetDeadline(time.Time{})
			defer context.AfterFunc(ctx, func() { w.at[rank].SetDeadline(time.Unix(1, 0)) })()
			return w.at[rank].Accept()
		},
		Right: func(ctx context.Context) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "tcp", w.at[(rank+1)%len(w.nodes)].Addr().String())
		}}
}

func (w *wires) join(change func(rank int, o *Options)) []*Group {
	w.t.Helper()
	gs := make([]*Group, len(w.nodes))
	must(w.t, each(len(gs), func(r int) (err error) {
		o := w.options(r)
		if change != nil {
			change(r, o)
		}
		gs[r], err = Join(context.Background(), w.dirs[w.nodes[r]], r, len(gs), o)
		return err
	}))
	w.t.Cleanup(func() {
		for _, g := range gs {
			g.Close()
		}
	})
	return gs
}

// Ranks of several machines get what those of one get, to the bit.
func TestNodesComputeTheSame(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, nodes := range [][]int{{0, 1}, {0, 1, 2}, {0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 1, 0}, {0, 0, 0, 0, 1}} {
		rng := rand.New(rand.NewPCG(seed, uint64(len(nodes))))
		one, many := join(t, len(nodes)), newWires(t, nodes...).join(nil)
		for _, n := range []int{0, 1, len(nodes) + 1, 5000, networkMost / 4 * len(nodes), networkMost/4*len(nodes) + len(nodes), 300_000 + rng.IntN(1000)} {
			checkReduce[float32](t, many, rng, n, Mean)
			checkReduce[int64](t, many, rng, n, Max)
			in := make([][]float64, len(nodes))
			var out [2][][]byte
			for r := range in {
				in[r] = random[float64](rng, n)
			}
			for k, gs := range [][]*Group{one, many} {
				out[k] = make([][]byte, len(nodes))
				must(t, each(len(gs), func(r int) error {
					x := append([]float64{}, in[r]...)
					defer func() { out[k][r] = view(x) }()
					return AllReduce(context.Background(), gs[r], x, Sum)
				}))
			}
			for r := range nodes {
				if !bytes.Equal(out[0][r], out[1][r]) {
					t.Fatalf("nodes %v, %d numbers: rank %d has other bits than on one machine", nodes, n, r)
				}
			}
		}
		for range 3 {
			sizes := make([]int, len(nodes))
			for r := range sizes {
				sizes[r] = rng.IntN(1 << rng.IntN(22))
			}
			block := func(r int) []byte { return bytes.Repeat([]byte{byte(r), byte(len(sizes))}, sizes[r]) }
			root := rng.IntN(len(nodes))
			must(t, each(len(nodes), func(r int) error {
				if err := many[r].Barrier(context.Background()); err != nil {
					return err
				}
				all, err := many[r].AllGather(context.Background(), block(r))
				if err != nil {
					return err
				}
				for i, b := range all {
					if !bytes.Equal(b, block(i)) {
						return fmt.Errorf("block of rank %d differs", i)
					}
				}
				b, err := many[r].Broadcast(context.Background(), root, block(r))
				if err == nil && !bytes.Equal(b, block(root)) {
					err = errors.New("the broadcast differs")
				}
				return err
			}))
		}
	}
}

// A rank that has made its last call may go, though its neighbours are late, and say meanwhile that they are there: they get what it has sent.
func TestNodesLeave(t *testing.T) {
	for _, nodes := range [][]int{{0, 1, 2}, {0, 0, 1}, {0, 1, 0}} {
		gs := newWires(t, nodes...).join(func(rank int, o *Options) {
			right := o.Right
			o.Right = func(ctx context.Context) (net.Conn, error) {
				c, err := right(ctx)
				if err == nil { // what is sent waits on this side of the connection for the most part
					err = c.(*net.TCPConn).SetWriteBuffer(1 << 20)
				}
				return c, err
			}
		})
		want := make([]byte, 300_000)
		for i := range want {
			want[i] = byte(i * 7)
		}
		gone := make(chan struct{})
		must(t, each(3, func(r int) error {
			if r == 0 {
				defer close(gone)
				if _, err := gs[0].Broadcast(context.Background(), 0, want); err != nil {
					return err
				}
				return gs[0].Close()
			}
			if r == 1 { // rank 2 calls: each waits for the call of its left neighbour
				<-gone
				if !memtest.Poll(10*time.Second, func() bool { return gs[1].tell(&note{Rank: 1, Ping: true}) != nil }) {
					return errors.New("it does not see that rank 0 is gone")
				}
			}
			b, err := gs[r].Broadcast(context.Background(), 0, nil)
			if err == nil && !bytes.Equal(b, want) {
				err = errors.New("the bytes differ")
			}
			if err != nil {
				return err
			}
			if err = gs[r].Barrier(context.Background()); fault.CodeOf(err) != fault.WorkerLost || !strings.Contains(err.Error(), "rank 0 ") {
				return fmt.Errorf("a call without rank 0: %w", err)
			}
			return nil
		}))
	}
}

// A rank of which nothing is heard is lost where there are several machines, whatever the others do: also one whose neighbours are all on its own machine. On one machine it is waited for.
func TestNodesSilence(t *testing.T) {
	for _, nodes := range [][]int{{0, 1}, {0, 1, 2}, {0, 1, 2, 3}, {0, 0, 1, 1}, {0, 0, 0, 1, 1, 1}, {0, 0, 0, 0}} {
		for victim := range nodes {
			synctest.Test(t, func(t *testing.T) {
				gs, stands := pipes(t, nodes...)
				time.Sleep(10 * silence) // they live
				must(t, each(len(gs), func(r int) error { return gs[r].Barrier(context.Background()) }))
				stands[victim].Store(true)
				began := time.Now()
				ctx, cancel := context.WithTimeoutCause(context.Background(), time.Hour, errors.New("enough"))
				defer cancel()
				errs := each(len(gs), func(r int) error {
					if r == victim {
						return nil
					}
					return AllReduce(ctx, gs[r], make([]float64, 100_000), Sum)
				})
				code, text, took := fault.WorkerLost, fmt.Sprintf("rank %d (process %d) is lost: nothing was heard", victim, os.Getpid()), silence+time.Second
				if nodes[0] == nodes[len(nodes)-1] {
					code, text, took = fault.Canceled, "enough", time.Hour
				}
				if d := time.Since(began); d > took {
					t.Errorf("nodes %v, rank %d: it took %v", nodes, victim, d)
				}
				for r, err := range errs {
					if r != victim && (fault.CodeOf(err) != code || !strings.Contains(err.Error(), text)) {
						t.Errorf("nodes %v, rank %d is silent, rank %d: %v", nodes, victim, r, err)
					}
				}
			})
		}
	}
	for want, nodes := range map[bool][]int{true: {0, 0, 1, 1}, false: {1, 1}} {
		for _, g := range newWires(t, nodes...).join(nil) {
			if g.several != want {
				t.Errorf("nodes %v, rank %d: %v", nodes, g.rank, g.several)
			}
		}
	}
}

// A rank that leaves in the midst of a call has not made it: the others do not wait for its part.
func TestCloseInCall(t *testing.T) {
	for _, nodes := range [][]int{{0, 0, 0, 0}, {0, 1, 2, 3}} {
		synctest.Test(t, func(t *testing.T) {
			gs, _ := pipes(t, nodes...)
			ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
			defer cancel()
			errs := each(5, func(r int) error {
				if r == 4 {
					synctest.Wait() // rank 3 does not call: the others are in theirs
					return gs[1].Close()
				}
				if r == 3 {
					<-gs[0].failed
				}
				return AllReduce(ctx, gs[r], make([]float64, 8), Sum)
			})
			for _, r := range []int{0, 2, 3} {
				if fault.CodeOf(errs[r]) != fault.WorkerLost || !strings.Contains(errs[r].Error(), "rank 1 (") {
					t.Errorf("nodes %v, rank %d: %v", nodes, r, errs[r])
				}
			}
			if fault.CodeOf(errs[1]) != fault.Invalid || errs[4] != nil {
				t.Error(errs[1], errs[4])
			}
		})
	}
}

// A context that ends frees its rank soon, and the others with it: also where the neighbour reads nothing.
func TestNodesContext(t *testing.T) {
	check := func(t *testing.T, gs []*Group, inCall func() bool) {
		ctx, cancel := context.WithCancelCause(context.Background())
		errs := each(3, func(r int) error {
			c := context.Background()
			if r == 2 { // does not call
				if !inCall() {
					t.Error("rank 1 does not come to its call")
				}
				cancel(errors.New("enough"))
				return fault.New(fault.Canceled, "rank 1 gave up")
			}
			if r == 1 {
				c = ctx
			}
			return AllReduce(c, gs[r], make([]float64, 4<<20), Sum)
		})
		for r, err := range errs {
			if fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), "rank 1 gave up") {
				t.Errorf("rank %d: %v", r, err)
			}
		}
		for _, g := range gs {
			g.Close()
		}
	}
	synctest.Test(t, func(t *testing.T) {
		gs, _ := pipes(t, 0, 1, 2)
		began := time.Now()
		check(t, gs, func() bool {
			synctest.Wait() // until rank 1 has filled what there is room for
			return gs[1].seq == 2
		})
		if d := time.Since(began); d > time.Second {
			t.Errorf("it took %v", d)
		}
	})
	gs := newWires(t, 0, 1, 2).join(nil)
	check(t, gs, func() bool {
		return memtest.Poll(10*time.Second, func() bool {
			gs[1].mu.Lock()
			defer gs[1].mu.Unlock()
			return gs[1].seq == 2
		})
	})
}

// Ranks of other machines that do not come, or cannot be reached, are an error that says which.
func TestNodesAbsent(t *testing.T) {
	w := newWires(t, 0, 1, 1)
	errs := each(3, func(r int) error {
		if r == 0 {
			return nil
		}
		o := w.options(r)
		o.Timeout = 200 * time.Millisecond
		o.Right = func(ctx context.Context) (net.Conn, error) {
			<-ctx.Done()
			return nil, context.Cause(ctx)
		}
		_, err := Join(context.Background(), w.dirs[1], r, 3, o)
		return err
	})
	for _, err := range errs[1:] {
		if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "rank 0 did not come") && !strings.Contains(err.Error(), "a rank on another machine did not come") {
			t.Errorf("%v", err)
		}
	}
	w = newWires(t, 0, 1)
	o := w.options(0)
	o.Right = func(context.Context) (net.Conn, error) { return nil, fault.New(fault.Denied, "not of this job") }
	if _, err := Join(context.Background(), "", 0, 2, o); fault.CodeOf(err) != fault.Denied {
		t.Error(err)
	}
	o = w.options(0) // it ends by itself, whatever the code
	o.Left = func(context.Context) (net.Conn, error) { return nil, fault.New(fault.Canceled, "the gang is closed") }
	if _, err := Join(context.Background(), "", 0, 2, o); fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), "the gang is closed") {
		t.Error(err)
	}
	for _, o := range []*Options{{Nodes: []int{0}}, {Nodes: []int{0, 1}}} {
		if _, err := Join(context.Background(), "", 0, 2, o); fault.CodeOf(err) != fault.Invalid {
			t.Error(err)
		}
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	o = w.options(0)
	o.Right = func(ctx context.Context) (net.Conn, error) {
		cancel(errors.New("enough"))
		<-ctx.Done()
		return nil, context.Cause(ctx)
	}
	if _, err := Join(ctx, "", 0, 2, o); fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), "enough") {
		t.Error(err)
	}
}

// No length beyond the most is believed, and no memory taken for it: while the ranks meet a number of a process, then that of a block.
func TestClaimsAreNotBelieved(t *testing.T) {
	for _, c := range []struct {
		size, most uint64
		code       fault.Code
	}{{maxPID + 1, maxPID, fault.Internal}, {8 << 30, maxPID, fault.Internal}, {maxBlock + 1, maxBlock, fault.Internal}, {1 << 63, maxBlock, fault.Internal}, {1 << 20, maxBlock, fault.WorkerLost}} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			g := &Group{rank: 0, world: 2, pids: make([]int, 2), failed: make(chan struct{}), left: here, right: here, hears: here, tells: here, most: c.most}
			go func() {
				var b [8]byte
				binary.LittleEndian.PutUint64(b[:], c.size)
				there.Write(append(b[:], make([]byte, 1000)...))
				there.Close()
			}()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := g.block()
			runtime.ReadMemStats(&after)
			if fault.CodeOf(err) != c.code {
				t.Errorf("%d: %v", c.size, err)
			}
			if n := after.TotalAlloc - before.TotalAlloc; n > 4<<20 {
				t.Errorf("%d bytes for a claim of %d", n, c.size)
			}
			here.Close()
			io.Copy(io.Discard, there)
		})
	}
}
