package records

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/storage/backend"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"go.uber.org/zap"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

func TestOpenTwice(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	want := []string{"another process has the store in " + dir, "stop the head"}
	_, err := Open(within(t), Options{Dir: dir})
	wantCode(t, err, fault.Exists)
	has(t, err, want...)
	c := start(t, "open", "RECORDS_DIR="+dir)
	if got := c.line(t); !strings.HasPrefix(got, "exists: ") || !strings.Contains(got, want[0]) {
		t.Fatal(got)
	}
	if _, err := s.Next(within(t), "x"); err != nil { // and the first one has not noticed
		t.Fatal(err)
	}
	s.Close()
	s.Close()
	_, err = s.Next(within(t), "x")
	wantCode(t, err, fault.Unavailable)
	has(t, err, "the store is closed")
	s = open(t, Options{Dir: dir})
	if n, err := s.Next(within(t), "x"); err != nil || n != 2 {
		t.Fatal(n, err)
	}
}

// childOpen opens RECORDS_DIR, and says how that went.
func childOpen() {
	s, err := Open(context.Background(), Options{Dir: os.Getenv("RECORDS_DIR")})
	if err != nil {
		say("%v: %s", fault.CodeOf(err), strings.ReplaceAll(err.Error(), "\n", " "))
		return
	}
	n, err := s.Next(context.Background(), "x")
	say("open: %d %v", n, err)
	s.Close()
}

func TestOptions(t *testing.T) {
	for _, o := range []Options{
		{}, {Dir: "x", Endpoints: []string{"x:1"}}, {Dir: "x", Prefix: "/a"}, {Dir: "x", Timeout: -1}, {Dir: "x", Quota: -1}, {Dir: "x", Password: "p"},
		{Endpoints: []string{"10.0.0.1:2379"}}, {Endpoints: []string{"http://etcd.example:2379"}}, {Endpoints: []string{"127.0.0.1:1", "etcd.example:1"}}, {Endpoints: []string{"nothing"}},
		{Endpoints: []string{"http://127.0.0.1:1"}, TLS: &tls.Config{}}, {Endpoints: []string{"https://127.0.0.1:1"}},
	} {
		_, err := Open(t.Context(), o)
		wantCode(t, err, fault.Invalid)
	}
}

// The folder is private, the socket fits wherever the folder is, nothing listens on TCP, and what has ended leaves nothing outside the folder.
func TestPrivate(t *testing.T) {
	tmp := shortDir(t)
	t.Setenv("TMPDIR", tmp)
	for _, dir := range []string{filepath.Join(shortDir(t), "a b%20?"), filepath.Join(shortDir(t), strings.Repeat("long", 30))} {
		if err := os.Mkdir(dir, 0o777); err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		s := open(t, Options{Dir: dir, Log: slog.New(slog.NewTextHandler(&log, nil))})
		socket := s.server.socket
		if len(socket) > 103 {
			t.Errorf("socket %s", socket)
		}
		for _, d := range []string{dir, filepath.Dir(socket)} {
			if info, err := os.Stat(d); err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("%s has mode %v, %v", d, info.Mode(), err)
			}
		}
		if got := listening(t); len(got) > 0 {
			t.Errorf("listens on TCP: %q", got)
		}
		if _, err := s.Next(within(t), "x"); err != nil {
			t.Fatal(err)
		}
		s.Close()
		if left, _ := filepath.Glob(tmp + "/penstock-*"); len(left) > 0 {
			t.Errorf("left: %q", left)
		}
		if _, err := net.Dial("unix", socket); err == nil {
			t.Error("it still listens")
		}
		if log.Len() > 0 {
			t.Errorf("it is not quiet:\n%s", &log)
		}
	}
}

// listening is the TCP sockets on which this process listens.
func listening(t *testing.T) (lines []string) {
	t.Helper()
	ours := map[string]bool{}
	fds, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		memtest.Skip(t, "no /proc: %v", err)
	}
	for _, fd := range fds {
		link, _ := os.Readlink("/proc/self/fd/" + fd.Name())
		if inode, ok := strings.CutPrefix(link, "socket:["); ok {
			ours[strings.TrimSuffix(inode, "]")] = true
		}
	}
	for _, file := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		data, err := os.ReadFile(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			if f := strings.Fields(line); len(f) > 9 && f[3] == "0A" && ours[f[9]] {
				lines = append(lines, line)
			}
		}
	}
	return lines
}

func TestListening(t *testing.T) { // the check itself
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := listening(t); len(got) != 1 {
		t.Fatalf("%q", got)
	}
}

// Leases get their full time again when etcd starts.
func TestRestartKeepsLeases(t *testing.T) {
	dir := t.TempDir()
	s := open(t, Options{Dir: dir})
	ctx := within(t)
	short, err := s.Grant(ctx, time.Second)
	if err != nil {
		t.Fatal(err)
	}
	long, err := s.Grant(ctx, 3*time.Second)
	if err != nil {
		t.Fatal(err)
	}
	things := In[thing](s, "things")
	w := watch(t, things, 0)
	w.expect(t, "reset", "current")
	put(t, things, Record[thing]{ID: "short", Lease: short.ID})
	put(t, things, Record[thing]{ID: "long", Lease: long.ID})
	w.expect(t, "changed short 0", "changed long 0", "gone short") // more than a second of long's time is over
	s.Close()

	before := time.Now()
	s = open(t, Options{Dir: dir})
	things = In[thing](s, "things")
	w = watch(t, things, 0)
	w.expect(t, "reset", "changed long 0", "current", "gone long")
	if took := time.Since(before); took < long.TTL-200*time.Millisecond || took > long.TTL+10*time.Second {
		t.Errorf("a lease of %v ended %v after the start", long.TTL, took)
	}
}

// A store that is full can be read, and deleted from, and gets room again.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	opts := Options{Dir: dir, Quota: 4 << 20}
	s := open(t, opts)
	ctx, texts := within(t), In[string](s, "texts")
	value := strings.Repeat("x", 60<<10)
	var total atomic.Int64
	fill := func() (written []Record[string]) { // by 16 at once: what etcd checks before a write is not what it checks when it does it
		var (
			wg      sync.WaitGroup
			mu      sync.Mutex
			refused []string
		)
		for range 16 {
			wg.Go(func() {
				for range 200 {
					id := fmt.Sprint(total.Add(1))
					r, err := texts.Put(ctx, Record[string]{ID: id, Value: value})
					mu.Lock()
					if err == nil {
						written = append(written, r)
						mu.Unlock()
						continue
					}
					refused = append(refused, id)
					mu.Unlock()
					if s := err.Error(); fault.CodeOf(err) != fault.Exhausted || !strings.Contains(s, dir) || !strings.Contains(s, "is full") || !strings.Contains(s, strconv.FormatInt(opts.Quota, 10)) {
						t.Errorf("a full store says %v", err)
					}
					return
				}
				t.Error("it is never full")
			})
		}
		wg.Wait()
		for _, id := range refused {
			if _, err := texts.Get(ctx, id); fault.CodeOf(err) != fault.NotFound {
				t.Errorf("%s was refused: %v", id, err)
			}
		}
		return written
	}
	written := fill()
	if len(written) < 20 {
		t.Fatalf("%d records fit", len(written))
	}
	_, err := s.Grant(ctx, time.Minute)
	wantCode(t, err, fault.Exhausted)
	if _, err := texts.Get(ctx, written[0].ID); err != nil {
		t.Fatal(err)
	}
	for { // until all of it is in use
		if err := s.Reclaim(ctx); err != nil {
			wantCode(t, err, fault.Exhausted)
			break
		}
		written = append(written, fill()...)
	}

	s.Close()
	s = open(t, opts)
	texts = In[string](s, "texts")
	_, err = texts.Put(ctx, Record[string]{ID: "new"})
	wantCode(t, err, fault.Exhausted)
	for _, r := range written[3:] {
		if err := texts.Delete(ctx, r.ID, r.Revision); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Reclaim(ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := texts.Put(ctx, Record[string]{ID: "new"}); err != nil {
		t.Fatal(err)
	}
	if got, err := texts.Get(ctx, written[2].ID); err != nil || got.Value != value {
		t.Fatal(err)
	}

	// A start makes room too.
	for i := range 3 {
		if err := texts.Delete(ctx, written[i].ID, written[i].Revision); err != nil {
			t.Fatal(err)
		}
	}
	for _, r := range fill() {
		if err := texts.Delete(ctx, r.ID, r.Revision); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	s = open(t, opts)
	if _, err := In[string](s, "texts").Put(ctx, Record[string]{ID: "newer"}); err != nil {
		t.Fatal(err)
	}
}

// Damaged files are an error that names the folder and what to do, never a store without the records.
func TestDamagedFiles(t *testing.T) {
	whole := t.TempDir()
	s := open(t, Options{Dir: whole})
	for range 50 {
		if _, err := s.Next(within(t), "x"); err != nil {
			t.Fatal(err)
		}
	}
	s.Close()
	old := t.TempDir() // with a snapshot, which the database belongs to
	if err := os.CopyFS(old, os.DirFS(whole)); err != nil {
		t.Fatal(err)
	}
	s = open(t, Options{Dir: old})
	var wg sync.WaitGroup
	for i := range 64 {
		wg.Go(func() {
			for j := range 20 {
				put(t, In[thing](s, "things"), Record[thing]{ID: fmt.Sprint(i, "/", j)})
			}
		})
	}
	wg.Wait()
	s.Close()
	if snaps, _ := filepath.Glob(filepath.Join(old, "etcd/member/snap/*.snap")); len(snaps) == 0 {
		t.Fatal("no snapshot")
	}
	logs, _ := filepath.Glob(filepath.Join(whole, "etcd/member/wal/*.wal"))
	if len(logs) != 1 {
		t.Fatalf("logs: %q", logs)
	}
	log, db := "etcd/member/wal/"+filepath.Base(logs[0]), "etcd/member/snap/db"
	for name, damage := range map[string]func(dir string) error{
		"log overwritten":  func(dir string) error { return overwrite(filepath.Join(dir, log), 2000, 500) },
		"log begins wrong": func(dir string) error { return overwrite(filepath.Join(dir, log), 0, 50) },
		"database is text": func(dir string) error { return overwrite(filepath.Join(dir, db), 0, 16<<10) },
		"database is cut":  func(dir string) error { return os.Truncate(filepath.Join(dir, db), 100) },
		"log is gone":      func(dir string) error { return os.Remove(filepath.Join(dir, log)) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.CopyFS(dir, os.DirFS(whole)); err != nil {
				t.Fatal(err)
			}
			if err := damage(dir); err != nil {
				t.Fatal(err)
			}
			c := start(t, "open", "RECORDS_DIR="+dir)
			got := c.line(t)
			t.Log(got)
			for _, s := range []string{"corrupt: ", "the store in " + dir, "put a copy of " + filepath.Join(dir, "etcd") + " back"} {
				if !strings.Contains(got, s) {
					t.Errorf("does not say %q", s)
				}
			}
		})
	}
	t.Run("database of a snapshot is gone", func(t *testing.T) {
		if err := os.Remove(filepath.Join(old, db)); err != nil {
			t.Fatal(err)
		}
		if got := start(t, "open", "RECORDS_DIR="+old).line(t); !strings.HasPrefix(got, "corrupt: ") {
			t.Fatal(got)
		}
	})
	t.Run("whole", func(t *testing.T) {
		if got := start(t, "open", "RECORDS_DIR="+whole).line(t); got != "open: 51 <nil>" {
			t.Fatal(got)
		}
	})
	t.Run("database is gone, all is in the log", func(t *testing.T) {
		if err := os.Remove(filepath.Join(whole, db)); err != nil {
			t.Fatal(err)
		}
		if got := start(t, "open", "RECORDS_DIR="+whole).line(t); got != "open: 52 <nil>" {
			t.Fatal(got)
		}
	})
	t.Run("killed in the first start", func(t *testing.T) { // a database, and no log
		dir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(dir, "etcd/member/snap"), 0o700); err != nil {
			t.Fatal(err)
		}
		cfg := backend.DefaultBackendConfig(zap.NewNop())
		cfg.Path = filepath.Join(dir, db)
		b := backend.New(cfg)
		schema.CreateMetaBucket(b.BatchTx())
		b.Close()
		if got := start(t, "open", "RECORDS_DIR="+dir).line(t); got != "open: 1 <nil>" {
			t.Fatal(got)
		}
	})
}

func overwrite(file string, at int64, n int) error {
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteAt(bytes.Repeat([]byte("damage"), n/6), at)
	return err
}

// Where the disk is full, the store stops, says so, and has what it acknowledged after the next start.
func TestDiskFull(t *testing.T) {
	dir := t.TempDir()
	c := start(t, "full", "RECORDS_DIR="+dir)
	got := c.line(t)
	if why, ok := strings.CutPrefix(got, "skip: "); ok {
		memtest.Skip(t, "%s", why)
	}
	if !strings.HasPrefix(got, "exhausted: ") || !strings.Contains(got, "has stopped; nothing that was acknowledged is lost: its disk is full: free some space") {
		t.Fatal(got)
	}
	t.Log(got)
	acked := c.line(t)
	t.Log(acked)
	if got := c.line(t); got != "read: "+acked {
		t.Fatal(got)
	}
}

// childFull runs a store on a small file system of its own, fills that, and checks what it says. A problem ends it with an error.
func childFull() {
	dir := os.Getenv("RECORDS_DIR")
	die := func(format string, args ...any) { say(format, args...); os.Exit(1) }
	if os.Getenv("RECORDS_MOUNT") == "" { // once more, in a mount namespace
		self, attr := "/proc/self/exe", &os.ProcAttr{Env: append(os.Environ(), "RECORDS_MOUNT=1"), Files: []*os.File{nil, os.Stdout, os.Stderr}, Sys: &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNS}}
		p, err := os.StartProcess(self, []string{self}, attr)
		if err != nil {
			say("skip: no mount namespace: %v", err)
			return
		}
		if state, _ := p.Wait(); !state.Success() {
			os.Exit(1)
		}
		return
	}
	if err := syscall.Mount("", "/", "", syscall.MS_REC|syscall.MS_PRIVATE, ""); err != nil {
		say("skip: %v", err)
		return
	}
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=40m"); err != nil {
		say("skip: %v", err)
		return
	}
	ctx := context.Background()
	s, err := Open(ctx, Options{Dir: dir, Timeout: 3 * time.Second})
	if err != nil {
		die("open: %v", err)
	}
	ballast := filepath.Join(dir, "ballast")
	f, err := os.Create(ballast)
	for err == nil {
		_, err = f.Write(make([]byte, 4096))
	}
	f.Close()
	texts, acked := In[string](s, "texts"), 0
	var mu sync.Mutex
	go func() {
		for i := 0; s.Err() == nil; i++ {
			if _, err := texts.Put(ctx, Record[string]{ID: fmt.Sprint(i), Value: strings.Repeat("x", 60<<10)}); err == nil {
				mu.Lock()
				acked = i + 1
				mu.Unlock()
			}
		}
	}()
	select {
	case <-s.Failed():
	case <-time.After(60 * time.Second):
		die("it does not fail")
	}
	say("%v: %v", fault.CodeOf(s.Err()), s.Err())
	began := time.Now()
	if _, err := texts.Get(ctx, "0"); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "disk is full") || time.Since(began) > time.Second {
		die("a call after it: %v %v, %v", fault.CodeOf(err), err, time.Since(began))
	}
	s.Close()
	os.Remove(ballast)
	mu.Lock()
	defer mu.Unlock()
	say("%d", acked)
	env := slices.DeleteFunc(os.Environ(), func(s string) bool { return strings.HasPrefix(s, envChild) })
	err = syscall.Exec("/proc/self/exe", []string{"records"}, append(env, envChild+"=read", "RECORDS_N="+fmt.Sprint(acked)))
	die("exec: %v", err)
}

// childRead reads what childFull wrote.
func childRead() {
	s, err := Open(context.Background(), Options{Dir: os.Getenv("RECORDS_DIR")})
	if err != nil {
		say("%v", err)
		return
	}
	defer s.Close()
	n, _ := strconv.Atoi(os.Getenv("RECORDS_N"))
	for i := range n {
		if _, err := In[string](s, "texts").Get(context.Background(), fmt.Sprint(i)); err != nil {
			say("%v", err)
			return
		}
	}
	say("read: %d", n)
}
