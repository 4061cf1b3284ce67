package main

import (
	"strings"
	"testing"
)

// Columns are straight, also around rows whose last cells are empty, and no line ends with blanks.
func TestTable(t *testing.T) {
	var b strings.Builder
	x := newTable(&b, "JOB", "TOOK", "WHY")
	x.row("j1", "-", "it waits")
	x.row("j2", "10m", "")
	x.row("j10", "1d", "failed")
	if err := x.Flush(); err != nil {
		t.Fatal(err)
	}
	if want := "JOB  TOOK  WHY\nj1   -     it waits\nj2   10m\nj10  1d    failed\n"; b.String() != want {
		t.Errorf("%q, want %q", b.String(), want)
	}
}
