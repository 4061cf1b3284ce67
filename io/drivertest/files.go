package drivertest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

func (s *suite) missing(t *testing.T) {
	d := s.build(t, []int64{10})
	gone := filepath.Join(t.TempDir(), "no-such-file"+s.Ext)
	for _, paths := range [][]string{{gone}, {d.paths[0], gone}} {
		tab, err := s.Source(paths...).Resolve(t.Context(), nil)
		if err == nil {
			tab.Close()
		}
		if fault.CodeOf(err) != fault.NotFound || !strings.Contains(fmt.Sprint(err), "no-such-file") {
			t.Errorf("a missing path gives %v", err)
		}
	}
	empty := t.TempDir()
	if tab, err := s.Source(empty).Resolve(t.Context(), nil); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("an empty folder gives %v", err)
		if err == nil {
			tab.Close()
		}
	}
	if tab, err := s.Source().Resolve(t.Context(), nil); err == nil {
		tab.Close()
		t.Error("no path gives no error")
	}
}

// changed replaces a file after Resolve, by a longer one and by one of equal
// size and another time.
func (s *suite) changed(t *testing.T) {
	for _, extra := range []string{"more", ""} {
		d := s.build(t, []int64{2000})
		tab := resolved(t, d.src)
		b, err := os.ReadFile(d.paths[0])
		if err != nil {
			t.Fatal(err)
		}
		writeFile(t, d.paths[0], append(b, extra...))
		if err := os.Chtimes(d.paths[0], time.Time{}, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
		alloc := memtest.New(t)
		var failed bool
		for i := range tab.Splits() {
			err := scan(t.Context(), tab, i, &driver.ScanOptions{Alloc: alloc}, func(driver.Batch) error { return nil })
			failed = failed || err != nil
			if err != nil && !strings.Contains(err.Error(), filepath.Base(d.paths[0])) {
				t.Errorf("the error does not name the file: %v", err)
			}
		}
		if !failed {
			t.Errorf("a file that changed by %q after Resolve gives no error", extra)
		}
	}
}

// attempt resolves and reads a file that may be damaged. A panic, a hang, a leak
// or an error without a code is a failure of t.
func (s *suite) attempt(t *testing.T, what, path string, check func(driver.Batch) error) (err error) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil {
			t.Fatalf("%s: panic: %v\n%s", what, p, debug.Stack())
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	alloc := memtest.New(t)
	tab, err := s.Source(path).Resolve(ctx, nil)
	if err == nil {
		defer tab.Close()
		for i := range tab.Splits() {
			if err = scan(ctx, tab, i, &driver.ScanOptions{Alloc: alloc}, check); err != nil {
				break
			}
		}
	}
	if ctx.Err() != nil {
		t.Fatalf("%s: no end after 20 s", what)
	}
	if err != nil && fault.CodeOf(err) == fault.Unknown {
		t.Errorf("%s: an error without a code: %v", what, err)
	}
	if n := alloc.CurrentAlloc(); n != 0 {
		t.Fatalf("%s: %d bytes leak (error: %v)", what, n, err)
	}
	return err
}

func (s *suite) truncated(t *testing.T) {
	d := s.build(t, []int64{120})
	whole, err := os.ReadFile(d.paths[0])
	if err != nil {
		t.Fatal(err)
	}
	rng := s.rng(3)
	var at []int
	for i := range 20 {
		at = append(at, i, len(whole)-1-i)
	}
	for range 60 {
		at = append(at, rng.IntN(len(whole)))
	}
	slices.Sort(at)
	path := filepath.Join(t.TempDir(), "cut"+s.Ext)
	for _, n := range slices.Compact(at) {
		if n < 0 || n >= len(whole) {
			continue
		}
		writeFile(t, path, whole[:n])
		what := fmt.Sprintf("the first %d of %d bytes", n, len(whole))
		var rows int64
		err := s.attempt(t, what, path, func(b driver.Batch) error {
			rows += b.Record.NumRows()
			if rows > d.want.NumRows() {
				return errors.New("too many rows")
			}
			// The last row of text may be cut, and the schema guessed from fewer.
			if s.Shortens {
				return nil
			}
			return equal(b.Record, d.want, rows-b.Record.NumRows())
		})
		if err == nil && !s.Shortens && !(n == 0 && s.EmptyFile) {
			t.Errorf("%s give %d rows and no error", what, rows)
		}
		if rows > d.want.NumRows() {
			t.Errorf("%s give %d rows", what, rows)
		}
	}
}

func (s *suite) flipped(t *testing.T) {
	d := s.build(t, []int64{120})
	whole, err := os.ReadFile(d.paths[0])
	if err != nil {
		t.Fatal(err)
	}
	rng := s.rng(4)
	path := filepath.Join(t.TempDir(), "flip"+s.Ext)
	for range 150 {
		b := slices.Clone(whole)
		what := "flipped"
		for range 1 + rng.IntN(3) {
			at := rng.IntN(len(b))
			if rng.IntN(2) == 0 { // near the ends, where headers and footers are
				at = min(at, rng.IntN(256))
				if rng.IntN(2) == 0 {
					at = len(b) - 1 - at
				}
			}
			v := byte(rng.Uint32())
			what += fmt.Sprintf(" byte %d to %#x", at, v)
			b[at] = v
		}
		writeFile(t, path, b)
		s.attempt(t, what, path, func(driver.Batch) error { return nil })
	}
}

func (s *suite) badRows(t *testing.T) {
	rec := s.Gen(s.Schema, s.seed, 0, 50)
	defer rec.Release()
	bad := []int64{0, 7, 8, 49}
	path := filepath.Join(t.TempDir(), "bad"+s.Ext)
	s.Damage(t, path, rec, bad)
	want := rec
	if s.Want != nil {
		want = s.Want(path, rec)
		defer want.Release()
	}
	tab := resolved(t, s.Source(path))
	if len(tab.Splits()) != 1 {
		t.Fatalf("the damaged file has %d splits, want 1", len(tab.Splits()))
	}
	place := func(err error) int64 {
		t.Helper()
		p := fault.PlaceOf(err)
		row, ok := p.Row.Get()
		if c := fault.CodeOf(err); c != fault.RowError && c != fault.Corrupt || !ok || p.File != path {
			t.Errorf("a bad row gives %v (code %v)", err, c)
		}
		return row
	}
	alloc := memtest.New(t)
	err := scan(t.Context(), tab, 0, &driver.ScanOptions{Alloc: alloc}, func(driver.Batch) error { return nil })
	if err == nil {
		t.Fatal("bad rows give no error")
	}
	if row := place(err); row != bad[0] {
		t.Errorf("the first bad row is %d, want %d", row, bad[0])
	}
	var seen []int64
	var rows []int64
	o := &driver.ScanOptions{Alloc: alloc, BatchRows: 5, OnBadRow: func(err error) error {
		seen = append(seen, place(err))
		return nil
	}}
	err = scan(t.Context(), tab, 0, o, func(b driver.Batch) error {
		for k := range b.Record.NumRows() {
			rows = append(rows, b.Row+k)
		}
		return equal(b.Record, want, b.Row)
	})
	if err != nil {
		t.Fatal(err)
	}
	var good []int64
	for i := range rec.NumRows() {
		if !slices.Contains(bad, i) {
			good = append(good, i)
		}
	}
	if !slices.Equal(rows, good) || !slices.Equal(seen, bad) {
		t.Errorf("read rows %d, bad rows %d; want bad rows %d", rows, seen, bad)
	}
	stop := errors.New("enough")
	o.OnBadRow = func(error) error { return stop }
	if err := scan(t.Context(), tab, 0, o, func(driver.Batch) error { return nil }); !errors.Is(err, stop) {
		t.Errorf("what OnBadRow returned became %v", err)
	}
}
