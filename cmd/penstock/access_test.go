package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The command line of those who look after a cluster that several people share: owners, projects,
// what they may have, and who did what.
func TestSharedCluster(t *testing.T) {
	state := t.TempDir()
	dir := filepath.Join(state, "head")
	head := stay(t, "start", "--head", "--dir", dir, "--cpus", "0", "--listen", "127.0.0.1:0")
	at := head.hear("  penstock join ")
	_, at, _ = strings.Cut(at, "penstock join ")
	at = strings.Fields(at)[0]
	local := func(args ...string) string { return ok(t, append(args, "--cluster", dir)...) }
	if out := local("project", "set", "team-a", "--jobs-waiting", "1", "--pack-bytes", "2GiB", "--log-bytes", "-1"); out != "project team-a is set\n" {
		t.Error(out)
	}
	if out := local("project", "list"); !strings.Contains(out, "NAME    WAITING  OF  RUNNING  OF       PACKS  OF       LOGS\nteam-a  0        1   0        default  0 B    2.0 GiB  no limit\n") {
		t.Error(out)
	}
	local("owner", "set", "ada", "--jobs-running", "3")
	if out := local("owner", "list", "--json"); out != `{"name":"ada","jobs_waiting":null,"jobs_running":3,"pack_bytes":null,"log_bytes":null,"waiting":0,"running":0,"packed":0}`+"\n" {
		t.Error(out)
	}
	if r := penstock(t, "token", "create", "--owner", "ada", "--cluster", dir); r.code != exitUsage || !strings.Contains(r.err, "--owner and --project go with --scope") {
		t.Errorf("%+v", r)
	}
	file := filepath.Join(state, "token")
	if err := os.WriteFile(file, []byte(local("token", "create", "--scope", "submit", "--owner", "ada", "--project", "team-a", "--name", "laptop")), 0o600); err != nil {
		t.Fatal(err)
	}
	if out := local("token", "list"); !strings.Contains(out, "ada    team-a   laptop\n") {
		t.Error(out)
	}
	program := filepath.Join(state, "dir", "program")
	if err := os.MkdirAll(filepath.Dir(program), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	submit := []string{"submit", "--detach", "--working-dir", filepath.Dir(program), "--cluster", at, "--token-file", file, "--", "./program", "a-secret"}
	if r := penstock(t, submit...); r.code != 0 || r.out != "j1\n" {
		t.Errorf("%+v", r)
	}
	if r := penstock(t, submit...); r.code != exitFailed || !strings.Contains(r.err, "1 jobs of project team-a wait, of 1 (jobs-waiting): wait, stop some, or have an administrator raise it: penstock project set team-a --jobs-waiting N") {
		t.Errorf("%+v", r)
	}
	if out := local("jobs"); !strings.Contains(out, "j1   team-a/program  ada    queued") {
		t.Error(out)
	}
	if r := penstock(t, "audit", "--cluster", at, "--token-file", file); r.code != exitFailed || !strings.Contains(r.err, "scope admin") {
		t.Errorf("%+v", r)
	}
	local("stop", "j1")
	out := local("audit")
	for _, want := range []string{"submit", "(ada)  127.0.0.1  ", "job j1", "team-a/program", "exhausted", "denied", "create-token", "set-quota", "project team-a", "jobs-waiting=1", "stop"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q", want)
		}
	}
	if strings.Contains(out, "a-secret") {
		t.Error("a command is on record")
	}
	if t.Failed() {
		t.Log(out)
	}
	if out := local("audit", "--job", "j1", "--since", "1h", "--json"); strings.Count(out, "\n") != 2 || !strings.Contains(out, `"owner":"ada","project":"team-a","from":"127.0.0.1","action":"submit","kind":"job","object":"j1","detail":"team-a/program","result":"ok"}`) {
		t.Error(out)
	}
	local("owner", "remove", "ada")
}
