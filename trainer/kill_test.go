package trainer

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/killtest"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/collective"
	"github.com/penstock-data/penstock/trainer/store"
	_ "gocloud.dev/blob/s3blob"
)

// model of the programs: a curve that is fitted by gradient descent, in an order of additions that depends on nothing but the number of workers.
type model [3]float64

// step of training, on the batches of all ranks: the loss before it.
func (m *model) step(c *Context, b *shard.Batch) (loss float64, err error) {
	ids, _ := b.Tensor("id")
	var sum [len(m) + 1]float64 // of gradients, and of losses
	for _, id := range shard.Values[int64](ids) {
		f := [len(m)]float64{1, float64(id%89) / 89, float64(id%7) / 7}
		d := -float64(id%61) / 61
		for i, w := range m {
			d += w * f[i]
		}
		for i := range m {
			sum[i] += 2 * d * f[i]
		}
		sum[len(m)] += d * d
	}
	if reduceAll != nil {
		err = reduceAll(c, sum[:])
	} else {
		err = AllReduce(c, sum[:], collective.Sum)
	}
	if err != nil {
		return 0, err
	}
	for i := range m {
		m[i] -= 0.1 * sum[i] / batch
	}
	return sum[len(m)] / batch, nil
}

// save writes a checkpoint that knows its place, with some files that take time.
func (m *model) save(s *Shard) (dir string, err error) {
	if dir, err = saveState(s); err != nil {
		return "", err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	for i := range 4 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("large-%d", i)), bytes.Repeat(b, 4000), 0o600); err != nil {
			return "", err
		}
	}
	return dir, os.WriteFile(filepath.Join(dir, "model.json"), b, 0o600)
}

func (m *model) restore(c *Context, s *Shard) error {
	if err := killtest.Say(c.Rank(), killtest.Restore, 0); err != nil {
		return err
	}
	if err := checkRestored(c, s); err != nil {
		return err
	}
	dir, err := c.Checkpoint().Dir(c)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(filepath.Join(dir, "model.json"))
	if err != nil {
		return err
	}
	return json.Unmarshal(b, m)
}

// losses are what all ranks wrote on this number of workers: by step. One that was made again must be the same one, on whichever rank.
func losses(t *testing.T, out string, world int) map[string]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(out, fmt.Sprintf("loss-%d-*", world)))
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]string{}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		b = b[:bytes.LastIndexByte(b, '\n')+1]
		for sc := bufio.NewScanner(bytes.NewReader(b)); sc.Scan(); {
			step, loss, _ := strings.Cut(sc.Text(), " ")
			if was, ok := all[step]; ok && was != loss {
				t.Fatalf("%s: the loss of step %s was %s, then %s", filepath.Base(name), step, was, loss)
			}
			all[step] = loss
		}
	}
	return all
}

// outcome of a run: losses by step, metrics by report.
type outcome struct {
	losses  map[string]string
	metrics map[int64]store.Metrics
}

func outcomeOf(t *testing.T, c conf, storage string) (o outcome) {
	t.Helper()
	run, err := store.Open(t.Context(), storage, c.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	o = outcome{losses(t, c.Out, c.Workers), map[int64]store.Metrics{}}
	for row, err := range run.History(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		if _, twice := o.metrics[row.Report]; twice {
			t.Errorf("report %d has metrics twice", row.Report)
		}
		o.metrics[row.Report] = row.Metrics
	}
	list, err := run.Checkpoints(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(list) == 0 {
		t.Error("no checkpoint is left")
	}
	for i := range list {
		if err := run.Verify(t.Context(), &list[i]); err != nil {
			t.Error(err)
		}
	}
	return o
}

// alone are the outcomes of runs that nobody disturbs, by their number of workers.
var alone sync.Map

func undisturbedOn(t *testing.T, workers int) outcome {
	t.Helper()
	if o, ok := alone.Load(workers); ok {
		return o.(outcome)
	}
	c := newConf(t, "alone")
	c.Workers, c.StepMS = workers, 0
	cfg := c.config()
	cfg = inGoroutines(cfg)
	fitOK(t, c.loop, cfg)
	o := outcomeOf(t, c, c.Storage)
	if len(o.losses) != steps*epochs || len(o.metrics) != 8 {
		t.Fatalf("%d losses, %d reports: the test is wrong", len(o.losses), len(o.metrics))
	}
	alone.Store(workers, o)
	return o
}

// Whatever is killed, and whenever: the run finishes with the samples of one that was left alone, and on the same number of workers with its losses, bit by bit.
func TestKilled(t *testing.T) {
	runs, soak := 15, os.Getenv("PENSTOCK_SOAK") != ""
	if soak {
		runs = 100
	}
	storage, hits, ran := killtest.NewStorage(t), killtest.Tally{}, 0
	for i := range runs {
		seed := uint64(i)
		if s := os.Getenv("PENSTOCK_SEED"); s != "" {
			var err error
			if seed, err = strconv.ParseUint(s, 10, 64); err != nil {
				t.Fatal(err)
			}
		} else if soak {
			seed = rand.Uint64()
		}
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			ran++
			k := killtest.CaseOf(i, seed)
			r := k.Rand()
			c := newConf(t, "killed")
			c.Workers, c.Async, c.StepMS = 1+r.IntN(3), r.IntN(2) == 0, 1+r.IntN(6)
			c.DataProcess = k.Victim == killtest.Data || r.IntN(2) == 0
			then := c.Workers // of a controller that resumes
			if r.IntN(2) == 0 {
				then = 1 + r.IntN(3)
			}
			var direct, dir string
			c.Storage, direct, dir = storage.Of(t, k)
			t.Logf("%v: %d workers, later %d, async %v, data process %v, %d ms a step (PENSTOCK_SEED=%d repeats these)", k, c.Workers, then, c.Async, c.DataProcess, c.StepMS, seed)
			before := c.Workers
			run := killtest.Run{Case: k, Dir: filepath.Join(dir, c.Name), Steps: steps * epochs, Every: c.Every, StepTime: time.Duration(c.StepMS) * time.Millisecond, Takes: 300*time.Millisecond + steps*epochs*time.Duration(c.StepMS)*time.Millisecond, Limit: time.Minute,
				Start: func(resume bool) (*exec.Cmd, int) {
					if c.Resume = resume; resume {
						c.Workers = then
					}
					cmd := exec.Command(os.Args[0])
					cmd.Env = append(os.Environ(), c.env()...)
					return cmd, c.Workers
				}}
			kills := run.Finish(t)
			hits.Add(kills)
			sameLedger(t, c.Out)
			got := outcomeOf(t, c, direct)
			if c.Workers == before {
				want := undisturbedOn(t, c.Workers)
				if !maps.Equal(got.losses, want.losses) {
					t.Errorf("losses are not those of a run that nobody disturbs:\n%v\n%v", got.losses, want.losses)
				}
				for n, m := range want.metrics {
					if !maps.Equal(got.metrics[n], m) {
						t.Errorf("report %d is %v, want %v", n, got.metrics[n], m)
					}
				}
			}
			if len(got.metrics) != 8 {
				t.Errorf("%d reports", len(got.metrics))
			}
			nothingLeft(t, c)
		})
	}
	if ran == runs {
		storage.Check(t)
		hits.Check(t, soak)
	}
}
