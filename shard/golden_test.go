package shard_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/textio"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// The sequences of order version 1, as they were when it was fixed: no release changes them. PENSTOCK_GOLDEN=1
// writes the files, for graphs that are new.
func TestGoldenSequences(t *testing.T) {
	dir := t.TempDir()
	var text bytes.Buffer
	for i := range 60 {
		fmt.Fprintf(&text, "line %d %s\n", i, word(int64(i)))
	}
	file := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(file, text.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	data := func(first int64) *dataset.Dataset { return dataset.Read(cells{first, []int{20, 7, 0, 13, 16, 4}}) }
	shuffle := func(m shard.Mode, lanes int, rows, bytes int64) *shard.Shuffle {
		return &shard.Shuffle{Mode: m, Lanes: lanes, WindowRows: rows, WindowBytes: bytes}
	}
	mix := dataset.MixWith(dataset.MixOptions{Stop: ops.StopAll, Schedule: []ops.WeightsAt{{At: 40, Weights: []int64{1, 2, 1}}}},
		dataset.MixSource{Name: "a", Weight: 3, Data: data(0).Filter("id % 3 != 0")},
		dataset.MixSource{Name: "b", Weight: 1, Data: data(1000)},
		dataset.MixSource{Name: "c", Weight: 1, Data: dataset.Read(cells{2000, []int{5}}), Repeat: true})
	for _, c := range []struct {
		name  string
		ds    *dataset.Dataset
		s     *shard.Shuffle
		ranks int
		tail  shard.Tail
	}{
		{"none", data(0).Explode("l"), shuffle(shard.ModeNone, 0, 8, 0), 1, shard.TailDrop},
		{"blocks", data(0), shuffle(shard.ModeBlocks, 0, 8, 0), 3, shard.TailPad},
		{"window", data(0).Filter("id % 4 != 1").WithColumns("r = random()"), shuffle(shard.ModeWindow, 4, 6, 0), 5, shard.TailRepeat},
		{"mix", mix, shuffle(shard.ModeWindow, 2, 6, 6), 2, shard.TailPad},
		{"pack", data(0).Pack("t", &dataset.PackOptions{Length: 16, Method: ops.PackBestFit}), shuffle(shard.ModeWindow, 2, 16, 0), 2, shard.TailPad},
		{"text", dataset.Read(textio.New(textio.Options{Options: fileset.Options{Paths: []string{file}}, SplitBytes: 150})), shuffle(shard.ModeWindow, 3, 0, 64), 2, shard.TailDrop},
	} {
		t.Run(c.name, func(t *testing.T) {
			its := open(t, c.ds, c.ranks, &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 42},
				Options: shard.Options{GlobalBatch: 10, Tail: c.tail, Shuffle: c.s, Lineage: c.name != "text", Epochs: 2}})
			var out bytes.Buffer
			for ends := 0; ends < 2; {
				for i, it := range its {
					b, err := it.Next(t.Context())
					if err == io.EOF {
						if i == len(its)-1 {
							ends++
						}
						continue
					}
					if err != nil {
						t.Fatal(err)
					}
					fmt.Fprintf(&out, "epoch %d step %d rank %d rows %d %x\n", b.Epoch(), b.Step(), b.Rank(), b.Rows(), b.Digest())
					for i, n := range b.Samples() {
						if b.Lineage() == nil { // it would hold the path
							fmt.Fprintf(&out, "  %d: %s\n", n, keyOf(b.Record(), i))
						}
					}
					for _, l := range b.Lineage() {
						fmt.Fprintf(&out, "  %d: %s #%d row %d", l.N, l.Source, l.RowGroup, l.Row)
						for _, p := range l.Parts[min(1, len(l.Parts)):] {
							fmt.Fprintf(&out, ", #%d row %d", p.RowGroup, p.Row)
						}
						out.WriteByte('\n')
					}
					b.Release()
					if b.Step() == 2 && i == 0 && b.Epoch() == 0 {
						s := it.State()
						s.Plan, s.Data = "", "" // encodings of plans are no part of the order
						j, err := json.Marshal(s)
						if err != nil {
							t.Fatal(err)
						}
						fmt.Fprintf(&out, "%s\n", j)
					}
				}
			}
			golden(t, filepath.Join("testdata", "order1", c.name+".txt"), bytes.ReplaceAll(out.Bytes(), []byte(dir), []byte(".")))
		})
	}
}

// golden compares with a file.
func golden(t *testing.T, file string, got []byte) {
	t.Helper()
	if os.Getenv("PENSTOCK_GOLDEN") == "1" {
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	a, b := bytes.Split(got, []byte("\n")), bytes.Split(want, []byte("\n"))
	for i := range a {
		if i >= len(b) || !bytes.Equal(a[i], b[i]) {
			t.Fatalf("%s, line %d: %s", file, i+1, a[i])
		}
	}
	if len(a) != len(b) {
		t.Fatalf("%s: %d lines, want %d", file, len(a), len(b))
	}
}
