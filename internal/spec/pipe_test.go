package spec

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// TestPipeIsNoSpec: a pipe or a folder with the name of a spec is an error, and blocks nobody.
func TestPipeIsNoSpec(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "a.yaml")
	if err := syscall.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{pipe, dir} {
		if _, _, err := readSpec(path); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "regular file") {
			t.Errorf("%s: %v", path, err)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := w.WriteString("read: {}"); err != nil {
		t.Fatal(err)
	}
	w.Close()
	if data, _, err := readSpec(fmt.Sprintf("/dev/fd/%d", r.Fd())); err != nil || string(data) != "read: {}" {
		t.Errorf("from the shell: %q, %v", data, err)
	}
}
