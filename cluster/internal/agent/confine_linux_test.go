package agent

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// confine has jobs run as nobody.
func confine(t *testing.T, isolate string) Confined {
	t.Helper()
	if os.Geteuid() != 0 {
		memtest.Skip(t, "only root runs jobs as another user")
	}
	public, err := os.MkdirTemp("", "penstock-confine-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(public) })
	if err := os.Chmod(public, 0o755); err != nil {
		t.Fatal(err)
	}
	c, err := Confine(Confinement{User: "nobody", Dir: filepath.Join(public, "jobs"), Isolate: isolate}, t.TempDir(), "/bin/sh", slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func ownerOf(t *testing.T, path string) (uid uint32, mode fs.FileMode) {
	t.Helper()
	fi, err := os.Lstat(path)
	if err != nil {
		t.Fatal(err)
	}
	return fi.Sys().(*syscall.Stat_t).Uid, fi.Mode().Perm()
}

// The folder of a process is closed until all is there, then what is in it is the user's, and links
// in it are not followed.
func TestGive(t *testing.T) {
	a := &agent{Config: Config{Dir: t.TempDir(), Jobs: confine(t, isolateOff)}}
	dir, err := a.makeFolder("j1/1/0")
	if err != nil {
		t.Fatal(err)
	}
	secret := filepath.Join(a.Dir, "secret")
	if err := errors.Join(os.WriteFile(secret, nil, 0o600), os.Mkdir(filepath.Join(dir, "work"), 0o700), os.Symlink(secret, filepath.Join(dir, "work", "link"))); err != nil {
		t.Fatal(err)
	}
	if err := a.Jobs.user.reaches(filepath.Join(dir, "work")); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("before it is given: %v", err)
	}
	if err := a.Jobs.give(dir); err != nil {
		t.Fatal(err)
	}
	if err := a.Jobs.user.reaches(filepath.Join(dir, "work")); err != nil {
		t.Error(err)
	}
	for path, want := range map[string]uint32{dir: 0, filepath.Join(dir, "work"): 65534, filepath.Join(dir, "work", "link"): 65534, secret: 0} {
		if uid, _ := ownerOf(t, path); uid != want {
			t.Errorf("%s is user %d's", path, uid)
		}
	}
	if err := a.clear(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(dir); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("what an agent has left that was killed: %v", err)
	}
	// Others may list neither what jobs there are nor, where another has the folder, put anything
	// there.
	if uid, mode := ownerOf(t, a.jobs()); uid != 0 || mode != 0o711 {
		t.Errorf("%d, %v", uid, mode)
	}
	if err := os.Chown(a.jobs(), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if _, err := jobsIn(filepath.Dir(a.jobs()), "", a.Jobs.user); err != nil {
		t.Errorf("of another node: %v", err)
	}
	for d := filepath.Dir(a.jobs()); d != os.TempDir(); d = filepath.Dir(d) {
		if err := os.Chown(d, 65534, 65534); err != nil {
			t.Fatal(err)
		}
		if _, err := jobsIn(filepath.Dir(a.jobs()), "", a.Jobs.user); fault.CodeOf(err) != fault.Denied {
			t.Errorf("%s is another user's: %v", d, err)
		}
		if err := os.Chown(d, 0, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// What the agent writes where jobs may write is written with their rights, and is theirs; other
// threads have the agent's.
func TestAs(t *testing.T) {
	c := confine(t, isolateOff)
	a := &agent{Config: Config{Dir: t.TempDir(), Jobs: c}}
	dir, err := a.makeFolder("j1/1/0")
	if err != nil {
		t.Fatal(err)
	}
	folder := filepath.Join(dir, "gang")
	if err := os.Mkdir(folder, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := c.give(dir); err != nil {
		t.Fatal(err)
	}
	key, err := pki.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		t.Fatal(err)
	}
	ca := authority(t, filepath.Join(a.Dir, "ca"), 0)
	chain, err := ca.IssueMember(csr, "j1", 1, 0)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := pki.Assemble(chain, key, ca.Pin(), pki.Member)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.as(func() error { return gang.WriteCertificate(folder, cert) }); err != nil {
		t.Fatal(err)
	}
	if uid, mode := ownerOf(t, filepath.Join(folder, gang.CertName)); uid != 65534 || mode != 0o600 {
		t.Errorf("%d, %v", uid, mode)
	}
	secret := filepath.Join(a.Dir, "secret")
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(secret, filepath.Join(folder, "link")); err != nil {
		t.Fatal(err)
	}
	if err := c.as(func() error { return os.WriteFile(filepath.Join(folder, "link"), []byte("x"), 0o600) }); !errors.Is(err, fs.ErrPermission) {
		t.Errorf("through a link: %v", err)
	}
	if err := os.WriteFile(secret, nil, 0o600); err != nil {
		t.Error(err)
	}
}

// A job has the environment of its node, but for what is the agent's.
func TestInherits(t *testing.T) {
	nobody := Confined{user: &jobUser{}}
	for name, want := range map[string]string{"PATH": "both", "AWS_SECRET_ACCESS_KEY": "both", "LD_LIBRARY_PATH": "both", "PENSTOCK_TOKEN": "", "PENSTOCK_": "", "NOTIFY_SOCKET": "", "CREDENTIALS_DIRECTORY": "", "XDG_RUNTIME_DIR": "own", "MAIL": "own"} {
		got := map[[2]bool]string{{true, true}: "both", {true, false}: "own"}[[2]bool{Confined{}.inherits(name), nobody.inherits(name)}]
		if got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	env := strings.Join((&process{a: &agent{Config: Config{Jobs: Confined{user: &jobUser{name: "n", home: "/h"}}}}, id: "j1/1/0"}).env("/t"), " ")
	for _, kv := range []string{"HOME=/h", "USER=n", "LOGNAME=n", "TMPDIR=/t"} {
		if !strings.Contains(env, kv) {
			t.Errorf("no %s in %s", kv, env)
		}
	}
}
