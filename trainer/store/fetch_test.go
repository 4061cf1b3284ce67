package store

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// A part missing, altered at the same size, cut or grown: Corrupt, with its name and the earlier checkpoint that is whole; the cache has nothing of it.
func TestDamaged(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		r := newRun(t, storage, "x")
		begin(t, r)
		files := map[string]string{"a/model.bin": strings.Repeat("weights ", 300000), "small": "x", "empty": ""}
		var all []*Manifest
		for i := range int64(4) {
			all = append(all, commit(t, r, i+1, files))
		}
		key := func(m *Manifest, path string) string {
			return r.prefix + checkpointsDir + m.Try + "/" + objectName(path)
		}
		put := func(m *Manifest, path, text string) {
			t.Helper()
			if err := r.b.Put(t.Context(), key(m, path), []byte(text), nil); err != nil {
				t.Fatal(err)
			}
		}
		// The third lacks a file, so the second is the one to go back to.
		if err := r.b.Delete(t.Context(), key(all[2], "small")); err != nil {
			t.Fatal(err)
		}
		big := files["a/model.bin"]
		for name, c := range map[string]struct{ path, text, want string }{
			"flipped": {"a/model.bin", big[:2000000] + "W" + big[2000001:], "was altered"},
			"small":   {"small", "y", "was altered"},
			"cut":     {"a/model.bin", big[:len(big)-1], fmt.Sprintf("%d bytes, not %d", len(big)-1, len(big))},
			"grown":   {"empty", "x", "1 bytes, not 0"},
		} {
			put(all[3], c.path, c.text)
			cache := t.TempDir()
			_, err := r.Fetch(t.Context(), all[3], cache)
			wantErr(t, err, fault.Corrupt, c.path, c.want, "checkpoint 2 of report 2")
			if left := readTree(t, cache); len(left) != 1 {
				t.Errorf("%s: the cache has %d files", name, len(left))
			}
			wantErr(t, r.Verify(t.Context(), all[3]), fault.Corrupt, c.path)
			put(all[3], c.path, files[c.path])
			if err := r.Verify(t.Context(), all[3]); err != nil {
				t.Fatal(err)
			}
		}
		_, err := r.Fetch(t.Context(), all[2], t.TempDir())
		wantErr(t, err, fault.Corrupt, "small", "is missing", "checkpoint 2 of report 2")
		put(all[0], "small", "xx")
		_, err = r.Fetch(t.Context(), all[0], t.TempDir())
		wantErr(t, err, fault.Corrupt, "no earlier checkpoint")
		// Removed as a whole, by the owner's policy, while another process is about to read it.
		o := openRun(t, storage, "x")
		m, err := o.Checkpoint(t.Context(), 2)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Prune(t.Context(), Policy{KeepLast: 1}); err != nil {
			t.Fatal(err)
		}
		_, err = o.Fetch(t.Context(), m, t.TempDir())
		wantErr(t, err, fault.NotFound, "checkpoint 2 was removed")
		_, err = o.Checkpoint(t.Context(), 2)
		wantErr(t, err, fault.NotFound, "checkpoint 2", "the run has 4")
	})
}

func TestDamagedLedger(t *testing.T) {
	r := newRun(t, t.TempDir(), "x")
	begin(t, r)
	m, err := r.Commit(t.Context(), Commit{Report: 1, World: 1, Data: map[string]Data{"train": {State: json.RawMessage("{}"), Ledger: []byte("ledger")}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := r.b.Put(t.Context(), r.prefix+checkpointsDir+m.Try+"/"+m.Data["train"].LedgerFile.Path, []byte("lodger"), nil); err != nil {
		t.Fatal(err)
	}
	_, err = r.Ledger(t.Context(), m, "train")
	wantErr(t, err, fault.Corrupt, "train", "altered")
	wantErr(t, r.Verify(t.Context(), m), fault.Corrupt, "train.ledger")
	_, err = r.Ledger(t.Context(), m, "eval")
	wantErr(t, err, fault.NotFound, `"eval"`)
}

// Many Runs, as of many processes, ask for the same at once: one downloads.
func TestFetchShared(t *testing.T) {
	storage := fmt.Sprintf("mem://store%d/runs", memNumber.Add(1))
	r := newRun(t, storage, "x")
	begin(t, r)
	files := map[string]string{"a": strings.Repeat("x", 3*chunk), "b/c": "y"}
	m := commit(t, r, 1, files)
	cache := t.TempDir()
	var wg sync.WaitGroup
	dirs := make([]string, 10)
	for i := range dirs {
		o := openRun(t, storage, "x")
		wg.Go(func() {
			var err error
			if dirs[i], err = o.Fetch(t.Context(), m, cache); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for _, d := range dirs {
		if d != dirs[0] {
			t.Fatal(d, dirs[0])
		}
	}
	sameFiles(t, readTree(t, dirs[0]), files)
	fi, err := os.Stat(filepath.Join(dirs[0], "a"))
	if err != nil || fi.Mode().Perm()&0o222 != 0 {
		t.Fatal(fi.Mode(), err)
	}
	// Nothing was written after the first: the file is the same one.
	if _, err := r.Fetch(t.Context(), m, cache); err != nil {
		t.Fatal(err)
	}
	if again, err := os.Stat(filepath.Join(dirs[0], "a")); err != nil || !os.SameFile(fi, again) {
		t.Fatal("it was downloaded again", err)
	}
}

// The cache holds what is in use and the last download; what a killed process left goes; what was removed from it by hand comes back.
func TestCacheBounded(t *testing.T) {
	storage := fmt.Sprintf("mem://store%d/runs", memNumber.Add(1))
	r := newRun(t, storage, "x")
	begin(t, r)
	var all []*Manifest
	for i := range int64(5) {
		all = append(all, commit(t, r, i+1, map[string]string{"f": fmt.Sprint(i)}))
	}
	cache := t.TempDir()
	downloads := func() int {
		n := 0
		for name := range readTree(t, cache) {
			if filepath.Base(name) == "f" {
				n++
			}
		}
		return n
	}
	fetch := func(r *Run, i int) string {
		t.Helper()
		dir, err := r.Fetch(t.Context(), all[i], cache)
		if err != nil {
			t.Fatal(err)
		}
		sameFiles(t, readTree(t, dir), map[string]string{"f": fmt.Sprint(i)})
		return dir
	}
	a, b := openRun(t, storage, "x"), openRun(t, storage, "x")
	first := fetch(a, 0)
	write(t, filepath.Join(filepath.Dir(first), "tmp-deaddead", "f"), "half")
	fetch(b, 1)
	if n := downloads(); n != 2 {
		t.Fatal(n, "downloads: of two in use, and half a one")
	}
	fetch(b, 2)
	if n := downloads(); n != 2 {
		t.Fatal(n)
	}
	if _, err := os.Stat(first); err != nil {
		t.Fatal("it was in use:", err)
	}
	a.Close()
	last := fetch(b, 3)
	if n := downloads(); n != 1 {
		t.Fatal(n)
	}
	// Removed by hand while it is in use: not repaired under somebody's eyes. Then it is.
	if err := os.Remove(filepath.Join(last, "f")); err != nil {
		t.Fatal(err)
	}
	c := openRun(t, storage, "x")
	_, err := c.Fetch(t.Context(), all[3], cache)
	wantErr(t, err, fault.Corrupt, last, "end that one first")
	b.Close()
	fetch(c, 3)
	if _, err := b.Fetch(t.Context(), all[3], cache); fault.CodeOf(err) != fault.Canceled {
		t.Fatal("a closed run fetched:", err)
	}
	// Another run of the name has other downloads.
	entries, err := os.ReadDir(cache)
	if err != nil || len(entries) != 1 || entries[0].Name() != "x-"+r.Record().ID {
		t.Fatal(entries, err)
	}
}

// Runs fetch and commit at random; nobody ever reads what was not committed, or a folder that goes away.
func TestFetchRandom(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	storage := fmt.Sprintf("mem://store%d/runs", memNumber.Add(1))
	r := newRun(t, storage, "x")
	begin(t, r)
	cache := t.TempDir()
	dir := t.TempDir()
	var wg sync.WaitGroup
	done := make(chan struct{})
	commit(t, r, 1, map[string]string{"report": "1"})
	for i := range 4 {
		o := openRun(t, storage, "x")
		rnd := rand.New(rand.NewPCG(seed, uint64(i)))
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
				}
				list, err := o.Checkpoints(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				if len(list) == 0 { // all that were listed are pruned
					continue
				}
				m := &list[rnd.IntN(len(list))]
				d, err := o.Fetch(t.Context(), m, cache)
				if fault.CodeOf(err) == fault.NotFound { // pruned meanwhile
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				for range 3 {
					if got, err := os.ReadFile(filepath.Join(d, "report")); err != nil || string(got) != fmt.Sprint(m.Report) {
						t.Errorf("%q %v, want %d", got, err, m.Report)
					}
				}
			}
		})
	}
	for i := int64(2); i < 60; i++ {
		write(t, filepath.Join(dir, "report"), fmt.Sprint(i))
		if _, err := r.Commit(t.Context(), Commit{Report: i, World: 1, Parts: []Part{{0, dir}}}); err != nil {
			t.Error(err)
			break
		}
		if err := r.Prune(t.Context(), Policy{KeepLast: 4}); err != nil {
			t.Error(err)
			break
		}
	}
	close(done)
	wg.Wait()
}
