// Package jsonio reads JSON lines and JSON arrays of objects, and writes JSON
// lines.
//
// The first byte that is no white space tells a file's layout: '[' begins an
// array, which is one split; anything else is lines, one object each, split by
// byte ranges. Both may be compressed (gzip, zstd, bzip2, xz), and are one split then. Blank
// lines are no rows. Arrays are read as they stream: memory holds one element
// and a buffer, never the file.
//
// # Types
//
// The schema comes from the first MiB of the first file and of up to 16 others:
// bool, int64 (all whole numbers; uint64 if that is too small), double (some numbers are
// not whole), struct for objects, list for arrays; date or timestamp where all strings are
// such, as in CSV, else string, also where there were only nulls. Kinds
// that do not mix are an Invalid error that names the column. Types overrides
// columns, and adds those that the sample lacks; then text may also be
//
//   - a timestamp: RFC 3339; a blank for the T and missing seconds are fine, and a missing
//     offset: it is on the clock of the column's zone then, as in expressions
//   - a date (YYYY-MM-DD) or time (hh:mm:ss.fff)
//   - binary: base64
//   - a decimal, in quotes or not; digits beyond the scale must be 0
//   - a float "NaN", "Infinity" or "-Infinity"
//   - a string given by Types takes anything: what is no string is kept as its JSON
//     text
//
// A map<string, T> takes objects of any keys. Missing fields are null. Unknown
// fields are ignored unless Strict. Nesting deeper than 64 is an error.
//
// A line that is not JSON, and a value that its column cannot hold (also an
// integer out of range, 1.5 for an int64, or behind the sample an offset in a column of
// timestamps without, or the other way round), is a bad row. So is a row with a string that is not
// UTF-8 or has half of a surrogate pair, key or value, wanted or not, and one in which a key that
// is read is there twice in one object. An array that is not
// JSON is a Corrupt error, as there is no telling where the next row begins.
package jsonio

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/strict"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"golang.org/x/sync/errgroup"
)

// Options of a source.
type Options struct {
	fileset.Options
	fileset.Text
	Types      map[string]string `json:"types,omitempty" doc:"column to type, e.g. list<struct<a: double>>; others are found from a sample: the first MiB of the first file and of up to 16 others, evenly spread. Fields that come later only must be here to be read"`
	Strict     bool              `json:"strict,omitempty" doc:"a field that the schema lacks makes a bad row; default: it is ignored, also where it comes first behind the sample"`
	SplitBytes int64             `json:"split_bytes,omitempty" doc:"size of splits; default 32 MiB"`
}

// Format rebuilds sources from their configuration.
func Format() driver.Format {
	return driver.Format{Kind: "json", Open: func(config json.RawMessage) (driver.Source, error) {
		var o Options
		if err := strict.JSON("json", config, &o); err != nil {
			return nil, err
		}
		return New(o), nil
	}}
}

var extensions = fileset.Compressed(".json", ".jsonl", ".ndjson")

// New describes files. No I/O; what is wrong with the options is an error of Resolve.
func New(o Options) driver.Source { return &source{o: o} }

type source struct{ o Options }

func (*source) Kind() string                       { return "json" }
func (s *source) Config() (json.RawMessage, error) { return json.Marshal(&s.o) }

func (s *source) Resolve(ctx context.Context, ro *driver.ResolveOptions) (driver.Table, error) {
	types := map[string]arrow.DataType{}
	for _, n := range slices.Sorted(maps.Keys(s.o.Types)) {
		t, err := typename.Parse(s.o.Types[n])
		if err == nil {
			_, err = newColumn(nil, arrow.Field{Name: n, Type: t}, n, true)
		}
		if err != nil {
			return nil, driver.Wrap(err, driver.Place{Column: n})
		}
		types[n] = t
	}
	if err := s.o.Check(); err != nil {
		return nil, err
	}
	if s.o.SplitBytes < 0 {
		return nil, driver.Errorf(driver.Invalid, "split_bytes is %d", s.o.SplitBytes)
	}
	set, err := fileset.List(ctx, &s.o.Options, extensions, ro)
	if err != nil {
		return nil, err
	}
	t := &table{o: s.o, set: set, types: types}
	if err := t.resolve(ctx, ro); err != nil {
		set.Close()
		return nil, err
	}
	return t, nil
}

type table struct {
	o      Options
	set    *fileset.Set
	types  map[string]arrow.DataType
	rows   *arrow.Schema // of the files
	schema *arrow.Schema
	splits []driver.Split
	at     []place
}

// place of a split.
type place struct {
	fileset.Part
	array bool
}

// sampled files, beside the first.
const sampled = 16

func (t *table) resolve(ctx context.Context, ro *driver.ResolveOptions) error {
	n := len(t.set.Files)
	pick := map[int]bool{}
	for k := range sampled + 1 {
		pick[k*n/(sampled+1)] = true
	}
	heads := make([]head, n)
	var looks fileset.Looks
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	if ro != nil && ro.Concurrency > 0 {
		g.SetLimit(ro.Concurrency)
	}
	for i := range heads {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() (err error) {
			heads[i], err = t.head(gctx, i, pick[i], &looks)
			return driver.Wrap(err, driver.Place{File: t.set.Files[i].Path})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if err := context.Cause(ctx); err != nil {
		return driver.Wrap(err, driver.Place{})
	}
	var all shape
	var bad error
	for i := range heads {
		if bad == nil && heads[i].err != nil {
			bad = driver.Wrap(heads[i].err, driver.Place{File: t.set.Files[i].Path})
		}
		all.merge(&heads[i].seen)
	}
	if all.count() > fileset.MaxColumns {
		return tooMany([]byte(all.names[len(all.names)-1]))
	}
	if !all.objects && bad != nil && len(t.types) == 0 {
		return bad
	}
	var err error
	if t.rows, err = all.schema(t.types); err != nil {
		return err
	}
	schemas := make([]*arrow.Schema, n)
	for i := range schemas {
		schemas[i] = t.rows
	}
	splits, parts, err := t.set.Parts(ctx, t.o.Text, t.o.SplitBytes, func(i int) bool { return heads[i].array })
	if err != nil {
		return err
	}
	t.splits = splits
	for _, p := range parts {
		t.at = append(t.at, place{p, heads[p.File].array})
	}
	t.schema, err = t.set.Schema(schemas)
	return err
}

// head is what the beginning of a file tells.
type head struct {
	array bool
	seen  shape // of whole rows, if they were asked for
	err   error // of the first row that does not parse
}

const (
	sampleBytes = 1 << 20
	layoutBytes = 512
	headBytes   = 16 << 20 // of white space before the first row
)

var bom = []byte("\xEF\xBB\xBF")

// head reads the beginning of file i: until its layout is known, or whole rows of
// the first MiB, at least one.
func (t *table) head(ctx context.Context, i int, rows bool, looks *fileset.Looks) (h head, err error) {
	in := t.set.OpenStream(ctx, t.set.Begin(i, t.o.Text, math.MaxInt64), &driver.ScanOptions{})
	defer in.Close()
	size := layoutBytes
	if rows {
		size = sampleBytes
	}
	b, from := make([]byte, size), 0
	scratch := looks.Scratch()
	defer scratch.Close()
	defer func() { scratch.Free(b) }()
	for {
		n, err := io.ReadFull(in, b[from:])
		from += n
		whole := err == io.EOF || errors.Is(err, io.ErrUnexpectedEOF)
		if err != nil && !whole {
			return h, err
		}
		begin := bytes.TrimPrefix(b[:from], bom)
		first := bytes.TrimLeft(begin, " \t\r\n")
		if len(first) == 0 && len(begin) > headBytes {
			return h, driver.Errorf(driver.Corrupt, "the file begins with %d MiB of white space; leave it out of the file", headBytes>>20)
		}
		var found [][]byte
		if len(first) > 0 {
			h.array = first[0] == '['
			if rows {
				found = h.split(begin, whole)
			}
		}
		if whole || h.err != nil || len(first) > 0 && (!rows || len(found) > 0) {
			seen := fields{types: t.types}
			for _, row := range found {
				if err := h.seen.observe(&text{b: row}, 0, &seen); err != nil {
					return h, driver.Errorf(driver.Corrupt, "%w", err)
				}
			}
			return h, nil
		}
		if size > fileset.MaxLine {
			return h, driver.Errorf(driver.Corrupt, "the first row is larger than %d bytes", fileset.MaxLine)
		}
		size = min(2*size, fileset.MaxLine+1)
		b = scratch.Reallocate(size, b)
	}
}

// split finds the whole rows of b.
func (h *head) split(b []byte, whole bool) (rows [][]byte) {
	bad := func(err error) {
		if h.err == nil {
			h.err = driver.Errorf(driver.Corrupt, "the beginning of the file is not JSON: %w", err)
		}
	}
	if h.array {
		x := text{b: b, more: !whole}
		x.space()
		err := x.each(0, '[', func([]byte) error {
			c, err := x.space()
			if err != nil {
				return err
			}
			from := x.i
			if err := x.check(0); err != nil && x.wrong == nil {
				return err
			} else if err != nil {
				bad(err)
			} else if c == '{' {
				rows = append(rows, b[from:x.i])
			}
			return nil
		})
		if err != nil && err != errMore {
			bad(err)
		}
		return rows
	}
	for len(b) > 0 {
		n := bytes.IndexByte(b, '\n') + 1
		if n == 0 {
			if !whole {
				return rows
			}
			n = len(b)
		}
		x := text{b: b[:n]}
		b = b[n:]
		if x.blank() {
			continue
		}
		from := x.i
		if err := x.check(0); err != nil {
			bad(err)
		} else if x.b[from] == '{' {
			rows = append(rows, x.b[from:x.i])
		}
	}
	return rows
}

func (t *table) Schema() *arrow.Schema  { return t.schema }
func (t *table) Splits() []driver.Split { return t.splits }

// PartitionColumns implements driver.Partitioned.
func (t *table) PartitionColumns() []string { return t.set.PartitionColumns() }

// TakeRead implements driver.Metered.
func (t *table) TakeRead() int64 { return t.set.TakeRead() }

// Remote implements driver.Remote.
func (t *table) Remote() bool { return t.set.Remote() }
func (t *table) Close() error { return t.set.Close() }

func (t *table) Fingerprint(ctx context.Context) (string, error) {
	config, err := json.Marshal(struct {
		Types      map[string]string
		Strict     bool
		SplitBytes int64
		Columns    []string `json:",omitempty"`
		Encoding   string   `json:",omitempty"`
	}{t.o.Types, t.o.Strict, t.o.SplitBytes, t.o.Columns, t.o.Encoding})
	if err != nil {
		return "", fault.New(fault.Internal, "%w", err)
	}
	return t.set.Fingerprint(ctx, "json", config, t.set.EdgeHash)
}

// Offsets implements driver.Offsetter: lines that are neither compressed nor of another encoding.
func (t *table) Offsets(i int) bool {
	return !t.at[i].array && t.set.Bytewise(t.at[i].Part)
}

// Size implements driver.Sizer: text is read whole, whatever the columns.
func (t *table) Size(i int, columns []string) (fetch, decoded int64) {
	n := t.splits[i].Bytes
	if columns == nil {
		return n, n
	}
	return n, n * int64(len(columns)) / int64(max(len(columns), t.schema.NumFields()))
}
