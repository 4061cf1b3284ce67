package main

import (
	"bufio"
	"path/filepath"
	"strings"
	"testing"
)

// A head shows a join token on a terminal, and nowhere else: what it prints may be kept for long.
func TestJoinTokenShown(t *testing.T) {
	c := newTestCluster(t)
	if s := c.first.String(); strings.Contains(s, "penstock-join.") || !strings.Contains(s, "prints here: penstock token create --cluster "+c.head) {
		t.Errorf("in a log:\n%s", s)
	}
	if list := c.ok("token", "list"); strings.Contains(list, "join") {
		t.Errorf("nobody asked for\n%s", list)
	}
	ptmx, tty := terminal(t)
	d := command(t, "start", "--head", "--dir", filepath.Join(c.dir, "seen"), "--listen", "127.0.0.1:0", "--cpus", "0")
	d.Stdout = tty
	if err := d.Start(); err != nil {
		t.Fatal(err)
	}
	defer d.Wait()
	defer d.Process.Kill()
	tty.Close()
	for s := bufio.NewScanner(ptmx); s.Scan(); {
		if l := s.Text(); strings.HasPrefix(l, "  penstock join ") {
			if !strings.Contains(l, " --token penstock-join.") {
				t.Errorf("on a terminal: %s", l)
			}
			return
		}
	}
	t.Error("it ended without a word")
}
