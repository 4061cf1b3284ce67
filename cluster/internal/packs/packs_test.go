package packs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/klauspost/compress/zstd"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/faulttest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childEnv); dir != "" {
		child(dir)
		return
	}
	// Packs are synced: in memory that takes no time.
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() && os.Getenv("TMPDIR") == "" {
		os.Setenv("TMPDIR", "/dev/shm")
	}
	goleak.VerifyTestMain(m)
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func ok(err error) {
	if err != nil {
		panic(err)
	}
}

var wants = faulttest.Wants

// write makes files: "dir/" a folder, "name -> to" a link, "name*" one that may be executed; else the content.
func write(dir string, files map[string]string) string {
	for name, content := range files {
		from, to, link := strings.Cut(name, " -> ")
		path := filepath.Join(dir, strings.TrimSuffix(from, "*"))
		ok(os.MkdirAll(filepath.Dir(path), 0o755))
		switch {
		case link:
			ok(os.Symlink(to, path))
		case strings.HasSuffix(name, "/"):
			ok(os.MkdirAll(path, 0o755))
		default:
			mode := fs.FileMode(0o644)
			if strings.HasSuffix(from, "*") {
				mode = 0o755
			}
			ok(os.WriteFile(path, []byte(content), mode))
		}
	}
	return dir
}

// read lists a folder: path, kind, mode, content.
func read(t testing.TB, dir string) string {
	t.Helper()
	var b strings.Builder
	ok(filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		ok(err)
		rel := must(filepath.Rel(dir, path))
		fi := must(d.Info())
		switch {
		case rel == ".":
		case fi.Mode().Type() == fs.ModeSymlink:
			fmt.Fprintf(&b, "%s -> %s\n", rel, must(os.Readlink(path)))
		case d.IsDir():
			fmt.Fprintf(&b, "%s/\n", rel)
		default:
			sum := sha256.Sum256(must(os.ReadFile(path)))
			fmt.Fprintf(&b, "%s %v %d %x\n", rel, fi.Mode(), fi.Size(), sum[:4])
		}
		return nil
	}))
	return b.String()
}

func pack(t testing.TB, dir string, l Limits) ([]byte, Info, error) {
	t.Helper()
	var b bytes.Buffer
	info, err := Create(t.Context(), dir, &b, l)
	return b.Bytes(), info, err
}

var sample = map[string]string{
	"train.py": "print(1)\n", "run.sh*": "#!/bin/sh\n", "empty/": "", "pkg/__init__.py": "", "pkg/data/a b ü.txt": "x", "pkg/here -> data/a b ü.txt": "", "top -> .": "", "up -> pkg/../train.py": "",
	"dangling -> nothing/there": "", "big.bin": strings.Repeat("0123456789abcdef", 20000), ".hidden": "h", ".git/HEAD": "ref", "pkg/.git/config": "c", "deep/" + strings.Repeat("d/", 50) + "f": "deep",
	"long/" + strings.Repeat("n", 250): "l",
}

func TestPackAndUnpack(t *testing.T) {
	a := write(t.TempDir(), sample)
	raw, info, err := pack(t, a, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	if sum := sha256.Sum256(raw); string(info.Hash) != hex.EncodeToString(sum[:]) || info.Packed != int64(len(raw)) {
		t.Errorf("%+v for %d bytes", info, len(raw))
	}
	// The same files elsewhere, at another time, of other modes that do not matter.
	b := write(t.TempDir(), sample)
	ok(filepath.WalkDir(b, func(path string, d fs.DirEntry, err error) error {
		if d.Type() == 0 {
			ok(os.Chmod(path, must(d.Info()).Mode()&0o700|0o022))
			ok(os.Chtimes(path, time.Unix(0, 0), time.Unix(1e9, 5)))
		}
		return err
	}))
	again, _, err := pack(t, b, Limits{})
	if err != nil || !bytes.Equal(raw, again) {
		t.Errorf("the same folder gave another pack: %v", err)
	}
	out := filepath.Join(t.TempDir(), "job")
	if err := Unpack(t.Context(), bytes.NewReader(raw), out, Limits{}); err != nil {
		t.Fatal(err)
	}
	ok(os.RemoveAll(filepath.Join(a, ".git")))
	ok(os.RemoveAll(filepath.Join(a, "pkg/.git")))
	if got, want := read(t, out), read(t, a); got != want {
		t.Errorf("unpacked:\n%s\nwant:\n%s", got, want)
	}
	wants(t, Unpack(t.Context(), bytes.NewReader(raw), out, Limits{}), fault.Exists, "new folder")
	// A change of one byte, a name, a mode, or a link is another pack.
	for what, change := range map[string]func(dir string){
		"byte": func(d string) { ok(os.WriteFile(filepath.Join(d, "train.py"), []byte("print(2)\n"), 0o644)) },
		"name": func(d string) { ok(os.Rename(filepath.Join(d, "train.py"), filepath.Join(d, "train2.py"))) },
		"mode": func(d string) { ok(os.Chmod(filepath.Join(d, "train.py"), 0o755)) },
		"link": func(d string) { ok(os.Remove(filepath.Join(d, "top"))); ok(os.Symlink("pkg", filepath.Join(d, "top"))) },
		"dir":  func(d string) { ok(os.Mkdir(filepath.Join(d, "empty2"), 0o700)) },
	} {
		d := write(t.TempDir(), sample)
		change(d)
		if _, i, err := pack(t, d, Limits{}); err != nil || i.Hash == info.Hash {
			t.Errorf("another %s: %v, the same pack", what, err)
		}
	}
	if _, i, err := pack(t, t.TempDir(), Limits{}); err != nil || i.Files != 0 {
		t.Errorf("an empty folder: %+v %v", i, err)
	}
}

func TestIgnore(t *testing.T) {
	for _, c := range []struct{ text, path, want string }{
		{"", ".git/", "out"}, {"", "a/.git/", "out"}, {"", ".gitignore", "in"}, {"!.git", ".git/", "in"},
		{"*.pyc", "a/b/c.pyc", "out"}, {"*.pyc", "c.py", "in"}, {"data", "data", "out"}, {"data", "x/data/", "out"}, {"/data", "x/data", "in"}, {"/data", "data/", "out"},
		{"data/", "data", "in"}, {"data/", "x/data/", "out"}, {"a/b", "a/b", "out"}, {"a/b", "x/a/b", "in"}, {"**/a/b", "x/a/b", "out"}, {"a/**", "a/x/y", "out"}, {"a/**/z", "a/z", "out"},
		{"*.log\n!keep.log", "keep.log", "in"}, {"*.log\n!keep.log", "x.log", "out"}, {"!keep.log\n*.log", "keep.log", "out"}, {"# x\n\n  \nx ", "x", "out"}, {`\#x`, "#x", "out"}, {`\!x`, "!x", "out"},
		{"[ab].txt", "a.txt", "out"}, {"[ab].txt", "c.txt", "in"}, {"?.txt", "é.txt", "out"}, {"x\r\ny", "x", "out"}, {"a*c", "a/c", "in"},
	} {
		name, folder := strings.CutSuffix(c.path, "/")
		if got := must(ParseIgnore(c.text)).Match(name, folder); got != (c.want == "out") {
			t.Errorf("%q: %s is out: %v", c.text, c.path, got)
		}
	}
	for _, text := range []string{"a\n[x", "!", "/", "a\n!/"} {
		_, err := ParseIgnore(text)
		wants(t, err, fault.Invalid, "line ")
	}
	dir := write(t.TempDir(), map[string]string{IgnoreFile: "*.bin\nout/\n!out/keep\nsock\n", "a.bin": "x", "out/keep": "k", "a.py": "p", "sub/b.bin": "x", "sub/c": ""})
	ok(syscall.Mkfifo(filepath.Join(dir, "sock"), 0o600))
	for p, want := range map[string]bool{"a.bin": true, "sub/b.bin": true, "sub/c": false, "a.py": false, "out/keep": true} {
		if out, err := LeftOut(dir, p); out != want || err != nil {
			t.Errorf("%s is left out: %v, %v", p, out, err)
		}
	}
	raw, _, err := pack(t, dir, Limits{})
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(t.TempDir(), "o")
	ok(Unpack(t.Context(), bytes.NewReader(raw), out, Limits{}))
	var names []string
	for _, l := range strings.Split(read(t, out), "\n") {
		name, _, _ := strings.Cut(l, " ")
		names = append(names, name)
	}
	if got := strings.Join(names, " "); got != IgnoreFile+" a.py sub/ sub/c " {
		t.Errorf("packed: %q", got)
	}
	ok(os.WriteFile(filepath.Join(dir, IgnoreFile), []byte("x\n[y\n"), 0o644))
	_, _, err = pack(t, dir, Limits{})
	wants(t, err, fault.Invalid, IgnoreFile, "line 2")
}

func TestWhatCannotBePacked(t *testing.T) {
	fifo := func(d string) { ok(syscall.Mkfifo(filepath.Join(d, "pipe"), 0o600)) }
	for what, c := range map[string]struct {
		files map[string]string
		also  func(dir string)
		parts []string
	}{
		"absolute link":          {files: map[string]string{"l -> /etc/passwd": ""}, parts: []string{"l (a link to the absolute path /etc/passwd)", IgnoreFile}},
		"link up":                {files: map[string]string{"a/l -> ../../x": ""}, parts: []string{"a/l (a link that leaves the folder (to ../../x))"}},
		"link through a link":    {files: map[string]string{"s/": "", "x/y/d -> ../../s": "", "e -> x/y/d/../../..": ""}, parts: []string{"e (a link that leaves"}},
		"link to itself":         {files: map[string]string{"l -> l": ""}, parts: []string{"l (a link through more than 40"}},
		"links in a circle":      {files: map[string]string{"a -> b": "", "b -> a": ""}, parts: []string{"a (", "b ("}},
		"pipe":                   {also: fifo, parts: []string{"pipe (neither file, folder nor link)"}},
		"name that is not UTF-8": {files: map[string]string{"a\xff": ""}, parts: []string{`"a\xff" (a name that is not UTF-8)`}},
		"too deep":               {files: map[string]string{strings.Repeat("d/", 70) + "f": ""}, parts: []string{"more than 64 folders deep"}},
		"several":                {files: map[string]string{"l1 -> /a": "", "l2 -> /b": "", "ok": ""}, parts: []string{"l1 (", "l2 ("}},
		"more than can be counted": {files: func() map[string]string {
			m := map[string]string{}
			for i := range 30 {
				m[fmt.Sprintf("l%02d -> /a", i)] = ""
			}
			return m
		}(), parts: []string{"l09 (", "and others"}},
	} {
		dir := write(t.TempDir(), c.files)
		if c.also != nil {
			c.also(dir)
		}
		_, _, err := pack(t, dir, Limits{})
		if err == nil {
			t.Errorf("%s was packed", what)
			continue
		}
		wants(t, err, fault.Invalid, append(c.parts, dir)...)
	}
	_, _, err := pack(t, filepath.Join(t.TempDir(), "none"), Limits{})
	wants(t, err, fault.NotFound, "none")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if _, err = Create(ctx, write(t.TempDir(), sample), io.Discard, Limits{}); err == nil || err.Error() != "enough" {
		t.Errorf("%v", err)
	}
}

func TestUnreadable(t *testing.T) {
	dir := write(t.TempDir(), map[string]string{"a": "1", "secret": "2", "sub/b": "3", "z": "4"})
	ok(os.Chmod(filepath.Join(dir, "secret"), 0))
	ok(os.Chmod(filepath.Join(dir, "sub"), 0))
	defer os.Chmod(filepath.Join(dir, "sub"), 0o700)
	_, _, err := packAs(t, dir)
	wants(t, err, fault.Invalid, "secret (permission denied)", "sub (permission denied)", dir)
	ok(os.Chmod(filepath.Join(dir, "sub"), 0o755))
	_, _, err = packAs(t, dir)
	wants(t, err, fault.Invalid, "secret (permission denied)")
}

func TestLimitsOfPacking(t *testing.T) {
	dir := write(t.TempDir(), map[string]string{"small": "x", "big": strings.Repeat("y", 1000), "mid": strings.Repeat("z", 100)})
	r := rand.New(rand.NewPCG(1, 2))
	noise := make([]byte, 9000)
	for i := range noise {
		noise[i] = byte(r.Uint32())
	}
	_, _, err := pack(t, dir, Limits{Unpacked: 1000})
	wants(t, err, fault.Exhausted, "more than 1000 bytes", IgnoreFile, "big (1000 bytes)")
	_, _, err = pack(t, dir, Limits{Files: 2})
	wants(t, err, fault.Exhausted, "more than 2 files")
	if _, i, err := pack(t, dir, Limits{Files: 3, Unpacked: 1101}); err != nil || i.Files != 3 || i.Unpacked != 1101 {
		t.Errorf("%+v %v", i, err)
	}
	ok(os.WriteFile(filepath.Join(dir, "noise"), noise, 0o644))
	_, _, err = pack(t, dir, Limits{Packed: 5000})
	wants(t, err, fault.Exhausted, "more than 5000 bytes when packed", "noise (9000 bytes)")
	// A sparse file counts with what it would be.
	f := must(os.Create(filepath.Join(dir, "sparse")))
	ok(f.Truncate(5 << 30))
	f.Close()
	_, _, err = pack(t, dir, Limits{})
	wants(t, err, fault.Exhausted, "sparse (5368709120 bytes)")
}

// A file that grows, shrinks or is written to while it is packed is seen.
func TestChangesWhilePacked(t *testing.T) {
	for what, change := range map[string]func(path string) error{
		"grown":   func(p string) error { return os.WriteFile(p, bytes.Repeat([]byte("g"), 300_001), 0o644) },
		"shrunk":  func(p string) error { return os.Truncate(p, 5) },
		"gone":    os.Remove,
		"a link":  func(p string) error { ok(os.Remove(p)); return os.Symlink("a", p) },
		"a pipe":  func(p string) error { ok(os.Remove(p)); return syscall.Mkfifo(p, 0o644) },
		"written": func(p string) error { return os.Chtimes(p, time.Unix(5, 0), time.Unix(5, 0)) },
	} {
		dir := write(t.TempDir(), map[string]string{"a": "first", "b": strings.Repeat("x", 300_000)})
		root := must(os.OpenRoot(dir))
		p := &packer{root: root, dir: dir, limits: DefaultLimits, tree: tree{}, ignore: must(ParseIgnore(""))}
		ok(p.list(t.Context(), "."))
		if what != "written" {
			ok(change(filepath.Join(dir, "b")))
		}
		var once bool
		err := p.write(t.Context(), writer(func(b []byte) (int, error) { return len(b), nil }))
		if what == "written" {
			// while it is copied
			p = &packer{root: root, dir: dir, limits: DefaultLimits, entries: p.entries[1:]}
			tw := tar.NewWriter(writer(func(b []byte) (int, error) {
				if !once && len(b) > 4096 {
					once = true
					ok(change(filepath.Join(dir, "b")))
				}
				return len(b), nil
			}))
			err = p.writeEntry(t.Context(), tw, p.entries[0])
		}
		if err == nil {
			t.Errorf("%s: packed", what)
		}
		root.Close()
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(b []byte) (int, error) { return w(b) }

// forge makes a pack of any headers.
func forge(h ...tar.Header) []byte {
	var b bytes.Buffer
	z := must(zstd.NewWriter(&b, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window)))
	t := tar.NewWriter(z)
	for _, h := range h {
		if h.Typeflag == 0 {
			h.Typeflag = tar.TypeReg
		}
		h.Mode = 0o4777
		ok(t.WriteHeader(&h))
		for n := h.Size; n > 0; n -= 1 << 16 {
			must(t.Write(make([]byte, min(n, 1<<16))))
		}
	}
	ok(t.Close())
	ok(z.Close())
	return b.Bytes()
}

func TestHostilePacks(t *testing.T) {
	dirs := func(names ...string) (h []tar.Header) {
		for _, n := range names {
			h = append(h, tar.Header{Name: n, Typeflag: tar.TypeDir})
		}
		return h
	}
	link := func(name, to string) tar.Header {
		return tar.Header{Name: name, Linkname: to, Typeflag: tar.TypeSymlink}
	}
	good := forge(tar.Header{Name: "f", Size: 5})
	var zeros bytes.Buffer
	z := must(zstd.NewWriter(&zeros, zstd.WithEncoderConcurrency(1)))
	for range 64 {
		must(z.Write(make([]byte, 1<<20)))
	}
	ok(z.Close())
	small := Limits{Packed: 1 << 20, Unpacked: 1 << 20, Files: 20}
	many := func(n int) (h []tar.Header) {
		for i := range n {
			h = append(h, tar.Header{Name: fmt.Sprint("f", i)})
		}
		return h
	}
	rawTar := func(h ...tar.Header) []byte {
		return must(io.ReadAll(must(zstd.NewReader(bytes.NewReader(forge(h...)), zstd.WithDecoderConcurrency(1)))))
	}
	squeeze := func(b []byte, o ...zstd.EOption) []byte {
		var out bytes.Buffer
		z := must(zstd.NewWriter(&out, append(o, zstd.WithEncoderConcurrency(1))...))
		must(z.Write(b))
		ok(z.Close())
		return out.Bytes()
	}
	for what, c := range map[string]struct {
		pack []byte
		code fault.Code
		text string
	}{
		"slip":                         {forge(tar.Header{Name: "../x"}), fault.Denied, "not a plain path"},
		"slip within":                  {forge(append(dirs("a/"), tar.Header{Name: "a/../../x"})...), fault.Denied, "not a plain path"},
		"absolute":                     {forge(tar.Header{Name: "/tmp/x"}), fault.Denied, "not a plain path"},
		"dot":                          {forge(tar.Header{Name: "."}), fault.Denied, "not a plain path"},
		"dot folder":                   {forge(dirs("./")...), fault.Denied, "not a plain path"},
		"two slashes":                  {forge(append(dirs("a/"), tar.Header{Name: "a//x"})...), fault.Denied, "not a plain path"},
		"no name":                      {forge(dirs("/")...), fault.Denied, "not a plain path"},
		"folder missing":               {forge(tar.Header{Name: "a/x"}), fault.Denied, "its folder does not come before it"},
		"through a link":               {forge(link("a", "."), tar.Header{Name: "a/x"}), fault.Denied, "its folder does not come before it"},
		"through a link out":           {forge(link("a", "/tmp"), tar.Header{Name: "a/x"}), fault.Denied, "absolute path"},
		"file over a link":             {forge(link("a", "b"), tar.Header{Name: "a"}), fault.Denied, "twice"},
		"link over a folder":           {forge(append(dirs("a/"), link("a", "b"))...), fault.Denied, "twice"},
		"twice":                        {forge(tar.Header{Name: "a"}, tar.Header{Name: "a"}), fault.Denied, "twice"},
		"link up":                      {forge(link("a", "../x")), fault.Denied, "leaves the folder"},
		"link up through a link":       {forge(append(dirs("s/", "x/", "x/y/"), link("x/y/d", "../../s"), link("e", "x/y/d/../../.."))...), fault.Denied, "leaves the folder"},
		"link up through a later link": {forge(append(dirs("s/", "x/", "x/y/"), link("e", "x/y/d/../../.."), link("x/y/d", "../../s"))...), fault.Denied, "leaves the folder"},
		"link up through nothing":      {forge(link("e", "nothing/../../x")), fault.Denied, "leaves the folder"},
		"empty link":                   {forge(link("a", "")), fault.Denied, "a link to no path"},
		"hard link":                    {forge(tar.Header{Name: "a", Linkname: "/etc/passwd", Typeflag: tar.TypeLink}), fault.Denied, "neither file"},
		"device":                       {forge(tar.Header{Name: "a", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}), fault.Denied, "neither file"},
		"pipe":                         {forge(tar.Header{Name: "a", Typeflag: tar.TypeFifo}), fault.Denied, "neither file"},
		"attributes":                   {forge(tar.Header{Name: "a", PAXRecords: map[string]string{"SCHILY.xattr.security.capability": "x"}}), fault.Denied, "attribute"},
		"deep":                         {forge(dirs(strings.Repeat("d/", 65))...), fault.Denied, "deep"},
		"long":                         {forge(tar.Header{Name: strings.Repeat("n", 300)}), fault.Denied, "more than 255"},
		"not UTF-8":                    {forge(tar.Header{Name: "a\xff", Format: tar.FormatGNU}), fault.Denied, "UTF-8"},
		"too many files":               {forge(many(21)...), fault.Exhausted, "more than 20 files"},
		"too many bytes":               {forge(tar.Header{Name: "a", Size: 1<<20 - 5}, tar.Header{Name: "b", Size: 6}), fault.Exhausted, "more than 1048576 bytes"},
		"a lie of size":                {squeeze(rawTar(tar.Header{Name: "a", Size: 1 << 18})[:1<<17]), fault.Corrupt, "damaged"},
		"bomb of zeros":                {zeros.Bytes(), fault.Exhausted, "too many bytes unpacked"},
		"bomb after the end":           {squeeze(append(rawTar(tar.Header{Name: "a"}), make([]byte, 64<<20)...)), fault.Exhausted, "too many bytes unpacked"},
		"bomb in a name":               {squeeze(rawTar(tar.Header{Name: strings.Repeat("n", 900<<10)})), fault.Denied, "more than 1024 bytes"},
		"window":                       {squeeze(make([]byte, 40<<20), zstd.WithWindowSize(32<<20)), fault.Corrupt, "window"},
		"packed too large":             {append(bytes.Clone(good), skippable(2<<20)...), fault.Exhausted, "too many bytes packed"},
		"after its end":                {squeeze(append(rawTar(tar.Header{Name: "a"}), 1)), fault.Corrupt, "goes on after its end"},
		"garbage after it":             {append(bytes.Clone(good), "garbage"...), fault.Corrupt, "damaged"},
		"no zstd":                      {[]byte("PK\x03\x04 something else"), fault.Corrupt, "damaged"},
		"no tar":                       {squeeze([]byte(strings.Repeat("no tar ", 200))), fault.Corrupt, "damaged"},
		"cut":                          {good[:len(good)-5], fault.Corrupt, "damaged"},
		"old tar, sparse":              {squeeze(sparse()), fault.Denied, ""},
	} {
		parent := t.TempDir()
		out := filepath.Join(parent, "in", "job")
		ok(os.Mkdir(filepath.Join(parent, "in"), 0o755))
		began := time.Now()
		err := Unpack(t.Context(), bytes.NewReader(c.pack), out, small)
		if err == nil {
			t.Errorf("%s: unpacked\n%s", what, read(t, out))
			continue
		}
		t.Run(what, func(t *testing.T) { wants(t, err, c.code, c.text, out) })
		if got := read(t, parent); got != "in/\n" {
			t.Errorf("%s: left\n%s", what, got)
		}
		if d := time.Since(began); d > 5*time.Second {
			t.Errorf("%s: took %v", what, d)
		}
	}
	// Empty bytes are no pack, and modes are ours.
	wants(t, Unpack(t.Context(), bytes.NewReader(nil), filepath.Join(t.TempDir(), "x"), small), fault.Corrupt)
	out := filepath.Join(t.TempDir(), "x")
	ok(Unpack(t.Context(), bytes.NewReader(good), out, small))
	if m := must(os.Stat(filepath.Join(out, "f"))).Mode(); m&^0o755 != 0 {
		t.Errorf("mode %v", m)
	}
}

// skippable is a zstd frame of n bytes that decoders pass over.
func skippable(n int) []byte {
	b := make([]byte, n)
	copy(b, []byte{0x50, 0x2a, 0x4d, 0x18, byte(n - 8), byte((n - 8) >> 8), byte((n - 8) >> 16), byte((n - 8) >> 24)})
	return b
}

// sparse is a GNU sparse file of 1 MiB that has no data.
func sparse() []byte {
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	ok(t.WriteHeader(&tar.Header{Name: "s", Typeflag: tar.TypeReg, Format: tar.FormatGNU}))
	ok(t.Close())
	h := b.Bytes()
	h[156] = 'S'
	copy(h[483:], "00004000000\x00") // real size
	for i := 148; i < 156; i++ {
		h[i] = ' '
	}
	sum := 0
	for _, c := range h[:512] {
		sum += int(c)
	}
	copy(h[148:], fmt.Sprintf("%06o\x00 ", sum))
	return h
}

// What is damaged anywhere is refused or gives the very same files.
func TestDamagedPacks(t *testing.T) {
	raw, _, err := pack(t, write(t.TempDir(), map[string]string{"a.txt": "hello hello hello", "b/c": "x", "b/l -> c": ""}), Limits{})
	ok(err)
	parent := t.TempDir()
	for i := range raw {
		bad := bytes.Clone(raw)
		bad[i] ^= 1 << (i % 8)
		out := filepath.Join(parent, fmt.Sprint(i))
		if err := Unpack(t.Context(), bytes.NewReader(bad), out, Limits{}); err == nil {
			ok(os.RemoveAll(out))
		}
	}
	if got := read(t, parent); got != "" {
		t.Errorf("left: %s", got)
	}
}

func FuzzUnpack(f *testing.F) {
	f.Add(forge(tar.Header{Name: "a", Size: 3}, tar.Header{Name: "d/", Typeflag: tar.TypeDir}, tar.Header{Name: "d/l", Linkname: "../a", Typeflag: tar.TypeSymlink}))
	f.Add(forge(tar.Header{Name: "../x"}))
	plain := func(h ...tar.Header) []byte {
		return must(io.ReadAll(must(zstd.NewReader(bytes.NewReader(forge(h...)), zstd.WithDecoderConcurrency(1)))))
	}
	f.Add(plain(tar.Header{Name: "a", Size: 3}, tar.Header{Name: "l", Linkname: "a/../..", Typeflag: tar.TypeSymlink}))
	f.Add(sparse())
	f.Add([]byte("5a/\n0a/b\x00xyz\n2a/l\x00../a/b\n2m\x00a/l/../..\n1h\x00a/b\n5..\n0/x\n"))
	f.Add([]byte("5s\n5x\n5x/y\n2x/y/d\x00../../s\n2e\x00x/y/d/../../..\n"))
	parent := must(os.MkdirTemp("", "fuzz"))
	f.Cleanup(func() { os.RemoveAll(parent) })
	out := filepath.Join(parent, "job")
	l := Limits{Packed: 1 << 20, Unpacked: 1 << 20, Files: 50}
	enc := must(zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1), zstd.WithEncoderLevel(zstd.SpeedFastest)))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, b := range [][]byte{b, enc.EncodeAll(b, nil), enc.EncodeAll(headers(b), nil)} { // as a pack, as the tar in one, and as headers of one
			err := Unpack(t.Context(), bytes.NewReader(b), out, l)
			if err != nil {
				if c := fault.CodeOf(err); c != fault.Corrupt && c != fault.Denied && c != fault.Exhausted {
					t.Errorf("%v: %v", c, err)
				}
				if left := must(os.ReadDir(parent)); len(left) != 0 {
					t.Fatalf("left: %v", left)
				}
				continue
			}
			// What was taken can be packed: its links are inside, its names plain.
			if _, err := Create(t.Context(), out, io.Discard, Limits{}); err != nil && !strings.Contains(err.Error(), IgnoreFile) {
				t.Errorf("cannot be packed again: %v", err)
			}
			var n, size int64
			ok(filepath.WalkDir(out, func(_ string, d fs.DirEntry, err error) error {
				ok(err)
				n, size = n+1, size+must(d.Info()).Size()*int64(b2i(d.Type() == 0))
				return nil
			}))
			if n > l.Files+1 || size > l.Unpacked {
				t.Errorf("%d files, %d bytes", n, size)
			}
			ok(os.RemoveAll(out))
			if left := must(os.ReadDir(parent)); len(left) != 0 {
				t.Fatalf("left: %v", left)
			}
		}
	})
}

// headers makes a tar of lines: the type, the name, and after a zero byte what a link leads to, or the content.
func headers(b []byte) []byte {
	var out bytes.Buffer
	w := tar.NewWriter(&out)
	for line := range bytes.SplitSeq(b, []byte("\n")) {
		if len(line) == 0 {
			continue
		}
		name, rest, _ := strings.Cut(string(line[1:]), "\x00")
		h := tar.Header{Typeflag: line[0], Name: name}
		if h.Typeflag == '0' {
			h.Size = int64(len(rest))
		} else {
			h.Linkname = rest
		}
		if w.WriteHeader(&h) == nil && h.Size > 0 {
			io.WriteString(w, rest)
		}
	}
	w.Close()
	return out.Bytes()
}

func b2i(b bool) int {
	if b {
		return 1
	}
	return 0
}
