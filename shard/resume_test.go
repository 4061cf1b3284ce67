package shard_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

func next(t testing.TB, it *shard.Iterator) *shard.Batch {
	t.Helper()
	b, err := it.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	return b
}

// A rank that restores after another has gone on from the same state joins it: no step is given twice.
// One with another state, or another shuffle, is refused.
func TestLateRestore(t *testing.T) {
	ds := dataset.Range(1000)
	its := open(t, ds, 2, jobOptions(7))
	for range 3 {
		next(t, its[0])
		next(t, its[1])
	}
	a := its[0].State()
	next(t, its[0])
	next(t, its[1])
	b := its[0].State()

	again := open(t, ds, 2, jobOptions(7))
	if err := again[0].Restore(a); err != nil {
		t.Fatal(err)
	}
	if s := next(t, again[0]).Step(); s != 3 {
		t.Fatalf("step %d", s)
	}
	wantError(t, again[1].Restore(b), fault.Invalid, "all ranks go on from the same state")
	if err := again[1].Restore(a); err != nil {
		t.Fatal(err)
	}
	for step := int64(3); step < 6; step++ {
		if s := next(t, again[1]).Step(); s != step {
			t.Fatalf("rank 1: step %d, want %d", s, step)
		}
		if s := next(t, again[0]).Step(); s != step+1 {
			t.Fatalf("rank 0: step %d, want %d", s, step+1)
		}
	}

	zero := func(lanes int) shard.State {
		o := jobOptions(7)
		o.Shuffle = &shard.Shuffle{Lanes: lanes, WindowRows: 50}
		return open(t, ds, 1, o)[0].State()
	}
	o := jobOptions(7)
	o.Shuffle = nil
	free := open(t, ds, 2, o)
	if err := free[0].Restore(zero(2)); err != nil {
		t.Fatal(err)
	}
	wantError(t, free[1].Restore(zero(5)), fault.Invalid)
}

// Close wakes a Next that waits for another rank, and Restore does not wait for a step that hangs.
func TestCloseAndRestoreDoNotWait(t *testing.T) {
	its := open(t, dataset.Range(100000), 2, jobOptions(7))
	done := make(chan error, 1)
	go func() {
		for {
			b, err := its[0].Next(t.Context()) // rank 1 is not read
			if err != nil {
				done <- err
				return
			}
			b.Release()
		}
	}()
	time.AfterFunc(50*time.Millisecond, func() { its[0].Close() })
	select {
	case err := <-done:
		wantError(t, err, fault.Invalid, "closed")
	case <-time.After(10 * time.Second):
		t.Fatal("Next still waits")
	}

	slow := dataset.Range(1000).Exec(dataset.ExecOptions{Command: []string{"sleep", "1000"}})
	it := open(t, slow, 1, jobOptions(7))[0]
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := it.Next(ctx); fault.CodeOf(err) != fault.Canceled {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := it.Restore(it.State()); err != nil {
		t.Error(err)
	}
	if err := it.Close(); err != nil || time.Since(begin) > 2*time.Second {
		t.Errorf("%v after %v", err, time.Since(begin))
	}
}

// Far fewer samples than a step: repeated from what the step holds.
func TestRepeatFew(t *testing.T) {
	o := jobOptions(7)
	o.GlobalBatch, o.Tail, o.Epochs, o.Shuffle = 100_000, shard.TailRepeat, 1, nil
	it := open(t, dataset.Range(1000).Filter("id < 3"), 1, o)[0]
	b, err := it.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	for i, n := range b.Samples() {
		if n != int64(i%3) {
			t.Fatalf("sample %d at %d", n, i)
		}
	}
	if b.Real() != 100_000 {
		t.Errorf("%d rows", b.Real())
	}
}

// Compressed text is counted once; a file that changes afterwards is counted again, also if its size and
// its ends stay. Rows that do not parse are the run's to fail or to skip.
func TestCounted(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	file := filepath.Join(dir, "a.csv")
	write := func(middle string, at time.Time) {
		row := "1234567," + strings.Repeat("a", 31) + "\n"
		text := "id,s\n" + strings.Repeat(row, 2000) + middle + strings.Repeat(row, 2000)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, at, at); err != nil {
			t.Fatal(err)
		}
	}
	rows := func() int {
		ds := dataset.Read(csvio.New(csvio.Options{Multiline: true, Options: fileset.Options{Paths: []string{file}}}))
		o := jobOptions(7)
		o.Tail, o.Epochs, o.GlobalBatch, o.Shuffle = shard.TailPad, 1, 10, &shard.Shuffle{Lanes: 1, WindowRows: 100}
		it := open(t, ds, 1, o)[0]
		n := 0
		for b, err := range it.All(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			n += b.Real()
		}
		return n
	}
	now := time.Unix(1_700_000_000, 0)
	write(`9999999,"`+strings.Repeat("x", 89)+"\"\n", now)
	if n := rows(); n != 4001 {
		t.Errorf("%d rows", n)
	}
	write(strings.Repeat("7,yyyyyyy\n", 10), now.Add(time.Second))
	if n := rows(); n != 4010 {
		t.Errorf("%d rows after the change", n)
	}

	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	for i := range 1000 {
		if i == 500 || i >= 990 { // whole windows of them, at the end of the split
			io.WriteString(w, "{\"id\": \"no number\"}\n")
			continue
		}
		fmt.Fprintf(w, "{\"id\": %d}\n", i)
	}
	w.Close()
	gz := filepath.Join(dir, "b.jsonl.gz")
	if err := os.WriteFile(gz, z.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	o := jobOptions(7)
	o.Tail, o.Epochs, o.OnError = shard.TailPad, 1, &ops.OnError{Policy: "skip"}
	it := open(t, dataset.Read(jsonio.New(jsonio.Options{Options: fileset.Options{Paths: []string{gz}, Types: map[string]string{"id": "int"}}})), 1, o)[0]
	n := 0
	for b, err := range it.All(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		n += b.Real()
	}
	if n != 989 {
		t.Errorf("%d rows", n)
	}
}

// What StateAt counted is not taken for that of a text file that changed in its middle since then, where its fingerprint does
// not see it: the place is that of a run of the new file.
func TestCountedAgain(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	file := filepath.Join(t.TempDir(), "a.csv")
	ds := dataset.Read(csvio.New(csvio.Options{Options: fileset.Options{Paths: []string{file}, Types: map[string]string{"id": "int", "s": "string"}}}))
	o := jobOptions(7)
	o.OnError, o.GlobalBatch, o.Shuffle = &ops.OnError{Policy: "skip"}, 100, &shard.Shuffle{Lanes: 1, WindowBytes: 4 << 10}
	at := func(bad int, changed time.Time) (s shard.State, said int) {
		t.Helper()
		row := "1234567," + strings.Repeat("a", 31) + "\n"
		text := "id,s\n" + strings.Repeat(row, 2000) + strings.Repeat("no"+row[2:], bad) + strings.Repeat(row, 4000-bad)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chtimes(file, changed, changed); err != nil {
			t.Fatal(err)
		}
		fresh := ds.Refresh()
		it := open(t, fresh, 1, o)[0]
		for range 50 {
			next(t, it)
		}
		for range 2 { // counted, and from the cache
			var err error
			if s, err = fresh.StateAt(t.Context(), 1, o, shard.At{Step: 50, Counting: func(string) { said++ }}); err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(it.State(), s); d != "" {
				t.Errorf("%d bad rows: the state after 50 steps is another one (- as it was): %s", bad, d)
			}
		}
		return s, said
	}
	now := time.Unix(1_700_000_000, 0)
	was, first := at(0, now)
	is, second := at(500, now.Add(time.Second))
	if first != 1 || second != 1 || was.Data != is.Data || cmp.Equal(was.Sources, is.Sources) {
		t.Errorf("counted %d and %d times; the places are %v and %v", first, second, was.Sources, is.Sources)
	}
}

// A ledger that begins late and goes on early takes no time to speak of.
func TestLedgerBackwards(t *testing.T) {
	o := jobOptions(7)
	o.GlobalBatch, o.Shuffle = 1000, &shard.Shuffle{Lanes: 1, WindowRows: 1}
	ds := dataset.Range(200_000)
	late, err := ds.StateAt(t.Context(), 1, o, shard.At{Step: 199})
	if err != nil {
		t.Fatal(err)
	}
	it := open(t, ds, 1, o)[0]
	zero := it.State()
	if err := it.Restore(late); err != nil {
		t.Fatal(err)
	}
	next(t, it)
	if err := it.Restore(zero); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	next(t, it)
	if d := time.Since(begin); d > 20*time.Second {
		t.Errorf("%v", d)
	}
}

// Ranks that restore at the same time, each in a goroutine of its own and without a barrier, get every step
// once, also where one of them had begun elsewhere.
func TestRestoreTogether(t *testing.T) {
	ds := dataset.Range(2000)
	its := open(t, ds, 3, jobOptions(7))
	for range 4 {
		for _, it := range its {
			next(t, it)
		}
	}
	s := its[0].State()
	want := digests(t, its, 5)
	for round := range 30 {
		group := open(t, ds, 3, jobOptions(7))
		got := make([][5][32]byte, 3)
		if round%2 == 0 { // it is under way from the beginning
			next(t, group[round%3])
		}
		errs := make(chan error, 3)
		for r, it := range group {
			go func() {
				if err := it.Restore(s); err != nil {
					errs <- err
					return
				}
				for k := range 5 {
					b, err := it.Next(t.Context())
					if err != nil {
						errs <- err
						return
					}
					got[r][k] = b.Digest()
					b.Release()
				}
				errs <- nil
			}()
		}
		for range group {
			if err := <-errs; err != nil {
				t.Fatalf("round %d: %v", round, err)
			}
		}
		for k := range 5 {
			for r := range group {
				if got[r][k] != want[3*k+r] {
					t.Fatalf("round %d, rank %d, step %d differs", round, r, 4+k)
				}
			}
		}
	}
}

// A rank that was told of the end of a job goes elsewhere as after a batch, whoever restored the job to its end.
func TestRestoreFromTheEnd(t *testing.T) {
	o := jobOptions(7)
	o.Epochs = 1
	its := open(t, dataset.Range(100), 2, o)
	begin := its[0].State()
	want := digests(t, its, 100)
	end := its[0].State()
	for r := range its {
		if err := its[r].Restore(end); err != nil {
			t.Fatal(err)
		}
		wantError(t, its[1-r].Restore(begin), fault.Invalid, "all ranks go on from the same state") // it has not gone on
		for _, it := range its {
			if b, err := it.Next(t.Context()); err != io.EOF {
				t.Fatal(b, err)
			}
		}
		for _, x := range []int{1 - r, r} {
			if err := its[x].Restore(begin); err != nil {
				t.Fatal(err)
			}
		}
		if got := digests(t, its, 100); !slices.Equal(got, want) {
			t.Errorf("restored by rank %d first: other batches", 1-r)
		}
	}
}

// The steps given and those to come are what Len says, wherever a job stands, and whatever it was before.
func TestLen(t *testing.T) {
	tails := []shard.Tail{shard.TailDrop, shard.TailPad, shard.TailRepeat}
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 1))
		ds := dataset.Range(rng.Int64N(120))
		lengths := []int64{0, 1 + rng.Int64N(12), math.MaxInt64}
		switch rng.IntN(4) {
		case 0:
			ds = ds.Limit(rng.Int64N(120))
		case 1:
			ds = dataset.Mix(dataset.MixSource{Name: "a", Weight: 1, Data: dataset.Range(9), Repeat: true}, dataset.MixSource{Name: "b", Weight: 2, Data: dataset.Range(20), Repeat: true})
			lengths = []int64{1 + rng.Int64N(12)}
		}
		o := &dataset.ShardOptions{Options: shard.Options{Shuffle: &shard.Shuffle{Mode: shard.ModeNone}}}
		for part := range 3 {
			o.GlobalBatch, o.Tail, o.StepsPerEpoch = 1+rng.IntN(40), tails[rng.IntN(3)], lengths[rng.IntN(len(lengths))]
			its, err := ds.Shards(t.Context(), 1, o)
			if err != nil {
				t.Fatal(err)
			}
			it, stop := its[0], rng.Int64N(8)
			want, state := int64(-1), it.State()
			for epoch := it.Epoch(); it.Epoch() < epoch+2; {
				n, ok := it.Len()
				if want < 0 {
					want = n
				}
				if n != want || !ok {
					t.Fatalf("seed %d, part %d, %+v: Len is %d, %v at step %d; it was %d", seed, part, o.Options, n, ok, it.Step(), want)
				}
				step := it.Step()
				if b, err := it.Next(t.Context()); err == nil {
					b.Release()
				} else if err != io.EOF {
					t.Fatal(err)
				} else if step != want {
					t.Fatalf("seed %d, part %d, %+v: %d steps of epoch %d, Len was %d", seed, part, o.Options, step, it.Epoch()-1, want)
				} else {
					want = -1
				}
				if it.Epoch() == epoch && it.Step() <= stop {
					state = it.State()
				}
			}
			closeAll(t, its)
			o.State = &state
		}
	}
	if n, ok := open(t, dataset.Range(100).Filter("id > 5"), 1, jobOptions(7))[0].Len(); ok {
		t.Errorf("Len of a filter is %d", n)
	}
}
