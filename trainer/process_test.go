package trainer

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/killtest"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/device"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/store"
)

func init() {
	programs["fit"] = fitProgram
	programs["data"] = dataProgram
}

var hoard [][]byte

// conf is what programs of tests are told, as JSON in TRAINER_CONF.
type conf struct {
	Name, Storage string
	Out           string // folder: pids, and what each rank was given
	Workers       int
	Resume        bool
	Async         bool
	SaveAll       bool // each rank gives a file of its own
	SameFile      bool // and one that others give, too
	DataProcess   bool
	StepMS        int
	Every         int64
	Fail          string // what the loop does instead of training
	FailRank      int    // that does so; 0: all do
	DataNodes     int    // of a gang of processes, beside the others
	Loop          string // of a gang: goroutines, or processes, run it; "": processes of Command
}

func confOf() (c conf, err error) {
	err = json.Unmarshal([]byte(os.Getenv("TRAINER_CONF")), &c)
	return c, err
}

func (c conf) env() []string {
	b, _ := json.Marshal(c) // strings and numbers
	return []string{"TRAINER_TEST=fit", "TRAINER_CONF=" + string(b)}
}

// config of the run. What runs it may be a test, or a program.
func (c conf) config() Config {
	cfg := Config{Name: c.Name, Storage: c.Storage, Workers: c.Workers, Resume: c.Resume, Processes: true, Env: c.env(), StopTimeout: 2 * time.Second, Output: io.Discard,
		Checkpoint: Checkpointing{Async: c.Async}, Failures: Failures{Worker: 10}}
	if c.DataProcess {
		cfg.DataProcess = &DataProcess{Argv: []string{os.Args[0]}, Env: append(c.env(), "TRAINER_TEST=data"), Sets: map[string]bool{"train": false}}
	} else {
		cfg.Data = map[string]Data{"train": train()}
	}
	return cfg
}

// inGoroutines is a configuration of loops in this process.
func inGoroutines(cfg Config) Config {
	cfg.Processes, cfg.Env = false, nil
	return cfg
}

func fitProgram() error {
	c, err := confOf()
	if err != nil {
		return err
	}
	cfg := c.config()
	cfg.Log, cfg.Logs = slog.New(slog.NewTextHandler(os.Stderr, nil)), filepath.Join(c.Out, "logs")
	_, err = New(c.loop, cfg).Fit(context.Background())
	return err
}

func dataProgram() error {
	c, err := confOf()
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(c.Out, fmt.Sprintf("pid-data-%d", os.Getpid())), nil, 0o600); err != nil {
		return err
	}
	if dir := os.Getenv(gang.EnvDir); dir != "" { // whose name is the node's number
		if err := os.WriteFile(filepath.Join(c.Out, fmt.Sprintf("pid-node%s-%d", filepath.Base(dir), os.Getpid())), nil, 0o600); err != nil {
			return err
		}
	}
	d := train()
	return feeder.Control(context.Background(), os.Stdin, os.Stdout, []feeder.Set{feeder.Of("train", d.Dataset, d.Options, false)}, gang.Aide)
}

// loop of the programs: it writes a line per sample and the loss of each step, says where it is, and saves every so many steps.
func (k conf) loop(c *Context) error {
	if os.Getenv("RANK") != "" { // a process
		for _, kind := range []string{"worker", fmt.Sprintf("rank%d", c.Rank())} {
			if err := os.WriteFile(filepath.Join(k.Out, fmt.Sprintf("pid-%s-%d", kind, os.Getpid())), nil, 0o600); err != nil {
				return err
			}
		}
	}
	if k.FailRank == 0 || c.Rank() == k.FailRank || k.Fail == "hang" {
		if err := k.fail(c); err != nil || k.Fail != "" && k.FailRank == 0 {
			return err
		}
	}
	f, err := os.OpenFile(filepath.Join(k.Out, fmt.Sprintf("ledger-%d-%d", os.Getpid(), c.Rank())), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	losses, err := os.Create(filepath.Join(k.Out, fmt.Sprintf("loss-%d-%d-%d", c.World(), c.Attempt(), c.Rank())))
	if err != nil {
		return err
	}
	defer losses.Close()
	s, err := c.Shard("train")
	if err != nil {
		return err
	}
	var m model
	if c.Checkpoint() != nil {
		if err := m.restore(c, s); err != nil {
			return err
		}
	}
	first := true
	for s.Epoch() < epochs {
		for x, err := range s.All(c) {
			if err != nil {
				return err
			}
			if first {
				first = false
				if err := os.WriteFile(filepath.Join(k.Out, fmt.Sprintf("first-%d-%d", c.Attempt(), c.Rank())), nil, 0o600); err != nil {
					return err
				}
			}
			var b bytes.Buffer
			ids, _ := x.Tensor("id")
			for i, id := range shard.Values[int64](ids) {
				fmt.Fprintf(&b, "%d/%d %d %d\n", x.Epoch(), x.Samples()[i], x.Step(), id)
			}
			if _, err := f.Write(b.Bytes()); err != nil {
				return err
			}
			made := int64(x.Epoch())*steps + x.Step() + 1
			if err := killtest.Say(c.Rank(), killtest.Step, made); err != nil {
				return err
			}
			time.Sleep(time.Duration(k.StepMS) * time.Millisecond) // a step of training takes time
			loss, err := m.step(c, x)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(losses, "%d %x\n", made, math.Float64bits(loss)); err != nil {
				return err
			}
			if c.Preempted() || (x.Step()+1)%k.Every == 0 {
				dir := ""
				if c.Rank() == 0 {
					if dir, err = m.save(s); err != nil {
						return err
					}
				}
				if k.SaveAll {
					if dir, err = k.own(c, dir); err != nil {
						return err
					}
				}
				if err := killtest.Say(c.Rank(), killtest.Report, made); err != nil {
					return err
				}
				if err := c.Report(map[string]float64{"step": float64(s.Step()), "loss": loss}, dir); err != nil {
					return err
				}
				if c.Preempted() {
					return nil
				}
			}
		}
	}
	return nil
}

// fail does what the loop is to do instead of training; the loop of FailRank does, in its first attempt.
func (k conf) fail(c *Context) error {
	if k.FailRank > 0 && c.Attempt() > 1 {
		return nil
	}
	switch k.Fail {
	case "exit":
		fmt.Println("it is broken")
		os.Exit(3)
	case "hang": // the others do not
		for c.Rank() != k.FailRank && c.Err() == nil {
			c.Alive()
			time.Sleep(100 * time.Millisecond)
		}
		<-c.Done()
		return context.Cause(c)
	case "panic":
		panic("all is lost")
	case "error":
		return errors.New("all is lost")
	case "worker":
		if InWorker() {
			return nil
		}
		return errors.New("a worker does not know that it is one")
	case "device":
		if d := c.Devices(); len(d) != 1 || os.Getenv("CUDA_VISIBLE_DEVICES") != d[0] {
			return fmt.Errorf("devices %q, CUDA_VISIBLE_DEVICES=%s", d, os.Getenv("CUDA_VISIBLE_DEVICES"))
		}
		for range 20 {
			time.Sleep(100 * time.Millisecond)
			if err := c.Report(map[string]float64{"loss": 1}, ""); err != nil {
				return err
			}
		}
		return nil
	case "memory":
		for s := (*c).Context; s.Err() == nil; time.Sleep(10 * time.Millisecond) {
			hoard = append(hoard, bytes.Repeat([]byte{1}, 8<<20))
		}
		return context.Cause(c)
	case "fork":
		sleep := exec.Command("sleep", "1000")
		if err := sleep.Start(); err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(k.Out, fmt.Sprintf("pid-child-%d", sleep.Process.Pid)), nil, 0o600)
	}
	return nil
}

// own writes a file of this rank into the folder of a checkpoint, or makes one.
func (k conf) own(c *Context, dir string) (_ string, err error) {
	if dir == "" {
		if dir, err = os.MkdirTemp("", "own-"); err != nil {
			return "", err
		}
	}
	if k.SameFile {
		if err := os.WriteFile(filepath.Join(dir, "same"), nil, 0o600); err != nil {
			return "", err
		}
	}
	return dir, os.WriteFile(filepath.Join(dir, fmt.Sprintf("of-rank-%d", c.Rank())), fmt.Appendf(nil, "%d", c.Node()), 0o600)
}

// ledger reads what all ranks wrote: sample -> step and row. A sample that was given again must be the same one.
func ledger(t *testing.T, out string) map[string]string {
	t.Helper()
	all := map[string]string{}
	files, err := filepath.Glob(filepath.Join(out, "ledger-*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b = b[:bytes.LastIndexByte(b, '\n')+1] // one that was killed did not finish its line
		for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
			key, val, _ := strings.Cut(sc.Text(), " ")
			if was, ok := all[key]; ok && was != val {
				t.Fatalf("sample %s was %s, then %s", key, was, val)
			}
			all[key] = val
		}
	}
	return all
}

var undisturbed = sync.OnceValue(func() map[string]string {
	all := map[string]string{}
	d := train()
	o := d.Options
	o.Ranks = nil
	its, err := d.Dataset.Shards(context.Background(), 1, &o)
	if err != nil {
		panic(err)
	}
	defer its[0].Close()
	for its[0].Epoch() < epochs {
		for x, err := range its[0].All(context.Background()) {
			if err != nil {
				panic(err)
			}
			ids, _ := x.Tensor("id")
			for i, id := range shard.Values[int64](ids) {
				all[fmt.Sprintf("%d/%d", x.Epoch(), x.Samples()[i])] = fmt.Sprintf("%d %d", x.Step(), id)
			}
		}
	}
	return all
})

func sameLedger(t *testing.T, out string) {
	t.Helper()
	want, got := undisturbed(), ledger(t, out)
	if len(want) != batch*steps*epochs {
		t.Fatalf("%d samples are wanted: the test is wrong", len(want))
	}
	if len(got) != len(want) {
		t.Errorf("%d samples, want %d", len(got), len(want))
	}
	for k, w := range want {
		if got[k] != w {
			t.Fatalf("sample %s is %q, want %q", k, got[k], w)
		}
	}
}

// pids of processes of a kind that live.
func pids(out, kind string) (all []int) {
	files, _ := filepath.Glob(filepath.Join(out, "pid-"+kind+"-*"))
	for _, name := range files {
		pid, _ := strconv.Atoi(name[strings.LastIndexByte(name, '-')+1:])
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid)); err == nil {
			if f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:])); f[0] != "Z" {
				all = append(all, pid)
			}
		}
	}
	return all
}

func newConf(t *testing.T, name string) conf {
	t.Helper()
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	t.Setenv("TMPDIR", t.TempDir())
	t.Setenv("XDG_RUNTIME_DIR", "")
	return conf{Name: name, Storage: t.TempDir(), Out: t.TempDir(), Workers: 2, StepMS: 4, Every: 10}
}

func (c conf) fit(t *testing.T) *Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cfg := c.config()
	if testing.Verbose() {
		cfg.Log = configOf(t, "x").Log
		cfg.Output = testWriter{t}
	}
	res, err := New(c.loop, cfg).Fit(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if res.State != store.Finished {
		t.Fatalf("the run is %s", res.State)
	}
	return res
}

// nothingLeft checks that no process of the run lives, and no folder of its sockets is there.
func nothingLeft(t *testing.T, c conf) {
	t.Helper()
	for _, kind := range []string{"worker", "data", "child"} {
		if left := pids(c.Out, kind); len(left) > 0 {
			t.Errorf("processes that are left: %s %v", kind, left)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(os.TempDir(), folderPrefix+"*")); len(left) > 0 {
		t.Errorf("folders that are left: %v", left)
	}
}

// A worker that uses more memory than it has is ended, and has a budget of its own.
func TestMemory(t *testing.T) {
	c := newConf(t, "memory")
	c.Fail = "memory"
	cfg := c.config()
	cfg.Resources.Memory = 256 << 20
	cfg.Failures.Delay = time.Millisecond
	res, err := New(c.loop, cfg).Fit(t.Context())
	if fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "memory") || res == nil || len(res.Failures) != 2 || res.Failures[0].Class != "memory" {
		t.Errorf("%v, %+v", err, res)
	}
	nothingLeft(t, c)
}

// The first batch after a worker was killed comes soon: within two seconds.
func TestRestartTime(t *testing.T) {
	c := newConf(t, "time")
	c.Workers, c.DataProcess, c.StepMS = 2, true, 10
	cfg := c.config()
	var failed time.Time
	cfg.Events.Failed = func(Failure) { failed = time.Now() }
	var kill sync.Once
	cfg.Events.Committed = func(store.Manifest) {
		kill.Do(func() { _ = syscall.Kill(pids(c.Out, "worker")[0], syscall.SIGKILL) })
	}
	if _, err := New(c.loop, cfg).Fit(t.Context()); err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(filepath.Join(c.Out, "first-2-0"))
	if err != nil {
		t.Fatal(err)
	}
	took := st.ModTime().Sub(failed)
	t.Logf("the first batch came %v after the failure was seen", took)
	if took > 2*time.Second {
		t.Errorf("the first batch came %v after the failure was seen", took)
	}
}

func TestProcesses(t *testing.T) {
	c := newConf(t, "processes")
	c.StepMS = 0
	res := c.fit(t)
	if res.Reports != 8 || res.Attempts != 1 {
		t.Errorf("%+v", res)
	}
	sameLedger(t, c.Out)
	nothingLeft(t, c)
	c = newConf(t, "inside")
	c.Fail = "worker"
	if c.fit(t); InWorker() {
		t.Error("who starts workers takes itself for one")
	}
}

// Workers have the devices that they asked for, and reports say what these do. Needs a GPU.
func TestDevices(t *testing.T) {
	inv, err := device.Discover(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(inv.Devices) == 0 {
		t.Skip(inv.Problem) // not memtest.Skip: machines of CI have none
	}
	c := newConf(t, "devices")
	c.Fail, c.Workers = "device", 1
	cfg := c.config()
	cfg.Resources.GPUs = 1
	if _, err := New(c.loop, cfg).Fit(t.Context()); err != nil {
		t.Fatal(err)
	}
	run, err := store.Open(t.Context(), c.Storage, c.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	seen := 0
	for row, err := range run.History(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if len(row.Metrics) > 1 {
			seen++
			t.Log(row.Metrics)
		}
	}
	if seen == 0 {
		t.Error("no report has metrics of the device")
	}
}
