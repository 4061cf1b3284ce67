package main

import (
	"context"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
)

// What the controller and a worker of the tests say to each other, of package wire.
type (
	fromController struct {
		Welcome *struct {
			Rank, World, Checkpoint int
			Reports                 int64
			Config                  workerConfig
			Data                    map[string]struct{ Socket string }
		}
		Reported *struct {
			N     int64
			Error *struct{ Text string }
		}
		Restored *struct {
			Dir   string
			Error *struct{ Text string }
		}
		Refused *struct{ Text string }
	}
	workerConfig struct {
		Out   string // folder for a file per step and rank
		Steps int64  // of training
		Every int64  // steps between checkpoints
		Tell  string // fifo into which rank 0 writes the number of each step that it has made, a line each
		Wait  int    // milliseconds that a step takes
		Same  bool   // all ranks give the same file
		Die   int64  // rank 1 kills itself before this step of the first attempt

		// Of chaos_test.go.
		Dir    string // for what is noted and looked for
		HoldAt int64  // the step after which workers wait while there is a file hold, and rank 1 panics where there is a file fault
	}
	// stepFile is what a rank had of a step.
	stepFile struct {
		Digest string
		N      []int64
	}
)

// worker is the main function of a worker of the tests: it speaks to the controller and the data process as the
// library for Python does.
func worker() error {
	ctx := context.Background()
	rank, err := strconv.Atoi(os.Getenv("RANK"))
	if err != nil {
		return err
	}
	conn, err := net.Dial("unix", os.Getenv("PENSTOCK_CONTROL"))
	if err != nil {
		return err
	}
	defer conn.Close()
	in, out := json.NewDecoder(conn), json.NewEncoder(conn)
	attempt, _ := strconv.Atoi(os.Getenv("PENSTOCK_ATTEMPT"))
	// hear gives the next message that is not asked for by somebody else.
	hear := func() (m fromController, err error) {
		for m.Welcome == nil && m.Reported == nil && m.Restored == nil && err == nil {
			if err = in.Decode(&m); m.Refused != nil {
				err = errors.New(m.Refused.Text)
			}
		}
		return m, err
	}
	type object = map[string]any
	if err := out.Encode(object{"hello": object{"version": 2, "run": os.Getenv("PENSTOCK_RUN"), "attempt": attempt, "rank": rank, "pid": os.Getpid(), "client": "test"}}); err != nil {
		return err
	}
	m, err := hear()
	if err != nil {
		return err
	}
	w := *m.Welcome
	c := w.Config
	done := int64(0)
	if w.Checkpoint > 0 {
		if err := out.Encode(object{"restore": object{}}); err != nil {
			return err
		}
		if m, err = hear(); err != nil {
			return err
		}
		if m.Restored.Error != nil {
			return errors.New(m.Restored.Error.Text)
		}
		b, err := os.ReadFile(filepath.Join(m.Restored.Dir, "steps"))
		if err != nil {
			return err
		}
		if done, err = strconv.ParseInt(string(b), 10, 64); err != nil {
			return err
		}
	}
	data, err := feed.Dial(ctx, w.Data["train"].Socket, rank, nil)
	if err != nil {
		return err
	}
	tell := io.Discard
	if c.Tell != "" && rank == 0 {
		f, err := os.OpenFile(c.Tell, os.O_RDWR, 0) // it does not wait for who listens
		if err != nil {
			return err
		}
		defer f.Close()
		tell = f
	}
	var log *os.File
	if c.Dir != "" {
		if log, err = os.OpenFile(filepath.Join(c.Dir, fmt.Sprintf("log-%s-%d-%d", os.Getenv("PENSTOCK_JOB_ATTEMPT"), attempt, rank)), os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o644); err != nil {
			return err
		}
		defer log.Close()
	}
	reports := w.Reports
	for done < c.Steps {
		if c.Die > 0 && rank == 1 && attempt == 1 && done+1 == c.Die {
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
		b, err := data.Next(ctx)
		if err == io.EOF {
			continue
		}
		if err != nil {
			return err
		}
		if done++; c.Out != "" {
			if err := noteStep(c.Out, b, done, rank, w.World); err != nil {
				return err
			}
		}
		if log != nil {
			if _, err := fmt.Fprintf(log, "%d %d/%d %x\n", done, b.Epoch(), b.Step(), b.Digest()); err != nil {
				return err
			}
			if done == c.HoldAt {
				hold(c.Dir, fmt.Sprint("rank-", rank), rank == 1)
			}
		}
		b.Release()
		if _, err := fmt.Fprintln(tell, done); err != nil {
			return err
		}
		time.Sleep(time.Duration(c.Wait) * time.Millisecond) // the work of a step, without which a run would be over before anybody could stop it; nobody waits for this
		if done%c.Every != 0 && !data.Noticed() {
			continue
		}
		reports++
		at := data.State()
		place := object{"epoch": at.Epoch, "step": at.Step}
		r := object{"n": reports, "metrics": object{"loss": 1 / float64(done), "steps": done}, "data": object{"train": place}}
		if rank == 0 || c.Same {
			place["state"] = at
			dir, err := os.MkdirTemp("", "ckpt")
			if err != nil {
				return err
			}
			defer os.RemoveAll(dir)
			if err := os.WriteFile(filepath.Join(dir, "steps"), []byte(fmt.Sprint(done)), 0o644); err != nil {
				return err
			}
			r["dir"] = dir
		}
		if err := out.Encode(object{"report": r}); err != nil {
			return err
		}
		if m, err = hear(); err != nil {
			return err
		}
		if m.Reported.Error != nil {
			return errors.New(m.Reported.Error.Text)
		}
		if data.Noticed() {
			fmt.Printf("rank %d noticed\n", rank)
			break
		}
	}
	fmt.Printf("rank %d: %d steps\n", rank, done)
	if gpus, ok := os.LookupEnv("CUDA_VISIBLE_DEVICES"); ok {
		fmt.Printf("rank %d sees GPUs %s\n", rank, gpus)
	}
	if err := data.Close(); err != nil {
		return err
	}
	return out.Encode(object{"done": object{}})
}

// hold waits as long as there is a file hold in dir, of which it leaves a note with its name. Where there is a file fault it panics, if it may: once, or always, as the file says.
func hold(dir, name string, mayPanic bool) {
	fault := filepath.Join(dir, "fault")
	if b, err := os.ReadFile(fault); err == nil && mayPanic {
		if string(b) != "once" || os.Remove(fault) == nil {
			panic("a fault of the test")
		}
	}
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("held-%s-%s", os.Getenv("PENSTOCK_JOB_ATTEMPT"), name)), nil, 0o644); err != nil {
		panic(err)
	}
	memtest.Poll(time.Hour, func() bool {
		_, err := os.Stat(filepath.Join(dir, "hold"))
		return err != nil
	})
}

// noteStep writes what a rank had of a step. One that is there already must be the same.
func noteStep(dir string, b *shard.Batch, step int64, rank, world int) error {
	sum := b.Digest()
	text, err := json.Marshal(stepFile{hex.EncodeToString(sum[:]), b.Samples()})
	if err != nil {
		return err
	}
	name := filepath.Join(dir, fmt.Sprintf("%04d-%d-of-%d", step, rank, world))
	if old, err := os.ReadFile(name); err == nil && string(old) != string(text) {
		return fmt.Errorf("step %d of rank %d was another batch before", step, rank)
	}
	whole := filepath.Join(dir, "."+filepath.Base(name)) // a worker that is ended in the middle leaves nothing half
	if err := os.WriteFile(whole, text, 0o644); err != nil {
		return err
	}
	return os.Rename(whole, name)
}

// feedLines reads steps of a rank: their digests.
func feedLines(t *testing.T, socket string, rank, steps int) (digests []string) {
	t.Helper()
	c, err := feed.Dial(t.Context(), socket, rank, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range steps {
		b, err := c.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		sum := b.Digest()
		digests = append(digests, hex.EncodeToString(sum[:]))
		b.Release()
	}
	return digests
}
