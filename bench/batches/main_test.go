package main

import (
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/internal/memtest"
)

// A part runs, with little of everything, prints lines of the table, and leaves no file.
func TestWindow(t *testing.T) {
	if testing.Short() {
		memtest.Skip(t, "not with -short: it builds shard twice")
	}
	dir := t.TempDir()
	var out strings.Builder
	b := &bench{kit.Bench{Ctx: t.Context(), Dir: dir, Quick: true, Table: kit.Table{Out: &out, Part: "window"}}}
	if err := b.order("window"); err != nil {
		t.Fatal(err)
	}
	kit.CheckTable(t, out.String(), 4)
	if !strings.Contains(out.String(), "| window: 40 float32, packing of a window | ") {
		t.Error(out.String())
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestParse(t *testing.T) {
	const head = "| batches of 1024 rows | rows | GB/s | a copy | of it |\n|---|---|--:|--:|--:|\n"
	got, err := parse(head+"| 40 float32, stacked | just read | 12.34 | 21.76 | 0.567 |\n", "just read")
	if err != nil || !slices.Equal(got, []figure{{"40 float32, stacked", "12.34", "21.76", "0.567"}}) {
		t.Errorf("%v, %v", got, err)
	}
	for _, line := range []string{"| a | shuffled | 1 | 2 | 3 |", "| a | just read | 1 | 2 |"} {
		if got, err := parse(head+line, "just read"); err == nil {
			t.Errorf("%q gives %v", line, got)
		}
	}
}
