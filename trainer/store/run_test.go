package store

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

func TestCreateOpen(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		rec := Record{Name: "a_1.B-c", Workers: 3, Command: []string{"python", "train.py", "--x=ü"}, Config: json.RawMessage(`{"lr":0.1}`),
			Spec: "train: {workers: 3}\n", Program: "penstock 0.1.0", Created: time.Now().Add(-time.Hour), From: "s3://b/x#3", Dir: "/work"}
		r, err := Create(t.Context(), storage, rec)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		got := openRun(t, storage, rec.Name)
		a, _ := json.Marshal(r.Record())
		b, _ := json.Marshal(got.Record())
		if string(a) != string(b) || got.Record().Spec != rec.Spec || got.Record().ID == "" || got.Record().Host == "" {
			t.Fatalf("%s\n%s", a, b)
		}
		_, err = Create(t.Context(), storage, rec)
		wantErr(t, err, fault.Exists, "by penstock resume "+rec.Name+" --storage ", "Config.Resume", "another name")
		if again := openRun(t, storage, rec.Name).Record().ID; again != r.Record().ID {
			t.Fatal("the run was replaced")
		}
		_, err = Open(t.Context(), storage, "a_1.B-d")
		wantErr(t, err, fault.NotFound, "a_1.B-c", "is it")
		_, err = Open(t.Context(), storage, "something-else")
		wantErr(t, err, fault.NotFound, "penstock runs")
		_, err = Open(t.Context(), join(storage, "none"), "x")
		wantErr(t, err, fault.NotFound, "has no runs")
		s, n, c, err := Ref(r.URL() + "#12")
		if err != nil || n != rec.Name || c != 12 || strings.TrimSuffix(s, "/") != storage {
			t.Fatal(s, n, c, err)
		}
	})
}

// Of many that create a run at once one wins.
func TestCreateRace(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		var wg sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			wg.Go(func() {
				r, err := Create(t.Context(), storage, Record{Name: "x", Workers: 1})
				if err == nil {
					r.Close()
				}
				errs[i] = err
			})
		}
		wg.Wait()
		won := 0
		for _, err := range errs {
			if err == nil {
				won++
			} else if fault.CodeOf(err) != fault.Exists {
				t.Error(err)
			}
		}
		if won != 1 {
			t.Fatalf("%d won", won)
		}
	})
}

func TestBadNames(t *testing.T) {
	for _, name := range []string{"", ".", "..", "a/b", "a b", "-x", ".x", "ü", "a\x00", "x.", strings.Repeat("x", 101)} {
		_, err := Create(t.Context(), t.TempDir(), Record{Name: name, Workers: 1})
		wantErr(t, err, fault.Invalid, "name of a run")
		_, err = Open(t.Context(), t.TempDir(), name)
		wantErr(t, err, fault.Invalid)
	}
	dir := t.TempDir()
	_, err := Create(t.Context(), dir, Record{Name: "x"})
	wantErr(t, err, fault.Invalid, "0 workers")
	_, err = Create(t.Context(), dir, Record{Name: "x", Workers: 1, Spec: "\xff"})
	wantErr(t, err, fault.Invalid, "UTF-8")
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Fatal(left)
	}
	write(t, filepath.Join(dir, "file"), "x")
	for _, storage := range []string{filepath.Join(dir, "file"), filepath.Join(dir, "file", "below")} {
		_, err = Create(t.Context(), storage, Record{Name: "x", Workers: 1})
		wantErr(t, err, fault.Invalid, "is a file", filepath.Join(dir, "file"))
		_, err = List(t.Context(), storage)
		wantErr(t, err, fault.Invalid, "is a file")
	}
	_, err = List(t.Context(), "nosuch://x/y")
	wantErr(t, err, fault.Unsupported)
}

func TestRef(t *testing.T) {
	for _, c := range []struct {
		ref, storage, name string
		n                  int
	}{
		{"runs/x", "runs", "x", 0},
		{"x", ".", "x", 0},
		{"/x#1", "/", "x", 1},
		{"/a/b/x/", "/a/b", "x", 0},
		{"file:///a/x#2", "file:///a", "x", 2},
		{"s3://b/x?region=r#3", "s3://b?region=r", "x", 3},
		{"s3://b/p/q/x?a=b&c=d", "s3://b/p/q?a=b&c=d", "x", 0},
		{"mem://n/x", "mem://n", "x", 0},
	} {
		s, name, n, err := Ref(c.ref)
		if err != nil || s != c.storage || name != c.name || n != c.n {
			t.Errorf("%s: %q %q %d %v", c.ref, s, name, n, err)
		}
		if u := join(s, name); c.n == 0 && strings.TrimSuffix(c.ref, "/") != strings.TrimPrefix(u, "./") {
			t.Errorf("%s: joined to %s", c.ref, u)
		}
	}
	for _, bad := range []string{"", "/", "s3://b", "s3://b/", "x#", "x#0", "x#-1", "x#1.5", "..", "a/..", "s3://b?x=y"} {
		if s, name, n, err := Ref(bad); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%q: %q %q %d %v", bad, s, name, n, err)
		}
	}
}

func TestStatusList(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		if list, err := List(t.Context(), storage); err != nil || len(list) != 0 {
			t.Fatal(list, err)
		}
		base := time.Now().Add(-time.Hour)
		var runs []*Run
		for i, name := range []string{"never", "works", "done", "dead"} {
			r, err := Create(t.Context(), storage, Record{Name: name, Workers: i + 1, Created: base.Add(time.Duration(i) * time.Minute)})
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			runs = append(runs, r)
		}
		if _, err := runs[1].Status(t.Context()); fault.CodeOf(err) != fault.NotFound {
			t.Fatal(err)
		}
		if err := runs[1].SetStatus(t.Context(), Status{State: Running}); fault.CodeOf(err) != fault.Internal {
			t.Fatal("a run that has not begun:", err)
		}
		st := Status{State: Running, Reports: 12, Checkpoint: 3, Metrics: Metrics{"loss": math.Inf(1), "acc": 0.5},
			Error: &Error{Code: "worker_lost", Text: "rank 1: exit status 1"}, Failures: map[string]int{"worker": 2}, Reason: "why"}
		for i, state := range []string{Running, Finished, Running} {
			begin(t, runs[i+1])
			st.State = state
			if err := runs[i+1].SetStatus(t.Context(), st); err != nil {
				t.Fatal(err)
			}
		}
		got, err := openRun(t, storage, "works").Status(t.Context())
		if err != nil || got.PID != os.Getpid() || got.Presence(time.Now()) != Alive || time.Since(got.Updated) > time.Minute {
			t.Fatal(got, err)
		}
		want := st
		want.State, want.Attempt, want.Process, want.Updated = Running, 1, Self(), got.Updated
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v\n%+v", got, want)
		}
		// The last one's controller is a process that ended.
		c := exec.Command("true")
		if err := c.Run(); err != nil {
			t.Fatal(err)
		}
		runs[3].own.process.PID = c.Process.Pid
		if err := runs[3].SetStatus(t.Context(), st); err != nil {
			t.Fatal(err)
		}
		for key, data := range map[string]string{"noise/x": "y", "bad/run.json": "{", "newer/run.json": `{"version":2,"kind":"run"}`} {
			if err := runs[0].b.Put(t.Context(), strings.TrimSuffix(runs[0].prefix, "never/")+key, []byte(data), nil); err != nil {
				t.Fatal(err)
			}
		}
		list, err := List(t.Context(), storage)
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, s := range list {
			lines = append(lines, fmt.Sprint(s.Name, " ", s.State, " ", s.Workers, " ", s.Status.Reports, " ", fault.CodeOf(s.Err)))
		}
		if want := []string{"dead lost 4 12 unknown", "done finished 3 12 unknown", "works running 2 12 unknown", "never queued 1 0 unknown",
			"bad  0 0 corrupt", "newer  0 0 unsupported"}; !slices.Equal(lines, want) {
			t.Fatalf("%q\n%q", lines, want)
		}
	})
}

// A controller that stood still as it wrote, and goes on when another one has finished the run, does not take that back.
func TestLateStatus(t *testing.T) {
	dir := t.TempDir()
	r := newRun(t, dir, "x")
	begin(t, r)
	r.hook = func(step, _ string) {
		if step != "status" {
			return
		}
		die(r)
		next := openRun(t, dir, "x")
		begin(t, next)
		if err := next.SetStatus(t.Context(), Status{State: Finished}); err != nil {
			t.Error(err)
		}
	}
	if err := r.SetStatus(t.Context(), Status{State: Running}); err != nil {
		t.Fatal(err)
	}
	if s, err := r.Status(t.Context()); err != nil || s.State != Finished || s.Attempt != 2 {
		t.Errorf("%+v, %v", s, err)
	}
	r.hook = nil
	if err := r.SetStatus(t.Context(), Status{State: Failed}); !errors.Is(err, ErrSuperseded) {
		t.Error(err)
	}
}

// A damaged status is told with what to do about it, and that helps: the next controller goes on from the newest checkpoint.
func TestDamagedStatus(t *testing.T) {
	dir := t.TempDir()
	r := newRun(t, dir, "x")
	begin(t, r)
	m := commit(t, r, 1, map[string]string{"f": "x"})
	if err := r.SetStatus(t.Context(), Status{State: Running}); err != nil {
		t.Fatal(err)
	}
	die(r)
	file := filepath.Join(dir, "x", statusDir, "000001.json")
	good, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, bad := range []string{"", string(good[:len(good)/2]), strings.Replace(string(good), `"kind": "status"`, `"kind": "run"`, 1), strings.Replace(string(good), `"reports": 0`, `"reports": "0"`, 1)} {
		if bad == string(good) {
			t.Fatalf("nothing is damaged in %s", good)
		}
		write(t, file, bad)
		next := openRun(t, dir, "x")
		_, err := next.Status(t.Context())
		wantErr(t, err, fault.Corrupt, file, "remove this file")
		_, err = next.Begin(t.Context(), BeginOptions{})
		wantErr(t, err, fault.Corrupt, file, "remove this file")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if a := begin(t, openRun(t, dir, "x")); a.Number != 2 || a.From == nil || a.From.Number != m.Number {
		t.Errorf("the next attempt is %+v", a)
	}
}

func TestPresence(t *testing.T) {
	self := Self()
	if self.Presence() != Alive || self.PID != os.Getpid() {
		t.Fatal(self, self.Presence())
	}
	change := func(f func(*Process)) Process { p := self; f(&p); return p }
	for name, c := range map[string]struct {
		p    Process
		want Presence
	}{
		"another host":      {change(func(p *Process) { p.Host += "x" }), Unknown},
		"no host":           {change(func(p *Process) { p.Host = "" }), Unknown},
		"another start":     {change(func(p *Process) { p.Started += "0" }), Lost},
		"another boot":      {change(func(p *Process) { p.Started = "0" + p.Started }), Lost},
		"another container": {change(func(p *Process) { p.Started = strings.Replace(p.Started, "/pid:[", "/pid:[1", 1) }), Unknown},
		"no such process":   {change(func(p *Process) { p.PID = 1 << 30 }), Lost},
	} {
		if got := c.p.Presence(); got != c.want {
			t.Errorf("%s: %v, want %v", name, got, c.want)
		}
	}
	// A zombie has ended.
	c := exec.Command("sleep", "1000")
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	p := self
	p.PID = c.Process.Pid
	p.Started, _ = startOf(p.PID)
	if p.Presence() != Alive {
		t.Error("a child is", p.Presence())
	}
	c.Process.Kill()
	c.Wait()
	if p.Presence() != Lost {
		t.Error("a dead child is", p.Presence())
	}
	old := Status{State: Running, Process: Process{Host: "elsewhere", PID: 1}, Updated: time.Now()}
	if got := old.Show(old.Updated.Add(LostAfter)); got != Running {
		t.Error(got)
	}
	if got := old.Show(old.Updated.Add(LostAfter + 1)); got != StateLost {
		t.Error(got)
	}
	old.State = Preempted
	if got := old.Show(old.Updated.Add(time.Hour)); got != Preempted {
		t.Error(got)
	}
}

// A run whose folder was copied under another name has the records of the first.
func TestRenamed(t *testing.T) {
	dir := t.TempDir()
	newRun(t, dir, "a").Close()
	if err := os.Rename(filepath.Join(dir, "a"), filepath.Join(dir, "b")); err != nil {
		t.Fatal(err)
	}
	_, err := Open(t.Context(), dir, "b")
	wantErr(t, err, fault.Corrupt, `"a"`)
	if errors.Is(err, ErrSuperseded) {
		t.Fatal(err)
	}
}

// A run that came to nothing goes, one that has checkpoints or is another's does not.
func TestDiscard(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		r := newRun(t, storage, "a")
		if err := r.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
		r = newRun(t, storage, "a")
		begin(t, r)
		if err := r.SetStatus(t.Context(), Status{State: Failed}); err != nil {
			t.Fatal(err)
		}
		if err := r.Discard(t.Context()); err != nil {
			t.Fatal(err)
		}
		_, err := Open(t.Context(), storage, "a")
		wantErr(t, err, fault.NotFound, "has no runs")
		r = newRun(t, storage, "a")
		if a := begin(t, r); a.Number != 1 {
			t.Errorf("attempt %d", a.Number)
		}
		die(r)
		other := openRun(t, storage, "a")
		begin(t, other)
		if err := r.Discard(t.Context()); !errors.Is(err, ErrSuperseded) {
			t.Errorf("of another: %v", err)
		}
		if _, err := other.Commit(t.Context(), Commit{Report: 1, World: 1}); err != nil {
			t.Fatal(err)
		}
		wantErr(t, other.Discard(t.Context()), fault.Invalid, "has checkpoints")
		openRun(t, storage, "a")
	})
}
