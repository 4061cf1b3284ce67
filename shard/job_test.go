package shard_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// watched is a runner that knows the budget of the job that runs on it.
type watched struct {
	exec.Runner
	mu     sync.Mutex
	budget *exec.Budget
}

func (w *watched) Run(ctx context.Context, g *exec.Graph, o *exec.Options) (exec.Stream, error) {
	w.mu.Lock()
	w.budget = o.Budget
	w.mu.Unlock()
	return w.Runner.Run(ctx, g, o)
}

func newWatched() *watched { return &watched{Runner: local.New(nil)} }

// A job closed at any point leaves no memory (and no goroutine: see TestMain), but for the batches
// that the consumer still holds.
func TestCloseEarly(t *testing.T) {
	for seed := range uint64(60) {
		rng := rand.New(rand.NewPCG(seed, 1))
		w := newWatched()
		o := jobOptions(seed)
		o.Runner, o.Prefetch, o.BatchRows, o.Lineage = w, rng.IntN(5)-1, 1+rng.IntN(20), rng.IntN(2) == 0
		ds := dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}).Filter("id % 3 != 0")
		its, err := ds.Shards(t.Context(), 3, o)
		if err != nil {
			t.Fatal(err)
		}
		var held []*shard.Batch
		for range rng.IntN(20) {
			for _, it := range its {
				b, err := it.Next(t.Context())
				if err == io.EOF {
					continue
				}
				if err != nil {
					t.Fatal(err)
				}
				if rng.IntN(3) == 0 {
					held = append(held, b)
				} else {
					b.Release()
				}
			}
		}
		for _, i := range rng.Perm(len(its)) {
			for range 1 + rng.IntN(2) {
				if err := its[i].Close(); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			if _, err := its[i].Next(t.Context()); fault.CodeOf(err) != fault.Invalid {
				t.Errorf("Next after Close: %v", err)
			}
			if err := its[i].Restore(its[i].State()); fault.CodeOf(err) != fault.Invalid {
				t.Errorf("Restore after Close: %v", err)
			}
		}
		for _, b := range held {
			if b.Record().NumRows() != int64(b.Rows()) {
				t.Error("a batch lost its rows")
			}
			b.Release()
		}
		if w.budget != nil && w.budget.Used() != 0 {
			t.Fatalf("seed %d: %s", seed, w.budget.Holders())
		}
	}
}

// Cancelling either context is obeyed within a second; that of a call ends the call only.
func TestCancel(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	ds := dataset.Range(1000).MapBatches(slowRows(hang), nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	its, err := ds.Shards(ctx, 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 10}})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, its)
	call, stop := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer stop()
	begin := time.Now()
	if _, err := its[0].Next(call); fault.CodeOf(err) != fault.Canceled || time.Since(begin) > time.Second {
		t.Errorf("call: %v after %v", err, time.Since(begin))
	}
	begin = time.Now()
	time.AfterFunc(10*time.Millisecond, func() { cancel(errors.New("enough")) })
	_, err = its[0].Next(t.Context())
	if fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), "enough") || time.Since(begin) > time.Second {
		t.Errorf("job: %v after %v", err, time.Since(begin))
	}
	if _, again := its[0].Next(t.Context()); again == nil || again.Error() != err.Error() {
		t.Errorf("then %v", again)
	}
}

// slowRows is a function that waits for hang, or its context.
func slowRows(hang chan struct{}) func(context.Context, arrow.RecordBatch) (arrow.RecordBatch, error) {
	return func(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
		if in.NumRows() > 0 { // else it is asked for its schema
			select {
			case <-hang:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		in.Retain()
		return in, nil
	}
}

// A rank that nobody reads is named by the error that ends the wait; a rank that is closed is waited
// for no more.
func TestUnread(t *testing.T) {
	ds := dataset.Range(10_000)
	o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 30}}
	o.StallTimeout = 50 * time.Millisecond
	its := open(t, ds, 3, o)
	var err error
	for range 10 {
		var b *shard.Batch
		for _, it := range []*shard.Iterator{its[0], its[2]} {
			if b, err = it.Next(t.Context()); err != nil {
				break
			}
			b.Release()
		}
		if err != nil {
			break
		}
	}
	wantError(t, err, fault.Stalled, "for rank 1, which is not read")
	its = open(t, ds, 3, o)
	if err := its[1].Close(); err != nil {
		t.Fatal(err)
	}
	if n := len(digests(t, []*shard.Iterator{its[0], its[2]}, 20)); n != 40 {
		t.Errorf("%d batches of the other ranks", n)
	}
	// One that is closed while the others wait lets them go on.
	its = open(t, ds, 2, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 30, Prefetch: 1}})
	done := make(chan int)
	go func() { done <- len(digests(t, its[:1], 20)) }()
	b, err := its[1].Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	if err := its[1].Close(); err != nil {
		t.Fatal(err)
	}
	if n := <-done; n != 20 {
		t.Errorf("%d batches", n)
	}
}

// What was prefetched does not count as given.
func TestStateOfWhatWasGiven(t *testing.T) {
	o := jobOptions(7)
	o.Prefetch = 8
	its := open(t, dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}), 2, o)
	for step := range int64(6) {
		digests(t, its[:1], 1)
		if s := its[0].State(); s.Step != step+1 || s.Sample != 16*(step+1) || its[0].Step() != step+1 {
			t.Fatalf("state %+v after step %d", s, step)
		}
		if s := its[1].State(); s.Step != 0 || s.Sample != 0 {
			t.Fatalf("rank 1 got nothing, and is at %+v", s)
		}
	}
}

// Epochs follow each other: EOF between them, or none; a number of them; a number of steps.
func TestEpochs(t *testing.T) {
	ds := dataset.Range(100)
	count := func(o shard.Options, calls int) string {
		t.Helper()
		o.GlobalBatch = 16
		var b strings.Builder
		it, err := ds.Iterator(t.Context(), &dataset.ShardOptions{Options: o})
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll(t, []*shard.Iterator{it})
		for range calls {
			x, err := it.Next(t.Context())
			switch {
			case err == io.EOF:
				b.WriteByte('.')
			case err != nil:
				t.Fatal(err)
			default:
				fmt.Fprint(&b, x.Epoch())
				x.Release()
			}
		}
		return b.String()
	}
	for _, c := range []struct {
		o    shard.Options
		n    int
		want string
	}{
		{shard.Options{}, 16, "000000.111111.22"},
		{shard.Options{Tail: shard.TailPad}, 10, "0000000.11"},
		{shard.Options{Endless: true}, 16, "0000001111112222"},
		{shard.Options{Epochs: 2}, 17, "000000.111111...."},
		{shard.Options{Epochs: 2, Endless: true}, 15, "000000111111..."},
		{shard.Options{StepsPerEpoch: 2}, 7, "00.11.2"},
		{shard.Options{StepsPerEpoch: 99, Prefetch: -1}, 9, "000000.11"},
	} {
		if got := count(c.o, c.n); got != c.want {
			t.Errorf("%+v: %s, want %s", c.o, got, c.want)
		}
	}
	it, err := ds.Iterator(t.Context(), &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 16}})
	if err != nil {
		t.Fatal(err)
	}
	defer closeAll(t, []*shard.Iterator{it})
	for epoch := range uint64(3) { // All is one epoch; a break goes on where it was
		n := 0
		for range 2 {
			for b, err := range it.All(t.Context()) {
				if err != nil || b.Epoch() != epoch {
					t.Fatal(err)
				}
				if n++; n == 3 {
					break
				}
			}
		}
		if steps, ok := it.Len(); n != 6 || steps != 6 || !ok {
			t.Errorf("epoch %d: %d steps; Len says %d, %v", epoch, n, steps, ok)
		}
	}
}

// A number of steps or epochs that is never reached is no limit, and the states of such a job, and of the last epochs that there
// can be, are whole.
func TestHugeNumbers(t *testing.T) {
	ds := dataset.Range(100)
	for _, steps := range []int64{1 << 58, 1 << 60, 1e18, 2305843009213693953, math.MaxInt64} {
		for _, first := range []uint64{0, 1<<62 - 2} {
			o := jobOptions(7)
			o.GlobalBatch, o.StepsPerEpoch, o.Epoch, o.Epochs = 8, steps, first, math.MaxInt
			its := open(t, ds, 1, o)
			if n := len(digests(t, its, 5)); n != 5 {
				t.Errorf("%d steps: %d", steps, n)
			}
			s := its[0].State()
			want := digests(t, its, 100)
			if len(want) != 7 {
				t.Errorf("%d steps an epoch: there are %d more", steps, len(want))
			}
			o.State = &s
			if got := digests(t, open(t, ds, 1, o), 100); !slices.Equal(got, want) {
				t.Errorf("%d steps an epoch: restored, %d other batches", steps, len(got))
			}
			digests(t, its, 100)
			s = its[0].State()
			if err := its[0].Restore(s); err != nil || s.Epoch != first+2 {
				t.Errorf("after two epochs: epoch %d, %v", s.Epoch, err)
			}
			b, err := its[0].Next(t.Context())
			if over := first > 0; over != (err == io.EOF) {
				t.Errorf("in epoch %d: %v", s.Epoch, err)
			}
			if b != nil {
				b.Release()
			}
			at, err := ds.StateAt(t.Context(), 1, o, shard.At{Epoch: first + 1, Step: 12})
			if err != nil {
				t.Error(err)
			} else if err := its[0].Restore(at); err != nil {
				t.Error(err)
			}
		}
	}
	o := jobOptions(7)
	for _, at := range []shard.At{{Epoch: 1 << 62}, {Step: 1<<60 + 1}} {
		_, err := ds.StateAt(t.Context(), 1, o, at)
		wantError(t, err, fault.Invalid, "too large")
	}
}

// An evaluation gives every row once, with a masked pad, while the training of the same dataset is open.
func TestTwoJobs(t *testing.T) {
	ds := dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}})
	train := open(t, ds, 2, jobOptions(7))
	want := digests(t, open(t, ds, 2, jobOptions(7)), 100)
	got := digests(t, train, 2)
	o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 64, Tail: shard.TailPad}}
	seen := map[string]int{}
	eval := open(t, ds, 3, o)
	for range 4 {
		for _, it := range eval {
			b, err := it.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			for i := range b.Real() {
				seen[keyOf(b.Record(), i)]++
			}
			b.Release()
		}
		got = append(got, digests(t, train, 1)...)
	}
	got = append(got, digests(t, train, 100)...)
	if len(seen) != 210 {
		t.Errorf("%d rows evaluated", len(seen))
	}
	for k, n := range seen {
		if n != 1 {
			t.Errorf("row %s %d times", k, n)
		}
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Error("the training is disturbed")
	}
}

// Options that cannot be, each with what to do.
func TestBadOptions(t *testing.T) {
	r := dataset.Range(100)
	dir := t.TempDir()
	text := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(text, []byte("a\nb\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	win := func(s shard.Shuffle) shard.Options { return shard.Options{GlobalBatch: 4, Shuffle: &s} }
	for name, c := range map[string]struct {
		ds    *dataset.Dataset
		ranks int
		o     shard.Options
		code  fault.Code
		says  string
	}{
		"no batch":          {r, 1, shard.Options{}, fault.Invalid, "global_batch"},
		"both batches":      {r, 1, shard.Options{GlobalBatch: 4, BatchPerRank: 2}, fault.Invalid, "both given"},
		"negative batch":    {r, 1, shard.Options{GlobalBatch: -4}, fault.Invalid, "negative"},
		"huge batch":        {r, 4, shard.Options{BatchPerRank: 1 << 62}, fault.Invalid, "too large"},
		"large batch":       {r, 4, shard.Options{GlobalBatch: 1 << 30}, fault.Invalid, "at most"},
		"ranks > batch":     {r, 5, shard.Options{GlobalBatch: 4}, fault.Invalid, "5 ranks"},
		"no ranks":          {r, 0, shard.Options{GlobalBatch: 4}, fault.Invalid, "at least 1"},
		"same rank twice":   {r, 4, shard.Options{GlobalBatch: 4, Ranks: []int{1, 2, 1}}, fault.Invalid, "each once"},
		"rank too high":     {r, 4, shard.Options{GlobalBatch: 4, Ranks: []int{4}}, fault.Invalid, "rank 4 of 4"},
		"tail":              {r, 1, shard.Options{GlobalBatch: 4, Tail: "cut"}, fault.Invalid, "drop, pad, repeat"},
		"epochs":            {r, 1, shard.Options{GlobalBatch: 4, Epochs: -1}, fault.Invalid, "negative"},
		"epoch":             {r, 1, shard.Options{GlobalBatch: 4}, fault.Invalid, "epoch 4611686018427387904 is too large"},
		"mode":              {r, 1, win(shard.Shuffle{Mode: "full"}), fault.Invalid, "window, blocks, none"},
		"lanes":             {r, 1, win(shard.Shuffle{Lanes: -1}), fault.Invalid, "lanes"},
		"lanes of blocks":   {r, 1, win(shard.Shuffle{Mode: shard.ModeBlocks, Lanes: 2}), fault.Invalid, "one lane"},
		"window":            {r, 1, win(shard.Shuffle{WindowRows: -1}), fault.Invalid, "window"},
		"bytes of rows":     {r, 1, win(shard.Shuffle{WindowBytes: 9}), fault.Invalid, "window_rows"},
		"rows of text":      {dataset.ReadText(text), 1, win(shard.Shuffle{WindowRows: 9}), fault.Invalid, "window_bytes"},
		"limit":             {r.Limit(5), 1, win(shard.Shuffle{Mode: shard.ModeBlocks}), fault.Invalid, "sample"},
		"limit in between":  {r.Limit(5).Filter("id > 2"), 1, win(shard.Shuffle{Mode: shard.ModeNone}), fault.Invalid, "last step"},
		"does not fit":      {r, 1, win(shard.Shuffle{Mode: shard.ModeWindow, Resident: 100}), fault.Invalid, "make the window smaller"},
		"mix without end":   {dataset.Mix(dataset.MixSource{Name: "a", Data: r, Weight: 1, Repeat: true}), 1, shard.Options{GlobalBatch: 4}, fault.Invalid, "steps_per_epoch"},
		"columns of arrow":  {r, 1, shard.Options{GlobalBatch: 4, Form: shard.Form{Columns: map[string]shard.Column{"id": {}}}}, fault.Invalid, ""},
		"unknown column":    {r, 1, shard.Options{GlobalBatch: 4, Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{"x": {}}}}, fault.Invalid, `"x"`},
		"lineage there":     {r.WithColumns("_row = id"), 1, shard.Options{GlobalBatch: 4, Lineage: true}, fault.Invalid, `column "_row", which is there already`},
		"negative resident": {r, 1, win(shard.Shuffle{Resident: -1}), fault.Invalid, "resident"},
	} {
		t.Run(name, func(t *testing.T) {
			o := &dataset.ShardOptions{Options: c.o}
			if name == "epoch" {
				o.Epoch = 1 << 62
			}
			its, err := c.ds.Shards(t.Context(), c.ranks, o)
			closeAll(t, its)
			wantError(t, err, c.code, c.says)
		})
	}
}

// Data that is awkward is read all the same; where nothing is left endless iteration is an error.
func TestAwkwardData(t *testing.T) {
	for name, rows := range map[string][]int{"empty": {}, "empty splits": {0, 0, 0}, "fewer splits than lanes": {9, 4}, "huge beside tiny": {20_000, 10}, "one row": {1}} {
		for _, filter := range []string{"true", "id % 2 == 0", "id < 4", "id < 0"} {
			total := 0
			for _, n := range rows {
				total += n
			}
			want := map[string]int{"true": total, "id % 2 == 0": (total + 1) / 2, "id < 4": min(total, 4), "id < 0": 0}[filter]
			ds := dataset.Read(cells{0, rows}).Filter(filter)
			o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 32, Tail: shard.TailPad, Epochs: 2, Shuffle: &shard.Shuffle{Lanes: 16, WindowRows: 64}}}
			its := open(t, ds, 4, o)
			for epoch := range 2 {
				seen := map[string]int{}
				for done := false; !done; {
					for _, it := range its {
						b, err := it.Next(t.Context())
						if err == io.EOF {
							done = true
							continue
						}
						if err != nil {
							t.Fatal(err)
						}
						for i := range b.Real() {
							seen[keyOf(b.Record(), i)]++
						}
						b.Release()
					}
				}
				if len(seen) != want {
					t.Errorf("%s, %s, epoch %d: %d rows, want %d", name, filter, epoch, len(seen), want)
				}
				for key, n := range seen {
					if n != 1 {
						t.Errorf("%s, %s, epoch %d: row %s %d times", name, filter, epoch, key, n)
					}
				}
			}
			if want < 32 {
				o.Tail, o.Epochs, o.Endless = shard.TailDrop, 0, true
				_, err := open(t, ds, 4, o)[0].Next(t.Context())
				wantError(t, err, fault.Invalid, "endless", fmt.Sprint(want))
			}
		}
	}
}

// A file that changes while it is read is an error of the job, not other rows and not the end of the data: what is read ahead is bounded by
// the budget, of which the file is many times.
func TestFileChangesMidRun(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.parquet")
	groups := slices.Repeat([]int{200}, 60)
	writeGroups(t, file, 0, groups, true)
	ds := dataset.ReadParquet(file)
	o := jobOptions(7)
	o.Prefetch, o.Shuffle.Lanes, o.Shuffle.WindowRows, o.Memory = -1, 1, 4, shard.MinMemory
	its := open(t, ds, 1, o)
	digests(t, its, 1)
	other := filepath.Join(t.TempDir(), "new.parquet")
	writeGroups(t, other, 7_000_000, groups, true) // of the same places, so that nothing but the change is in the way
	if err := os.Rename(other, file); err != nil {
		t.Fatal(err)
	}
	for {
		b, err := its[0].Next(t.Context())
		if err != nil {
			wantError(t, err, fault.Changed, "a.parquet", "changed")
			_, again := its[0].Next(t.Context())
			wantError(t, again, fault.Changed, "a.parquet", "changed")
			break
		}
		for i := range b.Real() {
			if k := keyOf(b.Record(), i); len(k) > 5 {
				t.Fatalf("row %s is of the new file", k)
			}
		}
		b.Release()
	}
	o.State = new(its[0].State())
	_, err := ds.Refresh().Shards(t.Context(), 1, o)
	wantError(t, err, fault.Invalid, "changed")
}
