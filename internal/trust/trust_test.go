package trust

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

func TestFile(t *testing.T) {
	dir := t.TempDir()
	name := filepath.Join(dir, "spec.yaml")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link.yaml")
	if err := os.Symlink(name, link); err != nil {
		t.Fatal(err)
	}
	own := func(path string) {
		t.Helper()
		if err := File(path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	foreign := func(path, why string) {
		t.Helper()
		if err := File(path); fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), why) {
			t.Errorf("%s: %v, want Denied with %q", path, err, why)
		}
	}
	own(name)
	own(link)
	own(dir)
	chmod := func(path string, mode os.FileMode) {
		t.Helper()
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	chmod(name, 0o666)
	foreign(name, "every user may write")
	foreign(link, "every user may write")
	chmod(name, 0o600)
	chmod(dir, 0o777)
	foreign(name, "every user may write")
	chmod(dir, 0o777|os.ModeSticky)
	own(name)
	chmod(dir, 0o755)
	if real, err := Folder(dir); err != nil || real == "" {
		t.Error(err)
	}
	chmod(dir, 0o777|os.ModeSticky)
	if _, err := Folder(dir); fault.CodeOf(err) != fault.Denied { // anybody adds a file
		t.Errorf("a sticky folder: %v", err)
	}
	chmod(dir, 0o755)
	if err := File(filepath.Join(dir, "absent")); fault.CodeOf(err) != fault.NotFound {
		t.Error(err)
	}
	if os.Getuid() != 0 {
		memtest.Skip(t, "files of another user, which only root can make")
	}
	if err := os.Chown(name, 12345, -1); err != nil {
		t.Fatal(err)
	}
	foreign(name, "another user")
	foreign(link, "another user")

	// A group of others may write as every user may; one's own may.
	if err := os.Chown(name, 0, 12345); err != nil {
		t.Fatal(err)
	}
	chmod(name, 0o664)
	foreign(name, "every user of group 12345 may write")
	chmod(name, 0o644)
	own(name)
	if err := os.Chown(dir, 0, 12345); err != nil {
		t.Fatal(err)
	}
	chmod(dir, 0o775)
	foreign(name, "every user of group 12345 may write")
	if err := os.Chown(dir, 0, 0); err != nil {
		t.Fatal(err)
	}
	own(name)
}

// What a path led to when it was opened, and what it leads to when it is judged, may be two files.
func TestOpened(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	for _, name := range []string{"own", "foreign"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(filepath.Join(dir, "foreign"), 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("foreign", link); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(link)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("own", link); err != nil {
		t.Fatal(err)
	}
	if err := Opened(f); fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), "every user may write") {
		t.Error(err)
	}
	if f, err = os.Open(link); err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := Opened(f); err != nil {
		t.Error(err)
	}
}
