// Package jsonio reads JSON lines, arrays and values one behind another, and writes JSON
// lines.
//
// The first 4 KiB and the first line tell a file's layout, unless Options.Layout does: lines, one value each, split by
// byte ranges, blank lines being no rows; one array of values; or values one behind another, over any
// number of lines. The last two are one split, as is what is compressed (gzip, zstd, bzip2, xz). They are
// read as they stream: memory holds one value and a buffer, never the file.
//
// A row is an object, whose keys are columns; where the sample has no objects it is another value, of the
// one column value. Files of white space have no rows.
//
// # Types
//
// The schema comes from the first MiB of the first file and of up to 16 others:
// bool, int64 (all whole numbers; uint64 if that is too small), double (some numbers are
// not whole), struct for objects, list for arrays; date or timestamp where all strings are
// such, as in CSV, else string, also where there were only nulls. Kinds
// that do not mix are an Invalid error that names the column, or text (Options.Mixed). Types overrides
// columns, and adds those that the sample lacks; then text may also be
//
//   - a timestamp: RFC 3339; a blank for the T and missing seconds are fine, and a missing
//     offset: it is on the clock of the column's zone then, as in expressions
//   - a date (YYYY-MM-DD) or time (hh:mm:ss.fff)
//   - binary: the bytes of the text, which need not be UTF-8, or base64 (Options.Binary)
//   - a decimal, in quotes or not; digits beyond the scale must be 0
//   - a number or bool, in quotes or not (bool also as in textvalue.GivenBool), a float "NaN", "Infinity" or "-Infinity"
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
// is read is there twice in one object. NaN and Infinity without quotes are bad rows, too, unless
// Options.NonFinite says otherwise. What is not JSON in an array, or among values one behind another, is a
// Corrupt error, as there is no telling where the next row begins.
package jsonio

import (
	"context"
	"encoding/json"
	"maps"
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
	Strict    bool   `json:"strict,omitempty" doc:"a field that the schema lacks makes a bad row; default: it is ignored, also where it comes first behind the sample"`
	Layout    string `json:"layout,omitempty" doc:"how rows lie in a file: lines (one on each line; blank lines are none), array (they are the elements of an array), elements (one behind another, on any number of lines). Default: found from the first 4 KiB of each file, and its first line. Only lines are read in several splits. Rows that are no objects are values of one column, value" enum:"lines|array|elements"`
	Mixed     string `json:"mixed,omitempty" doc:"what to do where the sample has values of several types in a column: error (default) or text: in columns of text found from the sample, what is not a string is kept as its JSON text. With text, rows of which some are objects and others not are texts of a column value" enum:"error|text"`
	NonFinite string `json:"non_finite,omitempty" doc:"NaN, Infinity and -Infinity without quotes: error (default; the row is a bad row), null, or keep, as doubles. In columns of text they are null, or kept as text" enum:"error|null|keep"`
	fileset.Binary
	SplitBytes int64 `json:"split_bytes,omitempty" doc:"size of splits; default 32 MiB"`
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

// Meets implements driver.Placed.
func (s *source) Meets(folder string) (path, root string) { return s.o.Meets(folder) }

func (s *source) Resolve(ctx context.Context, ro *driver.ResolveOptions) (driver.Table, error) {
	types := map[string]arrow.DataType{}
	for _, n := range slices.Sorted(maps.Keys(s.o.Types)) {
		t, err := typename.Parse(s.o.Types[n])
		if err == nil {
			_, err = newColumn(nil, arrow.Field{Name: n, Type: t}, n, given)
		}
		if err != nil {
			return nil, driver.Wrap(err, driver.Place{Column: n})
		}
		types[n] = t
	}
	if err := s.o.Text.Check(); err != nil {
		return nil, err
	}
	if err := s.o.Binary.Check(); err != nil {
		return nil, err
	}
	if _, known := layouts[s.o.Layout]; s.o.Layout != "" && !known {
		return nil, driver.Errorf(driver.Invalid, "layout: %q must be lines, array or elements", s.o.Layout)
	}
	if s.o.Mixed != "" && s.o.Mixed != "error" && s.o.Mixed != "text" {
		return nil, driver.Errorf(driver.Invalid, "mixed: %q must be error or text", s.o.Mixed)
	}
	odd, known := nonFinites[s.o.NonFinite]
	if !known {
		return nil, driver.Errorf(driver.Invalid, "non_finite: %q must be error, null or keep", s.o.NonFinite)
	}
	if s.o.SplitBytes < 0 {
		return nil, driver.Errorf(driver.Invalid, "split_bytes is %d", s.o.SplitBytes)
	}
	set, err := fileset.List(ctx, &s.o.Options, extensions, ro)
	if err != nil {
		return nil, err
	}
	t := &table{o: s.o, set: set, types: types, odd: odd}
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
	odd    nonFinite
	rows   *arrow.Schema // of the files
	scalar bool          // rows are values of its only column
	schema *arrow.Schema
	splits []driver.Split
	at     []place
}

// place of a split.
type place struct {
	fileset.Part
	layout layout
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
	looks.Bound(t.set, slices.Collect(maps.Keys(pick)))
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
	rows := 0
	for i := range heads {
		if bad == nil && heads[i].err != nil {
			bad = driver.Errorf(driver.Corrupt, "no row of the sample can be read: %w", heads[i].err).At(driver.Place{File: t.set.Files[i].Path})
		}
		all.merge(&heads[i].seen)
		rows += heads[i].rows
	}
	if all.count() > fileset.MaxColumns {
		return tooMany([]byte(all.names[len(all.names)-1]))
	}
	if rows == 0 && bad != nil && len(t.types) == 0 {
		return bad
	}
	var err error
	if t.rows, t.scalar, err = all.schema(t.types, rows, t.o.Mixed == "text"); err != nil {
		return err
	}
	schemas := make([]*arrow.Schema, n)
	for i := range schemas {
		schemas[i] = t.rows
	}
	splits, parts, err := t.set.Parts(ctx, t.o.Text, t.o.SplitBytes, func(i int) bool { return heads[i].layout != onLines })
	if err != nil {
		return err
	}
	t.splits = splits
	for _, p := range parts {
		t.at = append(t.at, place{p, heads[p.File].layout})
	}
	t.schema, err = t.set.Schema(schemas, nil)
	return err
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
		Layout     string   `json:",omitempty"`
		Mixed      string   `json:",omitempty"`
		NonFinite  string   `json:",omitempty"`
		Binary     string   `json:",omitempty"`
	}{t.o.Types, t.o.Strict, t.o.SplitBytes, t.o.Columns, t.o.Encoding, t.o.Layout, t.o.Mixed, t.o.NonFinite, t.o.Binary.Binary})
	if err != nil {
		return "", fault.New(fault.Internal, "%w", err)
	}
	return t.set.Fingerprint(ctx, "json", config, t.set.EdgeHash)
}

// Offsets implements driver.Offsetter: lines that are neither compressed nor of another encoding.
func (t *table) Offsets(i int) bool {
	return t.at[i].layout == onLines && t.set.Bytewise(t.at[i].Part)
}

// Size implements driver.Sizer: text is read whole, whatever the columns.
func (t *table) Size(i int, columns []string) (fetch, decoded int64) {
	n := t.splits[i].Bytes
	if columns == nil {
		return n, n
	}
	return n, n * int64(len(columns)) / int64(max(len(columns), t.schema.NumFields()))
}
