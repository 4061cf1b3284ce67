package main

import (
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/freeport"
)

// listening is where a process and its descendants listen on TCP, as the kernel writes addresses, and how many processes these are.
func listening(t *testing.T, pid int) (at []string, processes int) {
	t.Helper()
	for _, p := range append(descendants(t, pid), pid) {
		fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", p))
		if fds == nil { // it has ended
			continue
		}
		processes++
		sockets := map[string]bool{}
		for _, fd := range fds {
			if to, err := os.Readlink(fd); err == nil { // others are closed meanwhile
				sockets[to] = true
			}
		}
		for _, table := range []string{"tcp", "tcp6"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", p, table))
			if err != nil { // so it has
				continue
			}
			for l := range strings.Lines(string(b)) {
				if f := strings.Fields(l); f[3] == "0A" && sockets["socket:["+f[9]+"]"] { // LISTEN
					at = append(at, f[1])
				}
			}
		}
	}
	return at, processes
}

// On one machine nothing listens on the network: not the head, its node, a pipeline with its child or a training run with its data process and workers. With --listen the head does, at that address, and nobody else.
func TestPorts(t *testing.T) {
	addr, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	host, port, _ := strings.Cut(addr, ":")
	var a, b, c, d byte
	var n int
	if _, err := fmt.Sscanf(host+" "+port, "%d.%d.%d.%d %d", &a, &b, &c, &d, &n); err != nil {
		t.Fatal(err)
	}
	for name, x := range map[string]struct {
		args []string
		want []string
	}{
		"one machine": {nil, nil},
		"listen":      {[]string{"--listen", addr}, []string{strings.ToUpper(hex.EncodeToString([]byte{d, c, b, a})) + fmt.Sprintf(":%04X", n)}},
	} {
		t.Run(name, func(t *testing.T) {
			dir, err := os.MkdirTemp("", "pc")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			c := &testCluster{t: t, dir: dir, head: filepath.Join(dir, "head")}
			c.first = stay(t, append([]string{"start", "--head", "--dir", c.head, "--cpus", "4", "--gpus", "0"}, x.args...)...)
			c.first.hear("cluster ")
			up, wait := fifo(t, dir, "up")
			work, file := c.spec(fmt.Sprintf("echo up > %s; exec sleep 1000", up), filepath.Join(dir, "out"))
			pipeline := c.follow(work, file)
			wait()
			runs := t.TempDir()
			made := listen(t, dir)
			spec := trainSpec(t, runs, "wait: 20, tell: "+made.path)
			training := startPenstock(t, "train", spec, "--cluster", c.head, "--working-dir", runs, "--name", "ports", "--set", "train.config.steps=1000000")
			made.wait(t, training, 2)
			at, processes := listening(t, c.first.cmd.Process.Pid)
			if !slices.Equal(at, x.want) || processes < 7 { // head, pipeline, its child, controller, data process, two workers
				t.Errorf("%d processes listen at %q, want %q", processes, at, x.want)
			}
			for _, pid := range []int{pipeline.cmd.Process.Pid, training.Process.Pid} {
				if at, _ := listening(t, pid); at != nil {
					t.Errorf("who follows a job listens at %q", at)
				}
			}
			c.ok("stop", "--all", "--grace", "20s")
		})
	}
}
