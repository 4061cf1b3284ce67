// Package ipcio reads and writes Arrow IPC: the file format (also known as
// Feather version 2) and the stream format, told apart by their first bytes.
//
// A split is one record batch of a file, or a whole stream. Local files are
// mapped into memory, and batches point into the mapping, which lives until the
// last of them is released, or, with driver.ScanOptions.Own, are copies; remote
// ones are read by range, only the buffers of the columns that a scan wants. A
// file that changes while a reader reads it is an error of the reader. One that
// another program writes to, or cuts short, while batches that point into it are
// in use gives wrong rows, or a memory fault: set NoMap where files are rewritten
// in place.
//
// Columns are handed out in plain types: dictionaries and run-end encoded ones as their values,
// views as strings and binaries, list views as lists, small decimals as decimal128, extension types
// as their storage (arrow.bool8 as bool), with driver.ExtensionName in the field's metadata where
// the storage stays what it is, and lists of the fixed size 0 as lists. Columns of one name are
// told apart: a, a_1. Unions and decimals that Arrow does not allow are of the type
// driver.Unreadable: the other columns can be read. Big-endian files are an Unsupported error.
// Every length and offset in a file is checked against the file before it is used, and text is
// checked to be UTF-8, so that damage is a Corrupt error, whatever the damage is.
package ipcio

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/strict"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"golang.org/x/sync/errgroup"
)

// Options of a source.
type Options struct {
	fileset.Options
	NoMap bool `json:"no_map,omitempty" doc:"read local files into memory instead of mapping them: for files that are rewritten in place"`
}

// Format rebuilds sources from their configuration.
func Format() driver.Format {
	return driver.Format{Kind: "ipc", Open: func(config json.RawMessage) (driver.Source, error) {
		var o Options
		if err := strict.JSON("ipc", config, &o); err != nil {
			return nil, err
		}
		return New(o), nil
	}}
}

var extensions = []string{".arrow", ".arrows", ".ipc", ".feather"}

// New describes files. No I/O; what is wrong with the options is an error of Resolve.
func New(o Options) driver.Source { return &source{o: o} }

type source struct{ o Options }

func (*source) Kind() string                       { return "ipc" }
func (s *source) Config() (json.RawMessage, error) { return json.Marshal(&s.o) }

// Meets implements driver.Placed.
func (s *source) Meets(folder string) (path, root string) { return s.o.Meets(folder) }

func (s *source) Resolve(ctx context.Context, ro *driver.ResolveOptions) (driver.Table, error) {
	set, err := fileset.List(ctx, &s.o.Options, extensions, ro)
	if err != nil {
		return nil, err
	}
	t := &data{o: s.o, set: set, files: make([]*file, len(set.Files))}
	if err := t.resolve(ctx, ro); err != nil {
		set.Close()
		return nil, err
	}
	return t, nil
}

// data is the table.
type data struct {
	o      Options
	set    *fileset.Set
	files  []*file
	schema *arrow.Schema
	splits []driver.Split
	at     []place
}

// place of a split: a frame of a file.
type place struct {
	file, frame int
	row         int64 // number of its first row in the file
}

// file is what was learned about a file.
type file struct {
	stream bool
	raw    *arrow.Schema // as in the file
	plain  *arrow.Schema // as handed out
	fields []field       // beside raw
	frames []block       // of record batches; a stream has none here
	dicts  []block       // of dictionaries
	start  int64         // stream: first message after the schema
	all    fileset.Extent
	text   known // to be UTF-8
	sum    [sha256.Size]byte
}

// block is where a message lies in a file.
type block struct {
	off, meta, body int64
	rows            int64
}

func (t *data) resolve(ctx context.Context, ro *driver.ResolveOptions) error {
	limit := 32
	if ro != nil && ro.Concurrency > 0 {
		limit = ro.Concurrency
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(limit)
	for i := range t.files {
		g.Go(func() error {
			f, err := t.open(gctx, i, limit)
			t.files[i] = f
			return driver.Wrap(err, driver.Place{File: t.set.Files[i].Path})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	schemas, stored := make([]*arrow.Schema, len(t.files)), make([]string, len(t.files))
	for i, f := range t.files {
		f.plain = located(f.plain, t.set.Files[i].Path)
		schemas[i] = f.plain
		meta := f.raw.Metadata()
		stored[i], _ = meta.GetValue(driver.PartitionTypes)
		name := t.set.Files[i]
		if f.stream {
			f.all.Bytes = name.Info.Size
			t.at = append(t.at, place{file: i})
			t.splits = append(t.splits, driver.Split{ID: name.Rel + "#0", File: name.Path, Rows: -1, Bytes: name.Info.Size})
			continue
		}
		var row int64
		for k, b := range f.frames {
			t.at = append(t.at, place{i, k, row})
			t.splits = append(t.splits, driver.Split{ID: fmt.Sprintf("%s#%d", name.Rel, k), File: name.Path, Index: int64(k), Rows: b.rows, Bytes: b.meta + b.body})
			row += b.rows
			f.all.Bytes += b.meta + b.body
		}
		f.all.Rows = row
	}
	var err error
	t.schema, err = t.set.Schema(schemas, stored)
	return err
}

// located tells the types of columns that cannot be read which file has them.
func located(s *arrow.Schema, path string) *arrow.Schema {
	if driver.CheckReadable(s, nil) == nil {
		return s
	}
	fields := s.Fields()
	for i := range fields {
		if u, ok := fields[i].Type.(*driver.Unreadable); ok {
			fields[i].Type = driver.NewUnreadable(path, u.Column, u.What, u.Advice)
		}
	}
	return arrow.NewSchema(fields, nil)
}

// ReadBy is what explain says of the columns that cannot be read.
func (t *data) ReadBy() string {
	s := "native decoder"
	for _, f := range t.schema.Fields() {
		if u, ok := f.Type.(*driver.Unreadable); ok {
			s += fmt.Sprintf("; cannot read column %q: the type is %s", u.Column, u.What)
		}
	}
	return s
}

func (t *data) Schema() *arrow.Schema  { return t.schema }
func (t *data) Splits() []driver.Split { return t.splits }

// PartitionColumns implements driver.Partitioned.
func (t *data) PartitionColumns() []string { return t.set.PartitionColumns() }

// TakeRead implements driver.Metered.
func (t *data) TakeRead() int64 { return t.set.TakeRead() }

// Remote implements driver.Remote.
func (t *data) Remote() bool { return t.set.Remote() }
func (t *data) Close() error { return t.set.Close() }

func (t *data) Fingerprint(ctx context.Context) (string, error) {
	var config []byte
	if t.o.Columns != nil || t.o.Types != nil {
		config, _ = json.Marshal(struct { // strings: cannot fail
			Columns []string
			Types   map[string]string
		}{t.o.Columns, t.o.Types})
	}
	return t.set.Fingerprint(ctx, "ipc", config, func(ctx context.Context, i int) ([]byte, error) {
		if t.files[i].stream {
			return t.set.EdgeHash(ctx, i)
		}
		return t.files[i].sum[:], nil
	})
}

// Size implements driver.Sizer: columns are taken to be of equal size, as the
// metadata that was read does not say.
func (t *data) Size(i int, columns []string) (fetch, decoded int64) {
	n := t.splits[i].Bytes
	if columns != nil {
		n = int64(math.Ceil(float64(n) * float64(len(columns)) / float64(max(1, t.schema.NumFields()))))
	}
	return n, n
}
