// Package gangtest makes gangs for tests, on one machine and with real certificates.
package gangtest

import (
	"net"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/internal/pki"
)

// New is a gang of n members in this process, which is closed with the test. Dir returns the folder of a member.
func New(t testing.TB, n int) []*gang.Gang {
	t.Helper()
	gs, _ := WithFolders(t, n)
	return gs
}

// WithFolders is New, with the members' folders: what their aides need (gang.EnvDir).
func WithFolders(t testing.TB, n int) (gs []*gang.Gang, dirs []string) {
	t.Helper()
	return WithData(t, n, 0)
}

// WithData is WithFolders, where so many members, the last ones, are on data nodes.
func WithData(t testing.TB, n, data int) (gs []*gang.Gang, dirs []string) {
	t.Helper()
	base := t.TempDir()
	ca, err := pki.OpenCA(filepath.Join(base, "ca"), "c0", nil)
	if err != nil {
		t.Fatal(err)
	}
	listeners := make([]net.Listener, n)
	info := gang.Info{Cluster: "c0", Job: "j1", Attempt: 1, Addresses: make([]string, n), DataNodes: data}
	for i := range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		listeners[i], info.Addresses[i] = l, l.Addr().String()
	}
	for i := range n {
		info := info
		info.Node = i
		key, err := pki.NewKey()
		if err != nil {
			t.Fatal(err)
		}
		csr, err := pki.NewCSR(key)
		if err != nil {
			t.Fatal(err)
		}
		chain, err := ca.IssueMember(csr, info.Job, info.Attempt, i)
		if err != nil {
			t.Fatal(err)
		}
		c, err := pki.Assemble(chain, key, ca.Pin(), pki.Member)
		if err != nil {
			t.Fatal(err)
		}
		dir := filepath.Join(base, strconv.Itoa(i))
		if err := gang.Write(dir, info, c); err != nil {
			t.Fatal(err)
		}
		g, err := gang.Open(dir, listeners[i])
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.Close() })
		gs, dirs = append(gs, g), append(dirs, dir)
	}
	return gs, dirs
}

// Place has a process that is not yet started take the place of g, whose folder is dir, as an agent would have it: g is closed, and the process inherits a socket that
// listens at its address.
func Place(t testing.TB, c *exec.Cmd, g *gang.Gang, dir string) {
	t.Helper()
	addr := g.Address()
	g.Close()
	l, err := net.Listen("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	f, err := l.(*net.TCPListener).File()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	c.Env = append(c.Environ(), gang.EnvDir+"="+dir, gang.EnvFD+"="+strconv.Itoa(3+len(c.ExtraFiles)))
	c.ExtraFiles = append(c.ExtraFiles, f)
}
