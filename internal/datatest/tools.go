package datatest

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
)

// Tool returns the path of a program that `make tools` builds. Where it is absent the test is skipped, or fails when CI=true.
func Tool(t testing.TB, name string) string {
	t.Helper()
	p := filepath.Join(root(), "bin", "tools", name)
	if _, err := os.Stat(p); err != nil {
		memtest.Skip(t, "%s is not built: run make tools", name)
	}
	return p
}

// Python returns the path of an interpreter that has these modules: PENSTOCK_PYTHON, or that of the environment that
// `make test` sets up. Where there is none the test is skipped, or fails when CI=true.
func Python(t testing.TB, modules ...string) string {
	t.Helper()
	p := os.Getenv("PENSTOCK_PYTHON")
	if p == "" {
		p = filepath.Join(root(), "bin", "venv", "bin", "python")
	}
	if out, err := exec.Command(p, "-c", "import "+strings.Join(modules, ", ")).CombinedOutput(); err != nil {
		memtest.Skip(t, "no Python with %s (run make venv, or set PENSTOCK_PYTHON): %v %s", strings.Join(modules, ", "), err, out)
	}
	return p
}

func root() string {
	_, self, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(self), "..", "..")
}
