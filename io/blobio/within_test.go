package blobio

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

// A bucket that keeps to a folder follows no link out of it, whatever is done, and says which link
// it is; links that stay inside, and other folders, are as ever.
func TestWithin(t *testing.T) {
	ctx, top := t.Context(), t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, d := range []string{"in/d", "out/d"} {
		must(os.MkdirAll(filepath.Join(top, d), 0o700))
		must(os.WriteFile(filepath.Join(top, d, "f"), []byte(d), 0o600))
	}
	for name, to := range map[string]string{"in/dir": "../out", "in/file": top + "/out/d/f", "in/d/up": "../../out", "in/own": "d/f"} {
		must(os.Symlink(to, filepath.Join(top, name)))
	}
	url, prefix, err := Split(top)
	must(err)
	open := func() *Bucket {
		b, err := Open(ctx, url, nil)
		must(err)
		b.Within(prefix+"/in/", true)
		t.Cleanup(func() { b.Close() })
		return b
	}
	b := open()
	refused := func(what, link string, err error) {
		t.Helper()
		if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "a link that leads out of "+top+"/in") || !strings.Contains(err.Error(), filepath.Join(top, link)) {
			t.Errorf("%s: %v, want an error that names %s", what, err, link)
		}
	}
	key := func(rel string) string { return prefix + "/" + rel }
	for rel, link := range map[string]string{"in/dir/d/f": "in/dir", "in/file": "in/file", "in/d/up/d/f": "in/d/up"} {
		_, err := b.Stat(ctx, key(rel))
		refused("Stat", link, err)
		_, err = b.ReadAll(ctx, key(rel), 100)
		refused("ReadAll", link, err)
		_, err = b.Object(Info{Key: key(rel), Size: 5}, nil).Open()
		refused("Open", link, err)
	}
	refused("Put", "in/dir", b.Put(ctx, key("in/dir/new"), nil, nil))
	refused("Put new", "in/dir", b.Put(ctx, key("in/dir/d/g"), nil, &PutOptions{IfNotExist: true}))
	refused("Delete", "in/dir", b.Delete(ctx, key("in/dir/d/f")))
	for _, err := range b.ListDir(ctx, key("in/d/")) {
		refused("ListDir", "in/d/up", err)
	}
	for _, err := range b.List(ctx, key("in/dir/")) {
		refused("List", "in/dir", err)
	}
	must(b.Put(ctx, key("in/file"), []byte("new"), nil)) // in the place of the link
	if got, err := b.ReadAll(ctx, key("in/own"), 100); err != nil || string(got) != "in/d" {
		t.Errorf("a link that stays inside: %q, %v", got, err)
	}
	if got, err := b.ReadAll(ctx, key("out/d/f"), 100); err != nil || string(got) != "out/d" {
		t.Errorf("another folder: %q, %v", got, err)
	}
	if err := b.Put(ctx, key("in/file"), nil, &PutOptions{IfNotExist: true}); fault.CodeOf(err) != fault.Exists {
		t.Error(err)
	}
	must(b.Delete(ctx, key("in/d/up")))
	if got, err := os.ReadFile(filepath.Join(top, "out/d/f")); err != nil || string(got) != "out/d" {
		t.Errorf("outside there is %q, %v", got, err)
	}
	if all, err := os.ReadDir(filepath.Join(top, "out")); err != nil || len(all) != 1 {
		t.Errorf("outside there are %v, %v", all, err)
	}
}

// What takes the place of a folder that a bucket keeps to, once it is used, is not gone to: neither
// a link nor another folder. A link that was there before leads where it led.
func TestWithinIsSwapped(t *testing.T) {
	ctx := t.Context()
	for what, swap := range map[string]func(in, home string) error{
		"a link": func(in, home string) error { return errors.Join(os.Rename(in, in+"-was"), os.Symlink(home, in)) },
		"a folder": func(in, home string) error {
			return errors.Join(os.Rename(in, in+"-was"), os.Mkdir(in, 0o700), os.WriteFile(filepath.Join(in, "f"), []byte("theirs"), 0o600))
		},
		"a pipe": func(in, home string) error { return errors.Join(os.Rename(in, in+"-was"), unix.Mkfifo(in, 0o600)) },
	} {
		for _, linked := range []bool{false, true} {
			top := t.TempDir()
			in, home, named := filepath.Join(top, "in"), filepath.Join(top, "home"), filepath.Join(top, "in")
			if linked {
				in, named = filepath.Join(top, "real"), filepath.Join(top, "link")
				if err := os.Symlink(in, named); err != nil {
					t.Fatal(err)
				}
			}
			for _, dir := range []string{in, home} {
				if err := errors.Join(os.Mkdir(dir, 0o700), os.WriteFile(filepath.Join(dir, "f"), []byte("mine"), 0o600)); err != nil {
					t.Fatal(err)
				}
			}
			url, prefix, err := Split(named + "/")
			if err != nil {
				t.Fatal(err)
			}
			b, err := Open(ctx, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer b.Close()
			if folder := b.Within(prefix, true); folder != in {
				t.Errorf("the folder is %s, not %s", folder, in)
			}
			if linked { // to elsewhere by now
				if err := errors.Join(os.Remove(named), os.Symlink(home, named)); err != nil {
					t.Fatal(err)
				}
			}
			if err := b.Put(ctx, prefix+"g", []byte("mine"), nil); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(in, "g")); err != nil {
				t.Error(err)
			}
			if err := swap(in, home); err != nil {
				t.Fatal(err)
			}
			_, read := b.ReadAll(ctx, prefix+"f", 100)
			for _, err := range []error{read, b.Put(ctx, prefix+"new", nil, nil)} {
				if code := fault.CodeOf(err); err == nil || what != "a pipe" && code != fault.Corrupt && code != fault.Changed || !strings.Contains(err.Error(), top) {
					t.Errorf("%s, %v: %v", what, linked, err)
				}
			}
			if err := b.Delete(ctx, prefix+"f"); err == nil && what != "a pipe" {
				t.Errorf("%s, %v: deleted", what, linked)
			}
			if all, err := os.ReadDir(home); err != nil || len(all) != 1 {
				t.Errorf("%s, %v: there is now %v, %v", what, linked, all, err)
			}
		}
	}
}
