package store

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/hosttest"
)

// commitChild goes on with the run x: it sweeps, then commits and prunes until it is killed, and says so for each: files have sizes and contents that follow from the report.
func commitChild(c childConfig) {
	ctx := context.Background()
	die := func(err error) {
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
	}
	rnd := rand.New(rand.NewPCG(c.Seed, 3))
	r, err := Open(ctx, c.Storage, "x")
	die(err)
	at, err := r.Begin(ctx, BeginOptions{})
	die(err)
	die(r.Sweep(ctx))
	report := int64(0)
	if at.From != nil {
		report = at.From.Report
	}
	fmt.Println("begun", at.Number)
	w := r.Metrics(at.Number)
	for {
		report++
		die(os.RemoveAll(c.Dir))
		for name, data := range killFiles(report) {
			f := filepath.Join(c.Dir, name)
			die(os.MkdirAll(filepath.Dir(f), 0o777))
			die(os.WriteFile(f, []byte(data), 0o666))
		}
		die(w.Append(Row{Report: report, Time: time.Now(), Step: report, Metrics: Metrics{"x": float64(report)}}))
		m, err := r.Commit(ctx, Commit{Report: report, World: 2, Metrics: Metrics{"x": rnd.Float64()}, Parts: []Part{{0, c.Dir}},
			Data: map[string]Data{"train": {State: json.RawMessage(fmt.Sprint(report)), Ledger: fmt.Append(nil, "ledger", report)}}, Parallel: 3})
		die(err)
		fmt.Println("committed", m.Number, report)
		die(r.SetStatus(ctx, Status{State: Running, Reports: report, Checkpoint: m.Number}))
		die(r.Prune(ctx, Policy{KeepLast: 2, KeepBest: 1, Metric: "x"}))
	}
}

func killFiles(report int64) map[string]string {
	files := make(map[string]string)
	for i := range 4 {
		size := []int{0, 100, chunk, 2*chunk + 5}[i]
		files[fmt.Sprintf("d%d/f%d", report%3, i)] = strings.Repeat(fmt.Sprint(report%10), size)
	}
	return files
}

// Killed at 50 random moments, one after another in the same run: at any time there are only whole checkpoints, the newest acknowledged one (or one after it) is the latest, and what the next one does not
// use it clears.
func TestKill(t *testing.T) {
	hosttest.Alone(t)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	n := 50
	if testing.Short() {
		n = 10
	}
	storage, work := t.TempDir(), t.TempDir()
	newRun(t, storage, "x").Close()
	acked, ackedReport, commits, cut := 0, int64(0), 0, 0
	var span time.Duration // in which a child dies: that of two commits, and half of it more; the first child is killed after two
	for i := range n {
		cmd := command(t, childConfig{Mode: "commit", Storage: storage, Dir: filepath.Join(work, "out"), Seed: seed + uint64(i)})
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		var timer *time.Timer
		var began time.Time
		sc := bufio.NewScanner(out)
		for sc.Scan() {
			var a, b int
			switch line := sc.Text(); {
			case strings.HasPrefix(line, "begun"):
				began, timer = time.Now(), time.NewTimer(time.Hour)
				if span > 0 {
					timer = time.AfterFunc(time.Duration(rnd.Int64N(int64(span))), func() { cmd.Process.Kill() })
				}
			case strings.HasPrefix(line, "error"):
				t.Error(line)
			default:
				if _, err := fmt.Sscanf(line, "committed %d %d", &a, &b); err != nil {
					t.Error(line, err)
				}
				acked, ackedReport = a, int64(b)
				if commits++; span == 0 && commits == 2 {
					span = time.Since(began) * 3 / 2
					cmd.Process.Kill()
				}
			}
		}
		if timer == nil {
			t.Fatal("it never began")
		}
		timer.Stop()
		if err := cmd.Wait(); err == nil || cmd.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Fatal(err)
		}
		r := openRun(t, storage, "x")
		numbers := checkWhole(t, r)
		if acked > 0 && (len(numbers) == 0 || numbers[len(numbers)-1] < acked) {
			t.Fatalf("round %d: checkpoint %d was acknowledged, there are %v", i, acked, numbers)
		}
		if len(numbers) > 0 {
			m, err := r.Latest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if m.Report < ackedReport || m.Report > ackedReport+1 {
				t.Fatalf("the latest is of report %d, acknowledged was %d", m.Report, ackedReport)
			}
			ackedReport = m.Report // what is there stays there
			acked = m.Number
			dir, err := r.Fetch(t.Context(), m, filepath.Join(work, "cache"))
			if err != nil {
				t.Fatal(err)
			}
			sameFiles(t, readTree(t, dir), killFiles(m.Report))
			if ledger, err := r.Ledger(t.Context(), m, "train"); err != nil || string(ledger) != fmt.Sprint("ledger", m.Report) || string(m.Data["train"].State) != fmt.Sprint(m.Report) {
				t.Fatal(string(ledger), err, m.Data)
			}
			// The metrics up to it are there.
			rows := history(t, r)
			if int64(len(rows)) < m.Report || rows[m.Report-1].Report != m.Report {
				t.Fatalf("%d rows of metrics for %d reports", len(rows), m.Report)
			}
		}
		tries := 0
		for _, key := range objects(t, r) {
			if strings.HasPrefix(key, checkpointsDir) && strings.Contains(key, "/files/") && !slices.ContainsFunc(numbers, func(n int) bool {
				return strings.HasPrefix(key, checkpointsDir+numbered(n)+"-")
			}) {
				tries++
			}
		}
		if tries > 0 {
			cut++
		}
		r.Close()
	}
	t.Logf("%d commits, %d times files without a manifest were left", commits, cut)
	if commits < n/5 || cut == 0 {
		t.Errorf("%d commits, %d cut: the kills are not at random moments", commits, cut)
	}
	r := openRun(t, storage, "x")
	begin(t, r)
	if err := r.Sweep(t.Context()); err != nil {
		t.Fatal(err)
	}
	checkClean(t, r)
}

// Killed by itself at every step of a commit and a prune that changes something.
func TestKillAtEveryStep(t *testing.T) {
	stride := 3 // another third of them every time
	if os.Getenv("PENSTOCK_SOAK") == "1" {
		stride = 1
	}
	work := t.TempDir()
	for at := 1 + rand.IntN(stride); ; at += stride {
		storage := t.TempDir()
		newRun(t, storage, "x").Close()
		cmd := command(t, childConfig{Mode: "step", Storage: storage, Dir: filepath.Join(work, "out"), Step: at})
		out, err := cmd.Output()
		if err == nil { // it came through
			if at < 30 {
				t.Errorf("only %d steps", at)
			}
			break
		}
		if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); !ok || s.Signal() != syscall.SIGKILL {
			t.Fatalf("%v\n%s", err, out)
		}
		acked := strings.Count(string(out), "committed")
		r := openRun(t, storage, "x")
		if n := len(checkWhole(t, r)); n < min(acked, 2) || n > acked+1 {
			t.Fatalf("step %d: %d checkpoints, %d were acknowledged", at, n, acked)
		}
		begin(t, r)
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkClean(t, r)
		r.Close()
	}
}

// stepChild commits thrice and prunes, and kills itself at a step.
func stepChild(c childConfig) {
	ctx := context.Background()
	r, err := Open(ctx, c.Storage, "x")
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	steps := make(chan struct{}, 1<<20)
	r.hook = func(step, key string) {
		steps <- struct{}{}
		if len(steps) == c.Step {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {}
		}
	}
	_, err = r.Begin(ctx, BeginOptions{})
	err = errors.Join(err, r.Sweep(ctx))
	for report := range int64(3) {
		for name, data := range killFiles(report) {
			f := filepath.Join(c.Dir, name)
			err = errors.Join(err, os.MkdirAll(filepath.Dir(f), 0o777), os.WriteFile(f, []byte(data), 0o666))
		}
		_, cerr := r.Commit(ctx, Commit{Report: report, World: 1, Parts: []Part{{0, c.Dir}}, Parallel: 2})
		if cerr == nil {
			fmt.Println("committed")
		}
		err = errors.Join(err, cerr, r.SetStatus(ctx, Status{State: Running}))
	}
	if err = errors.Join(err, r.Prune(ctx, Policy{KeepLast: 2})); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

// Two processes resume a run at the same time: one goes on, the other is told so.
func TestResumeTwice(t *testing.T) {
	for range 5 {
		storage := t.TempDir()
		newRun(t, storage, "x").Close()
		type result struct {
			out string
			err error
		}
		results := make(chan result, 2)
		for range 2 {
			cmd := command(t, childConfig{Mode: "resume", Storage: storage})
			in, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				out, err := cmd.Output()
				results <- result{string(out), err}
			}()
			defer in.Close()
		}
		// The refused one ends at once.
		first := <-results
		if first.err != nil || !strings.HasPrefix(first.out, "exists") {
			t.Fatalf("%q %v", first.out, first.err)
		}
		list, err := List(t.Context(), storage)
		if err != nil || len(list) != 1 || list[0].State != Running {
			t.Fatal(list, err)
		}
		r := openRun(t, storage, "x")
		st, err := r.Status(t.Context())
		if err != nil || st.Attempt != 1 {
			t.Fatal(st, err)
		}
		syscall.Kill(st.PID, syscall.SIGKILL)
		if second := <-results; second.err == nil {
			t.Fatalf("%q", second.out)
		}
		if st.Show(time.Now()) != StateLost {
			t.Fatal("its controller was killed")
		}
		if at := begin(t, r); at.Number != 2 {
			t.Fatal(at)
		}
		r.Close()
	}
}

// resumeChild begins, and waits to be killed; or says why it may not.
func resumeChild(c childConfig) {
	ctx := context.Background()
	r, err := Open(ctx, c.Storage, "x")
	if err == nil {
		_, err = r.Begin(ctx, BeginOptions{})
	}
	if err == nil {
		err = r.SetStatus(ctx, Status{State: Running})
	}
	if err != nil {
		fmt.Println(fault.CodeOf(err), err)
		// The other one's status comes after its start.
		for {
			if st, err := r.Status(ctx); err == nil && st.State == Running {
				return
			}
			time.Sleep(time.Millisecond)
		}
	}
	bufio.NewReader(os.Stdin).ReadByte()
}
