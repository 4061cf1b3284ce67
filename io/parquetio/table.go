package parquetio

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	"golang.org/x/sync/errgroup"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// table is a resolved source. Immutable but for what it remembers of pruning.
type table struct {
	set     *fileset.Set
	o       Options
	footers []*footer
	full    *arrow.Schema // of the files together
	schema  *arrow.Schema // of the columns chosen in the options
	gate    *gate
	splits  []driver.Split
	at      []place // of every split

	mu     sync.Mutex
	blooms map[string][]bool // splits that bloom filters exclude, by predicate
}

// place is where a split is.
type place struct {
	file, group int
	row         int64 // first row, in the file
}

func (t *table) list() {
	for i, f := range t.footers {
		var row int64
		for g := range f.groups {
			rg := &f.groups[g]
			t.splits = append(t.splits, driver.Split{
				ID:   t.set.Files[i].Rel + "#" + strconv.Itoa(g),
				File: t.set.Files[i].Path, Index: int64(g), Rows: rg.rows, Bytes: rg.bytes,
			})
			t.at = append(t.at, place{i, g, row})
			row += rg.rows
		}
	}
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

func errorsJoin(err, other error) error {
	if other == nil {
		return err
	}
	return errors.Join(err, other)
}

// columns resolves the columns of a scan to names of the full schema.
func (t *table) columns(want []string) ([]string, error) {
	idx, err := fileset.Select(t.schema, want)
	if err != nil {
		return nil, err
	}
	names := make([]string, len(idx))
	for k, i := range idx {
		names[k] = t.schema.Field(i).Name
	}
	return names, nil
}

// Open implements driver.Table.
func (t *table) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	if i < 0 || i >= len(t.splits) {
		return nil, fault.New(fault.Invalid, "split %d of %d", i, len(t.splits))
	}
	at := t.at[i]
	where := fault.Place{File: t.set.Files[at.file].Path, RowGroup: fault.N(int64(at.group))}
	c := scan{place: where, o: o.WithDefaults()}
	names, err := t.columns(c.o.Columns)
	if err != nil {
		return nil, err
	}
	if err := driver.CheckReadable(t.schema, names); err != nil {
		return nil, err
	}
	f := t.footers[at.file]
	a, err := t.set.Adapter(at.file, t.full, f.schema.arrow, names, c.o.Predicate, at.row)
	if err != nil {
		return nil, fault.Wrap(err, where)
	}
	c.s, c.g, c.terms, c.never = f.schema, f.group(at.group), a.Predicate, a.Never
	for _, n := range a.FileColumns {
		c.fields = append(c.fields, f.schema.arrow.FieldIndices(n)[0])
	}
	c.in = t.input(at.file, c.o.Stats)
	c.growth = t.set.Growth(at.file, fileset.Extent{Rows: c.g.rows, Bytes: t.splits[i].Bytes}, f.all)
	if len(c.terms) > 0 && !c.never {
		if c.never, err = t.bloomed(ctx, i, &c); err != nil {
			a.Release()
			return nil, fault.Wrap(err, where)
		}
	}
	r, err := newReader(ctx, c)
	if err != nil {
		a.Release()
		return nil, fault.Wrap(err, where)
	}
	r.done = a.Release
	r.finish = func(b driver.Batch, bad *fileset.BadRows) (arrow.RecordBatch, error) {
		return a.Apply(b, c.o.Alloc, bad)
	}
	return r, nil
}

// input is file i. Local files are read on demand, others ahead.
func (t *table) input(i int, st *driver.ScanStats) *input {
	o := t.set.Object(i, st)
	in := &input{blob: o}
	if t.set.Files[i].Info.ETag != "" {
		in.fetch = o
	} else {
		in.local = o
	}
	return in
}

// bloomed reports whether bloom filters exclude split i, from memory if Keep was
// called with this predicate.
func (t *table) bloomed(ctx context.Context, i int, c *scan) (bool, error) {
	if !c.s.keepGroup(c.g, c.terms) {
		return true, nil
	}
	t.mu.Lock()
	known, ok := t.blooms[c.o.Predicate.String()]
	t.mu.Unlock()
	if ok {
		return known[i], nil
	}
	return c.s.bloomExcludes(ctx, c.in, c.g, c.terms)
}

// maxRemembered bounds the predicates whose pruning is remembered.
const maxRemembered = 16

// Keep implements driver.Pruner: partition values, statistics, bloom filters.
func (t *table) Keep(ctx context.Context, p driver.Predicate) ([]bool, error) {
	keep := make([]bool, len(t.splits))
	byBloom := make([]bool, len(t.splits))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	adapted := -1
	var a *fileset.Adapter
	leaves := []int{} // of the terms
	var some rowGroup // of which only these are there
	for i, at := range t.at {
		if gctx.Err() != nil {
			break
		}
		f := t.footers[at.file]
		if at.file != adapted {
			var err error
			if a, err = t.set.Adapter(at.file, t.full, f.schema.arrow, []string{}, p, 0); err != nil {
				_ = g.Wait()
				return nil, err
			}
			a.Release()
			adapted = at.file
			leaves = leaves[:0]
			for k := range a.Predicate {
				if l, ok := f.schema.term(&a.Predicate[k]); ok {
					leaves = append(leaves, l)
				}
			}
		}
		rg := &some
		f.unpack(at.group, rg, leaves)
		keep[i] = rg.rows > 0 && !a.Never && f.schema.keepGroup(rg, a.Predicate)
		if !keep[i] || !f.schema.hasBloom(rg, a.Predicate) {
			continue
		}
		terms := a.Predicate
		rg = f.group(at.group)
		g.Go(func() error {
			out, err := f.schema.bloomExcludes(gctx, t.input(at.file, nil), rg, terms)
			if err != nil {
				return fault.Wrap(err, fault.Place{File: t.set.Files[at.file].Path, RowGroup: fault.N(int64(at.group))})
			}
			keep[i], byBloom[i] = !out, out
			return nil
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	t.mu.Lock()
	if t.blooms == nil || len(t.blooms) >= maxRemembered {
		t.blooms = map[string][]bool{}
	}
	t.blooms[p.String()] = byBloom
	t.mu.Unlock()
	return keep, nil
}

// sizeGroups are what Size unpacks into: it is asked for every split.
var sizeGroups = sync.Pool{New: func() any { return new(rowGroup) }}

// Size implements driver.Sizer.
func (t *table) Size(i int, columns []string) (fetch, decoded int64) {
	names, err := t.columns(columns)
	if err != nil {
		return 0, 0
	}
	at := t.at[i]
	f := t.footers[at.file]
	fields, leaves := []int{}, []int{}
	for _, n := range names {
		if is := f.schema.arrow.FieldIndices(n); len(is) > 0 {
			fields = append(fields, is[0])
			leaves = append(leaves, f.schema.fields[is[0]].leaves...)
		} else {
			decoded += 8 * f.groups[at.group].rows // partition, path, row number or null
		}
	}
	g := sizeGroups.Get().(*rowGroup)
	defer sizeGroups.Put(g)
	f.unpack(at.group, g, leaves)
	for _, l := range leaves {
		fetch += g.chunks[l].size
	}
	return fetch, decoded + f.schema.decodedBytes(g, fields)
}

// decodedBytes estimates Arrow memory of whole columns of a row group.
func (s *fileSchema) decodedBytes(g *rowGroup, fields []int) (n int64) {
	for _, i := range fields {
		for _, l := range s.fields[i].leaves {
			c, leaf := &g.chunks[l], &s.leaves[l]
			n += c.values / 8 // validity
			if leaf.maxRep > 0 {
				n += 4 * g.rows
			}
			switch leaf.physical {
			case parquet.Types.ByteArray:
				n += 4 * c.values
				if leaf.arrow.ID() == arrow.DICTIONARY {
					n += c.raw // entries: those of the dictionary page, and what is plain
				} else {
					n += c.textBytes()
				}
			case parquet.Types.FixedLenByteArray:
				w := int64(leaf.width)
				if t, ok := leaf.arrow.(arrow.FixedWidthDataType); ok {
					w = int64(t.BitWidth()) / 8
				}
				n += w * c.values
			default:
				w := int64(64)
				if t, ok := leaf.arrow.(arrow.FixedWidthDataType); ok {
					w = int64(t.BitWidth())
				}
				n += w * c.values / 8
			}
		}
	}
	return n
}

// textBytes is what is said or, of a column with a dictionary, guessed.
func (c *chunk) textBytes() int64 {
	switch {
	case c.text >= 0:
		return c.text
	case c.flags&hasDict != 0:
		return max(c.raw, c.values*int64(max(len(c.min), len(c.max), 8)))
	}
	return c.raw
}

// Fingerprint implements driver.Table: the footer stands for a local file.
func (t *table) Fingerprint(ctx context.Context) (string, error) {
	config, err := json.Marshal(struct {
		Columns    []string          `json:"columns,omitempty"`
		Types      map[string]string `json:"types,omitempty"`
		PathColumn string            `json:"path_column,omitempty"`
		RowColumn  string            `json:"row_column,omitempty"`
		Dictionary Dictionary        `json:"dictionary,omitzero"`
	}{t.o.Columns, t.o.Types, t.o.PathColumn, t.o.RowColumn, t.o.Dictionary})
	if err != nil {
		return "", err
	}
	return t.set.Fingerprint(ctx, Kind, config, func(_ context.Context, i int) ([]byte, error) {
		return t.footers[i].hash[:], nil
	})
}

// ReadBy is what explain says of the decoder: there is one for all files and types, but for those that cannot be read.
func (t *table) ReadBy() string {
	s := "native decoder"
	for _, f := range t.schema.Fields() {
		if u, ok := f.Type.(*driver.Unreadable); ok {
			s += fmt.Sprintf("; cannot read column %q: the type is %s", u.Column, u.What)
		}
	}
	return s
}

// Ignored is what explain says of statistics that cannot be right.
func (t *table) Ignored() string { return t.gate.String() }

// Seeks implements driver.Seeker: pages before a row are passed over, not decoded. Where there is no
// offset index their bytes are read for it, which would be too much from a bucket.
func (t *table) Seeks(int) bool { return !t.Remote() }
