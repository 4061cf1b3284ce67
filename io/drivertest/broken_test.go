package drivertest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/memio"
	"github.com/penstock-data/penstock/io/textio"
)

// flaw is one way in which a driver may break its promises, and the check that
// must notice.
type flaw struct {
	check string
	text  bool // of a driver of lines of text, else of numbers in memory
	next  func(r *flawed, ctx context.Context) (driver.Batch, error)
	open  func(o *driver.ScanOptions) // changes what the driver is told
	close func(r *flawed) error
	keep  func(keep []bool)
	ids   func(s []driver.Split)
}

var errOnce = errors.New("once")

var flaws = map[string]flaw{
	"nothing":         {},
	"nothing in text": {text: true},
	"loses a row": {check: "rows", next: func(r *flawed, ctx context.Context) (driver.Batch, error) {
		b, err := r.Reader.Next(ctx)
		if err == nil && b.Record.NumRows() > 1 {
			s := b.Record.NewSlice(1, b.Record.NumRows())
			b.Record.Release()
			b.Record = s
		}
		return b, err
	}},
	"wrong position": {check: "batches", next: func(r *flawed, ctx context.Context) (driver.Batch, error) {
		b, err := r.Reader.Next(ctx)
		b.Row += int64(r.batches / 2)
		return b, err
	}},
	"forgets errors": {check: "cancel", next: func(r *flawed, ctx context.Context) (driver.Batch, error) {
		if ctx.Err() != nil && r.batches == 1 {
			return driver.Batch{}, driver.Wrap(errOnce, driver.Place{})
		}
		return r.Reader.Next(ctx)
	}},
	"ignores the context": {check: "cancel", next: func(r *flawed, ctx context.Context) (driver.Batch, error) {
		return r.Reader.Next(context.WithoutCancel(ctx))
	}},
	"leaks": {check: "close", next: func(r *flawed, ctx context.Context) (driver.Batch, error) {
		b, err := r.Reader.Next(ctx)
		if err == nil && r.o != nil && r.o.Alloc != nil {
			r.o.Alloc.Allocate(8)
		}
		return b, err
	}},
	"pays for nothing":     {check: "alloc", open: func(o *driver.ScanOptions) { o.Alloc = nil }},
	"batches too large":    {check: "batches", open: func(o *driver.ScanOptions) { o.BatchRows++ }},
	"skips nothing":        {check: "from_row", open: func(o *driver.ScanOptions) { o.FromRow = 0 }},
	"stops early":          {check: "limit", open: func(o *driver.ScanOptions) { o.Limit = (o.Limit + 1) / 2 }},
	"ignores the columns":  {check: "projection", open: func(o *driver.ScanOptions) { o.Columns = nil }},
	"limit before filter":  {check: "predicate", open: func(o *driver.ScanOptions) { o.Predicate = nil }},
	"prunes too much":      {check: "predicate", keep: func(keep []bool) { clear(keep) }},
	"equal IDs":            {check: "resolve", ids: func(s []driver.Split) { s[len(s)-1].ID = s[0].ID }},
	"wrong number of rows": {check: "resolve", ids: func(s []driver.Split) { s[0].Rows-- }},
	"enters nowhere":       {check: "offsets", text: true, open: func(o *driver.ScanOptions) { o.FromByte = 0 }},
	"enters a row late":    {check: "offsets", text: true, open: func(o *driver.ScanOptions) { o.FromByte += min(o.FromByte, 1) }},
	"offsets of the text": {check: "offsets", text: true, next: func(r *flawed, ctx context.Context) (driver.Batch, error) {
		b, err := r.Reader.Next(ctx)
		for k := range b.Offsets {
			b.Offsets[k] -= min(b.Offsets[k], 1) // where the line before ends
		}
		return b, err
	}},
	"counts from its entry": {check: "offsets", text: true, next: func(r *flawed, ctx context.Context) (driver.Batch, error) {
		b, err := r.Reader.Next(ctx)
		if r.o != nil && r.o.FromByte > 0 && b.Row > 0 {
			b.Row--
		}
		return b, err
	}},
	"bound to one call": {check: "contexts", next: func(r *flawed, ctx context.Context) (driver.Batch, error) {
		if r.first == nil {
			r.first = ctx
		}
		return r.Reader.Next(r.first)
	}},
	"reads after close": {check: "close", close: func(*flawed) error { return nil }},
}

type flawed struct {
	driver.Reader
	f       flaw
	o       *driver.ScanOptions
	batches int
	first   context.Context
}

func (r *flawed) Next(ctx context.Context) (driver.Batch, error) {
	defer func() { r.batches++ }()
	if r.f.next != nil {
		return r.f.next(r, ctx)
	}
	return r.Reader.Next(ctx)
}

func (r *flawed) Close() error {
	if r.f.close != nil {
		return r.f.close(r)
	}
	return r.Reader.Close()
}

type flawedTable struct {
	driver.Table
	f      flaw
	splits []driver.Split
}

func (t *flawedTable) Splits() []driver.Split { return t.splits }

func (t *flawedTable) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	if t.f.open != nil && o != nil {
		c := *o
		if c.BatchRows == 0 {
			c.BatchRows = driver.DefaultBatchRows
		}
		t.f.open(&c)
		o = &c
	}
	r, err := t.Table.Open(ctx, i, o)
	if err != nil {
		return nil, err
	}
	return &flawed{Reader: r, f: t.f, o: o}, nil
}

// numbers are a table of memio, lines one of textio.
type (
	numbers struct{ *flawedTable }
	lines   struct{ *flawedTable }
)

func (t lines) Offsets(i int) bool { return t.Table.(driver.Offsetter).Offsets(i) }

func (t numbers) Keep(ctx context.Context, p driver.Predicate) ([]bool, error) {
	keep, err := t.Table.(driver.Pruner).Keep(ctx, p)
	if err == nil && t.f.keep != nil {
		t.f.keep(keep)
	}
	return keep, err
}

type flawedSource struct {
	driver.Source
	f flaw
}

func (s flawedSource) Resolve(ctx context.Context, o *driver.ResolveOptions) (driver.Table, error) {
	t, err := s.Source.Resolve(ctx, o)
	if err != nil {
		return nil, err
	}
	splits := append([]driver.Split(nil), t.Splits()...)
	if s.f.ids != nil {
		s.f.ids(splits)
	}
	ft := &flawedTable{t, s.f, splits}
	if s.f.text {
		return lines{ft}, nil
	}
	return numbers{ft}, nil
}

// TestFlawed runs the suite over the driver that the environment names: it is
// the child of TestSuiteNotices.
func TestFlawed(t *testing.T) {
	f, ok := flaws[os.Getenv("DRIVERTEST_FLAW")]
	if !ok {
		t.Skip("runs as a child of TestSuiteNotices")
	}
	if f.text {
		drivertest.Run(t, textHarness(f), 0)
		return
	}
	drivertest.Run(t, drivertest.Harness{
		Make: func(t testing.TB, files [][]arrow.RecordBatch) driver.Source {
			return flawedSource{memio.Range(memio.SplitRows + 400), f}
		},
		Open: func(c json.RawMessage) (driver.Source, error) {
			s, err := memio.Format().Open(c)
			return flawedSource{s, f}, err
		},
		Schema:    drivertest.IDs(),
		FileRows:  []int64{memio.SplitRows + 400},
		KnownRows: true,
		Prunes:    true,
	}, 0)
}

// textHarness is a driver of lines in files of several splits.
func textHarness(f flaw) drivertest.Harness {
	return drivertest.Harness{
		Ext: ".txt",
		Write: func(t testing.TB, path string, recs []arrow.RecordBatch) {
			var b bytes.Buffer
			for _, r := range recs {
				for i := range int(r.NumRows()) {
					b.WriteString(r.Column(0).(*array.String).Value(i) + "\n")
				}
			}
			if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
				t.Fatal(err)
			}
		},
		Source: func(paths ...string) driver.Source {
			return flawedSource{textio.New(textio.Options{Options: fileset.Options{Paths: paths}, SplitBytes: 3000}), f}
		},
		Open: func(c json.RawMessage) (driver.Source, error) {
			s, err := textio.Format().Open(c)
			return flawedSource{s, f}, err
		},
		Schema: arrow.NewSchema([]arrow.Field{{Name: textio.Column, Type: arrow.BinaryTypes.String}}, nil),
		Gen: func(s *arrow.Schema, seed uint64, first, rows int64) arrow.RecordBatch {
			b := array.NewStringBuilder(memory.DefaultAllocator)
			defer b.Release()
			for i := range rows {
				b.Append(strings.Repeat("a line ", int((first+i)%9)) + strconv.FormatInt(first+i, 10))
			}
			a := b.NewArray()
			defer a.Release()
			return array.NewRecordBatch(s, []arrow.Array{a}, rows)
		},
		Shortens:  true,
		EmptyFile: true,
	}
}

func TestSuiteNotices(t *testing.T) {
	for name, f := range flaws {
		t.Run(name, func(t *testing.T) {
			run := "^TestFlawed$"
			if f.check != "" {
				run += "/^" + f.check + "$"
			}
			cmd := exec.Command(os.Args[0], "-test.run", run, "-test.v")
			cmd.Env = append(os.Environ(), "DRIVERTEST_FLAW="+name)
			out, err := cmd.CombinedOutput()
			if f.check == "" {
				if err != nil {
					t.Errorf("a driver without flaw fails:\n%s", out)
				}
				return
			}
			if err == nil || !strings.Contains(string(out), "--- FAIL: TestFlawed/"+f.check) {
				t.Errorf("the suite did not notice (%v):\n%s", err, out)
			}
		})
	}
}
