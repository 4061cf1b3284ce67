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
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
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

// silent shortens how long a silent neighbour is waited for.
func silent(t *testing.T, d time.Duration) {
	was := silence
	silence = d
	t.Cleanup(func() { silence = was })
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

// A rank that has made its last call may go, though its neighbours on other machines are late, and say meanwhile that they are there: they get what it has sent.
func TestNodesLeave(t *testing.T) {
	silent(t, 400*time.Millisecond)
	gs := newWires(t, 0, 1, 2).join(func(rank int, o *Options) {
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
			time.Sleep(2 * silence) // and some pings
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

// mute is a connection whose process stands still: what is said there stays unsaid.
type mute struct {
	net.Conn
	after func() bool
}

func (m mute) Write(b []byte) (int, error) {
	if m.after() {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

// A rank on another machine of which nothing is heard is lost, whatever the others do.
func TestNodesSilence(t *testing.T) {
	silent(t, 300*time.Millisecond)
	for _, world := range []int{2, 3, 4} {
		stands := make(chan struct{})
		after := func() bool {
			select {
			case <-stands:
				return true
			default:
				return false
			}
		}
		nodes := make([]int, world)
		for r := range nodes {
			nodes[r] = r
		}
		const victim = 1
		gs := newWires(t, nodes...).join(func(r int, o *Options) {
			if r != victim {
				return
			}
			left, right := o.Left, o.Right
			o.Left = func(ctx context.Context) (net.Conn, error) { c, err := left(ctx); return mute{c, after}, err }
			o.Right = func(ctx context.Context) (net.Conn, error) { c, err := right(ctx); return mute{c, after}, err }
		})
		time.Sleep(2 * silence) // they live
		must(t, each(world, func(r int) error { return gs[r].Barrier(context.Background()) }))
		close(stands)
		errs := each(world, func(r int) error {
			if r == victim {
				<-gs[(victim+world-1)%world].failed
				return nil
			}
			return AllReduce(context.Background(), gs[r], make([]float64, 100_000), Sum)
		})
		for r, err := range errs {
			if r != victim && (fault.CodeOf(err) != fault.WorkerLost || !strings.Contains(err.Error(), "rank 1 ") || !strings.Contains(err.Error(), "nothing was heard")) {
				t.Errorf("%d ranks, rank %d: %v", world, r, err)
			}
		}
	}
}

// A context that ends frees its rank soon, and the others with it: also where the neighbour reads nothing.
func TestNodesContext(t *testing.T) {
	gs := newWires(t, 0, 1, 2).join(nil)
	ctx, cancel := context.WithCancelCause(context.Background())
	var began time.Time
	errs := each(3, func(r int) error {
		c := context.Background()
		if r == 2 { // does not call, but waits until rank 1 is in its call and has filled what the system takes
			for in := false; !in; time.Sleep(50 * time.Millisecond) {
				gs[1].mu.Lock()
				in = gs[1].seq == 2
				gs[1].mu.Unlock()
			}
			began = time.Now()
			cancel(errors.New("enough"))
			return fault.New(fault.Canceled, "rank 1 gave up")
		}
		if r == 1 {
			c = ctx
		}
		return AllReduce(c, gs[r], make([]float64, 4<<20), Sum)
	})
	if d := time.Since(began); d > time.Second {
		t.Errorf("it took %v", d)
	}
	for r, err := range errs {
		if fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), "rank 1 gave up") {
			t.Errorf("rank %d: %v", r, err)
		}
	}
	began = time.Now()
	for _, g := range gs {
		g.Close()
	}
	if d := time.Since(began); d > time.Second {
		t.Errorf("closing took %v", d)
	}
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

// Memory grows with what has come, not with what is claimed, and no length beyond the most is believed.
func TestClaimsAreNotBelieved(t *testing.T) {
	for size, code := range map[uint64]fault.Code{8 << 30: fault.WorkerLost, maxBlock + 1: fault.Internal, 1 << 63: fault.Internal} {
		here, there := net.Pipe()
		g := &Group{rank: 0, world: 2, pids: make([]int, 2), failed: make(chan struct{}), left: here, right: here, hears: here, tells: here, most: maxBlock}
		go func() {
			var b [8]byte
			binary.LittleEndian.PutUint64(b[:], size)
			there.Write(append(b[:], make([]byte, 1000)...))
			there.Close()
		}()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := g.block()
		runtime.ReadMemStats(&after)
		if fault.CodeOf(err) != code {
			t.Errorf("%d: %v", size, err)
		}
		if n := after.TotalAlloc - before.TotalAlloc; n > 2*believed {
			t.Errorf("%d bytes for a claim of %d", n, size)
		}
		here.Close()
		io.Copy(io.Discard, there)
	}
}
