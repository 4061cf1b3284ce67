package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	_ "embed"

	"github.com/penstock-data/penstock/trainer/store"
)

//go:embed train.py
var script string

// rows of a batch, of 16 columns of float32: 4 MiB.
const rows = 65536

// training is a run of `penstock train` on one leased GPU, and what it needs.
type training struct {
	penstock, python, lib string // the command, the interpreter, the folder of package penstock
	cpu                   bool   // for tests: on the CPU, and little of everything
}

// goals of the figures.
const (
	copyGoal  = 0.9  // speed of copies from the ring / from plain pinned memory
	stallGoal = 0.02 // time that the device waits for its batch / time of a step
)

// run trains, and returns lines of Markdown. The error names what is wrong, with the lines.
func (tr training) run(ctx context.Context) (string, error) {
	dir, err := os.MkdirTemp("", "penstock-gpu-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	lib, err := filepath.Abs(tr.lib)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "train.py"), []byte(script), 0o600); err != nil {
		return "", err
	}
	spec := filepath.Join(dir, "gpu.json")
	b, err := json.Marshal(tr.spec(dir, lib)) // YAML, too
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(spec, b, 0o600); err != nil {
		return "", err
	}
	cmd := exec.CommandContext(ctx, tr.penstock, "train", spec, "--name", "gpu", "--storage", dir)
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("%s train: %w; what it printed says more", tr.penstock, err)
	}
	m, device, err := figures(ctx, dir)
	if err != nil {
		return "", err
	}
	return tr.lines(m, device)
}

// spec of the run: numbers that the script can check, made as they are read.
func (tr training) spec(dir, lib string) map[string]any {
	type object = map[string]any
	columns, names := object{}, []string{}
	for i := range 16 {
		name := fmt.Sprintf("c%02d", i)
		columns[name] = fmt.Sprintf("(id * %d %% 1000) / 1000.0", i+1)
		names = append(names, name)
	}
	n, gpus, config := rows, 1, object{"cuda": true, "hidden": 1024, "step_ms": 25, "warm": 40, "steps": 600, "rounds": 15, "copies": 200}
	if tr.cpu {
		n, gpus, config = 1024, 0, object{"cuda": false, "hidden": 8, "step_ms": 1, "warm": 2, "steps": 20, "rounds": 3, "copies": 3}
	}
	train := object{
		"command": []string{tr.python, filepath.Join(dir, "train.py")}, "config": config,
		"env": []string{"PYTHONPATH=" + lib}, "failures": object{"worker": 0},
	}
	if gpus > 0 {
		train["resources"] = object{"gpus": gpus}
	}
	return object{
		"version": 1, "source": object{"range": object{"n": int64(n) << 14}}, "steps": []object{{"with_columns": columns}},
		"shards": object{"global_batch": n, "shuffle": "none", "columns": object{"x": object{"stack": names, "dtype": "float32"}}}, "train": train,
	}
}

// figures are the metrics of the last report, and the last that were measured of the device.
func figures(ctx context.Context, storage string) (m, device map[string]float64, err error) {
	run, err := store.Open(ctx, storage, "gpu")
	if err != nil {
		return nil, nil, err
	}
	defer run.Close()
	device = map[string]float64{}
	for row, err := range run.History(ctx) {
		if err != nil {
			return nil, nil, err
		}
		m = row.Metrics
		for name, v := range m {
			if rest, ok := strings.CutPrefix(name, "rank0/gpu0/"); ok {
				device[rest] = v
			}
		}
	}
	list, err := run.Checkpoints(ctx)
	if err != nil {
		return nil, nil, err
	}
	if len(list) == 0 || !slices.ContainsFunc(list[0].Files, func(f store.File) bool { return f.Path == "model.pt" }) {
		return nil, nil, errors.New("the run has no checkpoint with the model")
	}
	return m, device, nil
}

// lines are the table. What misses its goal is an error, beside them.
func (tr training) lines(m, device map[string]float64) (string, error) {
	var b strings.Builder
	var bad []string
	verdict := func(ok bool, text string) string {
		if !ok && !tr.cpu {
			bad = append(bad, text)
		}
		return text
	}
	gb := func(name string) float64 { return m[name] / 1e9 }
	b.WriteString("\n| what | figure | goal |\n|---|---|---|\n")
	fmt.Fprintf(&b, "| copies of %.1f MiB to the device from the ring, registered with CUDA: speed / copies of plain pinned memory, in turns | %s (A/A: %.2fx); %.1f GB/s, plain pinned %.1f GB/s, plain %.1f GB/s | >= %.1fx |\n",
		m["bytes"]/(1<<20), verdict(m["copy_ratio"] >= copyGoal, fmt.Sprintf("%.2fx", m["copy_ratio"])), m["copy_again"], gb("copy_ring"), gb("copy_pinned"), gb("copy_pageable"), copyGoal)
	fmt.Fprintf(&b, "| training, `iter_torch_batches(\"cuda\", pin_memory=True)`: time that the device waits for its batch / time of a step | %s; a step %.1f ms, longest wait %.2f ms, the loop asks for a batch in %.0f us | <= %.0f %% |\n",
		verdict(m["stall"] <= stallGoal, fmt.Sprintf("%.2f %%", 100*m["stall"])), 1e3*m["step"], 1e3*m["longest_wait"], 1e6*m["asked"], 100*stallGoal)
	fmt.Fprintf(&b, "| numbers of all batches that are not as they should be on the device | %s | 0 |\n", verdict(m["wrong"] == 0, fmt.Sprintf("%.0f", m["wrong"])))
	fmt.Fprintf(&b, "| loss, the first steps and the last | %s | falls |\n", verdict(m["loss"] < m["loss_first"], fmt.Sprintf("%.4g to %.4g", m["loss_first"], m["loss"])))
	if !tr.cpu {
		of := func(name string) float64 {
			if v, ok := device[name]; ok {
				return v
			}
			return math.NaN()
		}
		fmt.Fprintf(&b, "| of the device, in the metrics of the run | %s | known |\n", verdict(len(device) > 0, fmt.Sprintf("utilisation %s, memory %s, %s, %s",
			number("%.0f %%", 100*of("utilisation")), number("%.1f GiB", of("memory")/(1<<30)), number("%.0f C", of("temperature")), number("%.0f W", of("power")))))
	}
	if len(bad) > 0 {
		return b.String(), fmt.Errorf("goals that are missed: %s", strings.Join(bad, "; "))
	}
	if m["wrong"] != 0 {
		return b.String(), fmt.Errorf("%.0f numbers are not as they should be", m["wrong"])
	}
	return b.String(), nil
}
