package csvio

import (
	"context"
	"encoding/json"
	"io"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"golang.org/x/sync/errgroup"
)

type table struct {
	*rules
	set    *fileset.Set
	file   *arrow.Schema // of the files
	schema *arrow.Schema
	splits []driver.Split
	parts  []fileset.Part
	guess  map[string]*guess // of the sample, by column: sizes

	looks fileset.Looks // of headers, behind resolve

	mu    sync.Mutex
	heads map[int]*head // by file
}

// sampled is how many files beyond the first are looked at, and sampledBytes of each.
const (
	sampled      = 16
	sampledBytes = 64 << 10
)

func (s source) Resolve(ctx context.Context, ro *driver.ResolveOptions) (driver.Table, error) {
	r, err := s.o.check()
	if err != nil {
		return nil, err
	}
	set, err := fileset.List(ctx, &r.Options.Options, extensions, ro)
	if err != nil {
		return nil, err
	}
	t := &table{rules: r, set: set, heads: map[int]*head{}, guess: map[string]*guess{}}
	if err := t.resolve(ctx); err != nil {
		set.Close()
		return nil, err
	}
	return t, nil
}

func (t *table) resolve(ctx context.Context) (err error) {
	n := len(t.set.Files)
	files := []int{0}
	for k := 1; k <= sampled && n > 1; k++ {
		if f := 1 + (k-1)*(n-1)/sampled; f > files[len(files)-1] {
			files = append(files, f)
		}
	}
	type result struct {
		h  *head
		gs []*guess // by column of the file
	}
	rs := make([]result, len(files))
	var looks fileset.Looks
	looks.Bound(t.set, files)
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(sampled)
	for k, f := range files {
		bytes := t.SampleBytes
		if k > 0 {
			bytes = min(bytes, sampledBytes)
		}
		g.Go(func() (err error) {
			rs[k].h, rs[k].gs, err = t.sample(gctx, f, bytes, &looks)
			return fault.Wrap(err, fault.Place{File: t.set.Files[f].Path})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	var names []string
	for k, r := range rs {
		t.heads[files[k]] = r.h
		for c, name := range r.h.names {
			if old := t.guess[name]; old != nil {
				old.merge(r.gs[c])
				continue
			}
			t.guess[name] = r.gs[c]
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return fault.New(fault.Invalid, "no header: the file is empty, or all of the files looked at are").At(fault.Place{File: t.set.Files[0].Path})
	}
	var fields []arrow.Field
	for _, name := range names {
		typ := t.types[name]
		if typ == nil {
			typ = t.guess[name].Type()
		}
		fields = append(fields, arrow.Field{Name: name, Type: typ, Nullable: true})
	}
	for c := range t.types {
		if !slices.Contains(names, c) {
			return fault.New(fault.Invalid, "types: no column %q%s", c, near.Among(c, names))
		}
	}
	t.file = arrow.NewSchema(fields, nil)
	if t.schema, err = t.set.Schema(slices.Repeat([]*arrow.Schema{t.file}, n), nil); err != nil {
		return err
	}
	t.splits, t.parts, err = t.set.Parts(ctx, t.Text, t.SplitBytes, func(int) bool { return t.Multiline })
	return err
}

// beginning is the first bytes of a file, whole lines, behind a byte order mark.
type beginning struct {
	*head
	data    []byte // behind the header
	whole   bool   // it is all of the file
	chunks  *fileset.Chunks
	scratch *fileset.Scratch
}

// close ends the use of data.
func (b *beginning) close() {
	b.chunks.Close()
	b.scratch.Close()
}

// start reads most of the lines that begin in the first limit bytes of a file, a record at least. errMore: the header does not end in them.
func (t *table) start(ctx context.Context, file int, limit int64, looks *fileset.Looks) (b *beginning, err error) {
	p := t.set.Begin(file, t.Text, limit)
	b = &beginning{scratch: looks.Scratch()}
	b.chunks = t.set.OpenChunks(ctx, p, int(min(limit, 1<<30)), &driver.ScanOptions{Alloc: b.scratch})
	b.chunks.DetectLineEnd(t.dialect().quote)
	defer func() {
		if err != nil {
			b.close()
		}
	}()
	data, _, err := b.chunks.Next(ctx)
	for taken := 0; ; taken = len(data) {
		if err != nil && err != io.EOF {
			return b, err
		}
		if err := looks.Take(int64(len(data) - taken)); err != nil {
			return b, err
		}
		last := err == io.EOF || b.chunks.Last()
		b.whole = last && (!b.chunks.Bytewise() || p.Range.Len == t.set.Files[file].Info.Size)
		if last || int64(len(data)) >= limit/2 {
			if err = t.parseHead(b, file, data); err != nil && (err != errMore || last) || err == nil && (last || len(b.data) > 0) {
				return b, err
			}
		}
		data, _, err = b.chunks.More(ctx, len(data))
	}
}

// head finds the header of a file, reading it if need be.
func (t *table) head(ctx context.Context, file int) (*head, error) {
	t.mu.Lock()
	h := t.heads[file]
	t.mu.Unlock()
	if h != nil {
		return h, nil
	}
	b, err := t.begin(ctx, file, sampledBytes, &t.looks)
	if err != nil {
		return nil, err
	}
	h = b.head
	b.close()
	t.mu.Lock()
	t.heads[file] = h
	t.mu.Unlock()
	return h, nil
}

// begin reads the header and what follows it in the first limit bytes; more of them
// if the header does not end there. The caller closes it.
func (t *table) begin(ctx context.Context, file int, limit int64, looks *fileset.Looks) (*beginning, error) {
	for ; ; limit *= 16 {
		if b, err := t.start(ctx, file, limit, looks); err != errMore {
			return b, err
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

// Offsets implements driver.Offsetter: all but compressed files, those of another encoding, and those
// whose fields may hold line breaks.
func (t *table) Offsets(i int) bool { return !t.Multiline && t.set.Bytewise(t.parts[i]) }

// Size expects the sizes of the sample's fields.
func (t *table) Size(i int, columns []string) (fetch, decoded int64) {
	fetch = t.splits[i].Bytes
	var text, mem float64
	for _, g := range t.guess {
		text += g.width() + 1
	}
	idx, err := fileset.Select(t.schema, columns)
	if err != nil {
		return fetch, 0
	}
	for _, k := range idx {
		f := t.schema.Field(k)
		if w, ok := f.Type.(arrow.FixedWidthDataType); ok {
			mem += float64(w.BitWidth()) / 8
		} else if g := t.guess[f.Name]; g != nil {
			mem += g.width() + 4
		} else {
			mem += 36
		}
	}
	rows := float64(fetch) / max(text, 1)
	if t.set.Packed(t.parts[i]) {
		rows *= 4
	}
	return fetch, int64(rows * mem)
}

// Fingerprint hashes the options that change rows, and the files.
func (t *table) Fingerprint(ctx context.Context) (string, error) {
	o := t.rules.Options
	o.Paths, o.MaxGrowth = nil, 0
	config, err := json.Marshal(o)
	if err != nil {
		return "", err
	}
	return t.set.Fingerprint(ctx, "csv", config, t.set.EdgeHash)
}

func (t *table) Close() error { return t.set.Close() }
