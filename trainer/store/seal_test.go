package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

const testKey = "sixteen bytes or more"

// Records that are written with a key are read with it, and by who has none; what was altered,
// moved or written without the key is refused by who has it.
func TestSeal(t *testing.T) {
	t.Setenv(EnvKey, testKey)
	dir := t.TempDir()
	make := func(storage, name string) *Manifest {
		t.Helper()
		r := newRun(t, storage, name)
		begin(t, r)
		if err := r.SetStatus(t.Context(), Status{State: Running}); err != nil {
			t.Fatal(err)
		}
		c := Commit{Report: 1, World: 2, Parts: []Part{{0, tree(t, map[string]string{"f": "abcd"})}}, Data: map[string]Data{"a": {Ledger: []byte("ledger")}}}
		m, err := r.Commit(t.Context(), c)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.SetStatus(t.Context(), Status{State: Finished}); err != nil {
			t.Fatal(err)
		}
		if !r.Verified() {
			t.Error("a run that was made with a key is not verified")
		}
		r.Close()
		return m
	}
	read := func(storage, name string) error {
		r, err := Open(t.Context(), storage, name)
		if err != nil {
			return err
		}
		defer r.Close()
		if r.Verified() != (os.Getenv(EnvKey) != "") {
			t.Error("verified:", r.Verified())
		}
		if _, err := r.Status(t.Context()); err != nil {
			return err
		}
		m, err := r.Latest(t.Context())
		if err != nil {
			return err
		}
		return r.Verify(t.Context(), m)
	}
	m := make(dir, "x")
	if err := read(dir, "x"); err != nil {
		t.Fatal(err)
	}
	if !strings.HasPrefix(m.Files[0].Sum, "sha256:") || !strings.HasPrefix(m.Data["a"].LedgerFile.Sum, "sha256:") {
		t.Errorf("sums that can be forged: %+v", m)
	}
	for name, data := range readTree(t, filepath.Join(dir, "x")) {
		if strings.Contains(data, testKey) {
			t.Errorf("the key is in %s", name)
		}
	}
	const status, start, ckpt = statusDir + "000001.json", checkpointsDir + "000000.json", checkpointsDir + "000001.json"
	bad := func(what string, err error, file, why string) {
		t.Helper()
		if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), why) || !strings.Contains(err.Error(), EnvKey) || strings.Contains(err.Error(), testKey) {
			t.Errorf("%s: %v, want Corrupt with %q and %q", what, err, file, why)
		}
	}

	// Altered.
	for _, c := range []struct{ file, old, text string }{
		{runFile, `"workers": 2`, `"workers": 3`},
		{runFile, `"version": 1`, `"version":  1`},
		{status, `"state": "finished"`, `"state": "failed"`},
		{start, `"report": 0`, `"report": 1`},
		{ckpt, `"report": 1`, `"report": 2`},
		{ckpt, `"seal": "`, `"seal": "0`},
	} {
		name := filepath.Join(dir, "x", c.file)
		was, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		edit(t, name, c.old, c.text)
		bad(c.text, read(dir, "x"), filepath.Base(c.file), "seal")
		if err := os.WriteFile(name, was, 0o600); err != nil {
			t.Fatal(err)
		}
	}

	// Moved, from another run of the name, another place, another name.
	other := t.TempDir()
	make(other, "x")
	make(dir, "y")
	copied := func(from, to string) func() {
		t.Helper()
		was, err := os.ReadFile(to)
		if err != nil {
			t.Fatal(err)
		}
		data, err := os.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return func() {
			if err := os.WriteFile(to, was, 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	for _, file := range []string{status, start, ckpt} {
		back := copied(filepath.Join(other, "x", file), filepath.Join(dir, "x", file))
		bad("of another run: "+file, read(dir, "x"), filepath.Base(file), "moved here")
		back()
	}
	back := copied(filepath.Join(dir, "y", runFile), filepath.Join(dir, "x", runFile))
	bad("of another name", read(dir, "x"), runFile, "moved here")
	back()
	back = copied(filepath.Join(dir, "x", start), filepath.Join(dir, "x", ckpt))
	bad("of another place", read(dir, "x"), filepath.Base(ckpt), "moved here")
	back()

	// With another key, or none.
	t.Setenv(EnvKey, "another key of somebody else")
	bad("another key", read(dir, "x"), runFile, "not that of the key")
	all, err := List(t.Context(), dir)
	if err != nil || len(all) != 2 {
		t.Fatal(all, err)
	}
	bad("listed", all[0].Err, runFile, "not that of the key")
	t.Setenv(EnvKey, "")
	os.Unsetenv(EnvKey)
	if err := read(dir, "x"); err != nil {
		t.Error("without a key:", err)
	}
	r := openRun(t, dir, "x")
	_, err = r.Begin(t.Context(), BeginOptions{})
	wantErr(t, err, fault.Denied, EnvKey)
	plain := newRun(t, dir, "plain")
	begin(t, plain)
	commit(t, plain, 1, map[string]string{"f": "1"})
	plain.Close()
	if data := readTree(t, filepath.Join(dir, "plain"))[runFile]; strings.Contains(data, "seal") {
		t.Error(data)
	}
	t.Setenv(EnvKey, testKey)
	bad("without a seal", read(dir, "plain"), runFile, "has no seal")
}

// Keys are long enough, and the errors of those that are not do not hold them.
func TestKey(t *testing.T) {
	dir := t.TempDir()
	file := func(text string, mode os.FileMode) string {
		t.Helper()
		f, err := os.CreateTemp(dir, "key")
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteString(text); err != nil {
			t.Fatal(err)
		}
		f.Close()
		if err := os.Chmod(f.Name(), mode); err != nil {
			t.Fatal(err)
		}
		return "file:" + f.Name()
	}
	for _, c := range []struct {
		value string
		code  fault.Code
	}{
		{testKey, fault.Unknown},
		{file(testKey+"\n", 0o600), fault.Unknown},
		{"", fault.Invalid},
		{"short!secret", fault.Invalid},
		{file("short!secret", 0o600), fault.Invalid},
		{file(testKey, 0o666), fault.Denied},
		{file(strings.Repeat("k", mostKey+5), 0o600), fault.Invalid},
		{"file:" + dir + "/absent", fault.NotFound},
		{"file:" + dir, fault.Unknown + 1}, // some error
	} {
		t.Setenv(EnvKey, c.value)
		key, err := keyOf()
		if c.code == fault.Unknown && (err != nil || string(key) != testKey) || c.code != fault.Unknown && err == nil {
			t.Errorf("%q: %q, %v", c.value, key, err)
		}
		if err == nil {
			continue
		}
		if c.code != fault.Unknown+1 && fault.CodeOf(err) != c.code {
			t.Errorf("%q: %v, want %v", c.value, err, c.code)
		}
		if !strings.Contains(err.Error(), EnvKey) || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), testKey) {
			t.Errorf("%q: %v", c.value, err)
		}
		if _, err := Open(t.Context(), dir, "x"); err == nil || !strings.Contains(err.Error(), EnvKey) {
			t.Error(err)
		}
	}
}

// A process of another node, which has no key, uploads with sums that cannot be forged.
func TestSealedUploadElsewhere(t *testing.T) {
	dir := t.TempDir()
	t.Setenv(EnvKey, testKey)
	r := newRun(t, dir, "x")
	begin(t, r)
	os.Unsetenv(EnvKey)
	there := openRun(t, dir, "x")
	forged := false
	upload := func(ctx context.Context, try string) ([]File, error) {
		files, err := there.Upload(ctx, try, []Part{{1, tree(t, map[string]string{"g": "1"})}}, 0)
		if err == nil && forged {
			files[0].Sum = newSum(false).of([]byte("1"))
		}
		return files, err
	}
	c := Commit{Report: 1, World: 2, Parts: []Part{{0, tree(t, map[string]string{"f": "1"})}}, Elsewhere: []Elsewhere{{Ranks: []int{1}, Upload: upload}}}
	m, err := r.Commit(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if err := m.strongSums(); err != nil {
		t.Fatal(err)
	}
	forged = true
	_, err = r.Commit(t.Context(), c)
	wantErr(t, err, fault.Internal, "SHA-256")
}
