package parquetio

import (
	"bytes"
	"context"
	"encoding/json"

	"github.com/apache/arrow-go/v18/arrow"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// Kind is the name of the format in specs and plans.
const Kind = "parquet"

// Options of a source.
type Options struct {
	fileset.Options
	// Dictionary chooses top-level columns of strings or binary that are handed out as Arrow dictionaries,
	// dictionary<values=utf8, indices=int32>, however the pages are encoded. Batches have different dictionaries,
	// in which a value may occur twice: values are to be compared, not indices.
	Dictionary Dictionary `json:"dictionary,omitzero" doc:"columns of strings or binary to read as Arrow dictionaries; true: all of them"`
	// Int96 is the unit of columns of the old type INT96: "ns", "us" (default) or "ms". They have no zone. A value that
	// the unit does not hold exactly is a RowError. Nanoseconds are from 1677 to 2262.
	Int96 string `json:"int96,omitempty" doc:"unit of timestamps of the old type INT96, which have no zone: ns (1677 to 2262 only), us (default) or ms. A value that the unit does not hold exactly is an error" enum:"ns|us|ms"`
}

// Dictionary is a choice of columns. In JSON and in specs it is true, or a list of names.
type Dictionary struct {
	All     bool // every one that can be
	Columns []string
}

// MarshalJSON implements json.Marshaler.
func (d Dictionary) MarshalJSON() ([]byte, error) {
	if d.All || d.Columns == nil {
		return json.Marshal(d.All)
	}
	return json.Marshal(d.Columns)
}

// UnmarshalJSON implements json.Unmarshaler.
func (d *Dictionary) UnmarshalJSON(b []byte) error {
	*d = Dictionary{}
	if json.Unmarshal(b, &d.All) == nil {
		return nil
	}
	if err := json.Unmarshal(b, &d.Columns); err != nil {
		return fault.New(fault.Invalid, "dictionary: want true or a list of columns, not %s", b)
	}
	return nil
}

// Source reads Parquet files. It implements driver.Source.
type Source struct{ o Options }

// New describes Parquet files. No I/O; what is wrong with the options is an error of Resolve.
func New(o Options) driver.Source { return &Source{o} }

// Validate reports what is wrong with the options.
func (o *Options) Validate() error {
	if err := o.Options.Validate(); err != nil {
		return err
	}
	if o.Dictionary.All && len(o.Dictionary.Columns) > 0 {
		return fault.New(fault.Invalid, "dictionary: all columns and some by name; leave one of them out")
	}
	_, err := unitOf(o.Int96)
	return err
}

// Format rebuilds sources of this package.
func Format() driver.Format {
	return driver.Format{Kind: Kind, Open: func(config json.RawMessage) (driver.Source, error) {
		var o Options
		if err := unmarshal(config, &o); err != nil {
			return nil, err
		}
		return New(o), o.Validate()
	}}
}

func unmarshal(config json.RawMessage, to any) error {
	d := json.NewDecoder(bytes.NewReader(config))
	d.DisallowUnknownFields()
	if err := d.Decode(to); err != nil {
		return fault.New(fault.Invalid, "parquet: %w", err)
	}
	return nil
}

// Kind is "parquet".
func (s *Source) Kind() string { return Kind }

// Config returns the options.
func (s *Source) Config() (json.RawMessage, error) { return json.Marshal(&s.o) }

// Meets implements driver.Placed.
func (s *Source) Meets(folder string) (path, root string) { return s.o.Meets(folder) }

// Resolve lists the files and reads their footers, in parallel.
func (s *Source) Resolve(ctx context.Context, ro *driver.ResolveOptions) (driver.Table, error) {
	if err := s.o.Validate(); err != nil {
		return nil, err
	}
	set, err := fileset.List(ctx, &s.o.Options, []string{".parquet", ".parq", ".pq"}, ro)
	if err != nil {
		return nil, err
	}
	t := &table{set: set, o: s.o, footers: make([]*footer, len(set.Files))}
	if err := t.resolve(ctx, ro); err != nil {
		return nil, errorsJoin(err, set.Close())
	}
	return t, nil
}

func (t *table) resolve(ctx context.Context, ro *driver.ResolveOptions) error {
	limit := 32
	if ro != nil && ro.Concurrency > 0 {
		limit = ro.Concurrency
	}
	// Every worker has one buffer, and takes the next file.
	cache := &schemaCache{int96: t.o.Int96, asBytes: t.set.AsBytes}
	t.gate = &cache.gate
	limit = min(limit, len(t.footers))
	g, gctx := errgroup.WithContext(ctx)
	for w := range limit {
		g.Go(func() error {
			buf := make([]byte, tailBytes)
			for i := w; i < len(t.footers); i += limit {
				f, err := readFooter(gctx, t.set.Object(i, nil), buf, cache)
				if err != nil {
					return fault.Wrap(err, fault.Place{File: t.set.Files[i].Path})
				}
				t.footers[i] = f
			}
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	files, stored := make([]*arrow.Schema, len(t.footers)), make([]string, len(t.footers))
	for i, f := range t.footers {
		files[i], stored[i] = f.schema.arrow, f.partitions
	}
	full, err := t.set.Unify(files, stored)
	if err != nil {
		return err
	}
	full = t.unreadable(full)
	if t.full, err = t.asDictionaries(full); err != nil {
		return err
	}
	if t.schema, err = t.set.Project(t.full); err != nil {
		return err
	}
	t.list()
	return nil
}

// unreadable tells the types of columns that cannot be read which file has them.
func (t *table) unreadable(full *arrow.Schema) *arrow.Schema {
	if driver.CheckReadable(full, nil) == nil {
		return full
	}
	fields := full.Fields()
	for i := range fields {
		u, ok := fields[i].Type.(*driver.Unreadable)
		if !ok {
			continue
		}
		for k, f := range t.footers {
			if is := f.schema.arrow.FieldIndices(fields[i].Name); len(is) > 0 && f.schema.arrow.Field(is[0]).Type.ID() == arrow.EXTENSION {
				fields[i].Type = driver.NewUnreadable(t.set.Files[k].Path, u.Column, u.What, u.Advice)
				break
			}
		}
	}
	return arrow.NewSchema(fields, nil)
}
