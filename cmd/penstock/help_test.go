package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every example of every --help does what it says: it runs, in the order in which help lists them, in a
// folder that holds nothing but the examples of the repository.
func TestHelpExamplesRun(t *testing.T) {
	dir := t.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "examples"), os.DirFS("../../examples")); err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	bin := t.TempDir()
	if err := os.Symlink(self, filepath.Join(bin, "penstock")); err != nil {
		t.Fatal(err)
	}
	env := append(os.Environ(), "PENSTOCK_TEST_MAIN=1", "PATH="+bin+":"+os.Getenv("PATH"), "XDG_CACHE_HOME="+dir)
	// A run with checkpoints: its workers are those of worker_test.go.
	first := exec.Command(self, "train", "examples/train.yaml", "--name", "first", "--set", "train.command=["+self+"]", "--set", "train.env=[PENSTOCK_TEST_MAIN=worker]",
		"--set", "train.config={steps: 10, every: 5}")
	first.Dir, first.Env = dir, env
	if out, err := first.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := os.WriteFile(filepath.Join(dir, "late"), []byte("#!/bin/sh\necho \"$@\"\n"), 0o755); err != nil { // a program to submit
		t.Fatal(err)
	}
	// A cluster of this machine, with a job.
	state := t.TempDir()
	env = append(env, "XDG_STATE_HOME="+state)
	head := stay(t, "start", "--head", "--dir", filepath.Join(state, "penstock", "head"), "--cpus", "2", "--gpus", "0")
	head.hear("nothing listens on the network")
	job := exec.Command(self, "run", "examples/flights.yaml", "--cluster", "local", "--set", "sink={count: {}}")
	job.Dir, job.Env = dir, env
	if out, err := job.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	shown := func(c *cobra.Command, line string) bool { // but not run: they stay, or nothing else would be there, or it is nobody's, or of a cluster elsewhere
		return c.Name() == "start" || c.Name() == "join" || strings.Contains(line, "stop --all") || strings.Contains(line, "head.example.org") || c.Name() == "revoke" || c.Name() == "finish" || c.Name() == "remove"
	}
	ran := 0
	var visit func(c *cobra.Command)
	visit = func(c *cobra.Command) {
		if c.Example == "" && c.Name() != "version" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for line := range strings.Lines(c.Example) {
			if line = strings.TrimSpace(line); line == "" || shown(c, line) {
				continue
			}
			ran++
			sh := exec.Command("sh", "-c", "set -e; "+line)
			sh.Dir = dir
			sh.Env = env
			if c.Name() == "data" {
				sh.Stdin = strings.NewReader("") // a pipe, which ends
			}
			var stderr bytes.Buffer
			sh.Stderr = &stderr
			out, err := sh.Output()
			if err != nil || len(out) == 0 && !strings.Contains(line, " > ") {
				t.Errorf("%s: %v, %d bytes out: %s", line, err, len(out), stderr.String())
			}
			for said := range strings.Lines(stderr.String()) {
				if !strings.Contains(said, "to count") && !strings.HasPrefix(said, "penstock: run first") && !strings.HasPrefix(said, "penstock: run 20") && !strings.HasPrefix(said, "penstock: attempt ") && !strings.HasPrefix(said, "penstock: checkpoint ") && !strings.HasPrefix(said, "penstock: job ") {
					t.Errorf("%s: %s", line, said)
				}
			}
		}
		for _, sub := range c.Commands() {
			if sub.Name() != "help" {
				visit(sub)
			}
		}
	}
	visit(root())
	if ran < 15 {
		t.Errorf("only %d examples", ran)
	}
}

// The help of the program and of what may fail in several ways says how it exits, in the words of the code.
func TestHelpSaysExitCodes(t *testing.T) {
	for _, args := range [][]string{{"--help"}, {"run", "--help"}, {"batches", "--help"}, {"replay", "--help"}, {"validate", "--help"}} {
		r := penstock(t, args...)
		for _, code := range []int{exitOK, exitFailed, exitUsage, 130, 143} {
			if r.code != 0 || !strings.Contains(r.out, fmt.Sprintf("%d ", code)) || !strings.Contains(r.out, "Exit codes:") {
				t.Errorf("%v: exit %d, no code %d in %s", args, r.code, code, r.out)
			}
		}
	}
}

// A run that can go on has an exit code of its own.
func TestTrainHelpSaysExitCodes(t *testing.T) {
	for _, args := range [][]string{{"train", "--help"}, {"resume", "--help"}} {
		r := penstock(t, args...)
		for _, code := range []int{exitOK, exitFailed, exitUsage, 130, exitPreempted} {
			if r.code != 0 || !strings.Contains(r.out, fmt.Sprintf("%d ", code)) {
				t.Errorf("%v: exit %d, no code %d in %s", args, r.code, code, r.out)
			}
		}
	}
}

// explain says what settings cost.
func TestExplainCosts(t *testing.T) {
	out := ok(t, "explain", "examples/shards.yaml")
	for _, want := range []string{"memory: at most 64 MiB\n", "cpus: ", "read by: native decoder\n", "8 lanes, windows of 256 rows", "resident: about", "resident setting: not used", "prefetch: 2 steps, 4.5 KiB\n",
		"batches: tensors of 32 rows; 9 B a sample, 2.2 KiB a step of all ranks\n", "    distance  float32  [rows]  of distance (int32), times 0.001\n", "    late      uint8    [rows]  of late (bool)\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	const set = "--set"
	out = ok(t, "explain", "examples/shards.yaml", set, "shards.shuffle={resident: 64MiB}", set, "shards.prefetch=0", set, "run={cpus: 1, cache: {dir: "+t.TempDir()+"/c, max: 1GiB}}")
	for _, want := range []string{"(default: half of what is available, at most 4 GiB)", "cpus: 1\n", "/c: at most 1.0 GiB of what buckets give\n", "resident setting: 64 MiB; chooses the lanes", "prefetch: none"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	out = ok(t, "explain", "examples/shards.yaml", set, "shards.ranks=7", set, "shards.tail=pad", set, "shards.columns={x: {stack: [distance, delay], dtype: float32}, late: auto}")
	for _, want := range []string{"tensors of 36 or 37 rows; 10 B a sample, 2.5 KiB a step", "    x     float32  [rows, 2]  stack of distance, delay\n", "    mask  bool     [rows]     1 for samples, 0 for pads\n"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in %s", want, out)
		}
	}
	// The ranks are those that are trained, whatever shards.ranks says.
	if out := ok(t, "explain", "examples/train.yaml", set, "shards.ranks=8"); !strings.Contains(out, "\n  2 ranks (train.workers), steps of 64 samples") || !strings.Contains(out, "tensors of 32 rows") {
		t.Error(out)
	}
	text := writeSpec(t, "version: 1\nsource: {parquet: {paths: [examples/data/flights/]}}\nshards: {batch_per_rank: 100, ranks: 2}\n")
	if out := ok(t, "explain", text); !strings.Contains(out, "resident setting: 512 MiB (default); chooses the lanes") || !strings.Contains(out, "and what their texts and lists take") || !strings.Contains(out, "batches: Arrow records of 6 columns, of 100 rows; ") {
		t.Error(out)
	}
}
