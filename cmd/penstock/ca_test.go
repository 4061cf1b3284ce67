package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// authorities are what penstock ca status prints.
func (c *testCluster) authorities() (as []authorityJSON) {
	c.t.Helper()
	for line := range strings.Lines(c.ok("ca", "status", "--json")) {
		var a authorityJSON
		if err := json.Unmarshal([]byte(line), &a); err != nil {
			c.t.Fatal(err)
		}
		as = append(as, a)
	}
	return as
}

// tokenFile makes an access token.
func (c *testCluster) tokenFile(name string) string {
	c.t.Helper()
	path := filepath.Join(c.dir, name)
	if err := os.WriteFile(path, []byte(c.ok("token", "create", "--scope", "admin", "--name", name)), 0o600); err != nil {
		c.t.Fatal(err)
	}
	return path
}

// The authority is replaced by commands, under a node that runs a job; a head that is killed
// meanwhile finds its way.
func TestRotateAuthority(t *testing.T) {
	c := newTestCluster(t)
	c.join("a", "--token", strings.TrimSpace(c.ok("token", "create")))
	end := filepath.Join(c.dir, "end")
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "job"), []byte("#!/bin/sh\nwhile [ ! -e "+end+" ]; do sleep 0.05; done\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	job := strings.TrimSpace(ok(t, "submit", "--detach", "--cluster", c.head, "--working-dir", work, "--", "./job"))
	c.until(job, func(j jobJSON) bool { return j.State == "running" })
	by := func(token string) result {
		t.Helper()
		return penstock(t, "status", "--cluster", c.addr, "--token-file", token)
	}
	before := c.tokenFile("before")
	first := c.authorities()
	if len(first) != 1 || first[0].State != "issues" || len(first[0].Nodes) != 1 {
		t.Fatalf("%+v", first)
	}
	if r := c.call("ca", "finish"); r.code != 2 || !strings.Contains(r.err, "penstock ca rotate begins that") {
		t.Errorf("%+v", r)
	}
	out := c.ok("ca", "rotate")
	now := c.authorities()
	if len(now) != 2 || now[1].Pin != first[0].Pin || now[1].State != "ends" || len(now[1].Tokens) != 1 || !strings.Contains(out, "authority "+now[0].Pin+" signs from now on") {
		t.Errorf("%s%+v", out, now)
	}
	if list := c.ok("token", "list"); !strings.Contains(list, "valid until penstock ca finish") {
		t.Error(list)
	}
	if table := c.ok("ca", "status"); !strings.Contains(table, now[0].Pin) || !strings.Contains(table, "ends") {
		t.Error(table)
	}
	if r := by(before); r.code != 0 {
		t.Errorf("%+v", r)
	}
	c.first.signal(syscall.SIGKILL)
	c.first.code()
	c.start()
	if r := by(before); r.code != 0 {
		t.Errorf("%+v", r)
	}
	for c.call("ca", "finish").code != 0 { // until the node is back and has said what it has
	}
	if r := by(before); r.code == 0 || !strings.Contains(r.err, "has replaced its authority") || !strings.Contains(r.err, "penstock token create") {
		t.Errorf("%+v", r)
	}
	if list := c.ok("token", "list"); !strings.Contains(list, "of a replaced authority") {
		t.Error(list)
	}

	// For a key that others may have: all at once.
	before = c.tokenFile("again")
	out = c.ok("ca", "rotate", "--now")
	if !strings.Contains(out, "is the only one") || !strings.Contains(out, "1 token of the one before is good no more") || strings.Contains(out, "join again") {
		t.Error(out)
	}
	if r := by(before); r.code == 0 || !strings.Contains(r.err, "has replaced its authority") {
		t.Errorf("%+v", r)
	}
	if r := by(c.tokenFile("new")); r.code != 0 {
		t.Errorf("%+v", r)
	}

	// Killed somewhere in it, whatever was done.
	for range 3 {
		asked := make(chan result, 1)
		go func() { asked <- penstock(t, "ca", "rotate", "--cluster", c.head) }()
		c.first.signal(syscall.SIGKILL)
		c.first.code()
		<-asked
		c.start()
		if len(c.authorities()) > 1 && c.authorities()[1].State == "ends" {
			c.ok("ca", "finish", "--force")
		}
		if in, err := os.ReadDir(filepath.Join(c.head, "ca")); err != nil || len(in) != 1 {
			t.Errorf("in the folder: %v, %v", in, err)
		}
		c.ok("status")
	}
	if r := c.call("ca", "rotate", "--wait", "1s"); r.code != 2 || !strings.Contains(r.err, "goes with --now") {
		t.Errorf("%+v", r)
	}
	if err := os.WriteFile(end, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	c.until(job, func(j jobJSON) bool { return j.State == "finished" && j.Attempts == 1 })
}
