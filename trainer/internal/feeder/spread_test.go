package feeder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/dataset"
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
	s.Spread = Over(fs, s.nodeOf, nil)
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
