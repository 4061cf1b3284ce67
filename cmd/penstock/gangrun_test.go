package main

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/cluster/gang/gangtest"
)

// onNodes runs the command line in the processes of a gang of n, and gives what each printed.
func onNodes(t *testing.T, n int, args func(node int) []string) []result {
	t.Helper()
	gs, dirs := gangtest.WithFolders(t, n)
	cmds, outs := make([]*exec.Cmd, n), make([][2]bytes.Buffer, n)
	for i, g := range gs {
		c := command(t, args(i)...)
		gangtest.Place(t, c, g, dirs[i])
		c.Stdout, c.Stderr = &outs[i][0], &outs[i][1]
		cmds[i] = c
	}
	for _, c := range cmds {
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill() })
	}
	all := make([]result, n)
	for i, c := range cmds {
		c.Wait()
		all[i] = result{outs[i][0].String(), outs[i][1].String(), c.ProcessState.ExitCode()}
	}
	return all
}

// visible are the files that readers of a folder see.
func visible(t *testing.T, dir string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		data, err := os.ReadFile(p)
		fmt.Fprintf(&b, "%s %x\n", strings.TrimPrefix(p, dir), sha256.Sum256(data))
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestRunOnNodes: the output is that of one process, byte for byte; node 0 prints, the others are quiet; mistakes end all with their code.
func TestRunOnNodes(t *testing.T) {
	one, two := t.TempDir(), t.TempDir()
	sets := func(dir string) []string {
		return []string{"run", "examples/flights.yaml", "--quiet", "--set", "sink.parquet.path=" + dir, "--set", "sink.parquet.target_size=64KiB"}
	}
	if r := penstock(t, sets(one)...); r.code != 0 {
		t.Fatalf("exit %d: %s", r.code, r.err)
	}
	for _, want := range []string{"written in", "finished before"} {
		for i, r := range onNodes(t, 3, func(int) []string { return sets(two) }) {
			if r.code != 0 || r.err != "" || (r.out != "") != (i == 0) || i == 0 && !strings.Contains(r.out, want) {
				t.Errorf("node %d: exit %d: %q %q", i, r.code, r.out, r.err)
			}
		}
		if a, b := visible(t, one), visible(t, two); a == "" || a != b {
			t.Errorf("other files:\n%s\nthan those of one process:\n%s", b, a)
		}
	}
	count := func(int) []string {
		return []string{"run", "examples/flights.yaml", "--quiet", "--set", "sink={count: {}}"}
	}
	alone := penstock(t, count(0)...)
	if r := onNodes(t, 2, count); r[0].code != 0 || r[1].code != 0 || strings.Split(r[0].out, " in ")[0] != strings.Split(alone.out, " in ")[0] {
		t.Errorf("%+v, alone %+v", r, alone)
	}
	for i, r := range onNodes(t, 2, func(node int) []string {
		return append(sets(t.TempDir()), "--set", fmt.Sprintf("run.seed=%d", node))
	}) {
		if r.code != exitUsage || r.out != "" || !strings.Contains(r.err, "seed is \"1\" here, \"0\" there") {
			t.Errorf("node %d: exit %d: %q %q", i, r.code, r.out, r.err)
		}
	}
}

// TestRunOnNodesOfACluster: as a job it is the same; what it prints says which node a line is of.
func TestRunOnNodesOfACluster(t *testing.T) {
	c := nodesOf(t)
	work, one, two := t.TempDir(), t.TempDir(), t.TempDir()
	if err := os.CopyFS(filepath.Join(work, "examples"), os.DirFS("../../examples")); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(work, "examples", "flights.yaml")
	if err := os.WriteFile(file, []byte(strings.ReplaceAll(read(t, file), "examples/data", filepath.Join(work, "examples", "data"))), 0o644); err != nil {
		t.Fatal(err)
	}
	if r := penstock(t, "run", file, "--quiet", "--set", "sink.parquet.path="+one); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	r := c.call("run", file, "--working-dir", work, "--nodes", "2", "--cpus", "2", "--set", "sink.parquet.path="+two)
	if r.code != 0 || strings.Count(r.out, "written in") != 1 || !strings.Contains(r.out, "node 0 | ") || strings.Contains(r.out, "node 1 | ") {
		t.Errorf("%+v", r)
	}
	if a, b := visible(t, one), visible(t, two); a == "" || a != b {
		t.Errorf("other files:\n%s\nthan those of one process:\n%s", b, a)
	}
	count := []string{"run", file, "--json", "--set", "sink={count: {}}"}
	want := summaryOf(t, penstock(t, count...))
	for _, nodes := range []string{"1", "2"} {
		r := c.call(append(count, "--working-dir", work, "--nodes", nodes)...)
		if got := summaryOf(t, r); r.code != 0 || got["rows_out"] != want["rows_out"] {
			t.Errorf("on %s nodes: %+v, want rows_out %v", nodes, r, want["rows_out"])
		}
	}
	// The command prints the line of a process that had no time to.
	kills := writeSpec(t, `{version: 1, source: {range: {n: 9}}, steps: [{exec: {command: [sh, -c, "kill -9 $PPID; sleep 9"], workers: 1}}], sink: {count: {}}}`)
	r = c.call("run", kills, "--json", "--working-dir", filepath.Dir(kills))
	if got := summaryOf(t, r); r.code != 1 || len(got) != 3 || got["status"] != "failed" || !strings.Contains(fmt.Sprint(got["error"]), "ended 3 processes that read it") || got["code"] == nil {
		t.Errorf("%+v: %v", r, got)
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestRunLosesNodes: a run whose other nodes are gone may do better elsewhere, and says so with its exit code: 75.
func TestRunLosesNodes(t *testing.T) {
	for node := range 2 {
		t.Run(fmt.Sprint("node ", node), func(t *testing.T) {
			gs, dirs := gangtest.WithFolders(t, 2)
			c := command(t, "run", "examples/flights.yaml", "--quiet", "--set", "sink.parquet.path="+t.TempDir())
			gangtest.Place(t, c, gs[node], dirs[node])
			var out bytes.Buffer
			c.Stdout, c.Stderr = &out, &out
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { c.Process.Kill() })
			other := gs[1-node] // this process: it comes, and goes
			if node == 0 {
				conn, err := other.Dial(t.Context(), 0, "plan")
				if err != nil {
					t.Fatal(err)
				}
				conn.Close()
			} else {
				plan, err := other.Listen("plan")
				if err != nil {
					t.Fatal(err)
				}
				conn, _, err := plan.Accept(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				conn.Close()
			}
			c.Wait()
			if code := c.ProcessState.ExitCode(); code != exitPreempted || !strings.Contains(out.String(), "the other nodes of the job are not reached") {
				t.Errorf("exit %d, want %d: %s", code, exitPreempted, out.String())
			}
		})
	}
}
