package penstock

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	osexec "os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/faulttest"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer"
	"github.com/penstock-data/penstock/trainer/store"
)

// roleEnv has this binary be a program of a job.
const roleEnv = "PENSTOCK_TEST_ROLE"

func TestMain(m *testing.M) {
	if role := os.Getenv(roleEnv); role != "" {
		p, err := Init()
		if err == nil {
			err = roles[role](p)
		}
		os.Exit(p.Exit(err))
	}
	goleak.VerifyTestMain(m)
}

// roles are programs. Their arguments are theirs.
var roles = map[string]func(*Process) error{
	"write": func(p *Process) error { // a plan, and another one
		ds := dataset.ReadIPC("in").Filter("x % 3 != 1")
		r, err := ds.WriteIPC(context.Background(), os.Args[1], &dataset.WriteOptions{RunOptions: *p.Run(nil)})
		if err != nil && !errors.Is(err, exec.ErrServed) {
			return err
		}
		n, err := ds.Count(context.Background(), p.Run(nil))
		if err != nil {
			return err
		}
		fmt.Printf("node %d of %d wrote %d rows of %d\n", p.Node(), p.Nodes(), r.Rows, n)
		return nil
	},
	"leaves": func(p *Process) error { // takes ErrServed for the end
		for range 2 {
			if _, err := dataset.ReadIPC("in").Filter("x > 1").Count(context.Background(), p.Run(nil)); err != nil {
				return err
			}
		}
		return nil
	},
	"one more": func(p *Process) error { // on node 2
		for range 1 + p.Node()/2 {
			if _, err := dataset.ReadIPC("in").Filter("x > 1").Count(context.Background(), p.Run(nil)); err != nil && !errors.Is(err, exec.ErrServed) {
				return err
			}
		}
		return nil
	},
	"closure": func(p *Process) error {
		_, err := dataset.ReadIPC("in").FilterFunc(func(context.Context, arrow.RecordBatch) (*array.Boolean, error) { return nil, nil }).Count(context.Background(), p.Run(nil))
		return err
	},
	"fails": func(p *Process) error {
		_, err := dataset.ReadIPC("in").WithColumns("y = x - 50").Cast(map[string]string{"y": "uint8"}).
			WriteIPC(context.Background(), os.Args[1], &dataset.WriteOptions{RunOptions: *p.Run(nil)})
		return err
	},
}

// data writes rows of x from 0 into a folder's "in".
func data(t *testing.T, dir string, rows int64) {
	t.Helper()
	if _, err := dataset.Range(rows).Rename(map[string]string{"id": "x"}).WriteIPC(t.Context(), filepath.Join(dir, "in"), nil); err != nil {
		t.Fatal(err)
	}
}

type said struct {
	out, err string
	code     int
}

// run starts a program's processes, one per node, each in its folder, as a node of a cluster would, and waits for them. exes are their files; nil: this binary's.
func run(t *testing.T, role string, dirs, exes []string, args ...string) []said {
	t.Helper()
	gs, folders := gangtest.WithFolders(t, len(dirs))
	cmds, outs := make([]*osexec.Cmd, len(dirs)), make([][2]bytes.Buffer, len(dirs))
	for i, g := range gs {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		if exes != nil {
			exe = exes[i]
		}
		c := osexec.Command(exe, args...)
		c.Dir = dirs[i]
		c.Env = append(os.Environ(), roleEnv+"="+role, envJob+"=j1", envAttempt+"=1")
		gangtest.Place(t, c, g, folders[i])
		c.Stdout, c.Stderr = &outs[i][0], &outs[i][1]
		cmds[i] = c
	}
	for _, c := range cmds {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill() })
	}
	all := make([]said, len(cmds))
	for i, c := range cmds {
		c.Wait()
		all[i] = said{outs[i][0].String(), outs[i][1].String(), c.ProcessState.ExitCode()}
	}
	return all
}

// A program is the same alone and on three nodes: node 0 has the results, the others served, and all end well.
func TestNodes(t *testing.T) {
	dir := t.TempDir()
	data(t, dir, 10_000)
	three, one := filepath.Join(dir, "three"), filepath.Join(dir, "one")
	for i, s := range run(t, "write", []string{dir, dir, dir}, nil, three) {
		want := ""
		if i == 0 {
			want = "node 0 of 3 wrote 6667 rows of 6667\n"
		}
		if s.code != 0 || s.err != "" || s.out != want {
			t.Errorf("node %d: %+v", i, s)
		}
	}
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := osexec.Command(exe, one)
	c.Dir, c.Env = dir, append(os.Environ(), roleEnv+"=write")
	if out, err := c.CombinedOutput(); err != nil || string(out) != "node 0 of 1 wrote 6667 rows of 6667\n" {
		t.Errorf("alone: %v: %s", err, out)
	}
	for _, d := range []string{one, three} {
		n, err := dataset.ReadIPC(d).Filter("x % 3 != 1").Count(t.Context(), nil)
		if err != nil || n != 6667 {
			t.Errorf("%s: %d rows, %v", d, n, err)
		}
	}
}

// What cannot be the same on all nodes is refused, on each of them, before anything is done.
func TestRefused(t *testing.T) {
	dir, other := t.TempDir(), t.TempDir()
	data(t, dir, 100)
	data(t, other, 101)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(exe)
	if err != nil {
		t.Fatal(err)
	}
	changed := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(changed, append(program, 0), 0o755); err != nil {
		t.Fatal(err)
	}
	here := []string{dir, dir}
	for _, c := range []struct {
		name, role string
		dirs, exes []string
		want       []string // on each node
	}{
		{"a closure", "closure", here, nil, []string{"register it: ops.RegisterFilter(", "register it: ops.RegisterFilter("}},
		{"other data", "write", []string{dir, other}, nil, []string{"node 1", "it does not run the same as node 0: data of", "name a bucket, or a folder that they share"}},
		{"another program", "write", here, []string{exe, changed}, []string{"program is \"xxh3:", "it does not run the same as node 0: program is \"xxh3:"}},
		{"a failing row", "fails", here, nil, []string{"-50", ""}},
	} {
		for i, s := range run(t, c.role, c.dirs, c.exes, filepath.Join(t.TempDir(), "out")) {
			if s.code != 1 || s.out != "" || !strings.Contains(s.err, c.want[i]) || c.want[i] == "" && s.err != "" {
				t.Errorf("%s: node %d: %+v, want %q", c.name, i, s, c.want[i])
			}
		}
	}
}

// A program that does not make the same calls on all nodes ends at once, where it would wait, and says whose fault it is.
func TestLeft(t *testing.T) {
	dir := t.TempDir()
	data(t, dir, 100)
	all := run(t, "leaves", []string{dir, dir, dir}, nil)
	if s := all[0]; s.code != 1 || !strings.Contains(s.err, " has ended its program, so this plan would wait for it in vain") {
		t.Errorf("node 0: %+v", s)
	}
	for i, s := range all[1:] {
		if s.code != 0 || s.err != "" {
			t.Errorf("node %d: %+v", i+1, s)
		}
	}
	all = run(t, "one more", []string{dir, dir, dir}, nil)
	for i, s := range all[:2] {
		if s.code != 0 || s.err != "" {
			t.Errorf("node %d: %+v", i, s)
		}
	}
	if s := all[2]; s.code != 1 || !strings.Contains(s.err, "node 0 has ended its program") {
		t.Errorf("node 2: %+v", s)
	}
}

// Alone, and in a job on one node: what it has booked counts, unless the program says otherwise.
func TestOneNode(t *testing.T) {
	p, err := Init()
	if err != nil || p.Node() != 0 || p.Nodes() != 1 || p.Job() != "" || p.Gang() != nil {
		t.Fatalf("%+v, %v", p, err)
	}
	if o := p.Run(nil); o.Runner != nil || o.CPUs != 0 || o.Memory != 0 {
		t.Errorf("%+v", o)
	}
	if err := errors.Join(p.Close(), p.Close()); err != nil {
		t.Error(err)
	}
	t.Setenv(envJob, "j7")
	t.Setenv(envCPUs, "2.5")
	t.Setenv(envMemory, "100000000")
	if p, err = Init(); err != nil || p.Job() != "j7" || p.Nodes() != 1 {
		t.Fatalf("%+v, %v", p, err)
	}
	if o := p.Run(nil); o.Runner != nil || o.CPUs != 3 || o.Memory != 50_000_000 {
		t.Errorf("%+v", o)
	}
	given := &dataset.RunOptions{CPUs: 1, Memory: 1 << 20, Seed: 7}
	if o := p.Run(given); o.CPUs != 1 || o.Memory != 1<<20 || o.Seed != 7 || o == given {
		t.Errorf("%+v", o)
	}
	t.Setenv(envMemory, "100")
	if p, err = Init(); err != nil || p.Run(nil).Memory != shard.MinMemory {
		t.Errorf("%v", err)
	}
	t.Setenv(envMemory, "much")
	_, err = Init()
	faulttest.Wants(t, err, fault.Invalid, `PENSTOCK_JOB_MEMORY is "much"`)
}

// A place that cannot be taken is an error that says what is wrong with it.
func TestBrokenPlace(t *testing.T) {
	gs, folders := gangtest.WithFolders(t, 3)
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.Mkdir(empty, 0o700); err != nil {
		t.Fatal(err)
	}
	torn := filepath.Join(t.TempDir(), "torn")
	if err := os.CopyFS(torn, os.DirFS(folders[1])); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.Chmod(torn, 0o700), os.WriteFile(filepath.Join(torn, gang.FileName), []byte(`{"node": 2`), 0o600)); err != nil {
		t.Fatal(err)
	}
	for i, place := range []struct{ dir, want string }{{empty, gang.FileName}, {torn, "does not say where the members of the gang are"}, {filepath.Join(empty, "gone"), "gone"}} {
		exe, err := os.Executable()
		if err != nil {
			t.Fatal(err)
		}
		c := osexec.Command(exe)
		c.Env = append(os.Environ(), roleEnv+"=write")
		gangtest.Place(t, c, gs[i], place.dir)
		out, err := c.CombinedOutput()
		if c.ProcessState.ExitCode() != 1 || !strings.Contains(string(out), "this process cannot take its place among the nodes of its job: ") || !strings.Contains(string(out), place.want) {
			t.Errorf("%s: %v: %s", place.dir, err, out)
		}
	}
	t.Setenv(gang.EnvDir, folders[0]) // and no socket: a process that a member has started
	_, err := Init()
	faulttest.Wants(t, err, fault.Invalid, "only the process that an agent started is a member")
}

// A later attempt of a job goes on with the run of an earlier one, and with no other's.
func TestTrain(t *testing.T) {
	storage := t.TempDir()
	begun := func(name, spec, job string) {
		t.Helper()
		r, err := store.Create(t.Context(), storage, store.Record{Name: name, Spec: spec, Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		if job == "never" {
			return
		}
		if _, err := r.Begin(t.Context(), store.BeginOptions{Job: job, JobAttempt: 1}); err != nil {
			t.Fatal(err)
		}
	}
	begun("ours", "s", "c/j7")
	begun("unbegun", "s", "never")
	begun("theirs", "s", "d/j7")
	begun("nobodys", "s", "")
	t.Setenv(envJob, "j7")
	t.Setenv(envCluster, "c")
	for _, c := range []struct {
		attempt    string
		in         trainer.Config
		resume     bool
		from, name string
	}{
		{"1", trainer.Config{Name: "ours", Spec: "s"}, false, "", "ours"},
		{"2", trainer.Config{Name: "ours", Spec: "s", From: "other"}, true, "", "ours"},
		{"2", trainer.Config{Name: "ours", Spec: "another"}, false, "", "ours"},
		{"2", trainer.Config{Name: "unbegun", Spec: "s"}, true, "", "unbegun"},
		{"2", trainer.Config{Name: "theirs", Spec: "s"}, false, "", "theirs"},
		{"2", trainer.Config{Name: "nobodys", Spec: "s"}, false, "", "nobodys"},
		{"2", trainer.Config{Name: "theirs", Spec: "s", Resume: true}, true, "", "theirs"},
		{"1", trainer.Config{Name: "ours", Spec: "s", Resume: true, ResumeAt: 3}, true, "", "ours"},
		{"2", trainer.Config{Name: "ours", Spec: "s", Resume: true, ResumeAt: 3}, true, "", "ours"},
		{"2", trainer.Config{Name: "theirs", Spec: "s", Resume: true, ResumeAt: 3}, true, "", "theirs"},
		{"2", trainer.Config{Name: "new", Spec: "s", From: "other"}, false, "other", "new"},
		{"2", trainer.Config{Spec: "s"}, false, "", "j7-2e7d2c03"},
	} {
		t.Setenv(envAttempt, c.attempt)
		p, err := Init()
		if err != nil {
			t.Fatal(err)
		}
		cfg, at := c.in, c.in.ResumeAt
		if c.attempt == "2" && c.name == "ours" { // which has gone back, and on
			at = 0
		}
		cfg.Storage, cfg.Preemption.Notice = storage, make(chan string)
		if err := p.Train(t.Context(), &cfg); err != nil || cfg.Resume != c.resume || cfg.ResumeAt != at || cfg.From != c.from || cfg.Name != c.name || cfg.Job != "c/j7" || fmt.Sprint(cfg.JobAttempt) != c.attempt || cfg.SharedStorage || cfg.Gang != nil {
			t.Errorf("attempt %s of %+v: %v: %+v", c.attempt, c.in, err, cfg)
		}
	}
	p, err := Init()
	if err != nil {
		t.Fatal(err)
	}
	for _, where := range []string{"", "runs"} {
		faulttest.Wants(t, p.Train(t.Context(), &trainer.Config{Storage: where}), fault.Invalid, fmt.Sprintf("%q, in the job's copy", where))
	}
	t.Setenv("PENSTOCK_CONTROL", "socket") // what a worker process has: the storage is not its own, and SIGTERM ends it
	t.Setenv("PENSTOCK_FIT", "1")
	worker := trainer.Config{Storage: "runs"}
	if err := p.Train(t.Context(), &worker); err != nil || worker.Name != "j7-2e7d2c03" || worker.Resume || worker.Preemption.Notice != nil {
		t.Errorf("a worker: %v: %+v", err, worker)
	}
	t.Setenv("PENSTOCK_CONTROL", "")
	t.Setenv(envJob, "")
	if p, err = Init(); err != nil {
		t.Fatal(err)
	}
	cfg := trainer.Config{Name: "ours", Spec: "s"}
	if err := p.Train(t.Context(), &cfg); err != nil || cfg.Job != "" || cfg.Resume || cfg.Preemption.Notice != nil {
		t.Errorf("no job: %v: %+v", err, cfg)
	}
}

// A run of a program that was preempted ends with the code for which the cluster starts it again, and one that its caller gave up does not.
func TestPreempted(t *testing.T) {
	p, err := Init()
	if err != nil {
		t.Fatal(err)
	}
	notice := make(chan string, 1)
	ctx, cancel := context.WithCancel(t.Context())
	end := func(*trainer.Context) {}
	fit := func() error {
		_, err := trainer.New(func(c *trainer.Context) error {
			end(c)
			<-c.Done()
			return context.Cause(c)
		}, trainer.Config{Storage: t.TempDir(), Preemption: trainer.Preemption{Notice: notice, Grace: 1}}).Fit(ctx)
		return err
	}
	notice <- "the machine goes"
	if err := fit(); !errors.Is(err, trainer.ErrPreempted) || fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), "preempted") {
		t.Errorf("%v", err)
	} else if code, told := p.Code(err); code != 75 || told {
		t.Errorf("%d, %v", code, told)
	}
	end = func(*trainer.Context) { cancel() }
	if err := fit(); errors.Is(err, trainer.ErrPreempted) || fault.CodeOf(err) != fault.Canceled {
		t.Errorf("%v", err)
	} else if code, _ := p.Code(err); code != 1 {
		t.Errorf("%d", code)
	}
}

// The nodes of a training run read by themselves: what Run gives for plans of all nodes is taken from the data sets, and from those of c alone.
func TestTrainData(t *testing.T) {
	p := &Process{gang: gangtest.New(t, 2)[0], cpus: 2}
	data := map[string]trainer.Data{"train": {Options: dataset.ShardOptions{RunOptions: dataset.RunOptions{CPUs: 2, Runner: failed{}}}}}
	cfg := trainer.Config{Storage: "s3://b/runs", Data: data}
	if err := p.Train(t.Context(), &cfg); err != nil || cfg.Gang != p.gang || cfg.Data["train"].Options.Runner != nil || cfg.Data["train"].Options.CPUs != 2 || data["train"].Options.Runner == nil {
		t.Errorf("%v: %+v", err, cfg)
	}
}

func TestCode(t *testing.T) {
	gs := gangtest.New(t, 2)
	first, other := &Process{gang: gs[0]}, &Process{gang: gs[1]}
	ended, lost := fault.New(fault.UserCode, "%w: why", remote.ErrEnded), fault.New(fault.WorkerLost, "%w: node 0", remote.ErrLost)
	for _, c := range []struct {
		p    *Process
		err  error
		code int
		told bool
	}{
		{nil, nil, 0, true}, {nil, errors.New("x"), 1, false}, {first, nil, 0, true}, {other, nil, 0, true},
		{other, fmt.Errorf("late: %w", exec.ErrServed), 0, true}, {first, exec.ErrServed, 1, false}, {&Process{}, exec.ErrServed, 1, false},
		{other, ended, 1, true}, {other, lost, 75, false}, {first, lost, 75, false}, {&Process{}, trainer.ErrPreempted, 75, false}, {other, errors.New("x"), 1, false},
	} {
		if code, told := c.p.Code(c.err); code != c.code || told != c.told {
			t.Errorf("%v: %d, %v, want %d, %v", c.err, code, told, c.code, c.told)
		}
	}
}
