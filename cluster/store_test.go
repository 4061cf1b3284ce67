//go:build linux

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/etcdtest"
	"github.com/penstock-data/penstock/internal/fault"
)

// Two clusters share an etcd that speaks TLS and wants client certificates.
func TestStoreByTLS(t *testing.T) {
	dir := shortDir(t)
	cert, key := etcdtest.Certify(t, dir)
	etcd := act(t, role{Etcd: dir})
	if !strings.HasPrefix(etcd.ready, "etcds://") {
		t.Fatal(etcd.ready)
	}
	var ids []string
	for _, prefix := range []string{"/a/", "/b/"} {
		c := &testCluster{t: t, dir: shortDir(t)}
		c.cfg = HeadConfig{Dir: filepath.Join(c.dir, "head"), Listen: free(t), Lease: 2 * time.Second, Log: logTo(t),
			Store: StoreConfig{Address: etcd.ready, CA: cert, Cert: cert, Key: key, Prefix: prefix}}
		c.start()
		t.Cleanup(c.stop)
		c.join("a", Resources{CPUs: 1, Memory: 1 << 30})
		if s := c.over(c.submit(sh("exit 0"))); s.State != "finished" || s.ID != "j1" {
			t.Fatalf("%+v", s)
		}
		ids = append(ids, c.head.ID())
	}
	if ids[0] == ids[1] {
		t.Errorf("one cluster: %s", ids)
	}
	for _, x := range []struct {
		store StoreConfig
		code  fault.Code
		want  string
	}{
		{StoreConfig{Address: etcd.ready, CA: cert}, fault.Unavailable, "--store-cert"},
		{StoreConfig{Address: etcd.ready, CA: cert, Cert: cert, Key: key, Prefix: "/a"}, fault.Invalid, "does not end with a slash"},
		{StoreConfig{Address: etcd.ready, CA: cert, Insecure: true}, fault.Invalid, "not both"},
		{StoreConfig{Prefix: "/a/"}, fault.Invalid, "give its address"},
	} {
		h, err := StartHead(t.Context(), HeadConfig{Dir: filepath.Join(dir, "head"), Store: x.store})
		if err == nil {
			h.Close()
		}
		if fault.CodeOf(err) != x.code || !strings.Contains(err.Error(), x.want) {
			t.Errorf("%+v: %v", x.store, err)
		}
	}
}

func TestStoreLogin(t *testing.T) {
	path := filepath.Join(t.TempDir(), "login")
	for text, want := range map[string]string{"head:a:b c\n": "head|a:b c", "head:\r\n": "head|", "head": "", ":x": "", "": "", "head:x\ny": ""} {
		must(t, os.WriteFile(path, []byte(text), 0o600))
		user, password, err := StoreLogin(path)
		if got := user + "|" + password; (want == "") != (err != nil) || err == nil && got != want {
			t.Errorf("%q: %q, %v", text, got, err)
		} else if err != nil && !strings.Contains(err.Error(), "USER:PASSWORD") {
			t.Error(err)
		}
	}
	must(t, os.Chmod(path, 0o604))
	if _, _, err := StoreLogin(path); fault.CodeOf(err) != fault.Denied {
		t.Error(err)
	}
}

// copied gives a head's folder another that has the same authority, as on a second machine.
func copied(t *testing.T, dir string) string {
	to := filepath.Join(shortDir(t), "head")
	must(t, os.MkdirAll(filepath.Join(to, "ca"), 0o700))
	files, err := os.ReadDir(filepath.Join(dir, "ca"))
	must(t, err)
	for _, f := range files {
		b, err := os.ReadFile(filepath.Join(dir, "ca", f.Name()))
		must(t, err)
		must(t, os.WriteFile(filepath.Join(to, "ca", f.Name()), b, 0o600))
	}
	return to
}

// Two heads on one etcd: the second is refused while the first is there, starts when the first was killed or stood still for its lease, and the first one writes no more when it wakes up.
func TestTwoHeads(t *testing.T) {
	etcd := act(t, role{Etcd: shortDir(t)})
	c := newChaos(t, free(t), etcd.ready)
	waits := c.submit(sh("exit 0")) // there is no node
	other := c.cfg
	other.Dir, other.Listen, other.Log = copied(t, c.cfg.Dir), "127.0.0.1:0", logTo(t)
	if h, err := StartHead(c.ctx(), other); err == nil {
		h.Close()
		t.Fatal("a second head runs beside the first")
	} else if want := fmt.Sprintf("process %d, folder %s", c.h.cmd.Process.Pid, c.cfg.Dir); fault.CodeOf(err) != fault.Exists || !strings.Contains(err.Error(), want) {
		t.Fatalf("%v does not say %q", err, want)
	}

	c.h.kill()
	h, err := StartHead(c.ctx(), other)
	must(t, err)
	client, err := DialLocal(c.ctx(), other.Dir)
	must(t, err)
	defer client.Close()
	if js, err := client.Jobs(c.ctx(), waits); err != nil || js[0].State != "queued" {
		t.Fatal(js, err)
	}
	must(t, h.Close())
	c.startHead() // it waits for nothing: the other has said goodbye

	c.h.signal(syscall.SIGSTOP)
	h, err = StartHead(c.ctx(), other)
	must(t, err)
	defer h.Close()
	c.h.signal(syscall.SIGCONT)
	if _, _, err := c.client.Submit(c.ctx(), sh("exit 0")); err == nil {
		t.Error("the first head takes jobs on")
	}
	c.h.says(fmt.Sprintf("process %d, folder %s", os.Getpid(), other.Dir))
	select {
	case <-c.h.ended:
	case <-time.After(20 * time.Second):
		t.Fatal("the first head runs on")
	}
	again, err := DialLocal(c.ctx(), other.Dir)
	must(t, err)
	defer again.Close()
	if js, err := again.Jobs(c.ctx()); err != nil || len(js) != 1 || js[0].ID != waits {
		t.Errorf("%+v, %v", js, err)
	}
	select {
	case <-h.Done():
		t.Error(h.Err())
	default:
	}
}
