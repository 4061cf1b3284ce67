// Package textio reads text files: one row per line, in a column "text" without
// the line's end (\n or \r\n). Files may be compressed with gzip, zstd, bzip2 or xz, whatever their names say.
//
// Files are split by byte range; a line belongs to the range that holds its first
// byte. A line that is no text in the encoding of Options is a bad row. A byte order mark at the begin of a file is no
// part of its first line.
package textio

import (
	"context"
	"encoding/json"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/strict"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// Options of a text source.
type Options struct {
	fileset.Options
	fileset.Text
	KeepEmpty  bool  `json:"keep_empty,omitempty" doc:"empty lines are rows, too; default: they are skipped"`
	SplitBytes int64 `json:"split_bytes,omitempty" doc:"size of splits; default 32 MiB"`
}

// Column is the name of the column of lines.
const Column = "text"

// New describes text files. No I/O; what is wrong with the options is an error of Resolve.
func New(o Options) driver.Source { return source{o} }

// Format rebuilds sources from their configuration.
func Format() driver.Format {
	return driver.Format{Kind: "text", Open: func(config json.RawMessage) (driver.Source, error) {
		var o Options
		if err := strict.JSON("options of a text source", config, &o); err != nil {
			return nil, err
		}
		return New(o), nil
	}}
}

type source struct{ o Options }

func (source) Kind() string                       { return "text" }
func (s source) Config() (json.RawMessage, error) { return json.Marshal(s.o) }

// Meets implements driver.Placed.
func (s source) Meets(folder string) (path, root string) { return s.o.Meets(folder) }

var (
	extensions = fileset.Compressed(".txt", ".text", ".log", ".md")
)

type table struct {
	o      Options
	set    *fileset.Set
	schema *arrow.Schema
	file   *arrow.Schema // of each file
	splits []driver.Split
	parts  []fileset.Part
}

func (s source) Resolve(ctx context.Context, ro *driver.ResolveOptions) (driver.Table, error) {
	if s.o.SplitBytes < 0 {
		return nil, fault.New(fault.Invalid, "split_bytes must not be negative")
	}
	if err := s.o.Check(); err != nil {
		return nil, err
	}
	set, err := fileset.List(ctx, &s.o.Options, extensions, ro)
	if err != nil {
		return nil, err
	}
	t := &table{o: s.o, set: set}
	t.file = arrow.NewSchema([]arrow.Field{{Name: Column, Type: set.AsBytes(Column, arrow.BinaryTypes.String)}}, nil)
	all := make([]*arrow.Schema, len(set.Files))
	for i := range all {
		all[i] = t.file
	}
	if t.schema, err = set.Schema(all, nil); err == nil {
		t.splits, t.parts, err = set.Parts(ctx, s.o.Text, s.o.SplitBytes, func(int) bool { return false })
	}
	if err != nil {
		set.Close()
		return nil, err
	}
	return t, nil
}

func (t *table) Schema() *arrow.Schema  { return t.schema }
func (t *table) Splits() []driver.Split { return t.splits }

// PartitionColumns implements driver.Partitioned.
func (t *table) PartitionColumns() []string { return t.set.PartitionColumns() }

// TakeRead implements driver.Metered.
func (t *table) TakeRead() int64 { return t.set.TakeRead() }

// Remote implements driver.Remote.
func (t *table) Remote() bool { return t.set.Remote() }

// Offsets implements driver.Offsetter: all but compressed files and those of another encoding.
func (t *table) Offsets(i int) bool { return t.set.Bytewise(t.parts[i]) }

// Size takes lines to be 60 bytes long, and compressed files to hold four times
// their size.
func (t *table) Size(i int, columns []string) (fetch, decoded int64) {
	idx, err := fileset.Select(t.schema, columns)
	fetch = t.splits[i].Bytes
	if err != nil {
		return fetch, 0
	}
	text := fetch
	if t.set.Packed(t.parts[i]) {
		text *= 4
	}
	rows := text/60 + 1
	for _, k := range idx {
		f := t.schema.Field(k)
		if w, ok := f.Type.(arrow.FixedWidthDataType); ok {
			decoded += rows * int64(w.BitWidth()) / 8
		} else if f.Name == Column {
			decoded += text + 4*rows
		} else {
			decoded += rows * int64(len(t.splits[i].File)+4)
		}
	}
	return fetch, decoded
}

// Fingerprint hashes the options that change rows, and the files.
func (t *table) Fingerprint(ctx context.Context) (string, error) {
	o := t.o
	o.Paths, o.MaxGrowth = nil, 0
	config, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	return t.set.Fingerprint(ctx, "text", config, t.set.EdgeHash)
}

func (t *table) Close() error { return t.set.Close() }
