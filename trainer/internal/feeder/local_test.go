package feeder

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if mode := os.Getenv("PENSTOCK_FEEDER_CHILD"); mode != "" {
		childMain(mode)
	}
	goleak.VerifyTestMain(m)
}

// folder is one whose path is short enough for sockets.
func folder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "feeder")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if left, _ := os.ReadDir(dir); len(left) > 0 {
			t.Errorf("left behind in the folder of sockets: %v", left)
		}
		os.RemoveAll(dir)
	})
	return dir
}

const (
	trainRows = 10_000
	valRows   = 70
	batch     = 40
)

func trainOptions() dataset.ShardOptions {
	return dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 5, Memory: 64 << 20},
		Options: shard.Options{GlobalBatch: batch, Form: shard.Form{Tensors: true}, Shuffle: &shard.Shuffle{Lanes: 4, WindowRows: 200}}}
}

// sets of the tests: a training set whose steps change the number of rows, and an evaluation set.
func sets() []Set {
	return []Set{
		Of("train", dataset.Range(trainRows).Filter("id % 3 != 0"), trainOptions(), false),
		Of("val", dataset.Range(valRows), trainOptions(), true),
	}
}

// reader is the consumer of a rank; of a set that was given up as soon as the server has heard so of all ranks.
func reader(t testing.TB, socket string, rank int) *feed.Client {
	t.Helper()
	c, err := feed.Dial(t.Context(), socket, rank, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// step reads a step of all ranks: its digests, and the state after it.
func step(t testing.TB, ranks []*feed.Client) (string, shard.State) {
	t.Helper()
	type part struct {
		digest string
		err    error
	}
	parts := make([]chan part, len(ranks))
	for r, c := range ranks {
		parts[r] = make(chan part, 1)
		go func() {
			b, err := c.Next(t.Context())
			if err != nil {
				parts[r] <- part{err: err}
				return
			}
			defer b.Release()
			sum := b.Digest()
			parts[r] <- part{digest: fmt.Sprintf("%d/%d %s", b.Epoch(), b.Step(), hex.EncodeToString(sum[:8]))}
		}()
	}
	var all []string
	for r := range ranks {
		p := <-parts[r]
		if p.err != nil {
			t.Fatal(p.err)
		}
		all = append(all, p.digest)
	}
	return strings.Join(all, "|"), ranks[0].State()
}

func dialAll(t testing.TB, socket string, ranks int) []*feed.Client {
	t.Helper()
	all := make([]*feed.Client, ranks)
	for r := range all {
		all[r] = reader(t, socket, r)
	}
	return all
}

func start(t testing.TB, f Feeder, ranks int, at map[string]At) (map[string]string, <-chan error) {
	t.Helper()
	sockets, failed, err := f.Start(t.Context(), Start{Ranks: ranks, At: at})
	if err != nil {
		t.Fatal(err)
	}
	return sockets, failed
}

// Stopped after any step and started with its state, on any number of ranks or the same one, a feeder goes on with the batches that
// it would have given.
func testRestart(t *testing.T, f Feeder) {
	const ranks, steps = 2, 40
	var want []string
	var states []shard.State
	sockets, _ := start(t, f, ranks, nil)
	all := dialAll(t, sockets["train"], ranks)
	for range steps {
		d, s := step(t, all)
		want, states = append(want, d), append(states, s)
	}
	for _, stopped := range []int{0, 7, 31} {
		if err := f.Stop(); err != nil {
			t.Fatal(err)
		}
		if _, err := all[0].Next(t.Context()); err == nil {
			for err == nil { // what was read ahead
				_, err = all[0].Next(t.Context())
			}
		}
		begin := time.Now()
		sockets, _ = start(t, f, ranks, map[string]At{"train": {State: states[stopped]}})
		all = dialAll(t, sockets["train"], ranks)
		for i := stopped + 1; i < min(stopped+6, steps); i++ {
			d, _ := step(t, all)
			if i == stopped+1 {
				t.Logf("first batch %v after the restart", time.Since(begin))
			}
			if d != want[i] {
				t.Fatalf("stopped after step %d: step %d is %s, want %s", stopped, i, d, want[i])
			}
		}
	}
	if err := f.Stop(); err != nil {
		t.Fatal(err)
	}
	for _, path := range sockets {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}

func TestRestart(t *testing.T) {
	f := Local(folder(t), sets(), nil)
	defer f.Close()
	testRestart(t, f)
}

// counted is a source that counts how often it is resolved, and its footers with it.
type counted struct {
	driver.Source
	n *atomic.Int64
}

func (c counted) Resolve(ctx context.Context, o *driver.ResolveOptions) (driver.Table, error) {
	c.n.Add(1)
	return c.Source.Resolve(ctx, o)
}

// A restart does not list, and reads no footers: they are those of the first start.
func TestWarm(t *testing.T) {
	dir := t.TempDir()
	if _, err := dataset.Range(trainRows).WriteParquet(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	var n atomic.Int64
	ds := dataset.Read(counted{parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{dir}}}), &n})
	f := Local(folder(t), []Set{Of("train", ds.WithColumns("x = id * 2"), trainOptions(), false), Of("val", ds.WithColumns("y = 1"), trainOptions(), true)}, nil)
	defer f.Close()
	for range 3 {
		sockets, _ := start(t, f, 1, nil)
		step(t, dialAll(t, sockets["train"], 1))
		if err := f.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	if n.Load() != 1 {
		t.Errorf("the source was resolved %d times, want once", n.Load())
	}
}

// evaluate reads an epoch of all ranks, which begin together: how often each row came.
func evaluate(t *testing.T, ranks []*feed.Client) map[int64]int {
	t.Helper()
	var mu sync.Mutex
	var done sync.WaitGroup
	rows := map[int64]int{}
	for _, c := range ranks {
		done.Go(func() {
			last := int64(-1)
			for b, err := range c.All(t.Context()) {
				if err != nil {
					t.Error(err)
					return
				}
				ids, _ := b.Tensor("id")
				mu.Lock()
				for i, id := range shard.Values[int64](ids)[:b.Real()] {
					if rows[id]++; id <= last || b.Samples()[i] != id {
						t.Errorf("rank %d: row %d after row %d, as sample %d", c.Rank(), id, last, b.Samples()[i])
					}
					last = id
				}
				mu.Unlock()
			}
		})
	}
	done.Wait()
	return rows
}

// An evaluation set gives every row once an epoch, in order and from the first one, as often as is asked, while a
// training set is open; and anew when all ranks have given it up.
func TestEval(t *testing.T) {
	const ranks = 3
	f := Local(folder(t), sets(), nil)
	defer f.Close()
	sockets, failed := start(t, f, ranks, nil)
	train := dialAll(t, sockets["train"], ranks)
	for range 2 {
		val := dialAll(t, sockets["val"], ranks)
		for range 3 {
			step(t, train)
			rows := evaluate(t, val)
			if len(rows) != valRows {
				t.Fatalf("%d rows, want %d", len(rows), valRows)
			}
			for id, n := range rows {
				if n != 1 {
					t.Errorf("row %d came %d times", id, n)
				}
			}
		}
		step(t, val) // and left in the midst of an epoch
		for _, c := range val {
			c.Close()
		}
	}
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
}

// notice gives the ranks of a feeder a notice, as far as it lives.
func notice(t *testing.T, f Feeder) {
	t.Helper()
	if err := Over([]Feeder{f}, nil, nil).Notice(t.Context()); err != nil && !errors.Is(err, ErrDied) {
		t.Error(err)
	}
}

// testNotice: the ranks of a training set see a notice from the same step on, those of an evaluation set do not.
func testNotice(t *testing.T, f Feeder) {
	sockets, _ := start(t, f, 2, nil)
	train, val := dialAll(t, sockets["train"], 2), dialAll(t, sockets["val"], 2)
	step(t, train)
	notice(t, f)
	notice(t, f)
	var at [2]int
	for i := 1; at[0] == 0 || at[1] == 0; i++ {
		step(t, train)
		for r, c := range train {
			if c.Noticed() && at[r] == 0 {
				at[r] = i
			}
		}
		if i > 100 {
			t.Fatal("nobody saw it")
		}
	}
	if at[0] != at[1] {
		t.Errorf("rank 0 saw it at step %d, rank 1 at step %d", at[0], at[1])
	}
	step(t, val)
	if val[0].Noticed() {
		t.Error("an evaluation set told of it")
	}
	if err := f.Stop(); err != nil {
		t.Fatal(err)
	}
	sockets, _ = start(t, f, 2, nil)
	train = dialAll(t, sockets["train"], 2)
	for range 10 {
		step(t, train)
	}
	if train[0].Noticed() {
		t.Error("it was seen after a restart")
	}
}

func TestNotice(t *testing.T) {
	for _, f := range []Feeder{Local(folder(t), sets(), nil), Process(folder(t), childArgv("data"), nil, nil)} {
		notice(t, f) // of nothing
		testNotice(t, f)
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The ledger is of what was read, can be read again, and is for training sets only.
func TestLedger(t *testing.T) {
	f := Local(folder(t), sets(), nil)
	defer f.Close()
	if _, err := f.Ledger(t.Context(), "train"); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("before the start: %v", err)
	}
	sockets, _ := start(t, f, 1, nil)
	all := dialAll(t, sockets["train"], 1)
	for range 20 {
		step(t, all)
	}
	b, err := f.Ledger(t.Context(), "train")
	if err != nil {
		t.Fatal(err)
	}
	l, err := shard.ReadLedger(bytes.NewReader(b))
	if err != nil || l.Windows() < 4 {
		t.Errorf("%v: %d windows", err, l.Windows())
	}
	for _, name := range []string{"val", "test"} {
		if _, err := f.Ledger(t.Context(), name); fault.CodeOf(err) != fault.NotFound || !strings.Contains(err.Error(), `have "train"`) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// A consumer that is lost is a failure, which says so; it is no end of a data process.
func TestConsumerLost(t *testing.T) {
	f := Local(folder(t), sets(), nil)
	defer f.Close()
	sockets, failed := start(t, f, 2, nil)
	lost := consumer(t, sockets["train"], 1)
	read := reader(t, sockets["train"], 0)
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
	err := <-failed
	if fault.CodeOf(err) != fault.WorkerLost || errors.Is(err, ErrDied) || !strings.Contains(err.Error(), `data set "train": rank 1`) {
		t.Errorf("%v", err)
	}
}

// What cannot be started says why, and leaves nothing.
func TestStartErrors(t *testing.T) {
	bad := func(err error) Set {
		return Set{Name: "bad", Open: func(context.Context, int, *At, *shard.Nodes) ([]*shard.Iterator, error) { return nil, err }}
	}
	other := sets()[:1]
	g := Local(folder(t), []Set{Of("train", dataset.Range(77), trainOptions(), false)}, nil)
	defer g.Close()
	sockets, _ := start(t, g, 1, nil)
	foreign := reader(t, sockets["train"], 0).State()
	for _, c := range []struct {
		name  string
		dir   string
		sets  []Set
		ranks int
		at    map[string]At
		code  fault.Code
		want  string
	}{
		{name: "no ranks", sets: sets(), code: fault.Invalid, want: "at least one"},
		{name: "twice", sets: append(sets(), sets()...), ranks: 1, code: fault.Invalid, want: `two data sets of the name "train"`},
		{name: "no name", sets: []Set{{}}, ranks: 1, code: fault.Invalid, want: "without a name"},
		{name: "unknown state", sets: sets(), ranks: 1, at: map[string]At{"trian": {}}, code: fault.Invalid, want: `data set "trian" to go on from, but no training set of that name; have "train"`},
		{name: "state of an evaluation set", sets: sets(), ranks: 1, at: map[string]At{"val": {}}, code: fault.Invalid, want: "no training set"},
		{name: "state of other data", sets: sets(), ranks: 1, at: map[string]At{"train": {State: foreign}}, code: fault.Invalid, want: `data set "train": restore: not a state of this job: it is of another plan`},
		{name: "one of two fails", sets: append(other, bad(fault.New(fault.NotFound, "no such file"))), ranks: 1, code: fault.NotFound, want: `data set "bad": no such file`},
		{name: "too few iterators", sets: []Set{bad(nil)}, ranks: 1, code: fault.Internal, want: "0 iterators for 1 ranks"},
		{name: "more ranks than samples", sets: sets(), ranks: batch + 1, code: fault.Invalid, want: "less than one sample for each of 41 ranks"},
		{name: "long path", dir: strings.Repeat("x", 100), sets: sets(), ranks: 1, code: fault.Invalid, want: "at most 103 bytes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := Local(filepath.Join(folder(t), c.dir), c.sets, nil)
			_, _, err := f.Start(t.Context(), Start{Ranks: c.ranks, At: c.at})
			if fault.CodeOf(err) != c.code || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%v (%v), want %v with %q", err, fault.CodeOf(err), c.code, c.want)
			}
			if err := f.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// A start whose context ends while data sets are opened leaves nothing, and another can follow.
func TestStartCanceled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	slow, calls := sets()[0], 0
	open := slow.Open
	slow.Open = func(ctx context.Context, ranks int, at *At, nodes *shard.Nodes) ([]*shard.Iterator, error) {
		if calls++; calls == 1 {
			cancel()
			<-ctx.Done()
		}
		return open(ctx, ranks, at, nodes)
	}
	f := Local(folder(t), []Set{slow, sets()[1]}, nil)
	defer f.Close()
	if _, _, err := f.Start(ctx, Start{Ranks: 1}); fault.CodeOf(err) != fault.Canceled {
		t.Fatal(err)
	}
	sockets, _ := start(t, f, 1, nil)
	step(t, dialAll(t, sockets["train"], 1))
}

// A number of epochs is that of the job: it does not begin anew where the job goes on.
func TestEpochsGoOn(t *testing.T) {
	o := trainOptions()
	o.Epochs, o.GlobalBatch = 2, 100
	f := Local(folder(t), []Set{Of("train", dataset.Range(300), o, false)}, nil)
	var state shard.State
	read := func(at map[string]At) (epochs string) {
		sockets, _ := start(t, f, 1, at)
		r := reader(t, sockets["train"], 0)
		for range 10 {
			b, err := r.Next(t.Context())
			if err == io.EOF {
				epochs += "."
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			epochs += fmt.Sprint(b.Epoch())
			b.Release()
			if epochs == "000.1" {
				state = r.State()
			}
		}
		if err := f.Stop(); err != nil {
			t.Fatal(err)
		}
		return epochs
	}
	if got := read(nil); got != "000.111..." {
		t.Errorf("epochs of the steps: %s", got)
	}
	if got := read(map[string]At{"train": {State: state}}); got != "11........" {
		t.Errorf("gone on in epoch 1: %s", got)
	}
}

// A training set that is known to have no step in an epoch is refused; one whose length is not known is not, nor one that is padded or for evaluation.
func TestNoStep(t *testing.T) {
	options := func(global, perRank int, tail shard.Tail) dataset.ShardOptions {
		o := trainOptions()
		o.GlobalBatch, o.BatchPerRank, o.Tail = global, perRank, tail
		return o
	}
	for name, c := range map[string]struct {
		set  Set
		want string
	}{
		"short":    {Of("s", dataset.Range(100), options(101, 0, ""), false), "an epoch has no step: 100 samples are fewer than a global batch of 101, and tail drop leaves them out: make global_batch smaller, or give tail: pad"},
		"by rank":  {Of("s", dataset.Range(100), options(0, 51, shard.TailDrop), false), "100 samples are fewer than a global batch of 102"},
		"empty":    {Of("s", dataset.Range(0), options(101, 0, shard.TailPad), false), "the data set has no samples"},
		"enough":   {Of("s", dataset.Range(101), options(101, 0, ""), false), ""},
		"padded":   {Of("s", dataset.Range(100), options(101, 0, shard.TailPad), false), ""},
		"unknown":  {Of("s", dataset.Range(100).Filter("id > 5"), options(101, 0, ""), false), ""},
		"no train": {Of("s", dataset.Range(100), options(101, 0, ""), true), ""},
	} {
		f := Local(folder(t), []Set{c.set}, nil)
		_, _, err := f.Start(t.Context(), Start{Ranks: 2})
		if c.want == "" && err != nil || c.want != "" && (fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
		if err := f.Close(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
