package store

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

// sentinel is in every file outside of the run's folder.
const sentinel = "SENTINEL: what nobody else may see"

// realRun is the files of a run that was used, by name.
var realRun = sync.OnceValue(func() map[string]string {
	must := func(err error) {
		if err != nil {
			panic(err)
		}
	}
	dir, err := os.MkdirTemp("", "run-")
	must(err)
	defer os.RemoveAll(dir)
	t := forever{}
	r, err := Create(t, dir, Record{Name: "x", Workers: 2, Program: "test", Command: []string{"a", "b"}, Dir: "/", From: "other#1"})
	must(err)
	_, err = r.Begin(t, BeginOptions{})
	must(err)
	must(r.SetStatus(t, Status{State: Running, Failures: map[string]int{"crash": 1}, Error: &Error{Code: "corrupt", Text: "a text"}}))
	part := filepath.Join(dir, "part")
	for n := range int64(3) {
		must(os.MkdirAll(filepath.Join(part, "d"), 0o700))
		must(os.WriteFile(filepath.Join(part, "d", "f"), fmt.Append(nil, "of ", n), 0o600))
		must(os.WriteFile(filepath.Join(part, "g"), nil, 0o600))
		must(r.Metrics(1).Append(Row{Report: n + 1, Metrics: Metrics{"loss": 1}}))
		_, err = r.Commit(t, Commit{Report: n + 1, World: 2, Metrics: Metrics{"loss": 1}, Parts: []Part{{0, part}}, Data: map[string]Data{"a": {State: []byte(`{}`), Ledger: []byte("ledger")}}})
		must(err)
	}
	must(r.Close())
	files := map[string]string{}
	must(filepath.WalkDir(filepath.Join(dir, "x"), func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(p)
		rel, _ := filepath.Rel(filepath.Join(dir, "x"), p)
		files[rel] = string(b)
		return err
	}))
	return files
})

// forever is a context that never ends, where there is no test.
type forever struct{}

func (forever) Deadline() (time.Time, bool) { return time.Time{}, false }
func (forever) Done() <-chan struct{}       { return nil }
func (forever) Err() error                  { return nil }
func (forever) Value(any) any               { return nil }

// places are what a hostile record or link may lead to: all begin at the folder in which shared,
// home and cache are.
var places = []string{"home", "home/text", "home/checkpoints", "home/checkpoints/000001.json", "home/run.json", "shared", "cache", "home/absent", "shared/x/checkpoints", "shared/x/run.json", ".."}

// hostile changes a run's folder as data says.
type hostile struct {
	data []byte
	top  string
	dir  string
}

func (h *hostile) byte() int {
	if len(h.data) == 0 {
		return 0
	}
	b := h.data[0]
	h.data = h.data[1:]
	return int(b)
}

func (h *hostile) text() string {
	n := min(h.byte(), len(h.data))
	s := string(h.data[:n])
	h.data = h.data[n:]
	return s
}

func (h *hostile) place() string { return places[h.byte()%len(places)] }

// words are what stands in records for what was there.
func (h *hostile) word() string {
	up := strings.Repeat("../", 1+h.byte()%6)
	switch h.byte() % 10 {
	case 0:
		return "/" + up + h.place()
	case 1:
		return up + h.place()
	case 2:
		return filepath.Join(h.top, h.place())
	case 3:
		return "-1"
	case 4:
		return "9223372036854775807"
	case 5:
		return "1073741824"
	case 6:
		return "\\u001b]0;x\\u0007"
	case 7:
		return strings.Repeat("x", 300)
	case 8:
		return "000001"
	}
	return h.text()
}

// names of what is in the folder now, and some that could be.
func (h *hostile) name() string {
	names := []string{".", "checkpoints", "status", "metrics", "checkpoints/000007.json", "checkpoints/000009-1-00000000", "checkpoints/.penstock-tmp-1", "status/000002.json", "metrics/000001-000009.jsonl", "checkpoints/1073741824.json"}
	filepath.WalkDir(h.dir, func(p string, d fs.DirEntry, err error) error {
		if rel, rerr := filepath.Rel(h.dir, p); err == nil && rerr == nil {
			names = append(names, rel)
		}
		return nil
	})
	return names[h.byte()%len(names)]
}

// step changes one thing; what cannot be is left.
func (h *hostile) step() {
	root, err := os.OpenRoot(h.dir) // the harness itself does not go through links
	if err != nil {
		return
	}
	defer root.Close()
	op, name := h.byte(), h.name()
	blocks := func(name string) bool {
		fi, err := root.Stat(name)
		return err == nil && !fi.Mode().IsRegular()
	}
	write := func(name string, data []byte) {
		if !blocks(name) {
			root.MkdirAll(filepath.Dir(name), 0o700)
			root.WriteFile(name, data, 0o600)
		}
	}
	read := func(name string) ([]byte, error) {
		if fi, err := root.Stat(name); err == nil && fi.Size() > 1<<20 {
			return nil, fs.ErrInvalid // grown by an earlier step
		}
		return root.ReadFile(name)
	}
	replace := func() bool { return name != "." && root.RemoveAll(name) == nil }
	if op %= 9; (op <= 1 || op == 4 || op == 7) && blocks(name) {
		return
	}
	switch op {
	case 0, 1: // a value of a record
		data, err := read(name)
		var at []int
		for i := range data {
			if i > 1 && data[i-1] == ' ' && data[i-2] == ':' || i > 1 && data[i-1] == '"' && data[i-2] == ' ' {
				at = append(at, i)
			}
		}
		if err != nil || len(at) == 0 {
			return
		}
		i := at[h.byte()%len(at)]
		end := i + max(bytes.IndexAny(data[i:], "\",\n"), 0)
		write(name, slices.Concat(data[:i], []byte(h.word()), data[end:]))
	case 2: // a link
		if replace() {
			root.MkdirAll(filepath.Dir(name), 0o700)
			os.Symlink(filepath.Join(h.top, h.place()), filepath.Join(h.dir, name))
		}
	case 3: // a link that is relative
		if replace() {
			os.Symlink(strings.Repeat("../", h.byte()%6)+h.place(), filepath.Join(h.dir, name))
		}
	case 4:
		if data, err := read(name); err == nil {
			to := h.name()
			write(to, data)
		}
	case 5:
		replace()
	case 6:
		write(name, []byte(h.text()))
	case 7:
		if f, err := root.OpenFile(name, os.O_WRONLY, 0); err == nil {
			f.Truncate(int64(1) << (h.byte() % 42))
			f.Close()
		}
	case 8:
		if replace() {
			if h.byte()%2 == 0 {
				unix.Mkfifo(filepath.Join(h.dir, name), 0o600)
			} else {
				root.MkdirAll(name, 0o700)
			}
		}
	}
}

// outside is all below top but the run's folder and the cache: names, links and contents.
func outside(t *testing.T, top string) string {
	t.Helper()
	var b strings.Builder
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		switch rel, _ := filepath.Rel(top, p); {
		case rel == "shared/x" || rel == "cache":
			if d.IsDir() {
				return fs.SkipDir
			}
		case d.Type().IsRegular():
			data, err := os.ReadFile(p)
			fmt.Fprintf(&b, "%s %q\n", rel, data)
			return err
		default:
			fmt.Fprintf(&b, "%s %v\n", rel, d.Type())
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// FuzzRunFolder: whatever somebody else put into the folder of a run, who lists it, looks at it,
// fetches from it, goes on with it, prunes, sweeps and discards it reads, writes and removes
// nothing but what is in that folder and the cache, in bounded time and memory, and every error has
// a code.
func FuzzRunFolder(f *testing.F) {
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() && os.Getenv("TMPDIR") == "" {
		f.Setenv("TMPDIR", "/dev/shm") // every file is synced
	}
	f.Add([]byte{})
	for op := range byte(9) {
		for name := range byte(24) {
			f.Add([]byte{op, name, name, 0, op, name, 3, op, 1})
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		files := realRun()
		h := &hostile{data: data, top: t.TempDir()}
		h.dir = filepath.Join(h.top, "shared", "x")
		for name, text := range files {
			write(t, filepath.Join(h.dir, name), text)
			write(t, filepath.Join(h.top, "home", name), sentinel)
		}
		write(t, filepath.Join(h.top, "home", "text"), sentinel)
		write(t, filepath.Join(h.top, "home", "checkpoints", "000009-1-00000000", "files", "f"), sentinel)
		write(t, filepath.Join(h.top, "home", "checkpoints", ".penstock-tmp-1"), sentinel)
		os.Chtimes(filepath.Join(h.top, "home", "checkpoints", ".penstock-tmp-1"), time.Unix(0, 0), time.Unix(0, 0))
		for range 8 {
			if len(h.data) == 0 {
				break
			}
			h.step()
		}
		before := outside(t, h.top)
		var was, is runtime.MemStats
		runtime.ReadMemStats(&was)
		began := time.Now()
		seen, met := use(t, filepath.Join(h.top, "shared"), filepath.Join(h.top, "cache"))
		if took := time.Since(began); took > time.Minute {
			t.Errorf("it took %v", took)
		}
		runtime.ReadMemStats(&is)
		if n := is.TotalAlloc - was.TotalAlloc; n > 4<<30 {
			t.Errorf("it took %d bytes", n)
		}
		if strings.Contains(seen, sentinel) {
			t.Errorf("it saw what is outside: %s", seen)
		}
		if after := outside(t, h.top); after != before {
			t.Errorf("outside there was\n%sand is\n%s", before, after)
		}
		for _, err := range met {
			if _, ok := errors.AsType[*fault.Error](err); !ok {
				t.Errorf("an error without a code: %v", err)
			}
		}
	})
}
