package store

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Two controllers of one run: the second is refused while the first lives, takes over when it is dead, and the first can do nothing any more.
func TestFencing(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		a := newRun(t, storage, "x")
		if n := begin(t, a).Number; n != 1 || a.Next() != 1 {
			t.Fatal(n, a.Next())
		}
		m1 := commit(t, a, 10, map[string]string{"f": "one"})
		b := openRun(t, storage, "x")
		_, err := b.Begin(t.Context(), BeginOptions{TakeOver: true})
		wantErr(t, err, fault.Exists, "at work", "kill")
		die(a)
		got := begin(t, b)
		if got.Number != 2 || got.From == nil || got.From.Number != m1.Number || got.From.Report != 10 {
			t.Fatalf("%+v", got)
		}
		before := objects(t, a)
		for name, f := range map[string]func() error{
			"commit": func() error {
				_, err := a.Commit(t.Context(), Commit{Report: 11, World: 2, Parts: []Part{{0, tree(t, map[string]string{"f": "late"})}}})
				return err
			},
			"status": func() error { return a.SetStatus(t.Context(), Status{State: Failed}) },
			"begin":  func() error { _, err := a.Begin(t.Context(), BeginOptions{}); return err },
			"prune":  func() error { return a.Prune(t.Context(), Policy{KeepLast: 1}) },
			"sweep":  func() error { return a.Sweep(t.Context()) },
		} {
			err := f()
			if !errors.Is(err, ErrSuperseded) || !strings.Contains(err.Error(), "attempt 2") {
				t.Errorf("%s: %v", name, err)
			}
		}
		if after := objects(t, a); !slices.Equal(before, after) {
			t.Errorf("%q\n%q", before, after)
		}
		if m := commit(t, b, 11, map[string]string{"f": "two"}); m.Attempt != 2 {
			t.Fatal(m)
		}
		list, err := a.Checkpoints(t.Context())
		if err != nil || len(list) != 2 || list[1].Attempt != 2 {
			t.Fatal(list, err)
		}
	})
}

// The other controller begins when all is uploaded and only the manifest is missing: the last moment.
func TestFencedInCommit(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		a, b := newRun(t, storage, "x"), openRun(t, storage, "x")
		begin(t, a)
		m1 := commit(t, a, 1, map[string]string{"f": "one"})
		a.hook = func(step, key string) {
			if step == "put" && key == entryName(2) {
				die(a)
				if at := begin(t, b); at.From.Number != m1.Number {
					t.Error(at)
				}
			}
		}
		_, err := a.Commit(t.Context(), Commit{Report: 2, World: 1, Parts: []Part{{0, tree(t, map[string]string{"f": "two", "g/h": "three"})}}})
		if !errors.Is(err, ErrSuperseded) {
			t.Fatal(err)
		}
		checkClean(t, b)
		if n := checkWhole(t, b); !slices.Equal(n, []int{1}) {
			t.Fatal(n)
		}
	})
}

// A Sweep that found its controller in charge, and is late: the successor has uploaded its files meanwhile, and is about to write the manifest.
func TestLateSweep(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		a, b := newRun(t, storage, "x"), openRun(t, storage, "x")
		begin(t, a)
		uploaded, swept := make(chan struct{}), make(chan struct{})
		b.hook = func(step, key string) {
			if step == "put" && key == entryName(2) {
				close(uploaded)
				<-swept
			}
		}
		var wg sync.WaitGroup
		dir := tree(t, map[string]string{"f": "x"})
		a.hook = func(step, key string) {
			if step == "sweep" {
				die(a)
				begin(t, b)
				wg.Go(func() {
					if _, err := b.Commit(t.Context(), Commit{Report: 1, World: 1, Parts: []Part{{0, dir}}}); err != nil {
						t.Error(err)
					}
				})
				<-uploaded
			}
		}
		if err := a.Sweep(t.Context()); err != nil {
			t.Error(err)
		}
		close(swept)
		wg.Wait()
		if n := checkWhole(t, b); !slices.Equal(n, []int{2}) {
			t.Fatal(n)
		}
	})
}

// A controller that dies in between leaves what Sweep of the next removes; that of a replaced one, which comes late, touches nothing of its successor's.
func TestSweep(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		a, b := newRun(t, storage, "x"), openRun(t, storage, "x")
		begin(t, a)
		commit(t, a, 1, map[string]string{"f": "one"})
		ctx, cancel := context.WithCancelCause(t.Context())
		dead := errors.New("dead")
		a.hook = func(step, key string) {
			if step == "put" && key == entryName(2) {
				cancel(dead)
			}
		}
		if _, err := a.Commit(ctx, Commit{Report: 2, World: 1, Parts: []Part{{0, tree(t, map[string]string{"f": "two"})}}}); !errors.Is(err, dead) || fault.CodeOf(err) != fault.Canceled {
			t.Fatal(err)
		}
		a.hook = nil
		if !strings.Contains(strings.Join(objects(t, a), " "), "000002-1-") {
			t.Fatal("nothing is left, so nothing is tested")
		}
		// Where the controller itself goes on, its next commit has the number.
		if err := a.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkClean(t, a)
		// The successor is uploading while the predecessor, which passed its check before, sweeps.
		inSweep, uploaded := make(chan struct{}), make(chan struct{})
		a.hook = func(step, key string) {
			if step == "remove tree" {
				close(inSweep)
				<-uploaded
			}
		}
		if err := a.b.Put(t.Context(), a.prefix+checkpointsDir+"000001-1-00000000/files/x", []byte("x"), nil); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := a.Sweep(t.Context()); err != nil {
				t.Error(err)
			}
		})
		<-inSweep
		die(a)
		begin(t, b)
		commit(t, b, 2, map[string]string{"f": "three"})
		close(uploaded)
		wg.Wait()
		if n := checkWhole(t, b); len(n) != 2 {
			t.Fatal(n)
		}
		checkClean(t, b)
	})
}

// Many controllers that all believe the others dead, each committing as fast as it can: what was acknowledged is there, what came after a start is based on it, and nothing else.
func TestManyControllers(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		newRun(t, storage, "x").Close()
		type ack struct{ number, attempt int }
		var mu sync.Mutex
		var acks []ack
		froms := make(map[int]int) // attempt: checkpoint
		var wg sync.WaitGroup
		dir := tree(t, map[string]string{"f": "x"})
		for i := range 6 {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			r := openRun(t, storage, "x")
			wg.Go(func() {
				for range 3 {
					var at *Attempt
					for at == nil {
						var err error
						if at, err = r.Begin(t.Context(), BeginOptions{}); err != nil {
							if fault.CodeOf(err) != fault.Exists {
								t.Error(err)
								return
							}
							if errors.Is(err, ErrSuperseded) { // a new controller
								r.mu.Lock()
								r.own = owner{}
								r.mu.Unlock()
							}
						}
					}
					die(r)
					mu.Lock()
					froms[at.Number] = 0
					if at.From != nil {
						froms[at.Number] = at.From.Number
					}
					mu.Unlock()
					for range 1 + rnd.IntN(5) {
						m, err := r.Commit(t.Context(), Commit{Report: 1, World: 1, Parts: []Part{{0, dir}}})
						if errors.Is(err, ErrSuperseded) {
							r.mu.Lock()
							r.own = owner{}
							r.mu.Unlock()
							break
						}
						if err != nil {
							t.Error(err)
							return
						}
						mu.Lock()
						acks = append(acks, ack{m.Number, m.Attempt})
						mu.Unlock()
					}
				}
			})
		}
		wg.Wait()
		r := openRun(t, storage, "x")
		list, err := r.Checkpoints(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		var have []ack
		for _, m := range list {
			have = append(have, ack{m.Number, m.Attempt})
		}
		slices.SortFunc(acks, func(a, b ack) int { return a.number - b.number })
		if !slices.Equal(acks, have) {
			t.Fatalf("acknowledged %v\nthere %v", acks, have)
		}
		// The start of an attempt is based on the last checkpoint of the attempts before.
		for attempt, from := range froms {
			want := 0
			for _, a := range acks {
				if a.attempt < attempt {
					want = a.number
				}
			}
			if from != want {
				t.Errorf("attempt %d went on from %d, not %d", attempt, from, want)
			}
		}
		if len(acks) == 0 || len(froms) < 6 {
			t.Errorf("%d commits of %d attempts", len(acks), len(froms))
		}
	})
}

func TestBeginRules(t *testing.T) {
	dir := t.TempDir()
	r := newRun(t, dir, "x")
	for i := 1; i <= 3; i++ { // the same controller starts its group again
		if at := begin(t, r); at.Number != i || at.From != nil {
			t.Fatalf("%+v", at)
		}
	}
	if _, err := r.Commit(t.Context(), Commit{Attempt: 2, Report: 1, World: 1}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "attempt 2 is over") {
		t.Fatal(err)
	}
	var numbers []int
	for i := range int64(4) {
		numbers = append(numbers, commit(t, r, i+1, nil).Number)
	}
	// Back to an earlier one: the others are left behind once the group runs.
	_, err := r.Begin(t.Context(), BeginOptions{Checkpoint: 77})
	wantErr(t, err, fault.NotFound, "checkpoint 77", fmt.Sprint(numbers[3]))
	at, err := r.Begin(t.Context(), BeginOptions{Checkpoint: numbers[1]})
	if err != nil || at.From.Number != numbers[1] || at.Number != 4 || !at.Back {
		t.Fatal(at, err)
	}
	if err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := checkWhole(t, r); !slices.Equal(got, numbers) {
		t.Fatal(got)
	}
	if at, err = r.Begin(t.Context(), BeginOptions{}); err != nil || at.From.Number != numbers[1] || at.Number != 5 || !at.Back { // the same controller tries again
		t.Fatal(at, err)
	}
	if err := r.Launched(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := checkWhole(t, r); !slices.Equal(got, numbers[:2]) {
		t.Fatal(got)
	}
	if err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkClean(t, r)
	if n := commit(t, r, 3, nil).Number; n <= numbers[3] {
		t.Fatal("a number is used twice:", n)
	}
	// A controller that says that it has ended is not waited for, though its process lives.
	if err := r.SetStatus(t.Context(), Status{State: Failed}); err != nil {
		t.Fatal(err)
	}
	b := openRun(t, dir, "x")
	begin(t, b)
	// One on another host is, for a while.
	if err := b.SetStatus(t.Context(), Status{State: Running}); err != nil {
		t.Fatal(err)
	}
	entries, err := b.readLog(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	last := *entries[len(entries)-1].start
	last.Number, last.Attempt, last.Process.Host = last.Number+1, last.Attempt+1, "elsewhere"
	data, err := r.encode(entryName(last.Number), "start", last)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.putNew(t.Context(), entryName(last.Number), data); err != nil {
		t.Fatal(err)
	}
	c := openRun(t, dir, "x")
	_, err = c.Begin(t.Context(), BeginOptions{})
	wantErr(t, err, fault.Exists, "elsewhere", "seems")
	last.Number, last.Attempt, last.Time = last.Number+1, last.Attempt+1, time.Now().Add(-LostAfter-time.Second)
	if data, err = r.encode(entryName(last.Number), "start", last); err != nil {
		t.Fatal(err)
	}
	if _, err := b.putNew(t.Context(), entryName(last.Number), data); err != nil {
		t.Fatal(err)
	}
	begin(t, c) // silent for so long
	c.Close()
	last.Number, last.Attempt, last.Time = last.Number+2, last.Attempt+2, time.Now()
	if data, err = r.encode(entryName(last.Number), "start", last); err != nil {
		t.Fatal(err)
	}
	if _, err := b.putNew(t.Context(), entryName(last.Number), data); err != nil {
		t.Fatal(err)
	}
	d := openRun(t, dir, "x")
	_, err = d.Begin(t.Context(), BeginOptions{})
	wantErr(t, err, fault.Exists)
	if _, err := d.Begin(t.Context(), BeginOptions{TakeOver: true}); err != nil {
		t.Fatal(err)
	}
}

// Damaged records are Corrupt errors with their path, newer ones Unsupported; nothing panics.
func TestDamagedLog(t *testing.T) {
	dir := t.TempDir()
	r := newRun(t, dir, "x")
	begin(t, r)
	commit(t, r, 1, map[string]string{"f": "x", "g/h": "y"})
	good, err := r.b.ReadAll(t.Context(), r.prefix+entryName(1), 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		old, new string
		code     fault.Code
	}{
		{`"version": 1`, `"version": 2`, fault.Unsupported},
		{`"version": 1`, `"version": 0`, fault.Corrupt},
		{`"kind": "checkpoint"`, `"kind": "else"`, fault.Corrupt},
		{`"number": 1`, `"number": 2`, fault.Corrupt},
		{`"path": "f"`, `"path": "../f"`, fault.Corrupt},
		{`"path": "f"`, `"path": "/f"`, fault.Corrupt},
		{`"path": "f"`, `"path": "g"`, fault.Corrupt},
		{`"path": "f"`, `"path": "."`, fault.Corrupt},
		{`"path": "f"`, `"path": "z"`, fault.Corrupt},
		{`"bytes": 2`, `"bytes": 3`, fault.Corrupt},
		{`"size": 1`, `"size": -1`, fault.Corrupt},
		{`xxh3:`, `sha1:`, fault.Corrupt},
		{`"try": "000001-1-`, `"try": "../../x-`, fault.Corrupt},
		{`}`, ``, fault.Corrupt},
	} {
		bad := strings.Replace(string(good), c.old, c.new, 1)
		if bad == string(good) {
			t.Fatalf("%s is not in %s", c.old, good)
		}
		if err := r.b.Put(t.Context(), r.prefix+entryName(1), []byte(bad), nil); err != nil {
			t.Fatal(err)
		}
		_, err := openRun(t, dir, "x").Checkpoints(t.Context())
		if fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), "000001.json") {
			t.Errorf("%s for %s: %v", c.new, c.old, err)
		}
	}
}

func FuzzEntry(f *testing.F) {
	f.Add([]byte(`{"version":1,"kind":"start","number":0,"attempt":1,"controller":"0123456789abcdef"}`))
	f.Add([]byte(`{"version":1,"kind":"checkpoint","number":1,"attempt":1,"try":"000001-1-00000000","world":1,"files":[{"path":"a","size":1,"sum":"xxh3:00000000000000000000000000000000"}],"bytes":1}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		e, err := new(Run).decodeEntry(entryName(1), data)
		if err == nil && (e.start == nil) == (e.ckpt == nil) {
			t.Fatal("neither or both")
		}
		if err != nil && fault.CodeOf(err) != fault.Corrupt && fault.CodeOf(err) != fault.Unsupported {
			t.Fatal(err)
		}
	})
}

// A number beyond reason is no entry of a log: one that was forged cannot make a run unreachable.
func TestNumberBeyondReason(t *testing.T) {
	dir := t.TempDir()
	r, err := Create(t.Context(), dir, Record{Name: "a", Workers: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Begin(t.Context(), BeginOptions{}); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "a", "checkpoints", "000000.json"))
	if err != nil {
		t.Fatal(err)
	}
	for n, want := range map[int]fault.Code{maxNumber - 10: fault.Corrupt, 2147483646: fault.Unknown} {
		path := filepath.Join(dir, "a", "checkpoints", fmt.Sprint(n)+".json")
		if err := os.WriteFile(path, bytes.Replace(b, []byte(`"number": 0`), []byte(`"number": `+fmt.Sprint(n)), 1), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := r.Begin(t.Context(), BeginOptions{}); fault.CodeOf(err) != want {
			t.Errorf("with entry %d: %v", n, err)
		}
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

// A name whose record is gone, but not its checkpoints, is not a new run's.
func TestRecordGone(t *testing.T) {
	dir := t.TempDir()
	r, err := Create(t.Context(), dir, Record{Name: "a", Workers: 1})
	if err == nil {
		_, err = r.Begin(t.Context(), BeginOptions{})
	}
	if err == nil {
		err = errors.Join(r.Close(), os.Remove(filepath.Join(dir, "a", "run.json")))
	}
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := Create(t.Context(), dir, Record{Name: "a", Workers: 1}); fault.CodeOf(err) != fault.Exists || !strings.Contains(err.Error(), "is gone") {
			t.Errorf("%v", err)
		}
	}
}

// Of a job's attempts the last one counts, whoever lives; other controllers are looked at as ever.
func TestJobAttempts(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		a := newRun(t, storage, "x")
		of := func(want string) {
			t.Helper()
			if job, begun, err := a.Job(t.Context()); err != nil || job != want || begun != (want != "") {
				t.Errorf("%q, %v, %v, want %q", job, begun, err, want)
			}
		}
		of("")
		if _, err := a.Begin(t.Context(), BeginOptions{Job: "j1", JobAttempt: 1}); err != nil {
			t.Fatal(err)
		}
		of("j1")
		commit(t, a, 10, map[string]string{"f": "one"})
		b := openRun(t, storage, "x")
		for _, o := range []BeginOptions{{}, {JobAttempt: 2}, {Job: "j2", JobAttempt: 2}, {Job: "j1", JobAttempt: 1}} {
			_, err := b.Begin(t.Context(), o)
			wantErr(t, err, fault.Exists, "at work")
		}
		got, err := b.Begin(t.Context(), BeginOptions{Job: "j1", JobAttempt: 3})
		if err != nil || got.Number != 2 || got.From == nil || got.From.Report != 10 {
			t.Fatalf("%+v, %v", got, err)
		}
		of("j1")
		begin(t, b) // its group, again
		if err := b.SetStatus(t.Context(), Status{State: Running}); err != nil {
			t.Fatal(err)
		}
		if now, err := b.Status(t.Context()); err != nil || now.Job != "j1" {
			t.Errorf("%+v, %v", now, err)
		}
		_, err = a.Commit(t.Context(), Commit{Report: 11, World: 2, Parts: []Part{{0, tree(t, map[string]string{"f": "late"})}}})
		if !errors.Is(err, ErrSuperseded) {
			t.Error(err)
		}
		c := openRun(t, storage, "x") // it was started before, and comes now
		_, err = c.Begin(t.Context(), BeginOptions{Job: "j1", JobAttempt: 2})
		if !errors.Is(err, ErrSuperseded) {
			t.Error(err)
		}
	})
}

// A group that went back and commits before it is known to run leaves behind what the others do, also where its checkpoint was pruned.
func TestBackCommits(t *testing.T) {
	dir := t.TempDir()
	r := newRun(t, dir, "x")
	begin(t, r)
	var numbers []int
	for i := range int64(3) {
		numbers = append(numbers, commit(t, r, i+1, nil).Number)
	}
	if _, err := r.Begin(t.Context(), BeginOptions{Checkpoint: numbers[0]}); err != nil {
		t.Fatal(err)
	}
	first := commit(t, r, 2, nil).Number
	if got := checkWhole(t, r); !slices.Equal(got, []int{numbers[0], first}) {
		t.Fatal(got)
	}
	if err := r.Launched(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := checkWhole(t, r); !slices.Equal(got, []int{numbers[0], first}) {
		t.Fatal(got)
	}
	die(r)
	next := openRun(t, dir, "x")
	if at := begin(t, next); at.From.Number != first || at.Back {
		t.Fatal(at)
	}
	last := commit(t, next, 3, nil).Number
	if err := next.Prune(t.Context(), Policy{KeepLast: 1}); err != nil { // first goes
		t.Fatal(err)
	}
	if got := checkWhole(t, next); !slices.Equal(got, []int{last}) {
		t.Fatal(got)
	}
}
