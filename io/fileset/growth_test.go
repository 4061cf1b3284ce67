package fileset

import (
	"bytes"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
)

// TestGrowth: what a file may become is dealt to its parts, whatever they claim, and never more
// than once.
func TestGrowth(t *testing.T) {
	s := &Set{Files: []File{{Info: blobio.Info{Size: 1000}}}}
	whole := Extent{100, 900}
	all := int64(1000*DefaultMaxGrowth + freeGrowth)
	if got := s.Growth(0, whole, whole).most; got != all {
		t.Errorf("the whole file may become %d bytes, want %d", got, all)
	}
	for _, c := range []struct {
		name string
		part Extent
		n    int64 // such parts
		all  Extent
	}{
		{"parts", Extent{10, 90}, 10, whole},
		{"parts without bytes", Extent{10, 0}, 10, Extent{100, 0}},
		{"parts without rows", Extent{0, 90}, 10, Extent{0, 900}},
		{"parts on each other", Extent{10, 900}, 10, Extent{100, 9000}},
		{"more rows than can be", Extent{1 << 55, 90}, 10, Extent{10 << 55, 900}},
	} {
		var sum int64
		for range c.n {
			sum += s.Growth(0, c.part, c.all).most
		}
		if c.all.Rows == 0 {
			sum -= (c.n - 1) * (100*DefaultMaxGrowth + freeGrowth) // what no part has, for each: streams and text have one
		}
		if sum > all+c.n || sum < all-c.n {
			t.Errorf("%s: together %d bytes, want %d", c.name, sum, all)
		}
	}
	g := s.Growth(0, whole, whole)
	if err := g.Add(1<<20, all-(8<<20)); err != nil {
		t.Errorf("all that it may become: %v", err)
	}
	if err := g.Add(1, 0); fault.CodeOf(err) != fault.Corrupt {
		t.Errorf("a row more: %v, want Corrupt", err)
	}
	if err := s.Growth(0, whole, whole).Add(math.MaxInt64, 1); fault.CodeOf(err) != fault.Corrupt {
		t.Errorf("rows without end: %v, want Corrupt", err)
	}
	s.opts.MaxGrowth = math.MaxInt64
	if err := s.Growth(0, whole, whole).Add(1<<50, 0); err != nil {
		t.Errorf("with the limit raised: %v", err)
	}
}

// What is passed over counts as well, where a few bytes of a compressed file become it: blank
// lines.
func TestSmallFileManyBlankLines(t *testing.T) {
	for _, kind := range []string{"gzip", "zstd"} {
		var b bytes.Buffer
		w, err := Compress(kind, 0, &b)
		if err != nil {
			t.Fatal(err)
		}
		lines := bytes.Repeat([]byte{'\n'}, 1<<20)
		for range 64 {
			if _, err := w.Write(lines); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		r, err := Decompress(kind, &b, 1000)
		if err != nil {
			t.Fatal(err)
		}
		n, err := io.Copy(io.Discard, r)
		if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "max_growth") || n >= 64<<20 {
			t.Errorf("%s: %d lines, %v", kind, n, err)
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	}
}
