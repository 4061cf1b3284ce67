package kit

import (
	"context"
	"fmt"
	"log"
	"os"
	"testing"
)

// Host is what internal/testserver takes for a test: an error ends the program, and Close undoes what was started. Of one goroutine.
type Host struct {
	testing.TB // for the methods that are not asked for
	ctx        context.Context
	dir        string
	last       func()
	undo
}

// NewHost has its folders below dir. last, if any, is called before an error ends the program, after Close.
func NewHost(ctx context.Context, dir string, last func()) *Host {
	return &Host{ctx: ctx, dir: dir, last: last}
}

func (h *Host) Context() context.Context { return h.ctx }
func (h *Host) Helper()                  {}
func (h *Host) Cleanup(f func())         { h.undo.Cleanup(f) } // TB has one, too

func (h *Host) Setenv(key, value string) {
	old, was := os.LookupEnv(key)
	if err := os.Setenv(key, value); err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() {
		if was {
			os.Setenv(key, old)
		} else {
			os.Unsetenv(key)
		}
	})
}

func (h *Host) TempDir() string {
	err := os.MkdirAll(h.dir, 0o777)
	if err != nil {
		h.Fatal(err)
	}
	dir, err := os.MkdirTemp(h.dir, "host-")
	if err != nil {
		h.Fatal(err)
	}
	h.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (h *Host) Fatal(args ...any) {
	h.Close()
	if h.last != nil {
		h.last()
	}
	log.Fatal(args...)
}

func (h *Host) Fatalf(format string, args ...any) { h.Fatal(fmt.Sprintf(format, args...)) }

// Skipf is called where the server cannot be had.
func (h *Host) Skipf(format string, args ...any) { h.Fatalf(format, args...) }
