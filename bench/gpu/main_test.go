package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/memtest"
)

// TestMain is this program too, where it is started as one.
func TestMain(m *testing.M) {
	if os.Getenv("BENCH_GPU_TEST") != "" {
		main()
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// Without a GPU it says so, writes nothing, and all is well. CUDA_VISIBLE_DEVICES hides one that is there.
func TestNoGPU(t *testing.T) {
	out := filepath.Join(t.TempDir(), "gpu.md")
	c := exec.Command(os.Args[0], "-o", out, "-penstock", "/nowhere/penstock", "-python", "/nowhere/python")
	c.Env = append(os.Environ(), "BENCH_GPU_TEST=1", "CUDA_VISIBLE_DEVICES=")
	var said, printed strings.Builder
	c.Stderr, c.Stdout = &said, &printed
	if err := c.Run(); err != nil || !strings.Contains(said.String(), "no GPU on this machine, nothing to check: ") || printed.Len() > 0 {
		t.Errorf("%v: %q, %q", err, said.String(), printed.String())
	}
	if _, err := os.Stat(out); !os.IsNotExist(err) {
		t.Errorf("figures of nothing: %v", err)
	}
}

// The part that trains does so on a CPU as well, where its figures say nothing but that it is whole.
func TestTraining(t *testing.T) {
	if testing.Short() {
		memtest.Skip(t, "not with -short: it trains for half a minute")
	}
	python := datatest.Python(t, "torch", "numpy")
	binary := filepath.Join(os.Getenv("PENSTOCK_TEST_BIN"), "penstock")
	if !filepath.IsAbs(binary) {
		binary = filepath.Join(t.TempDir(), "penstock")
		if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/penstock").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	text, err := training{penstock: binary, python: python, lib: "../../python", cpu: true}.run(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Log(text)
	kit.CheckTable(t, strings.TrimSpace(text), 3)
	if !strings.Contains(text, "| numbers of all batches that are not as they should be on the device | 0 | 0 |") {
		t.Error("batches were not checked")
	}
}

// What misses its goal is said, and is an error; the figures are there all the same.
func TestGoals(t *testing.T) {
	good := func() map[string]float64 {
		return map[string]float64{"copy_ratio": 0.95, "stall": 0.01, "loss_first": 2, "loss": 1}
	}
	device := map[string]float64{"utilisation": 0.5}
	if _, err := (training{}).lines(good(), device); err != nil {
		t.Error(err)
	}
	for name, v := range map[string]float64{"copy_ratio": 0.89, "stall": 0.021, "loss": 3, "wrong": 1} {
		m := good()
		m[name] = v
		if text, err := (training{}).lines(m, device); err == nil || !strings.Contains(text, "| what |") {
			t.Errorf("%s %v: %v", name, v, err)
		}
	}
	if _, err := (training{}).lines(good(), nil); err == nil {
		t.Error("a device that nobody measures is fine")
	}
}
