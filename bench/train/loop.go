package main

import (
	"bytes"
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer"
)

//go:embed py/*.py
var scripts embed.FS

const (
	workers = 2
	columns = 62 // of the files; batches have two more
	rank    = 1024
)

// settings of a loop, in Go (below) and in Python (py/loop.py): steps that sleep.
type settings struct {
	Out    string   `json:"out"`            // folder for what is measured
	Blocks [][2]int `json:"blocks"`         // milliseconds of a step, and how many of them
	Warm   int      `json:"warm"`           // steps before, of the first block's length
	Report bool     `json:"report"`         // after each step
	Save   int      `json:"save,omitempty"` // each so many steps the report has a file; 0: never
	Kill   int      `json:"kill,omitempty"` // in so many attempts rank 1 kills itself
}

// block is what a rank measured of one: seconds.
type block struct {
	MS     int     `json:"ms"`
	Steps  int     `json:"steps"`
	Wall   float64 `json:"wall"`
	Next   float64 `json:"next"`
	Report float64 `json:"report"`
	Sleep  float64 `json:"sleep"`
	Worst  float64 `json:"worst"` // wait for a batch
	CPU    float64 `json:"cpu"`   // of the rank's process
}

// marks are moments of a rank's attempt, in nanoseconds since the epoch.
type marks struct {
	Rank    int   `json:"rank"`
	Attempt int   `json:"attempt"`
	Started int64 `json:"started"` // the process, to 10 ms
	Main    int64 `json:"main"`    // its first line
	Loaded  int64 `json:"loaded"`  // what it imports is there
	Joined  int64 `json:"joined"`  // it is in the run, and has its shard
	First   int64 `json:"first"`   // batch
}

var began = time.Now()

// loop is a training loop whose steps sleep.
func loop(c *trainer.Context) error {
	var o settings
	if err := c.Decode(&o); err != nil {
		return err
	}
	m := marks{Rank: c.Rank(), Attempt: c.Attempt(), Started: processStart(), Main: began.UnixNano(), Loaded: began.UnixNano()}
	s, err := c.Shard("train")
	if err != nil {
		return err
	}
	m.Joined = time.Now().UnixNano()
	var blocks []block
	left := 0
	for i, ms := range append([][2]int{{o.Blocks[0][0], o.Warm}}, o.Blocks...) {
		k := block{MS: ms[0], Steps: ms[1]}
		from, used := time.Now(), kit.CPU().Seconds()
		for range ms[1] {
			begin := time.Now()
			x, err := s.Next(c)
			if err == io.EOF { // an epoch
				x, err = s.Next(c)
			}
			if err != nil {
				return err
			}
			got := time.Now()
			if m.First == 0 {
				m.First = got.UnixNano()
				if err := writeJSON(filepath.Join(o.Out, fmt.Sprintf("marks-%d-%d.json", m.Attempt, m.Rank)), m); err != nil {
					return err
				}
			}
			time.Sleep(time.Duration(ms[0]) * time.Millisecond) // the step
			slept := time.Now()
			x.Release()
			if left++; o.Kill >= m.Attempt && m.Rank == 1 && left == 25 {
				if err := writeJSON(filepath.Join(o.Out, fmt.Sprintf("killed-%d.json", m.Attempt)), time.Now().UnixNano()); err != nil {
					return err
				}
				if err := syscall.Kill(os.Getpid(), syscall.SIGKILL); err != nil {
					return err
				}
			}
			released := time.Now()
			if o.Report {
				dir := ""
				if o.Save > 0 && left%o.Save == 0 && m.Rank == 0 {
					if dir, err = saved(o.Out); err != nil {
						return err
					}
				}
				if err := c.Report(map[string]float64{"loss": 1, "accuracy": 0.5}, dir); err != nil {
					return err
				}
			}
			wait, report := got.Sub(begin).Seconds(), time.Since(released).Seconds()
			k.Next, k.Sleep, k.Report, k.Worst = k.Next+wait, k.Sleep+slept.Sub(got).Seconds(), k.Report+report, max(k.Worst, wait)
		}
		k.CPU = kit.CPU().Seconds() - used
		if k.Wall = time.Since(from).Seconds(); i > 0 {
			blocks = append(blocks, k)
		}
	}
	return writeJSON(filepath.Join(o.Out, fmt.Sprintf("rank-%d.json", m.Rank)), blocks)
}

// saved is a folder with what a small model leaves: 1 MiB.
func saved(out string) (string, error) {
	dir := filepath.Join(out, "model")
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return "", err
	}
	return dir, os.WriteFile(filepath.Join(dir, "state"), make([]byte, 1<<20), 0o666)
}

// writeJSON makes a file, whole or not at all.
func writeJSON(name string, v any) error {
	text, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if err := os.WriteFile(name+".new", text, 0o666); err != nil {
		return err
	}
	return os.Rename(name+".new", name)
}

func readJSON(name string, v any) error {
	text, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(text, v)
}

// processStart is when this process started, in nanoseconds since the epoch, as exactly as the system keeps it (10 ms).
func processStart() int64 {
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(text[bytes.LastIndexByte(text, ')')+1:]))
	ticks, err := strconv.ParseInt(fields[19], 10, 64)
	var up unix.Timespec
	if err != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &up) != nil {
		return 0
	}
	return time.Now().UnixNano() - up.Nano() + ticks*1e7
}

// makeData writes the files that loops read, where they are not there yet: 4 of 62 float32 each.
func makeData(ctx context.Context, dir string, quick bool) (string, error) {
	rows := int64(320_000)
	if quick {
		rows = 40_000
	}
	path := filepath.Join(dir, fmt.Sprintf("data-%d", rows))
	if _, err := os.Stat(path); err == nil {
		return path, nil
	}
	var make []string
	types := map[string]string{}
	for i := range columns {
		make = append(make, fmt.Sprintf("f%02d = random()", i))
		types[fmt.Sprintf("f%02d", i)] = "float32"
	}
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 20_000})
	if err != nil {
		return "", err
	}
	unfinished := path + ".new"
	if err := os.RemoveAll(unfinished); err != nil {
		return "", err
	}
	ds := dataset.Range(rows).WithColumns(make...).Cast(types).Drop("id")
	defer ds.Close()
	if _, err := ds.Write(ctx, unfinished, enc, &dataset.WriteOptions{RunOptions: dataset.RunOptions{Seed: 7}, TargetBytes: rows * columns}); err != nil {
		return "", err
	}
	return path, os.Rename(unfinished, path)
}

const keep = "f00 > 0.1"

var computed = []string{"rate = f00 / (f01 + 1.0)", "logged = log1p(f02)"}

// stack are the columns of a batch.
func stack() (names []string) {
	for i := range columns {
		names = append(names, fmt.Sprintf("f%02d", i))
	}
	return append(names, "rate", "logged")
}

// fitRole is a run of the loop in worker processes: fit CONFIG, where CONFIG is what follows as JSON. The data are served by the controller.
func fitRole(args []string) error {
	var f struct {
		Data, Storage string
		Settings      map[string]any
		Failed        string // file for the moments of failures
	}
	if err := json.Unmarshal([]byte(args[0]), &f); err != nil {
		return err
	}
	var failed []int64
	ds := dataset.ReadParquet(f.Data).Filter(keep).WithColumns(computed...)
	c := trainer.Config{Storage: f.Storage, Workers: workers, Processes: true, Settings: f.Settings, Log: slog.New(slog.NewTextHandler(os.Stderr, nil)),
		Data: map[string]trainer.Data{"train": {Dataset: ds, Options: dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7}, Options: shard.Options{GlobalBatch: workers * rank,
			Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{"x": {Stack: stack(), DType: shard.Float32}}}}}}},
		Events: trainer.Events{Failed: func(trainer.Failure) { failed = append(failed, time.Now().UnixNano()) }}}
	if _, err := trainer.New(loop, c).Fit(context.Background()); err != nil {
		return err
	}
	return writeJSON(f.Failed, failed)
}

// run is one of the loop.
type run struct {
	out    string
	cmd    *exec.Cmd
	log    *lines
	blocks [workers][]block
}

// lines are what a run's controller says, each with its moment.
type lines struct {
	at   []int64
	text []string
	rest []byte
}

func (l *lines) Write(b []byte) (int, error) {
	now := time.Now().UnixNano()
	l.rest = append(l.rest, b...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte{'\n'})
		if !ok {
			return len(b), nil
		}
		l.at, l.text, l.rest = append(l.at, now), append(l.text, string(line)), slices.Clone(rest)
	}
}

// start begins a run of the loop: in Go, or in Python under penstock train. Call wait.
func (b *bench) start(engine string, o settings) (*run, error) {
	out, err := os.MkdirTemp(b.Dir, engine+"-")
	if err != nil {
		return nil, err
	}
	o.Out = out
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	r := &run{out: out, log: &lines{}}
	switch engine {
	case "go":
		conf, err := json.Marshal(map[string]any{"Data": b.data, "Storage": filepath.Join(out, "runs"), "Settings": json.RawMessage(text), "Failed": filepath.Join(out, "failed.json")})
		if err != nil {
			return nil, err
		}
		r.cmd = exec.CommandContext(b.Ctx, b.self, "fit", string(conf))
	case "pytorch":
		spec := filepath.Join(out, "train.yaml")
		conf, err := json.Marshal(map[string]any{ // YAML as well
			"version": 1, "name": "bench", "source": map[string]any{"parquet": map[string]any{"paths": []string{b.data}}},
			"steps":  []any{map[string]any{"filter": keep}, map[string]any{"with_columns": map[string]string{"rate": computed[0][7:], "logged": computed[1][9:]}}},
			"shards": map[string]any{"global_batch": workers * rank, "seed": 7, "columns": map[string]any{"x": map[string]any{"stack": stack(), "dtype": "float32"}}},
			"train":  map[string]any{"command": []string{b.python, filepath.Join(b.Dir, "loop.py")}, "workers": workers, "storage": filepath.Join(out, "runs"), "config": json.RawMessage(text)},
		})
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(spec, conf, 0o666); err != nil {
			return nil, err
		}
		r.cmd = exec.CommandContext(b.Ctx, b.penstock, "train", spec)
		r.cmd.Env = b.environment()
	}
	r.cmd.Cancel = func() error { return r.cmd.Process.Signal(os.Interrupt) }
	r.cmd.WaitDelay = 20 * time.Second
	r.cmd.Stdout, r.cmd.Stderr = r.log, r.log // one writer: it is called by one goroutine
	return r, r.cmd.Start()
}

// wait for the end, and read what the ranks measured.
func (r *run) wait() error {
	if err := r.cmd.Wait(); err != nil {
		return fmt.Errorf("%w: %s", err, strings.Join(r.log.text[max(0, len(r.log.text)-15):], "\n"))
	}
	for i := range r.blocks {
		if err := readJSON(filepath.Join(r.out, fmt.Sprintf("rank-%d.json", i)), &r.blocks[i]); err != nil {
			return err
		}
	}
	return nil
}

// train is a whole run.
func (b *bench) train(engine string, o settings) (*run, error) {
	r, err := b.start(engine, o)
	if err != nil {
		return nil, err
	}
	return r, r.wait()
}

// share is a time of all blocks of a length (0: all) over another, of all ranks.
func (r *run) share(ms int, part, whole func(block) float64) float64 {
	var p, w float64
	for _, rank := range r.blocks {
		for _, k := range rank {
			if ms == 0 || k.MS == ms {
				p, w = p+part(k), w+whole(k)
			}
		}
	}
	return p / w
}

// worst wait for a batch in blocks of a length, in milliseconds.
func (r *run) worst(ms int) (most float64) {
	for _, rank := range r.blocks {
		for _, k := range rank {
			if k.MS == ms {
				most = max(most, 1000*k.Worst)
			}
		}
	}
	return most
}

// steps of all ranks, and the mean of a time per step in microseconds.
func (r *run) micros(part func(block) float64) float64 {
	return 1e6 * r.share(0, part, func(k block) float64 { return float64(k.Steps) })
}

func (b *bench) writeScripts() error {
	files, err := scripts.ReadDir("py")
	if err != nil {
		return err
	}
	for _, f := range files {
		text, err := scripts.ReadFile("py/" + f.Name())
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(b.Dir, f.Name()), text, 0o666); err != nil {
			return err
		}
	}
	return nil
}

// environment of everything in Python, and of penstock train.
func (b *bench) environment(more ...string) []string {
	return append(append(os.Environ(), "PYTHONPATH="+b.lib, "PENSTOCK_BINARY="+b.penstock, "PYTHONUNBUFFERED=1"), more...)
}

// script is a call of one of the scripts.
func (b *bench) script(name string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(b.Ctx, b.python, append([]string{filepath.Join(b.Dir, name)}, args...)...)
	cmd.Env = b.environment()
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = 10 * time.Second
	return cmd
}

// versions of Python and torch, for the head of the table.
func (b *bench) versions() string {
	if b.python == "" {
		return ""
	}
	text, err := b.script("check.py").Output()
	if err != nil {
		return ""
	}
	return ", " + strings.TrimSpace(string(text))
}
