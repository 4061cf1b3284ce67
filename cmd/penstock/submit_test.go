package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	library "github.com/penstock-data/penstock"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer"
)

func init() {
	roles["program"] = func() error {
		p, err := library.Init()
		if err == nil {
			err = userProgram(p, os.Args[1:])
		}
		os.Exit(p.Exit(err))
		return nil
	}
}

var dies = ops.RegisterMap("dies", "1", func([]byte) (ops.MapFunc, error) {
	return func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
		if slices.Contains(in.Column(0).(*array.Int64).Int64Values(), 4321) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until it is felt
		}
		in.Retain()
		return in, nil
	}, nil
})

// userProgram is one of a user: "write PATHS OUT SCRIPT" passes rows through a shell and writes them, "closure PATHS" cannot run on several nodes, "train STORAGE" is a training run, and is killed in the first attempt,
// "poisoned PATHS" kills itself where it meets the row with id 4321.
func userProgram(p *library.Process, args []string) error {
	if args[0] == "train" {
		return trains(p, args[1])
	}
	ctx, ds := context.Background(), dataset.ReadParquet(args[1])
	if args[0] == "poisoned" {
		f, err := dies.Func(nil)
		if err != nil {
			return err
		}
		_, err = ds.Apply(f, nil).Count(ctx, p.Run(nil))
		return err
	}
	if args[0] == "closure" {
		_, err := ds.MapBatches(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
			in.Retain()
			return in, nil
		}, nil).Count(ctx, p.Run(nil))
		return err
	}
	r, err := ds.Exec(dataset.ExecOptions{Command: []string{"sh", "-c", args[3]}, Env: []string{"PENSTOCK_JOB_ATTEMPT"}, Workers: 1}).
		WriteParquet(ctx, args[2], &dataset.WriteOptions{RunOptions: *p.Run(nil), TargetBytes: 64 << 10, RunID: "one"})
	if err != nil {
		return err
	}
	fmt.Println(r.Rows, "rows")
	return nil
}

// trains keeps a checkpoint after each of ten steps. The first attempt of the job ends in the fourth.
func trains(p *library.Process, storage string) error {
	ctx := context.Background()
	cfg := trainer.Config{Storage: storage, Data: map[string]trainer.Data{"train": {Dataset: dataset.Range(100), Options: dataset.ShardOptions{Options: shard.Options{GlobalBatch: 10}}}}}
	if err := p.Train(ctx, &cfg); err != nil {
		return err
	}
	r, err := trainer.New(func(c *trainer.Context) error {
		train, err := c.Shard("train")
		if err != nil {
			return err
		}
		fmt.Println("begins after step", train.Step())
		dir, err := os.MkdirTemp("", "model-")
		if err != nil {
			return err
		}
		for _, err := range train.All(c) {
			if err != nil {
				return err
			}
			if train.Step() == 4 && cfg.JobAttempt == 1 {
				return syscall.Kill(os.Getpid(), syscall.SIGKILL)
			}
			if err := os.WriteFile(filepath.Join(dir, "step"), fmt.Append(nil, train.Step()), 0o644); err != nil {
				return err
			}
			files := ""
			if c.Rank() == 0 {
				files = dir
			}
			if err := c.Report(map[string]float64{"step": float64(train.Step())}, files); err != nil {
				return err
			}
		}
		return nil
	}, cfg).Fit(ctx)
	if err != nil {
		return err
	}
	fmt.Println(r.Reports, "reports")
	return nil
}

// submit follows a job of this binary as that program.
func (c *testCluster) submit(more []string, args ...string) *daemon {
	c.t.Helper()
	self, err := os.Executable()
	if err != nil {
		c.t.Fatal(err)
	}
	dir := c.t.TempDir()
	file := filepath.Join(dir, "program")
	if err := os.WriteFile(file, []byte("#!/bin/sh\nexec "+self+" \"$@\"\n"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	all := append([]string{"submit", "--cluster", c.head, "--working-dir", dir, "--env", "PENSTOCK_TEST_MAIN=program"}, more...)
	return stay(c.t, append(append(all, "--", file), args...)...)
}

// descendants of a process.
func descendants(t *testing.T, pid int) (all []int) {
	for _, p := range childrenOf(t, pid) {
		all = append(append(all, p), descendants(t, p)...)
	}
	return all
}

// A program of a user is the same alone and as a job on one node or three; what kills a node of it costs a new start.
func TestSubmit(t *testing.T) {
	c := newTestCluster(t)
	for _, name := range []string{"a", "b", "c"} {
		c.join(name, "--cpus", "2", "--token", strings.TrimSpace(c.ok("token", "create")))
	}
	data, err := filepath.Abs("../../examples/data/flights")
	if err != nil {
		t.Fatal(err)
	}

	t.Run("the example", func(t *testing.T) {
		work := t.TempDir()
		late := filepath.Join(work, "bin", "late")
		build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", late, "./examples/cluster-go")
		build.Dir = "../.."
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		alone, one, three := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
		args := func(out string) []string { return []string{"-in", data, "-out", out, "-size", "16384"} }
		out, err := exec.Command(late, args(alone)...).CombinedOutput()
		said, _, ok := strings.Cut(string(out), " files in")
		if err != nil || !ok || !strings.Contains(said, "flights were more than 30 minutes late: ") {
			t.Fatalf("%v: %s", err, out)
		}
		r := penstock(t, append([]string{"submit", "--cluster", c.head, "--working-dir", work, "--", late}, args(one)...)...)
		if r.code != 0 || !strings.Contains(r.out, said) || !strings.Contains(r.err, "is submitted") {
			t.Fatalf("%+v", r)
		}
		r = penstock(t, append([]string{"submit", "--cluster", c.head, "--working-dir", work, "--nodes", "3", "--name", "late flights", "--id", "three", "--", late}, args(three)...)...)
		if r.code != 0 || strings.Count(r.out, said) != 1 || !strings.Contains(r.out, "node 0 | "+said) || strings.Contains(r.out, "node 1 | ") || strings.Contains(r.out, "node 2 | ") {
			t.Errorf("%+v", r)
		}
		if j := c.until("three", func(jobJSON) bool { return true }); j.Name != "late flights" || j.Size != 3 || j.Command[0] != "./bin/late" || j.Needs.CPUs != 1 {
			t.Errorf("%+v", j)
		}
		want := visible(t, alone)
		if strings.Count(want, "\n") < 3 {
			t.Errorf("too few files to say anything:\n%s", want)
		}
		for _, dir := range []string{one, three} {
			if got := visible(t, dir); got != want {
				t.Errorf("other files:\n%s\nthan those of one process:\n%s", got, want)
			}
		}
		// Its error is told once, and its exit code is the job's.
		r = penstock(t, "submit", "--cluster", c.head, "--working-dir", work, "--nodes", "2", "--quiet", "--", late)
		if r.code != exitFailed || !strings.Contains(r.out, "late: where to? Give -out") || strings.Contains(r.err, "is submitted") {
			t.Errorf("%+v", r)
		}
	})

	t.Run("a process is killed, then a node", func(t *testing.T) {
		tmp := t.TempDir()
		alone, out := filepath.Join(tmp, "alone"), filepath.Join(tmp, "out")
		// The first two attempts come to a stop somewhere.
		up, wait := fifo(t, tmp, "up")
		script := func(stops int) string {
			return fmt.Sprintf("if [ $PENSTOCK_JOB_ATTEMPT -le %d ]; then echo $PENSTOCK_JOB_ATTEMPT > %s; exec sleep 1000; fi; exec cat", stops, up)
		}
		first := c.submit(nil, "write", data, alone, script(0))
		d := c.submit([]string{"--nodes", "2", "--id", "killed"}, "write", data, out, script(2))
		stopped := func(attempt string) {
			for wait() != attempt {
			}
		}
		stopped("1")
		j := c.until("killed", func(j jobJSON) bool { return j.State == "running" && len(j.Nodes) == 2 })
		member := false
		for _, pid := range descendants(t, c.nodes[j.Nodes[1]].cmd.Process.Pid) {
			if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); strings.Contains(string(b), "\x00write\x00") {
				member = true
				if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
					t.Error(err)
				}
			}
		}
		if !member {
			t.Error("no process of the program on its second node")
		}
		stopped("2")
		j = c.until("killed", func(j jobJSON) bool { return j.State == "running" && len(j.Nodes) == 2 })
		c.kill(j.Nodes[0])
		if code := d.code(); code != 0 || first.code() != 0 || !strings.Contains(d.String(), "node 0 | 20000 rows") {
			t.Errorf("exit %d: %s", code, d)
		}
		if j := c.until("killed", func(jobJSON) bool { return true }); j.State != "finished" || j.Attempts < 3 || j.Failures["worker"] != 1 {
			t.Errorf("%+v", j)
		}
		if a, b := visible(t, alone), visible(t, out); a == "" || a != b {
			t.Errorf("other files:\n%s\nthan those of one process:\n%s", b, a)
		}
	})

	t.Run("a row group kills who reads it", func(t *testing.T) {
		dir := t.TempDir()
		enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dataset.Range(10_000).Write(t.Context(), dir, enc, nil); err != nil {
			t.Fatal(err)
		}
		files, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
		if err != nil || len(files) != 1 {
			t.Fatalf("%v, %v", files, err)
		}
		for _, nodes := range []string{"1", "3"} {
			id := "poisoned" + nodes
			d := c.submit([]string{"--nodes", nodes, "--id", id}, "poisoned", files[0])
			code := d.code()
			j := c.until(id, func(j jobJSON) bool { return j.State == "failed" })
			where := files[0] + ", row group 4"
			if named := where + " ended 3 processes that read it: "; code != exitFailed || j.Failures["worker"] != 3 || !strings.HasPrefix(j.Why, named) || !strings.Contains(d.String(), named) || !strings.Contains(j.Why, "; it was at "+where+"\n") {
				t.Errorf("on %s nodes: exit %d: %d attempts: %s\n%s", nodes, code, j.Attempts, j.Why, d)
			}
		}
	})

	t.Run("a training run is killed", func(t *testing.T) {
		d := c.submit([]string{"--id", "trains"}, "train", t.TempDir())
		if code := d.code(); code != 0 || !strings.Contains(d.String(), "begins after step 0\n") || !strings.Contains(d.String(), "begins after step 3\n") || !strings.Contains(d.String(), "10 reports\n") {
			t.Errorf("exit %d: %s", code, d)
		}
		d = c.submit(nil, "train", "runs")
		if code := d.code(); code != exitFailed || !strings.Contains(d.String(), `"runs", in the job's copy of the working directory`) {
			t.Errorf("exit %d: %s", code, d)
		}
	})

	t.Run("a closure", func(t *testing.T) {
		d := c.submit([]string{"--nodes", "2"}, "closure", data)
		if code := d.code(); code != exitFailed || !strings.Contains(d.String(), "register it: ops.RegisterMap(") {
			t.Errorf("exit %d: %s", code, d)
		}
	})

	t.Run("called as it is in the working directory", func(t *testing.T) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "fail.sh"), []byte("#!/bin/sh\necho no rows >&2\nexit 7\n"), 0o755); err != nil {
			t.Fatal(err)
		}
		r := penstock(t, "submit", "--cluster", c.head, "--working-dir", dir, "--id", "fails", "--", "./fail.sh")
		if r.code != 7 || !strings.HasSuffix(r.err, "failed after 1 attempt: user: exit code 7: no rows\n") {
			t.Errorf("%+v", r)
		}
		if one, all := c.ok("jobs", "fails"), c.ok("jobs"); !strings.Contains(one, "\nwhy:\n  user: exit code 7: no rows\n  process (pid ") || !strings.HasSuffix(one, " ended with exit code 7\n  no rows\n") || !strings.Contains(all, " user: exit code 7: no rows\n") || strings.Contains(all, "pid") {
			t.Errorf("%s\n%s", one, all)
		}
	})

	t.Run("mistakes", func(t *testing.T) {
		dir := t.TempDir()
		text, program := filepath.Join(dir, "text"), filepath.Join(dir, "program")
		if err := os.WriteFile(text, nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(program, nil, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(os.Mkdir(filepath.Join(dir, "left"), 0o755), os.WriteFile(filepath.Join(dir, "left", "program"), nil, 0o755),
			os.WriteFile(filepath.Join(dir, ".penstockignore"), []byte("/left/\n"), 0o644)); err != nil {
			t.Fatal(err)
		}
		for _, m := range []struct{ args, want string }{
			{"--working-dir " + dir + " -- " + filepath.Join(dir, "left", "program"), "the nodes would not get left/program: .penstockignore in "},
			{"--working-dir " + dir + " -- sh -c true", "submit a script that calls it"},
			{"", "the program is missing"},
			{"--", "the program is missing"},
			{program, "put the program and its arguments behind --"},
			{"--working-dir " + dir + " " + program + " -- x", "put the program and its arguments behind --"},
			{"--working-dir " + dir + " -- " + text, "is not executable"},
			{"--working-dir " + dir + " -- " + dir, "is not a file"},
			{"--working-dir " + dir + " -- " + filepath.Join(dir, "gone"), "is not there: give its path, and build it first"},
			{"--working-dir " + dir + " -- nosuch", "nosuch is not there (looked for as " + dir + "/nosuch and nosuch): give its path, and build it first"},
			{"--working-dir " + dir + " -- ./nosuch.sh", "./nosuch.sh is not there (looked for as " + dir + "/nosuch.sh and ./nosuch.sh): give its path\n"},
			{"--working-dir " + dir + " -- text", dir + "/text is not executable"},
			{"--working-dir " + dir + " -- /bin/sh -c true", "/bin/sh is not in " + dir},
			{"--working-dir " + dir + " --nodes 0 -- " + program, "--nodes 0"},
			{"--working-dir " + dir + " --retries -1 -- " + program, "--retries cannot be less than 0"},
			{"--working-dir " + dir + " --cpus Inf -- " + program, "--cpus +Inf: want a number of CPUs"},
			{"--working-dir " + dir + " --env PATH=x --secret PATH -- " + program, "--env and --secret both give PATH"},
			{"--working-dir " + dir + " --data-nodes 1 --data-cpus -1 -- " + program, "--data-cpus -1: want a number of CPUs"},
		} {
			r := penstock(t, append([]string{"submit", "--cluster", c.head}, strings.Fields(m.args)...)...)
			if r.code != exitUsage || !strings.Contains(r.err, m.want) {
				t.Errorf("%s: exit %d, want %q: %s", m.args, r.code, m.want, r.err)
			}
		}
	})
}
