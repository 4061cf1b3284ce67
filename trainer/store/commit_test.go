package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// What was committed comes back: files of several ranks, names of all kinds, metrics, states and ledgers.
func TestRoundTrip(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 1))
		r := newRun(t, storage, "x")
		begin(t, r)
		odd := []string{".metadata", "a b", "ünï/北.bin", "100%", "q?x=y", "q?", "#1", "back\\slash", "tab\tnew\nline", "dot.", "d./x", "..x", "x..", ".penstock-tmp-1",
			"*[a]{b}", "'\"`$&;|<>", "\x7f", "-rf", "%41", "A", "~", strings.Repeat("n", 200), "x/y.attrs", "sp ", " sp"}
		cache := t.TempDir()
		for round := range 5 {
			want := randomFiles(rnd)
			for _, name := range odd {
				want["odd/"+name] = name
			}
			c := Commit{Report: int64(round + 1), World: 3, Parallel: 1 + rnd.IntN(9), Metrics: map[string]float64{"nan": math.NaN(), "inf": math.Inf(-1), "x": 0.1},
				Data: map[string]Data{"train": {State: json.RawMessage(`{"step":3}`), Ledger: []byte("ledger\x00" + fmt.Sprint(round))}, "odd/na me?": {State: json.RawMessage(`{}`), Ledger: []byte{}},
					"none": {State: json.RawMessage(`[1, 2]`)}}}
			ranks := []map[string]string{{}, {}, {}}
			for name, text := range want {
				ranks[rnd.IntN(3)][name] = text
			}
			for rank, files := range ranks {
				if len(files) > 0 {
					c.Parts = append(c.Parts, Part{rank, tree(t, files)})
				}
			}
			rnd.Shuffle(len(c.Parts), func(i, j int) { c.Parts[i], c.Parts[j] = c.Parts[j], c.Parts[i] })
			if err := os.MkdirAll(filepath.Join(c.Parts[0].Dir, "empty", "folder"), 0o777); err != nil {
				t.Fatal(err)
			}
			m, err := r.Commit(t.Context(), c)
			if err != nil {
				t.Fatal(err)
			}
			for _, p := range c.Parts {
				if len(readTree(t, p.Dir)) != len(ranks[p.Rank]) {
					t.Error("the folder was changed")
				}
			}
			o := openRun(t, storage, "x")
			got, err := o.Latest(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			a, _ := json.Marshal(m)
			b, _ := json.Marshal(got)
			if string(a) != string(b) || got.Report != c.Report || got.World != 3 || got.Number != round+1 {
				t.Fatalf("%s\n%s", a, b)
			}
			if !math.IsNaN(got.Metrics["nan"]) || !math.IsInf(got.Metrics["inf"], -1) || got.Metrics["x"] != 0.1 {
				t.Fatal(got.Metrics)
			}
			for name, d := range c.Data {
				if ledger, err := o.Ledger(t.Context(), got, name); err != nil || string(ledger) != string(d.Ledger) {
					t.Fatalf("%s: %q %v", name, ledger, err)
				}
				if x, y := string(got.Data[name].State), string(d.State); strings.Join(strings.Fields(x), "") != strings.Join(strings.Fields(y), "") {
					t.Fatal(x, y)
				}
			}
			for _, f := range got.Files {
				if _, ok := ranks[f.Rank][f.Path]; !ok {
					t.Errorf("%q is not of rank %d", f.Path, f.Rank)
				}
			}
			dir, err := o.Fetch(t.Context(), got, cache)
			if err != nil {
				t.Fatal(err)
			}
			sameFiles(t, readTree(t, dir), want)
		}
		checkWhole(t, r)
		checkClean(t, r)
	})
}

func TestEscape(t *testing.T) {
	seen := make(map[string]string)
	var walk func(prefix string, n int)
	walk = func(p string, n int) {
		if p != "" {
			e := escape(p)
			if was, ok := seen[e]; ok && was != p {
				t.Fatalf("%q and %q are both %q", was, p, e)
			}
			seen[e] = p
			if strings.ContainsAny(e, "?#*\\\n") || strings.HasSuffix(e, ".") || strings.Contains(e, "./") {
				t.Fatalf("%q is %q", p, e)
			}
		}
		if n == 0 {
			return
		}
		for _, c := range []string{"a", ".", "%", "2", "E", "?", "/", "\\", "\n"} {
			walk(p+c, n-1)
		}
	}
	walk("", 5)
}

func mkfifo(t *testing.T, name string) {
	t.Helper()
	if err := syscall.Mkfifo(name, 0o666); err != nil {
		t.Fatal(err)
	}
}

// What cannot be a checkpoint is an error that says which rank's path, and why; nothing of it is left.
func TestBadParts(t *testing.T) {
	outside := filepath.Join(t.TempDir(), "secret")
	write(t, outside, "secret")
	link := func(target, name string) func(t *testing.T, dir string) {
		return func(t *testing.T, dir string) {
			write(t, filepath.Join(dir, "file"), "x")
			if err := os.MkdirAll(filepath.Join(dir, "sub"), 0o777); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(target, filepath.Join(dir, name)); err != nil {
				t.Fatal(err)
			}
		}
	}
	for name, c := range map[string]struct {
		prepare func(t *testing.T, dir string)
		code    fault.Code
		texts   []string
	}{
		"missing":        {func(t *testing.T, dir string) { os.Remove(dir) }, fault.NotFound, []string{"rank 7", "no such folder"}},
		"empty":          {func(t *testing.T, dir string) {}, fault.Invalid, []string{"rank 7", "no files"}},
		"empty folders":  {func(t *testing.T, dir string) { os.MkdirAll(filepath.Join(dir, "a/b"), 0o777) }, fault.Invalid, []string{"no files"}},
		"a file":         {func(t *testing.T, dir string) { os.Remove(dir); write(t, dir, "x") }, fault.Invalid, []string{"not a folder"}},
		"link out":       {link(outside, "sub/l"), fault.Invalid, []string{"sub/l", "out of the folder"}},
		"link up":        {link("../../"+filepath.Base(filepath.Dir(outside))+"/secret", "sub/l"), fault.Invalid, []string{"sub/l"}},
		"link to folder": {link("sub", "l"), fault.Invalid, []string{"/l", "link to a folder"}},
		"link to itself": {link("l", "l"), fault.Invalid, []string{"/l", "link to nothing"}},
		"dangling":       {link("none", "l"), fault.Invalid, []string{"/l", "link to nothing"}},
		"pipe":           {func(t *testing.T, dir string) { mkfifo(t, filepath.Join(dir, "p")) }, fault.Invalid, []string{"/p", "neither a file"}},
		"socket": {func(t *testing.T, dir string) {
			l, err := net.Listen("unix", filepath.Join(dir, "s"))
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { l.Close() })
		}, fault.Invalid, []string{"/s", "neither a file"}},
		"device":    {link("/dev/full", "l"), fault.Invalid, []string{"/l"}},
		"not UTF-8": {func(t *testing.T, dir string) { write(t, filepath.Join(dir, "a\xff"), "x") }, fault.Invalid, []string{"UTF-8", `\xff`}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRun(t, t.TempDir(), "x")
			begin(t, r)
			base, err := os.MkdirTemp("", "p") // short, for the socket
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(base) })
			dir := filepath.Join(base, "d")
			if err := os.Mkdir(dir, 0o777); err != nil {
				t.Fatal(err)
			}
			c.prepare(t, dir)
			_, err = r.Commit(t.Context(), Commit{Report: 1, World: 9, Parts: []Part{{2, tree(t, map[string]string{"fine": "x"})}, {7, dir}}})
			wantErr(t, err, c.code, append(c.texts, dir)...)
			checkClean(t, r)
			if got := commit(t, r, 1, map[string]string{"f": "x"}); got.Number != 1 {
				t.Fatal("no number is used by what failed:", got.Number)
			}
		})
	}
}

func TestClashes(t *testing.T) {
	r := newRun(t, t.TempDir(), "x")
	begin(t, r)
	a, b := tree(t, map[string]string{"m/model.bin": "1", "one": "1"}), tree(t, map[string]string{"m/model.bin": "1", "two": "2"})
	_, err := r.Commit(t.Context(), Commit{Report: 1, World: 9, Parts: []Part{{5, b}, {3, a}}})
	wantErr(t, err, fault.Invalid, "ranks 3 and 5", "m/model.bin")
	_, err = r.Commit(t.Context(), Commit{Report: 1, World: 9, Parts: []Part{{5, tree(t, map[string]string{"m": "x", "m-x": "y"})}, {3, a}}})
	wantErr(t, err, fault.Invalid, "rank 5", "rank 3", `"m"`, "m/model.bin")
	_, err = r.Commit(t.Context(), Commit{Report: 1, World: 9, Parts: []Part{{3, a}, {3, b}}})
	wantErr(t, err, fault.Invalid, "rank 3 gave two")
	checkClean(t, r)
}

// A link to a file inside the folder is kept as a file.
func TestLinksInside(t *testing.T) {
	r := newRun(t, t.TempDir(), "x")
	begin(t, r)
	dir := tree(t, map[string]string{"epochs/3.ckpt": "three"})
	if err := os.Symlink("epochs/3.ckpt", filepath.Join(dir, "last.ckpt")); err != nil {
		t.Fatal(err)
	}
	m, err := r.Commit(t.Context(), Commit{Report: 1, World: 1, Parts: []Part{{0, dir}}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := r.Fetch(t.Context(), m, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	sameFiles(t, readTree(t, got), map[string]string{"epochs/3.ckpt": "three", "last.ckpt": "three"})
	if fi, err := os.Lstat(filepath.Join(got, "last.ckpt")); err != nil || !fi.Mode().IsRegular() {
		t.Fatal(fi, err)
	}
}

// A file that changes between the scan and the end of its upload, in any way, at any moment.
func TestChanging(t *testing.T) {
	for _, size := range []int{100, 3 * chunk} {
		for _, step := range []string{"upload", "read"} {
			for name, c := range map[string]struct {
				change func(f string) error
				text   string
			}{
				"grows":      {func(f string) error { return os.WriteFile(f, make([]byte, size+1), 0o666) }, "changed while"},
				"grows much": {func(f string) error { return os.Truncate(f, int64(size)*3) }, "changed while"},
				"shrinks":    {func(f string) error { return os.Truncate(f, int64(size)-1) }, "changed while"},
				"is emptied": {func(f string) error { return os.Truncate(f, 0) }, "changed while"},
				"rewritten": {func(f string) error {
					if err := os.WriteFile(f, make([]byte, size), 0o666); err != nil {
						return err
					}
					return os.Chtimes(f, time.Now(), time.Now().Add(time.Hour))
				}, "changed while"},
				"removed": {os.Remove, "removed while"},
				"becomes a pipe": {func(f string) error {
					if err := os.Remove(f); err != nil {
						return err
					}
					return syscall.Mkfifo(f, 0o666)
				}, "changed while"},
				"becomes a link": {func(f string) error {
					if err := os.Remove(f); err != nil {
						return err
					}
					return os.Symlink("/etc/passwd", f)
				}, "out of the folder"},
			} {
				if step == "read" && (name == "removed" || strings.HasPrefix(name, "becomes")) {
					continue // what is open stays what it was
				}
				t.Run(fmt.Sprint(size, " ", step, " ", name), func(t *testing.T) {
					r := newRun(t, t.TempDir(), "x")
					begin(t, r)
					dir := tree(t, map[string]string{"a/f": strings.Repeat("x", size), "g": "y"})
					r.hook = func(s, key string) {
						if s == step && key == "a/f" {
							if err := c.change(filepath.Join(dir, "a/f")); err != nil {
								t.Error(err)
							}
						}
					}
					_, err := r.Commit(t.Context(), Commit{Report: 1, World: 1, Parts: []Part{{0, dir}}})
					if err == nil || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), filepath.Join(dir, "a/f")) || !strings.Contains(err.Error(), "rank 0") {
						t.Fatal(err)
					}
					wantErr(t, err, fault.Invalid)
					checkClean(t, r)
				})
			}
		}
	}
}

// A full storage: an error with the code and the path, nothing is seen, and the next commit works when there is room.
func TestFull(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		memtest.Skip(t, "cannot mount a small file system: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	r := newRun(t, dir, "x")
	defer r.Close()
	begin(t, r)
	commit(t, r, 1, map[string]string{"f": "x"})
	big := map[string]string{"big": strings.Repeat("x", 3*chunk), "other": strings.Repeat("y", chunk), "third": strings.Repeat("z", chunk)}
	_, err := r.Commit(t.Context(), Commit{Report: 2, World: 1, Parts: []Part{{0, tree(t, big)}}})
	wantErr(t, err, fault.Exhausted, dir, "no space left")
	checkClean(t, r)
	if got := checkWhole(t, r); !slices.Equal(got, []int{1}) {
		t.Fatal(got)
	}
	// So is a cache without room.
	m := commit(t, r, 2, map[string]string{"big": strings.Repeat("x", 2*chunk+chunk/2)})
	_, err = r.Fetch(t.Context(), m, filepath.Join(dir, "cache"))
	wantErr(t, err, fault.Exhausted, filepath.Join(dir, "cache"), "are free on this disk")
	if left := readTree(t, filepath.Join(dir, "cache")); len(left) != 1 { // the lock
		t.Fatalf("%d files are left in the cache", len(left))
	}
	// Read-only.
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		memtest.Skip(t, "cannot mount read-only: %v", err)
	}
	_, err = r.Commit(t.Context(), Commit{Report: 3, World: 1, Parts: []Part{{0, tree(t, map[string]string{"f": "x"})}}})
	wantErr(t, err, fault.Denied, dir, "read-only")
	wantErr(t, r.SetStatus(t.Context(), Status{State: Running}), fault.Denied, "status/000001.json", "read-only")
	wantErr(t, r.Prune(t.Context(), Policy{KeepLast: 1}), fault.Denied, "read-only")
	_, err = Create(t.Context(), dir, Record{Name: "y", Workers: 1})
	wantErr(t, err, fault.Denied, "read-only")
	if got := checkWhole(t, r); len(got) != 2 {
		t.Fatal(got)
	}
}

// A user who may not: checked in a child, which is nobody.
func TestDenied(t *testing.T) {
	if os.Getuid() != 0 {
		memtest.Skip(t, "only root can be somebody else")
	}
	base := t.TempDir()
	for d := base; d != "/" && d != "/dev"; d = filepath.Dir(d) {
		if err := os.Chmod(d, 0o755|os.ModeSticky); err != nil {
			t.Fatal(err)
		}
		if filepath.Dir(d) == os.TempDir() {
			break
		}
	}
	runs := filepath.Join(base, "runs")
	r := newRun(t, runs, "x")
	secret := tree(t, map[string]string{"f": "x"})
	_ = secret
	files := filepath.Join(base, "files")
	write(t, filepath.Join(files, "open"), "x")
	write(t, filepath.Join(files, "closed"), "x")
	if err := os.Chmod(filepath.Join(files, "closed"), 0o600); err != nil {
		t.Fatal(err)
	}
	begin(t, r)
	commit(t, r, 1, map[string]string{"f": "x"})
	own := filepath.Join(base, "own")
	if err := os.Mkdir(own, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(own, 0o777); err != nil {
		t.Fatal(err)
	}
	out := runChild(t, childConfig{Mode: "denied", Storage: base}, &syscall.Credential{Uid: 65534, Gid: 65534})
	want := []string{
		"create: denied " + filepath.Join(runs, "y"),
		"begin: denied " + filepath.Join(runs, "x", "checkpoints"),
		"commit: denied rank 0 " + filepath.Join(files, "closed"),
		"checkpoints: 1",
		"fetch: denied " + filepath.Join(runs, "cache"),
	}
	if got := strings.Split(strings.TrimSpace(out), "\n"); !slices.Equal(got, want) {
		t.Fatalf("%q\n%q", got, want)
	}
}

// deniedChild tells what nobody gets.
func deniedChild(base string) {
	ctx := context.Background()
	runs := filepath.Join(base, "runs")
	show := func(what string, err error, parts ...string) {
		line := what + ": " + fault.CodeOf(err).String()
		for _, p := range parts {
			if err != nil && strings.Contains(err.Error(), p) {
				line += " " + p
			}
		}
		fmt.Println(line)
	}
	_, err := Create(ctx, runs, Record{Name: "y", Workers: 1})
	show("create", err, filepath.Join(runs, "y"))
	r, err := Open(ctx, runs, "x")
	if err != nil {
		fmt.Println(err)
		return
	}
	if err := r.SetStatus(ctx, Status{State: Finished}); fault.CodeOf(err) != fault.Internal {
		fmt.Println(err)
	}
	_, err = r.Begin(ctx, BeginOptions{TakeOver: true})
	if fault.CodeOf(err) == fault.Exists { // the test's process is at work
		err = r.b.Put(ctx, r.prefix+entryName(5), []byte("x"), nil)
	}
	show("begin", err, filepath.Join(runs, "x", "checkpoints"))
	own, err := Create(ctx, filepath.Join(base, "own"), Record{Name: "y", Workers: 1})
	if err == nil {
		_, err = own.Begin(ctx, BeginOptions{})
	}
	if err == nil {
		_, err = own.Commit(ctx, Commit{Report: 1, World: 1, Parts: []Part{{0, filepath.Join(base, "files")}}})
	}
	show("commit", err, "rank 0", filepath.Join(base, "files", "closed"))
	list, err := r.Checkpoints(ctx)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("checkpoints:", len(list))
	_, err = r.Fetch(ctx, &list[0], filepath.Join(runs, "cache"))
	show("fetch", err, filepath.Join(runs, "cache"))
}

// Files are streamed: what is allocated does not grow with them.
func TestHuge(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		if strings.HasPrefix(storage, "mem:") {
			t.Skip("memory is where this one keeps them")
		}
		r := newRun(t, storage, "x")
		begin(t, r)
		dir := t.TempDir()
		write(t, filepath.Join(dir, "huge"), "begin")
		const size = 300 << 20
		if err := os.Truncate(filepath.Join(dir, "huge"), size); err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		m, err := r.Commit(t.Context(), Commit{Report: 1, World: 1, Parts: []Part{{0, dir}}})
		if err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		got := after.TotalAlloc - before.TotalAlloc
		t.Logf("%d MiB allocated for %d MiB", got>>20, size>>20)
		most := uint64(100 << 20)
		if memtest.Race {
			most = 200 << 20 // pools forget at random
		}
		if got > most || m.Bytes != size {
			t.Fatal(got, m.Bytes)
		}
		if err := r.Verify(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	})
}

// A commit whose context ends at any step is Canceled, leaves no goroutine, and no checkpoint unless the last request was sent.
func TestCanceled(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		r := newRun(t, storage, "x")
		begin(t, r)
		files := map[string]string{"a": strings.Repeat("x", 2*chunk), "b": "y", "c/d": "z"}
		gone := errors.New("gone")
		for at := int64(1); ; at++ {
			ctx, cancel := context.WithCancelCause(t.Context())
			var n atomic.Int64
			r.hook = func(step, key string) {
				if n.Add(1) == at {
					cancel(gone)
				}
			}
			before := checkWhole(t, r)
			m, err := r.Commit(ctx, Commit{Report: at, World: 1, Parts: []Part{{0, tree(t, files)}}, Parallel: 2, Data: map[string]Data{"d": {State: json.RawMessage("1"), Ledger: []byte("l")}}})
			cancel(nil)
			r.hook = nil
			after := checkWhole(t, r)
			if err == nil {
				if !slices.Equal(after, append(before, m.Number)) {
					t.Fatal(before, after, m.Number)
				}
				if n.Load() < at {
					break
				}
				continue
			}
			if fault.CodeOf(err) != fault.Canceled || !errors.Is(err, gone) {
				t.Fatal(err)
			}
			if len(after) > len(before)+1 {
				t.Fatal(before, after)
			}
		}
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkClean(t, r)
	})
}

// Folders of ranks of another machine are uploaded there, into the same try; all files are one tree.
func TestElsewhere(t *testing.T) {
	for _, storage := range []string{t.TempDir(), fmt.Sprintf("mem://store%d/runs", memNumber.Add(1))} {
		r := newRun(t, storage, "x")
		begin(t, r)
		there := openRun(t, storage, "x") // the other process's
		var tried string
		from := func(parts ...Part) Elsewhere {
			e := Elsewhere{}
			for _, p := range parts {
				e.Ranks = append(e.Ranks, p.Rank)
			}
			e.Upload = func(ctx context.Context, try string) ([]File, error) {
				tried = try
				return there.Upload(ctx, try, parts, 2)
			}
			return e
		}
		here := Part{1, tree(t, map[string]string{"b": "1", "sub/x": "one"})}
		c := Commit{Report: 1, World: 4, Parts: []Part{here}, Elsewhere: []Elsewhere{
			from(Part{2, tree(t, map[string]string{"c": strings.Repeat("2", chunk+7), "sub/y": ""})}, Part{3, tree(t, map[string]string{"a": "3"})})}}
		m, err := r.Commit(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Verify(t.Context(), m); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, f := range m.Files {
			got = append(got, fmt.Sprintf("%d:%s", f.Rank, f.Path))
		}
		if s := strings.Join(got, " "); s != "3:a 1:b 2:c 1:sub/x 2:sub/y" || m.Bytes != chunk+7+1+3+1 || tried != m.Try {
			t.Errorf("%s, %d bytes, try %s of %s", s, m.Bytes, tried, m.Try)
		}
		for _, e := range []struct {
			e    Elsewhere
			want string
		}{
			{from(Part{2, tree(t, map[string]string{"b": "2"})}), "ranks 1 and 2 both gave a file \"b\""},
			{from(Part{2, tree(t, map[string]string{"b/c": "2"})}), "a folder of this name"},
			{from(Part{2, filepath.Join(t.TempDir(), "none")}), "there is no such folder"},
			{Elsewhere{Ranks: []int{2}, Upload: func(context.Context, string) ([]File, error) { return nil, nil }}, "files of 0 of them"},
			{Elsewhere{Ranks: []int{2}, Upload: func(context.Context, string) ([]File, error) {
				return []File{{Path: "../x", Rank: 2, Sum: m.Files[0].Sum}}, nil
			}}, "bad path"},
			{Elsewhere{Ranks: []int{2}, Upload: func(context.Context, string) ([]File, error) {
				return []File{{Path: "x", Rank: 1, Sum: m.Files[0].Sum}}, nil
			}}, "the upload of ranks [2] gave a file \"x\" of rank 1"},
		} {
			c := Commit{Report: 2, World: 4, Parts: []Part{here}, Elsewhere: []Elsewhere{e.e}}
			if e.want == "a folder of this name" {
				if _, local := r.Local(); local { // the file is in the way there
					continue
				}
			}
			if _, err := r.Commit(t.Context(), c); err == nil || !strings.Contains(err.Error(), e.want) || strings.Contains(err.Error(), "%!") {
				t.Errorf("%v, want %q", err, e.want)
			}
			if list, err := r.Checkpoints(t.Context()); err != nil || len(list) != 1 {
				t.Errorf("%v, %v", list, err)
			}
			for info, err := range r.b.List(t.Context(), r.prefix+checkpointsDir) {
				if err != nil || strings.Contains(info.Key, "/files/") && !strings.Contains(info.Key, m.Try) {
					t.Errorf("%s is left, %v", info.Key, err)
				}
			}
		}
		// One that comes too late writes where nobody looks, and Sweep finds it.
		if _, err := there.Upload(t.Context(), tryName(2, 1), []Part{here}, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := there.Upload(t.Context(), "../x", []Part{here}, 0); fault.CodeOf(err) != fault.Internal {
			t.Error(err)
		}
		r.Close()
		r = openRun(t, storage, "x")
		begin(t, r)
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		for info, err := range r.b.List(t.Context(), r.prefix+checkpointsDir) {
			if err != nil || strings.Contains(info.Key, "/files/") && !strings.Contains(info.Key, m.Try) {
				t.Errorf("%s is left, %v", info.Key, err)
			}
		}
	}
}
