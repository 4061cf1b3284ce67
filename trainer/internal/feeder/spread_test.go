package feeder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
)

// nodesOf spreads ranks evenly.
func nodesOf(ranks, nodes int) (nodeOf []int) {
	for r := range ranks {
		nodeOf = append(nodeOf, r*nodes/ranks)
	}
	return nodeOf
}

// locals is a gang of nodes in this process, each with the sets that it is given.
func locals(t *testing.T, nodes int, of func(node int) []Set) (fs []Feeder) {
	t.Helper()
	for k, g := range gangtest.New(t, nodes) {
		fs = append(fs, Local(folder(t), of(k), g))
	}
	return fs
}

// machines is a gang of nodes with a data process each; all but the first are at the other end of a connection.
func machines(t *testing.T, nodes int, log io.Writer) (fs []Feeder, processes []*process) {
	t.Helper()
	gs, dirs := gangtest.WithFolders(t, nodes)
	for k := range nodes {
		p := Process(folder(t), childArgv("data"), []string{gang.EnvDir + "=" + dirs[k]}, log).(*process)
		processes = append(processes, p)
		if k == 0 {
			fs = append(fs, p)
			continue
		}
		fs = append(fs, remoteTo(t, gs[0], gs[k], p))
	}
	return fs, processes
}

// remoteTo is f, of node g, as node 0 has it.
func remoteTo(t *testing.T, zero, g *gang.Gang, f Feeder) Feeder {
	t.Helper()
	l, err := zero.Listen("feeder")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialled := make(chan net.Conn, 1)
	go func() {
		c, err := g.Dial(t.Context(), 0, "feeder")
		if err != nil {
			t.Error(err)
		}
		dialled <- c
	}()
	near, _, err := l.Accept(t.Context())
	far := <-dialled
	if err != nil {
		t.Fatal(err)
	}
	over := make(chan struct{})
	go func() {
		defer close(over)
		if err := errors.Join(Relay(context.Background(), far, f), f.Close()); err != nil {
			t.Error(err)
		}
	}()
	t.Cleanup(func() {
		near.Close()
		<-over
	})
	return Remote(near)
}

// spread is what is served over nodes.
type spread struct {
	*Spread
	t       *testing.T
	nodeOf  []int
	sockets []map[string]string
	failed  <-chan error
}

func over(t *testing.T, fs []Feeder, ranks int) *spread {
	t.Helper()
	s := &spread{t: t, nodeOf: nodesOf(ranks, len(fs))}
	s.Spread = Over(fs, s.nodeOf)
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

func (s *spread) start(at map[string]At) {
	s.t.Helper()
	var err error
	if s.sockets, s.failed, err = s.Start(s.t.Context(), len(s.nodeOf), at); err != nil {
		s.t.Fatal(err)
	}
}

// dial has the consumers of all ranks.
func (s *spread) dial(name string) (all []*feed.Client) {
	s.t.Helper()
	for r, node := range s.nodeOf {
		all = append(all, reader(s.t, s.sockets[node][name], r))
	}
	return all
}

func (s *spread) stop() {
	s.t.Helper()
	if err := s.Stop(); err != nil {
		s.t.Fatal(err)
	}
}

// fine reports a failure that nobody has caused.
func (s *spread) fine() {
	s.t.Helper()
	select {
	case err := <-s.failed:
		s.t.Fatal(err)
	default:
	}
}

// alone is what one machine gives: the digests of steps, and the states after them.
func alone(t *testing.T, ranks, steps int) (want []string, states []shard.State) {
	t.Helper()
	f := Local(folder(t), sets(), nil)
	defer f.Close()
	sockets, _ := start(t, f, ranks, nil)
	all := dialAll(t, sockets["train"], ranks)
	for range steps {
		d, s := step(t, all)
		want, states = append(want, d), append(states, s)
	}
	return want, states
}

// Over nodes all ranks get what they get on one machine, also when they go on from a state on the same feeders, which keep what they have found out;
// so do data processes at the other ends of connections.
func TestNodes(t *testing.T) {
	const steps = 30
	test := func(t *testing.T, fs []Feeder, ranks int) {
		want, states := alone(t, ranks, steps)
		s := over(t, fs, ranks)
		s.start(nil)
		all := s.dial("train")
		for i := range steps {
			if d, _ := step(t, all); d != want[i] {
				t.Fatalf("step %d is %s, want %s", i, d, want[i])
			}
		}
		for _, stopped := range []int{0, 11} {
			s.stop()
			s.start(map[string]At{"train": {State: states[stopped]}})
			all := s.dial("train")
			for i := stopped + 1; i < stopped+6; i++ {
				if d, _ := step(t, all); d != want[i] {
					t.Fatalf("stopped after step %d: step %d is %s, want %s", stopped, i, d, want[i])
				}
			}
			if b, err := s.Ledger(t.Context(), "train"); err != nil || len(b) == 0 {
				t.Errorf("ledger: %v", err)
			}
		}
		s.fine()
	}
	for _, c := range []struct{ nodes, ranks int }{{2, 2}, {2, 4}, {3, 6}, {3, 2}} { // the last has a node without ranks
		t.Run(fmt.Sprintf("%d nodes, %d ranks", c.nodes, c.ranks), func(t *testing.T) {
			test(t, locals(t, c.nodes, func(int) []Set { return sets() }), c.ranks)
		})
	}
	t.Run("processes", func(t *testing.T) {
		var log logged
		fs, _ := machines(t, 2, &log)
		test(t, fs, 4)
		if n := log.count("a warning"); n != 2 {
			t.Errorf("%d processes were started, want two", n)
		}
	})
}

// logged is what was written. Safe for concurrent use.
type logged struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logged) count(what string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Count(l.b.String(), what)
}

// Each node finds out about the data once.
func TestNodesWarm(t *testing.T) {
	dir := t.TempDir()
	if _, err := dataset.Range(trainRows).WriteParquet(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	var n [2]atomic.Int64
	s := over(t, locals(t, 2, func(node int) []Set {
		ds := dataset.Read(counted{parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{dir}}}), &n[node]})
		return []Set{Of("train", ds, trainOptions(), false), Of("val", ds, trainOptions(), true)}
	}), 2)
	for range 3 {
		s.start(nil)
		step(t, s.dial("train"))
		s.stop()
	}
	if n[0].Load() != 1 || n[1].Load() != 1 {
		t.Errorf("the source was resolved %d and %d times, want once each", n[0].Load(), n[1].Load())
	}
}

// An evaluation set is opened again once the ranks of all nodes have given it up, whoever is first; a rank of a node that is through does not end the job of the others.
func TestNodesEval(t *testing.T) {
	const ranks = 4
	test := func(t *testing.T, fs []Feeder) {
		s := over(t, fs, ranks)
		s.start(nil)
		train := s.dial("train")
		for round := range 3 {
			val := s.dial("val")
			step(t, train)
			rows := evaluate(t, val)
			if len(rows) != valRows {
				t.Fatalf("%d rows, want %d", len(rows), valRows)
			}
			// Node 0 is through; the ranks of node 1 read another epoch.
			val[0].Close()
			val[1].Close()
			if round == 0 {
				evaluate(t, val[2:])
			}
			val[2].Close()
			val[3].Close()
			s.fine()
		}
		// So of the training set.
		train[0].Close()
		train[1].Close()
		for range 20 {
			step(t, train[2:])
		}
		s.fine()
	}
	t.Run("locals", func(t *testing.T) { test(t, locals(t, 2, func(int) []Set { return sets() })) })
	t.Run("processes", func(t *testing.T) {
		fs, _ := machines(t, 2, nil)
		test(t, fs)
	})
}

// A notice is seen from the same step on by all ranks of all nodes, whatever their pace, and it is one that nobody had been given. PENSTOCK_SEED=n runs one.
func TestNodesNotice(t *testing.T) {
	base := rand.Uint64()
	n := uint64(12)
	if s := os.Getenv("PENSTOCK_SEED"); s != "" {
		n = 1
		if _, err := fmt.Sscan(s, &base); err != nil {
			t.Fatal(err)
		}
	}
	for seed := base; seed < base+n; seed++ {
		rng := rand.New(rand.NewPCG(seed, 0))
		nodes := 2 + rng.IntN(2)
		ranks := nodes * (1 + rng.IntN(2))
		var fs []Feeder
		if seed%4 == 3 {
			fs, _ = machines(t, nodes, nil)
		} else {
			fs = locals(t, nodes, func(int) []Set { return sets() })
		}
		s := over(t, fs, ranks)
		s.start(nil)
		when, twice := int64(rng.IntN(200)), rng.IntN(2) == 0
		var mu sync.Mutex
		var last feed.Step // the furthest that was given before the notice
		var given int64
		told := make(chan struct{})
		tell := func(at feed.Step) {
			mu.Lock()
			defer mu.Unlock()
			if given <= when && last.Before(at) {
				last = at
			}
			if given == when {
				close(told)
			}
			given++
		}
		tell(feed.Step{})
		from := make([]feed.Step, ranks)
		var all sync.WaitGroup
		all.Go(func() {
			<-told
			for range 1 + map[bool]int{true: 1}[twice] {
				if err := s.Notice(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
		for r, node := range s.nodeOf {
			rng := rand.New(rand.NewPCG(seed, uint64(r)+1))
			pace, ahead := 1+rng.IntN(3000), rng.IntN(4)
			all.Go(func() {
				c, err := feed.Dial(t.Context(), s.sockets[node]["train"], r, &feed.DialOptions{Prefetch: ahead})
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				for !c.Noticed() {
					b, err := c.Next(t.Context())
					if err == io.EOF {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					from[r] = feed.Step{Epoch: b.Epoch(), Step: b.Step()}
					b.Release()
					tell(from[r])
					for range rng.IntN(pace) {
						runtime.Gosched()
					}
				}
			})
		}
		all.Wait()
		s.fine()
		for r, f := range from {
			if f != from[0] || when > 0 && f.Before(last) {
				t.Errorf("PENSTOCK_SEED=%d: rank %d of node %d is told at %+v, rank 0 at %+v; %+v was given before, notice after %d batches", seed, r, s.nodeOf[r], f, from[0], last, when)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A data process that is killed is the failure, by its node, also where another node says first that it is gone; then all go on with the same batches, the other with what it knows.
func TestNodesKilled(t *testing.T) {
	var log logged
	fs, processes := machines(t, 2, &log)
	want, states := alone(t, 4, 10)
	s := over(t, fs, 4)
	s.start(nil)
	for k, p := range processes {
		all := s.dial("train")
		step(t, all)
		if err := p.current().cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		err := <-s.failed
		if text := fmt.Sprintf("node %d: the data process ended: signal killed", k); !errors.Is(err, ErrDied) || fault.CodeOf(err) != fault.WorkerLost || !strings.HasPrefix(err.Error(), text) {
			t.Errorf("%v (%v), want %s", err, fault.CodeOf(err), text)
		}
		if err := s.Notice(t.Context()); !errors.Is(err, ErrDied) {
			t.Errorf("notice: %v", err)
		}
		s.stop()
		s.start(map[string]At{"train": {State: states[4]}})
		all = s.dial("train")
		for i := 5; i < 8; i++ {
			if d, _ := step(t, all); d != want[i] {
				t.Fatalf("step %d is %s, want %s", i, d, want[i])
			}
			if all[0].Noticed() {
				t.Error("noticed")
			}
		}
		s.stop()
		s.start(nil)
	}
	if n := log.count("a warning"); n != 4 {
		t.Errorf("%d processes were started, want two and one for each that was killed", n)
	}
}

// dies is a data process that is killed once it has said where it listens.
type dies struct{ *process }

func (d dies) Listen(ctx context.Context) (string, error) {
	a, err := d.process.Listen(ctx)
	d.current().kill()
	return a, err
}

// One that dies between the two is a data process that has died, and the next start has another.
func TestNodesDiedListening(t *testing.T) {
	fs, processes := machines(t, 2, nil)
	s := over(t, []Feeder{dies{processes[0]}, fs[1]}, 4)
	_, _, err := s.Start(t.Context(), 4, nil)
	if !errors.Is(err, ErrDied) || fault.CodeOf(err) != fault.WorkerLost || !strings.HasPrefix(err.Error(), "node 0: the data process ended: signal killed") {
		t.Fatalf("%v (%v)", err, fault.CodeOf(err))
	}
	want, _ := alone(t, 4, 2)
	s = over(t, fs, 4)
	s.start(nil)
	if d, _ := step(t, s.dial("train")); d != want[0] {
		t.Errorf("step 0 is %s, want %s", d, want[0])
	}
}

// A consumer that is lost is the failure of its node; what the others lose by that is none.
func TestNodesConsumerLost(t *testing.T) {
	for k := range 2 {
		s := over(t, locals(t, 2, func(int) []Set { return sets() }), 2)
		s.start(nil)
		lost := consumer(t, s.sockets[k]["train"], k)
		read := reader(t, s.sockets[1-k]["train"], 1-k)
		for range 3 {
			b, err := read.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		if err := lost.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		err := <-s.failed
		if want := fmt.Sprintf(`node %d: data set "train": rank %d: its consumer`, k, k); fault.CodeOf(err) != fault.WorkerLost || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// waiting is a set that waits to be opened until its context ends, and says that it does.
func waiting(at chan<- struct{}) Set {
	return Set{Name: "train", Open: func(ctx context.Context, _ int, _ *At, _ *shard.Nodes) ([]*shard.Iterator, error) {
		at <- struct{}{}
		<-ctx.Done()
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}}
}

// A node that cannot start ends the start of the others, which wait for it or are open already; its error is what is returned, and another start can follow. So a start ends
// that is stopped, or whose context ends, while nodes wait for each other.
func TestNodesStartEnds(t *testing.T) {
	at := make(chan struct{}, 10)
	bad := fault.New(fault.NotFound, "no such file")
	refuse := Set{Name: "train", Open: func(context.Context, int, *At, *shard.Nodes) ([]*shard.Iterator, error) { return nil, bad }}
	slow := func(node int) []Set {
		if node == 1 {
			return []Set{waiting(at)}
		}
		return sets()[:1]
	}
	for name, c := range map[string]struct {
		sets func(node int) []Set
		end  func(s *Spread, cancel func())
		code fault.Code
		text string
	}{
		"one fails": {sets: func(node int) []Set {
			if node == 1 {
				return []Set{refuse}
			}
			return sets()[:1]
		}, code: fault.NotFound, text: `node 1: data set "train": no such file`},
		"one fails before it meets the others": {sets: func(node int) []Set {
			if node == 1 {
				return append(sets(), sets()...)
			}
			return sets()
		}, code: fault.Invalid, text: "node 1: two data sets"},
		"canceled": {sets: slow, end: func(_ *Spread, cancel func()) { cancel() }, code: fault.Canceled, text: "context canceled"},
		"stopped": {sets: slow, end: func(s *Spread, _ func()) {
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		}, code: fault.Canceled, text: "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			fs := locals(t, 2, c.sets)
			for k := range fs { // over a line, too
				if k == 1 {
					near, far := net.Pipe()
					f := fs[k]
					done := make(chan error, 1)
					go func() { done <- Relay(context.Background(), far, f) }()
					t.Cleanup(func() {
						near.Close()
						if err := <-done; err != nil {
							t.Error(err)
						}
					})
					fs[k] = Remote(near)
				}
			}
			s := over(t, fs, 2)
			for range 2 {
				ctx, cancel := context.WithCancel(t.Context())
				var ends sync.WaitGroup
				if c.end != nil {
					ends.Go(func() {
						<-at
						c.end(s.Spread, cancel)
					})
				}
				_, _, err := s.Start(ctx, 2, nil)
				if fault.CodeOf(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
					t.Errorf("%v (%v), want %v with %q", err, fault.CodeOf(err), c.code, c.text)
				}
				ends.Wait()
				cancel()
			}
		})
	}
}

// Stop ends an evaluation set that waits for the others to open it again.
func TestNodesStopReopening(t *testing.T) {
	s := over(t, locals(t, 2, func(int) []Set { return sets() }), 2)
	s.start(nil)
	val := s.dial("val")
	step(t, val)
	val[0].Close() // the other keeps it
	s.stop()
	s.start(nil)
	val = s.dial("val")
	step(t, val)
	for _, c := range val {
		c.Close()
	}
	s.stop()
}

// A process of no gang, and nodes that are not its gang's, are refused.
func TestNodesRefused(t *testing.T) {
	n := &Nodes{Ranks: []int{0, 1}, Addresses: []string{"a", "b"}, Opening: "x"}
	f := Local(folder(t), sets(), nil)
	if _, _, err := f.Start(t.Context(), Start{Ranks: 2, Nodes: n}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "of no gang") {
		t.Errorf("%v", err)
	}
	g := Local(folder(t), sets(), gangtest.New(t, 3)[0])
	if _, err := g.Listen(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := g.Start(t.Context(), Start{Ranks: 2, Nodes: n}); fault.CodeOf(err) != fault.Internal {
		t.Errorf("%v", err)
	}
	_, _, err := Over([]Feeder{g, f}, []int{0, 1}).Start(t.Context(), 2, nil)
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "node 1: what feeds it is of no gang") {
		t.Errorf("%v", err)
	}
	closure := dataset.Range(trainRows).MapBatches(func(_ context.Context, b arrow.RecordBatch) (arrow.RecordBatch, error) {
		b.Retain()
		return b, nil
	}, nil)
	s := over(t, locals(t, 2, func(int) []Set { return []Set{Of("train", closure, trainOptions(), false)} }), 2)
	_, _, err = s.Start(t.Context(), 2, nil)
	if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "nodes: they cannot know that they run the same plan") || !strings.Contains(err.Error(), "register it") {
		t.Errorf("a closure: %v", err)
	}
}

// fake is a feeder that does as it is told.
type fake struct {
	Feeder
	steps  map[string]feed.Step
	held   func(ctx context.Context) error
	failed chan error
	marks  []map[string]feed.Step
}

func (f *fake) Listen(context.Context) (string, error) { return "here", nil }
func (f *fake) Start(context.Context, Start) (map[string]string, <-chan error, error) {
	return nil, f.failed, nil
}
func (f *fake) Hold(ctx context.Context) (map[string]feed.Step, error) {
	if f.held != nil {
		if err := f.held(ctx); err != nil {
			return nil, err
		}
	}
	return f.steps, nil
}
func (f *fake) Mark(_ context.Context, steps map[string]feed.Step) error {
	f.marks = append(f.marks, steps)
	return nil
}
func (f *fake) Stop() error  { return nil }
func (f *fake) Close() error { return nil }

// The latest step of each set counts. Where one feeder does not hold, or not in time, all are let go, and nobody was told.
func TestNoticeHalves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &fake{steps: map[string]feed.Step{"x": {Epoch: 1, Step: 2}, "y": {Epoch: 0, Step: 9}}}
		b := &fake{steps: map[string]feed.Step{"x": {Epoch: 0, Step: 7}, "y": {Epoch: 0, Step: 10}}}
		c := &fake{}
		s := Over([]Feeder{a, b, c}, []int{0, 1, 2})
		if err := s.Notice(t.Context()); err != nil {
			t.Error(err)
		}
		for _, f := range []*fake{a, b, c} {
			if len(f.marks) != 1 || len(f.marks[0]) != 2 || f.marks[0]["x"] != (feed.Step{Epoch: 1, Step: 2}) || f.marks[0]["y"] != (feed.Step{Epoch: 0, Step: 10}) {
				t.Errorf("marked %v", f.marks)
			}
			f.marks = nil
		}
		for _, held := range []func(context.Context) error{
			func(context.Context) error { return ErrDied },
			func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		} {
			b.held = held
			begin := time.Now()
			if err := s.Notice(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "node 1: ") || time.Since(begin) > noticeTime {
				t.Errorf("%v after %v", err, time.Since(begin))
			}
			for _, f := range []*fake{a, b, c} {
				if len(f.marks) != 1 || f.marks[0] != nil {
					t.Errorf("marked %v", f.marks)
				}
				f.marks = nil
			}
		}
	})
}

// What is about another node gives way to what that one says itself, in whatever order they come, and counts where that says nothing.
func TestCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, other := errors.New("own"), fmt.Errorf("%w: node 1", shard.ErrElsewhere)
		for i, c := range []struct {
			first, then error
			after, most time.Duration
			node        int
		}{
			{own, other, 0, 0, 1},
			{other, own, causeTime / 2, causeTime / 2, 0},
			{other, nil, 0, causeTime, 1},
			{other, own, 2 * causeTime, causeTime, 1},
			{other, other, causeTime / 2, causeTime, 1},
		} {
			fs := []*fake{{failed: make(chan error, 1)}, {failed: make(chan error, 1)}}
			s := Over([]Feeder{fs[0], fs[1]}, []int{0, 1})
			_, failed, err := s.Start(t.Context(), 2, nil)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			fs[1].failed <- c.first
			synctest.Wait()
			go func() {
				time.Sleep(c.after)
				if c.then != nil {
					fs[0].failed <- c.then
				}
			}()
			err = <-failed
			if want := fmt.Sprintf("node %d: ", c.node); !strings.HasPrefix(err.Error(), want) || time.Since(begin) > c.most {
				t.Errorf("%d: %v after %v, want %s", i, err, time.Since(begin), want)
			}
			time.Sleep(3 * causeTime)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}

// The steps of a notice are of training sets only, and a hold ends with a line.
func TestHoldEndsWithTheLine(t *testing.T) {
	f := Local(folder(t), sets(), nil)
	defer f.Close()
	near, far := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- Relay(context.Background(), far, f) }()
	r := Remote(near)
	sockets, _ := start(t, r, 1, nil)
	c := reader(t, sockets["train"], 0)
	step(t, []*feed.Client{c})
	steps, err := r.Hold(t.Context())
	if err != nil || len(steps) != 1 || !slices.Contains(keys(steps), "train") {
		t.Errorf("%v, %v", steps, err)
	}
	near.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for err = nil; err == nil; { // what was sent, and then that nothing is served any more
		var b *shard.Batch
		if b, err = c.Next(t.Context()); err == nil {
			b.Release()
		}
	}
	if fault.CodeOf(err) != fault.Unavailable {
		t.Error(err)
	}
	if _, err := r.Ledger(t.Context(), "train"); !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "the connection to its machine is lost") {
		t.Errorf("%v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
