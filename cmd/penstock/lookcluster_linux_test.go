package main

import (
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/memtest"
)

// detach submits a shell's script, and gives the id of the job.
func (c *testCluster) detach(script string, more ...string) string {
	c.t.Helper()
	dir := c.t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "job.sh"), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
		c.t.Fatal(err)
	}
	r := penstock(c.t, append(append([]string{"submit", "--cluster", c.head, "--working-dir", dir, "--detach", "--quiet"}, more...), "--", "./job.sh")...)
	if r.code != 0 {
		c.t.Fatalf("%+v", r)
	}
	return strings.TrimSpace(r.out)
}

// gate is what a script waits at until it is opened.
func gate(t *testing.T) (script string, open func()) {
	file := filepath.Join(t.TempDir(), "open")
	return fmt.Sprintf("while [ ! -e %s ]; do sleep 0.02; done", file), func() {
		if err := os.WriteFile(file, nil, 0o644); err != nil {
			t.Error(err)
		}
	}
}

func (c *testCluster) finished(ids ...string) {
	c.t.Helper()
	for _, id := range ids {
		if j := c.until(id, func(j jobJSON) bool { return !j.Ended.IsZero() }); j.State != "finished" {
			c.t.Errorf("%+v", j)
		}
	}
}

// hears waits for such a line that is as wanted; others come meanwhile.
func (d *daemon) hears(begin string, ok func(string) bool) {
	d.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(d.hear(begin)); {
		if time.Now().After(end) {
			d.t.Fatalf("%s goes on, and says:\n%s", d.name, d)
		}
	}
}

// status is what status --json says, when a part of it is as wanted.
func (c *testCluster) status(ok func(statusJSON) bool) (s statusJSON) {
	c.t.Helper()
	if !memtest.Poll(30*time.Second, func() bool {
		s = statusJSON{}
		if err := json.Unmarshal([]byte(c.ok("status", "--json")), &s); err != nil {
			c.t.Fatal(err)
		}
		return ok(s)
	}) {
		c.t.Fatalf("status %+v", s)
	}
	return s
}

// What people see of a cluster while it works: nodes and what is booked of them, where jobs go and why they wait, logs as they come; which GPUs jobs get; and nobody sees a secret.
func TestClusterLook(t *testing.T) {
	c := newTestCluster(t)
	c.used = strings.TrimSpace(c.ok("token", "create"))
	c.join("a", "--token", c.used, "--labels", "zone=a", "--resource", "disk=2", "--memory", "1GiB")
	c.join("b", "--token", strings.TrimSpace(c.ok("token", "create")), "--labels", "zone=b,kind=old", "--resource", "tape=1", "--memory", "1GiB")
	t.Run("status", c.looksAtStatus)
	t.Run("logs", c.looksAtLogs)
	t.Run("log that lacks lines", c.looksAtFullLog)
	t.Run("secrets", c.looksForSecrets)
	t.Run("devices", c.looksAtDevices)
}

func (c *testCluster) looksAtStatus(t *testing.T) {
	closed, open := gate(t)
	later, end := gate(t)
	var ids []string
	for _, x := range []struct{ flag, value, node string }{{"--labels", "zone=b", "n2"}, {"--labels", "zone=a", "n1"}, {"--resource", "tape=1", "n2"}, {"--resource", "disk=1", "n1"}} {
		more := []string{x.flag, x.value, "--cpus", "0.25", "--memory", "64MiB"}
		id := ""
		if x.value == "disk=1" {
			dir, file := c.spec(closed+"; exec cat", filepath.Join(t.TempDir(), "out"))
			id = strings.TrimSpace(c.ok(append([]string{"run", file, "--working-dir", dir, "--detach"}, more...)...))
		} else {
			id = c.detach(closed, more...)
		}
		if j := c.until(id, func(j jobJSON) bool { return j.State == "running" }); !slices.Equal(j.Nodes, []string{x.node}) || j.Needs.CPUs != 0.25 || j.Needs.Memory != 64<<20 {
			t.Errorf("%s %s: %+v", x.flag, x.value, j)
		}
		ids = append(ids, id)
	}
	whys, last := map[string]string{}, "" // last: one that will have room
	for _, x := range []struct{ flag, value, why string }{
		{"--labels", "zone=c", "no node that takes work has the labels zone=c"},
		{"--labels", "zone=a,kind=old", "no node that takes work has the labels kind=old,zone=a"},
		{"--resource", "robot=1", "it needs 0.5 CPUs, 1 robot on one node; the most that one has is 1 CPU"},
		{"--resource", "disk=2", "it needs 1 times 0.5 CPUs, 2 disk; there is room for 0 now"},
	} {
		last = c.detach(later, "--cpus", "0.5", x.flag, x.value)
		whys[last] = x.why
	}
	s := c.status(func(s statusJSON) bool { return s.Nodes[0].Used.Memory > 0 && s.Nodes[1].Used.Memory > 0 })
	text := c.ok("status")
	for i, want := range []nodeJSON{
		{ID: "n1", Name: "a", Total: resourcesJSON{1, 0, 1 << 30, map[string]int64{"disk": 2}}, Booked: resourcesJSON{0.5, 0, 128 << 20, map[string]int64{"disk": 1}}, Labels: map[string]string{"zone": "a"}},
		{ID: "n2", Name: "b", Total: resourcesJSON{1, 0, 1 << 30, map[string]int64{"tape": 1}}, Booked: resourcesJSON{0.5, 0, 128 << 20, map[string]int64{"tape": 1}}, Labels: map[string]string{"kind": "old", "zone": "b"}},
	} {
		n := s.Nodes[i]
		if n.Used.Memory > 1<<40 || n.Used.CPUs < 0 || time.Since(n.Seen).Abs() > time.Minute || n.Version == "" {
			t.Errorf("%+v", n)
		}
		want.State, want.Processes, want.Address, want.Used, want.Version, want.Seen = "alive", 2, "127.0.0.1", n.Used, n.Version, n.Seen
		if a, b := fmt.Sprintf("%+v", n), fmt.Sprintf("%+v", want); a != b {
			t.Errorf("%s\nis not\n%s", a, b)
		}
		row := regexp.MustCompile(fmt.Sprintf(`(?m)^%s +%s +alive +0\.5/1 +0/0 +[1-9][0-9.]* [KMGT]iB, 128 MiB, 1\.0 GiB +%s +2 +\S+ ago +127\.0\.0\.1 +%s *$`, n.ID, n.Name, []string{"disk 1/2", "tape 1/1"}[i], pairText(n.Labels)))
		if !row.MatchString(text) {
			t.Errorf("status has no line %s:\n%s", row, text)
		}
	}
	if len(s.Nodes) != 2 || len(s.Waiting) != len(whys) {
		t.Errorf("%+v", s)
	}
	for _, w := range s.Waiting {
		if why := whys[w.Job]; why == "" || w.Why != why || w.Since.IsZero() || !regexp.MustCompile(`(?m)^`+w.Job+` +\S+ +`+regexp.QuoteMeta(why)+`$`).MatchString(text) {
			t.Errorf("%+v, want %q:\n%s", w, why, text)
		}
	}
	// -w goes on to say what changes.
	seen, parsed := stay(t, "status", "-w", "--cluster", c.head), stay(t, "status", "-w", "--json", "--cluster", c.head)
	if l := seen.hear("n1 "); !strings.Contains(l, "disk 1/2") {
		t.Error(l)
	}
	open()
	seen.hears("n1 ", func(l string) bool { return strings.Contains(l, " disk 2/2 ") })
	end()
	seen.hears("n1 ", func(l string) bool { return strings.Contains(l, " disk 0/2 ") })
	c.finished(append(ids, last)...)
	parsed.hears("{", func(l string) bool {
		s := statusJSON{}
		if err := json.Unmarshal([]byte(l), &s); err != nil {
			t.Fatal(err)
		}
		return len(s.Nodes) == 2 && s.Nodes[0].Processes+s.Nodes[1].Processes == 0 && s.Nodes[0].Booked.CPUs == 0 && len(s.Waiting) == len(whys)-1
	})
}

func (c *testCluster) looksAtLogs(t *testing.T) {
	closed, open := gate(t)
	id := c.detach("echo first; " + closed + "; echo second")
	follows := stay(t, "logs", "-f", id, "--cluster", c.head)
	follows.hear("first")
	if got := c.ok("logs", id); got != "first\n" {
		t.Errorf("%q", got)
	}
	open()
	follows.hear("second")
	if code := follows.code(); code != 0 || follows.String() != "first\nsecond\n" {
		t.Errorf("exit %d: %q", code, follows)
	}
	c.finished(id)
	for tail, want := range map[string]string{"7": "second\n", "9": "t\nsecond\n", "1KiB": "first\nsecond\n"} {
		for _, follow := range []string{"-f", "-f=false"} {
			if got := c.ok("logs", follow, "--tail", tail, id); got != want {
				t.Errorf("the last %s (%s): %q", tail, follow, got)
			}
		}
	}
}

// filesWith are those below a folder that have a text in them.
func filesWith(t *testing.T, dir, text string) (all []string) {
	t.Helper()
	if err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			var b []byte
			if b, err = os.ReadFile(path); bytes.Contains(b, []byte(text)) {
				rel, _ := filepath.Rel(dir, path)
				all = append(all, rel)
			}
		}
		if errors.Is(err, fs.ErrNotExist) { // the cluster is at work
			err = nil
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
	return all
}

// A job whose log cannot be written ends as it would, and who follows it, and lists it, is told.
func (c *testCluster) looksAtFullLog(t *testing.T) {
	// Where the next job's log will be is known from that of the one before.
	before := c.detach("true", "--labels", "zone=a")
	c.until(before, func(j jobJSON) bool { return j.State == "finished" })
	had, err := filepath.Glob(filepath.Join(c.dir, "a", "logs", before+"-1-0*"))
	if err != nil || len(had) != 1 {
		t.Fatal(had, err)
	}
	n, err := strconv.Atoi(strings.TrimPrefix(before, "j"))
	if err != nil {
		t.Fatal(err)
	}
	id := fmt.Sprint("j", n+1)
	log := filepath.Join(filepath.Dir(had[0]), id+strings.TrimPrefix(filepath.Base(had[0]), before), "attempt-1", "process.log")
	if err := os.MkdirAll(filepath.Dir(log), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", log); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "job.sh"), []byte("#!/bin/sh\necho lost\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	why := "its log lacks lines: write " + log + ": no space left on device"
	if r := penstock(t, "submit", "--cluster", c.head, "--working-dir", dir, "--labels", "zone=a", "--", "./job.sh"); r.code != 0 || !strings.Contains(r.err, "penstock: warning: of job "+id+": its log lacks lines: ") {
		t.Errorf("%+v", r)
	}
	if j := c.until(id, func(jobJSON) bool { return true }); j.State != "finished" || j.Why != why || !strings.Contains(c.ok("jobs", id), "its log lacks lines") {
		t.Errorf("%+v\n%s", j, c.ok("jobs", id))
	}
}

// A job sees the value of a secret, and while it runs one file of the head has it; tokens are hashes.
func (c *testCluster) looksForSecrets(t *testing.T) {
	const value = "hunter2hunter2hunter2"
	t.Setenv("WORD", value)
	t.Setenv("SHOWN", "nosecretnosecret")
	up, wait := fifo(t, t.TempDir(), "up")
	closed, open := gate(t)
	id := c.detach(`printf %s "$WORD" | sha256sum > `+up+"; echo says; "+closed, "--secret", "WORD", "--env", "SHOWN", "--id", "quiet")
	if got, want := wait(), fmt.Sprintf("%x", sha256.Sum256([]byte(value))); !strings.HasPrefix(got, want) {
		t.Errorf("the job sees another value: %s", got)
	}
	access := strings.TrimSpace(c.ok("token", "create", "--scope", "read"))
	file := filepath.Join(t.TempDir(), "read.token")
	if err := os.WriteFile(file, []byte(access), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := penstock(t, "jobs", id, "--cluster", c.addr, "--token-file", file); r.code != 0 {
		t.Errorf("%+v", r)
	}
	shown := func() map[string]string {
		said := map[string]string{"the head's log": c.first.String()}
		for id, d := range c.nodes {
			said["the log of node "+id] = d.String()
		}
		for _, x := range [][]string{{"jobs"}, {"jobs", id}, {"jobs", id, "--json"}, {"status"}, {"status", "--json"}, {"logs", id}, {"token", "list", "--json"}} {
			said["penstock "+strings.Join(x, " ")] = c.ok(x...)
		}
		return said
	}
	only := func(what, text string, said map[string]string, files ...string) {
		t.Helper()
		if got := filesWith(t, c.dir, text); !slices.Equal(got, files) {
			t.Errorf("%s is in %q, want %q", what, got, files)
		}
		for who, s := range said {
			if strings.Contains(s, text) {
				t.Errorf("%s shows %s:\n%s", who, what, s)
			}
		}
	}
	only("the secret", value, shown(), "head/secrets/"+id)
	open()
	c.finished(id)
	tokens := map[string]string{"a token that was used to join": c.used, "one that was not": strings.TrimSpace(c.ok("token", "create")), "one for access": access}
	said := shown()
	only("the secret", value, said)
	for what, token := range tokens {
		only(what, strings.Split(token, ".")[2], said)
	}
	if got := said["penstock logs "+id]; got != "says\n" {
		t.Errorf("%q", got)
	}
	if got := filesWith(t, c.dir, "nosecretnosecret"); len(got) == 0 {
		t.Error("the records cannot be read like this")
	}
}

// Jobs on a node at once have GPUs of their own; what one had the next one gets.
func (c *testCluster) looksAtDevices(t *testing.T) {
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		t.Skip("this machine has GPUs of its own") // NVML would list those
	}
	twoGPUs(t)
	c.join("g", "--token", strings.TrimSpace(c.ok("token", "create")), "--labels", "zone=g", "--cpus", "4", "--gpus", "2")
	tmp := t.TempDir()
	up, wait := fifo(t, tmp, "up")
	script := fmt.Sprintf(`echo "$PENSTOCK_NODE has $CUDA_VISIBLE_DEVICES" > %s; while [ ! -e %s/free-$CUDA_VISIBLE_DEVICES ]; do sleep 0.02; done`, up, tmp)
	free := func(device string) {
		if err := os.WriteFile(filepath.Join(tmp, "free-"+device), nil, 0o644); err != nil {
			t.Error(err)
		}
	}
	var ids, got []string
	for range 2 {
		ids = append(ids, c.detach(script, "--gpus", "1"))
		got = append(got, wait())
	}
	if slices.Sort(got); !slices.Equal(got, []string{"n3 has 0", "n3 has 1"}) {
		t.Errorf("%q", got)
	}
	third := c.detach(script, "--gpus", "1")
	if j := c.until(third, func(jobJSON) bool { return true }); j.State != "queued" || j.Why != "it needs 1 times 1 CPU, 1 GPU; there is room for 0 now" {
		t.Errorf("%+v", j)
	}
	if s := c.status(func(s statusJSON) bool { return len(s.Nodes) == 3 }).Nodes[2]; s.Total.GPUs != 2 || s.Booked.GPUs != 2 {
		t.Errorf("%+v", s)
	}
	c.detach(fmt.Sprintf(`echo "$PENSTOCK_NODE without ${CUDA_VISIBLE_DEVICES-any}" > %s`, up), "--labels", "zone=g")
	if got := wait(); got != "n3 without" {
		t.Errorf("a job that asks for none: %q", got)
	}
	free("1")
	if got := wait(); got != "n3 has 1" {
		t.Errorf("the third: %q", got)
	}
	free("0")
	c.finished(append(ids, third)...)
}
