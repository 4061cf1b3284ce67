package kit

import (
	"context"
	"flag"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"syscall"
)

// Bench is what the parts of a program share. Of one goroutine.
type Bench struct {
	Table
	Ctx   context.Context // ends when the program is told to
	Dir   string          // of this run: it is removed at the end
	Quick bool            // little of everything, to see that it runs
	undo
}

// undo is what is to be done at the end.
type undo []func()

// Cleanup has f called at the end, the last first.
func (u *undo) Cleanup(f func()) { *u = append(*u, f) }

// Close does what Cleanup was told.
func (u *undo) Close() {
	for _, f := range slices.Backward(*u) {
		f()
	}
	*u = nil
}

// Few is n, or with -quick less.
func (b *Bench) Few(n, quick int) int {
	if b.Quick {
		return quick
	}
	return n
}

// Main is main of a program that measures parts: it adds -only and -quick to the flags that there are, makes a folder of the run in DIR, and prints the table of the parts that are chosen, each of which runs with all.
// prepare, if any, comes before them, with DIR; it returns what is said of this machine besides. An error ends the program, when what was started has ended.
func Main[B any](b *Bench, parts []Part[func(B) error], all B, prepare func(dir string) (versions string, err error)) {
	only := flag.String("only", "", "parts to measure, comma separated; default: all")
	flag.BoolVar(&b.Quick, "quick", false, "little of everything, to see that it runs")
	flag.Parse()
	if flag.NArg() != 1 {
		log.Fatalf("usage: %[1]s [-only PART,...] DIR; see the comment in bench/%[1]s/main.go", b.Program)
	}
	chosen, err := Choose(parts, *only)
	if err != nil {
		log.Fatal(err)
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	b.Ctx = ctx
	if err := measure(b, chosen, all, prepare); err != nil {
		log.Fatal(b.Program, ": ", err)
	}
}

func measure[B any](b *Bench, parts []Part[func(B) error], all B, prepare func(dir string) (string, error)) error {
	defer b.Close()
	dir, err := filepath.Abs(flag.Arg(0))
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	if b.Dir, err = os.MkdirTemp(dir, "r"); err != nil { // short: sockets are in it
		return err
	}
	b.Cleanup(func() { os.RemoveAll(b.Dir) })
	versions := ""
	if prepare != nil {
		if versions, err = prepare(dir); err != nil {
			return err
		}
	}
	return Measure(&b.Table, versions, parts, all)
}
