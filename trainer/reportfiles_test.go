package trainer

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/store"
)

// Folders that hold no checkpoint are refused; the loop may go on.
func TestBadFolders(t *testing.T) {
	c := quick(t, "folders")
	empty, file := t.TempDir(), filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(empty, "sub", "sub"), 0o700); err != nil {
		t.Fatal(err)
	}
	link := t.TempDir()
	err := os.Symlink("/dev/null", filepath.Join(link, "x"))
	if err == nil {
		err = os.WriteFile(filepath.Join(link, "y"), nil, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	around := filepath.Join(t.TempDir(), "around")
	if err := os.Symlink(c.Storage, around); err != nil {
		t.Fatal(err)
	}
	within := filepath.Dir(c.Storage)
	res := fitOK(t, func(c *Context) error {
		for _, x := range []struct {
			dir, want string
			code      fault.Code
		}{
			{filepath.Join(empty, "missing"), "missing", fault.NotFound},
			{empty, "has no files", fault.Invalid}, // only folders, in which a commit finds nothing
			{filepath.Join(empty, "sub", "sub"), "has no files", fault.Invalid},
			{file, "is a file", fault.Invalid},
			{".", "holds the working directory", fault.Invalid},
			{"/", "holds ", fault.Invalid},
			{within, "holds the folder of the run", fault.Invalid},
			{around, "holds the folder of the run", fault.Invalid}, // by a link
			{os.TempDir(), "holds the folder for temporary files", fault.Invalid},
		} {
			if err := c.Report(nil, x.dir); fault.CodeOf(err) != x.code || !strings.Contains(err.Error(), x.want) {
				return fmt.Errorf("%s: %w", x.dir, err)
			}
		}
		return c.Report(map[string]float64{"nan": math.NaN(), "inf": math.Inf(-1)}, "")
	}, c)
	if res.Reports != 10 || res.Checkpoint != 0 || !math.IsNaN(res.Metrics["nan"]) || !math.IsInf(res.Metrics["inf"], -1) {
		t.Errorf("%+v", res)
	}
	run, err := store.Open(t.Context(), c.Storage, c.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	n := 0
	for row, err := range run.History(t.Context()) {
		if n++; err != nil || row.Report != int64(n) || n == 10 && !math.IsNaN(row.Metrics["nan"]) {
			t.Errorf("%+v, %v", row, err)
		}
	}
	if n != 10 {
		t.Errorf("%d rows of metrics", n)
	}
	c.Name = "link"
	refused(t, New(func(c *Context) error { return c.Report(nil, link) }, c), fault.Invalid, "x")
}

// What is moved away is not of another checkpoint: neither a download, nor the run's own, nor another run's.
func TestFoldersOfCheckpoints(t *testing.T) {
	c := quick(t, "first")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c.Workers = 1
	fitOK(t, func(c *Context) error { return save(c, "first") }, c)
	for _, async := range []bool{true, false} {
		c.Name, c.From, c.Checkpoint.Async = fmt.Sprint("from-", async), "first", async
		res := fitOK(t, func(c *Context) error {
			for range 2 {
				dir, err := c.Checkpoint().Dir(c)
				if err != nil {
					return err
				}
				if _, err := os.Stat(filepath.Join(dir, "model-0.bin")); err != nil {
					return err
				}
				err = c.Report(nil, dir)
				if refused := err != nil && fault.CodeOf(err) == fault.Invalid && strings.Contains(err.Error(), "the folder of downloaded checkpoints"); refused != async {
					return fmt.Errorf("async %v: %w", async, err)
				}
			}
			mine := filepath.Join(c.Storage(), "mine")
			if err := os.Mkdir(mine, 0o700); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(mine, "f"), nil, 0o600); err != nil {
				return err
			}
			err := c.Report(nil, mine)
			if refused := err != nil && fault.CodeOf(err) == fault.Invalid && strings.Contains(err.Error(), "the folder of the run"); refused != async {
				return fmt.Errorf("async %v: %w", async, err)
			}
			all, err := filepath.Glob(filepath.Join(filepath.Dir(c.Storage()), "first", "checkpoints", "*", "files"))
			if err != nil || len(all) != 1 {
				return fmt.Errorf("%q, %w", all, err)
			}
			err = c.Report(nil, all[0])
			if refused := err != nil && fault.CodeOf(err) == fault.Invalid && strings.Contains(err.Error(), "the folder of a run"); refused != async {
				return fmt.Errorf("async %v: %w", async, err)
			}
			if _, err := os.Stat(filepath.Join(all[0], "model-0.bin")); err != nil {
				return err
			}
			return nil
		}, c)
		if res.Reports != 4 {
			t.Errorf("%+v", res)
		}
	}
}

// Of a folder that is given by a link the files are moved away, not the link: they are no longer where the next save writes.
func TestFoldersByLink(t *testing.T) {
	for _, of := range []string{"absolute", "relative"} {
		c := quick(t, of)
		c.Data, c.Workers, c.Checkpoint.Async = nil, 1, true
		base := t.TempDir()
		real, link := filepath.Join(base, "real"), filepath.Join(base, "latest")
		to := real
		if of == "relative" {
			to = "real"
		}
		if err := os.Symlink(to, link); err != nil {
			t.Fatal(err)
		}
		res := fitOK(t, func(c *Context) error {
			for _, text := range []string{"first", "second"} {
				err := os.Mkdir(real, 0o700)
				if err == nil {
					err = os.WriteFile(filepath.Join(link, "model"), []byte(text), 0o600)
				}
				if err == nil {
					err = c.Report(nil, link)
				}
				if err != nil {
					return err
				}
				if _, err := os.Stat(real); !os.IsNotExist(err) {
					return fmt.Errorf("the folder is still there: %v", err)
				}
			}
			return nil
		}, c)
		if len(res.Checkpoints) != 2 {
			t.Fatalf("%s: %+v", of, res)
		}
		run, err := store.Open(t.Context(), c.Storage, c.Name)
		if err != nil {
			t.Fatal(err)
		}
		defer run.Close()
		for i, want := range []string{"first", "second"} {
			dir, err := run.Fetch(t.Context(), &res.Checkpoints[i], t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if b, err := os.ReadFile(filepath.Join(dir, "model")); err != nil || string(b) != want {
				t.Errorf("%s: checkpoint %d holds %q, %v", of, i, b, err)
			}
		}
	}
}

// Two ranks that give one folder are named, also where one gives it by a link, and nothing is moved; a folder in another's would go with it.
func TestFoldersOfTwoRanks(t *testing.T) {
	for _, async := range []bool{true, false} {
		for name, want := range map[string]string{"same": "ranks 0 and 1 both gave the folder ", "linked": "ranks 0 and 1 both gave the folder ", "inside": "rank 1 gave the folder ", "around": "rank 0 gave the folder "} {
			c := quick(t, fmt.Sprint(name, async))
			c.Data, c.Checkpoint.Async = nil, async
			base := t.TempDir()
			dirs := map[string][]string{"same": {"a", "a"}, "linked": {"a", "link"}, "inside": {"a", "a/sub"}, "around": {"a/sub", "a"}}[name]
			err := os.MkdirAll(filepath.Join(base, "a", "sub"), 0o700)
			if err == nil {
				err = os.Symlink("a", filepath.Join(base, "link"))
			}
			for _, file := range []string{"a/f", "a/sub/g"} {
				if err == nil {
					err = os.WriteFile(filepath.Join(base, file), nil, 0o600)
				}
			}
			if err != nil {
				t.Fatal(err)
			}
			tr := New(func(c *Context) error { return c.Report(nil, filepath.Join(base, dirs[c.Rank()])) }, c)
			if !async && strings.HasPrefix(want, "rank ") { // the two trees have files of different names
				if res, err := tr.Fit(t.Context()); err != nil || len(res.Checkpoints) != 1 {
					t.Errorf("%s: %+v, %v", name, res, err)
				}
				continue
			}
			refused(t, tr, fault.Invalid, "the checkpoint of report 1: "+want+base+"/")
			if _, err := os.Stat(filepath.Join(base, "a", "sub", "g")); err != nil {
				t.Errorf("%s, async %v: %v", name, async, err)
			}
			if kept, _ := filepath.Glob(filepath.Join(os.TempDir(), keptPrefix+"*")); len(kept) > 0 {
				t.Errorf("%s, async %v: %v is left", name, async, kept)
			}
		}
	}
}

// save is a loop that makes checkpoints of a file.
func save(c *Context, text string) error {
	dir, err := os.MkdirTemp("", "ckpt-")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("model-%d.bin", c.Rank())), []byte(text), 0o600); err != nil {
		return err
	}
	return c.Report(map[string]float64{"n": float64(c.Reports())}, dir)
}
