package ipcio

import (
	"context"
	"errors"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/badvalue"
	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// Open starts a pass over a frame or a stream.
func (t *data) Open(ctx context.Context, i int, so *driver.ScanOptions) (driver.Reader, error) {
	p := t.at[i]
	f := t.files[p.file]
	if err := driver.CheckReadable(t.schema, so.WithDefaults().Columns); err != nil {
		return nil, err
	}
	r := &reader{f: f, frameNo: p.frame, path: t.set.Files[p.file].Path, o: so.WithDefaults(), left: -1}
	if err := context.Cause(ctx); err != nil {
		return nil, r.place(err)
	}
	if most := fileset.ReadLimit(&r.o); most > 0 {
		r.left = most
	}
	r.skip = r.o.FromRow
	var err error
	if r.ad, err = t.set.Adapter(p.file, t.schema, f.plain, r.o.Columns, r.o.Predicate, p.row); err != nil {
		return nil, r.place(err)
	}
	if r.ad.Never {
		if n := t.splits[i].Rows; n >= 0 {
			r.o.Stats.Pruned.Add(n)
		}
		r.end(io.EOF)
		return r, nil
	}
	r.idx, r.schema, err = cut.Columns(f.plain, append([]string{}, r.ad.FileColumns...)) // nil would mean all
	r.growth = t.set.Growth(p.file, fileset.Extent{Rows: t.splits[i].Rows, Bytes: t.splits[i].Bytes}, f.all)
	if err == nil {
		r.raw, err = t.raw(p.file, r.o.Stats)
	}
	if err != nil {
		r.end(err)
		return nil, r.place(err)
	}
	r.start()
	return r, nil
}

// start prepares the reading of the columns idx.
func (r *reader) start() {
	if r.f.stream {
		r.raw.ahead = 1 << 20
		r.pos = r.f.start
	}
	r.queue = fileset.NewQueue(driver.Place{}, &r.o)
	r.entries = map[arrow.ArrayData]int64{}
	r.refused = map[arrow.ArrayData][]uint64{}
	r.texts = texts
	r.texts.Refused = func(dict arrow.ArrayData) []uint64 { return r.refused[dict] }
	r.wanted = map[int64]dictionary{}
	for k, c := range r.idx {
		dictionaries(r.schema.Field(k).Name, r.f.raw.Field(c).Type, r.f.fields[c], r.wanted)
	}
}

// reader is a pass over one split.
type reader struct {
	f       *file
	frameNo int
	path    string
	o       driver.ScanOptions
	queue   fileset.Queue
	ad      *fileset.Adapter
	idx     []int         // columns of the file
	schema  *arrow.Schema // of those, plain
	raw     *raw
	codecs  codecs
	growth  *fileset.Growth

	wanted  map[int64]dictionary
	dicts   map[int64]arrow.Array
	entries map[arrow.ArrayData]int64 // largest value, per dictionary
	texts   badvalue.Check
	refused map[arrow.ArrayData][]uint64 // of dictionaries: their entries that are no text, a bit for each

	pos  int64 // stream: next message
	seen int   // stream: frames so far
	done bool  // file: the frame was read

	cols     []arrow.Array // of the frame at hand
	at, rows int64         // of the frame: next row, how many
	bytes    int64         // of the frame, in the file
	whole    bool          // its rows are read from the first on, and all so far are text where they should be
	maxRows  int           // per batch, for what dictionaries expand to
	row      int64         // in the split, of at
	skip     int64         // rows still to skip
	left     int64         // rows that the limit allows; -1: all
	err      error
}

// dictionary is the type of a dictionary's values, and the first column that has it.
type dictionary struct {
	t      arrow.DataType
	f      field
	column string
}

// dictionaries collects what column, whose type or a part of whose type is t, refers to.
func dictionaries(column string, t arrow.DataType, f field, into map[int64]dictionary) {
	if d, ok := t.(*arrow.DictionaryType); ok {
		id := f.dict
		f.dict = -1
		if _, ok := into[id]; !ok {
			into[id] = dictionary{d.ValueType, f, column}
		}
		dictionaries(column, d.ValueType, f, into)
		return
	}
	for i, c := range children(t) {
		dictionaries(column, c.Type, f.children[i], into)
	}
}

func frameNo(i int) driver.Place { return driver.Place{RowGroup: fault.N(int64(i))} }

func (r *reader) place(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return driver.Wrap(err, driver.Place{File: r.path, RowGroup: fault.N(int64(r.frameNo))})
}

func (r *reader) Next(ctx context.Context) (driver.Batch, error) {
	if r.err == nil {
		if err := context.Cause(ctx); err != nil {
			r.end(r.place(err))
		}
	}
	if r.err != nil {
		return driver.Batch{}, r.err
	}
	for {
		b, ok, err := r.queue.Next()
		if ok {
			return b, nil
		}
		if err == nil {
			err = r.raw.use(func() error { return r.batch(ctx) })
		}
		if err != nil {
			r.end(r.place(err))
			return driver.Batch{}, r.err
		}
	}
}

// batch queues the next rows, inside raw.use.
func (r *reader) batch(ctx context.Context) error {
	bad := new(fileset.BadRows)
	rec, row, err := r.next(ctx, bad)
	if err != nil {
		return err
	}
	defer rec.Release()
	out, err := r.ad.Apply(driver.Batch{Record: rec, Row: row}, r.o.Alloc, bad)
	if err != nil {
		return err
	}
	placed := new(fileset.BadRows)
	for k, err := range bad.All {
		placed.Add(k, err.At(driver.Place{File: r.path, RowGroup: fault.N(int64(r.frameNo))}))
	}
	r.queue.Put(driver.Batch{Record: out, Row: row}, placed)
	return nil
}

// next returns a reference to the next rows as the file has them, and the
// position in the split of the first. Those with text that is none are bad.
func (r *reader) next(ctx context.Context, bad *fileset.BadRows) (arrow.RecordBatch, int64, error) {
	for r.at == r.rows {
		if r.left == 0 {
			return nil, 0, io.EOF
		}
		r.free()
		if err := guard("frame", func() error { return r.load(ctx) }); err != nil {
			return nil, 0, err
		}
		n := min(r.skip, r.rows)
		r.whole = n == 0
		r.at, r.skip, r.row = n, r.skip-n, r.row+n
	}
	if r.left == 0 {
		return nil, 0, io.EOF
	}
	to := cut.Next(r.cols, r.at, r.rows, min(r.o.BatchRows, r.maxRows), r.o.BatchBytes)
	rec, err := r.record(to, bad)
	if err != nil {
		return nil, 0, err
	}
	if err := r.growth.AddRecord(rec); err != nil {
		rec.Release()
		return nil, 0, driver.Wrap(err, driver.Place{Row: fault.N(r.row)})
	}
	row, n := r.row, to-r.at
	r.at, r.row = to, row+n
	if r.left >= 0 {
		r.left = max(0, r.left-n)
	}
	return rec, row, nil
}

// record returns a reference to rows [at, to) of the frame, in plain types.
func (r *reader) record(to int64, bad *fileset.BadRows) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, len(r.cols))
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, c := range r.cols {
		if !r.f.text.has(r.frameNo, r.idx[i]) {
			r.texts.Rows(c.Data(), r.at, to, func(row int64, why func() error) {
				r.whole = false
				if k := int(row - r.at); !bad.Has(k) {
					bad.Add(k, asFault(why()).At(driver.Place{Row: fault.N(r.row + row - r.at), Column: r.schema.Field(i).Name}))
				}
			})
		}
		s := array.NewSliceData(c.Data(), r.at, to)
		d, err := r.plainer(r.bytes).flatten(s)
		s.Release()
		if err == nil {
			cols[i] = array.MakeFromData(d)
			d.Release()
			if r.o.Own && r.raw.holds(d) {
				shared := cols[i]
				cols[i], err = gather.Copy(r.o.Alloc, shared)
				shared.Release()
			}
		}
		if err != nil {
			return nil, driver.Wrap(err, driver.Place{Column: r.schema.Field(i).Name})
		}
	}
	if to == r.rows && r.whole {
		r.f.text.add(r.frameNo, r.idx)
	}
	return array.NewRecordBatch(r.schema, cols, to-r.at), nil
}

// load reads the next frame; io.EOF if there is none.
func (r *reader) load(ctx context.Context) error {
	if r.f.stream {
		return r.loadStream(ctx)
	}
	if r.done {
		return io.EOF
	}
	r.done = true
	for _, b := range r.f.dicts {
		if len(r.wanted) == 0 {
			break
		}
		m, body, err := r.raw.frame(ctx, b)
		if err == nil && m.header != headerDictionary {
			err = driver.Errorf(driver.Corrupt, "the message at byte %d is no dictionary", b.off)
		}
		if err == nil && !m.delta && r.dicts[m.dict] != nil {
			err = driver.Errorf(driver.Corrupt, "dictionary %d occurs twice in a file", m.dict)
		}
		if err == nil {
			err = r.loadDict(ctx, &m, body)
		}
		if err != nil {
			return err
		}
	}
	m, body, err := r.raw.frame(ctx, r.f.frames[r.frameNo])
	if err != nil {
		return err
	}
	return r.loadBatch(ctx, &m, body)
}

func (r *reader) loadStream(ctx context.Context) error {
	for {
		r.frameNo = r.seen
		meta, at, err := r.raw.next(ctx, r.pos)
		if err != nil {
			return err
		}
		m, _, err := messageOf(meta)
		if err == nil && !r.raw.inside(at, m.bodyLen) {
			err = errShort
		}
		if err != nil {
			return err
		}
		r.pos = at + m.bodyLen
		switch m.header {
		case headerDictionary:
			err = r.loadDict(ctx, &m, at)
		case headerRecord:
			r.seen++
			if r.skip >= m.rows { // not needed
				r.skip, r.row = r.skip-m.rows, r.row+m.rows
				continue
			}
			return r.loadBatch(ctx, &m, at)
		default:
			err = driver.Errorf(driver.Corrupt, "a second schema in the stream")
		}
		if err != nil {
			return err
		}
	}
}

// loader of a message, whose buffers [from, to) are fetched. The caller drops
// the body's owner.
func (r *reader) loader(ctx context.Context, m *message, at int64, ls [][2]layout) (*loader, error) {
	var ranges []blobio.Range
	for _, l := range ls {
		for i := l[0].buf; i < l[1].buf; i++ {
			off, n := i64(m.buffers, 16*i), i64(m.buffers, 16*i+8)
			if off < 0 || n < 0 || n > m.bodyLen || off > m.bodyLen-n {
				return nil, driver.Errorf(driver.Corrupt, "a buffer lies at %d, %d bytes long, in a body of %d", off, n, m.bodyLen)
			}
			ranges = append(ranges, blobio.Range{Off: at + off, Len: n})
		}
	}
	b, err := r.raw.body(ctx, at, m.bodyLen, ranges, r.o.Alloc)
	if err != nil {
		return nil, err
	}
	return &loader{batch: m.batch, body: b, dicts: r.dicts, codecs: &r.codecs, alloc: r.o.Alloc, ctx: ctx, growth: r.growth}, nil
}

func (r *reader) loadBatch(ctx context.Context, m *message, at int64) error {
	all := layouts(r.f.fields, &m.batch)
	ls := make([][2]layout, len(r.idx))
	for i, c := range r.idx {
		ls[i] = [2]layout{all[c], all[c+1]}
	}
	l, err := r.loader(ctx, m, at, ls)
	if err != nil {
		return err
	}
	defer l.body.owner.drop()
	for i, c := range r.idx {
		l.layout = ls[i][0]
		f := r.f.raw.Field(c)
		d, err := l.whole(f.Type, r.f.fields[c], m.rows)
		if err == nil && int64(d.Len()) != m.rows {
			err = driver.Errorf(driver.Corrupt, "%d rows in a batch of %d", d.Len(), m.rows)
			d.Release()
		}
		if err != nil {
			return driver.Wrap(err, driver.Place{Column: f.Name})
		}
		r.cols = append(r.cols, array.MakeFromData(d))
		d.Release()
	}
	r.at, r.rows, r.bytes = 0, m.rows, m.bodyLen
	r.maxRows = maxRows
	var cost float64
	for _, c := range r.cols {
		cost += r.cost(c.Data())
	}
	if cost > 0 {
		r.maxRows = int(max(1, min(maxRows, float64(r.o.BatchBytes)/cost)))
	}
	return nil
}

// cost is what a row's dictionary values take at most, on average over nested ones.
func (r *reader) cost(d arrow.ArrayData) (bytes float64) {
	if _, ok := d.DataType().(*arrow.DictionaryType); ok {
		e, ok := r.entries[d.Dictionary()]
		if !ok {
			e = entry(d.Dictionary())
			r.entries[d.Dictionary()] = e
		}
		return float64(e)
	}
	for _, c := range d.Children() {
		share := float64(c.Len()) / float64(max(1, d.Len()))
		if d.DataType().ID() == arrow.RUN_END_ENCODED { // all rows may have the largest
			share = 1
		}
		bytes += r.cost(c) * share
	}
	return bytes
}

// plainer makes rows plain that so many bytes of the file have.
func (r *reader) plainer(bytes int64) plainer { return plainer{r.o.Alloc, r.growth, bytes} }

func (r *reader) loadDict(ctx context.Context, m *message, at int64) error {
	want, ok := r.wanted[m.dict]
	if !ok {
		return nil
	}
	a, err := r.dict(ctx, m, at, want)
	if err != nil {
		return driver.Wrap(err, driver.Place{Column: want.column})
	}
	old := r.dicts[m.dict]
	if m.delta {
		if old == nil {
			a.Release()
			return driver.Errorf(driver.Corrupt, "an addition to dictionary %d, which does not exist", m.dict)
		}
		both, err := array.Concatenate([]arrow.Array{old, a}, r.o.Alloc)
		a.Release()
		if err != nil {
			return driver.Errorf(driver.Unsupported, "dictionary %d takes more than 2 GiB with what is added to it; "+
				"write the column without a dictionary, or in several files: %w", m.dict, err).At(driver.Place{Column: want.column})
		}
		a = both
	}
	if old != nil {
		delete(r.entries, old.Data())
		delete(r.refused, old.Data())
		old.Release()
	}
	if r.dicts == nil {
		r.dicts = map[int64]arrow.Array{}
	}
	r.dicts[m.dict] = a
	r.texts.Rows(a.Data(), 0, int64(a.Len()), func(k int64, _ func() error) {
		bits := r.refused[a.Data()]
		if bits == nil {
			bits = make([]uint64, a.Len()/64+1)
			r.refused[a.Data()] = bits
		}
		bits[k/64] |= 1 << (k % 64)
	})
	return nil
}

// dict returns a reference to the values of the dictionary m.
func (r *reader) dict(ctx context.Context, m *message, at int64, want dictionary) (arrow.Array, error) {
	var l0, l1 layout
	l1.skip(&want.f, &m.batch)
	l, err := r.loader(ctx, m, at, [][2]layout{{l0, l1}})
	if err != nil {
		return nil, err
	}
	defer l.body.owner.drop()
	d, err := l.whole(want.t, want.f, m.rows)
	if err != nil {
		return nil, err
	}
	defer d.Release()
	if d, err = r.plainer(m.bodyLen).flatten(d); err != nil {
		return nil, err
	}
	defer d.Release()
	return array.MakeFromData(d), nil
}

func (r *reader) free() {
	for _, c := range r.cols {
		c.Release()
	}
	r.cols = nil
	r.at, r.rows = 0, 0
}

// asFault is the error that has a code.
func asFault(err error) *fault.Error {
	e, _ := errors.AsType[*fault.Error](err)
	return e
}

// end keeps err and frees everything.
func (r *reader) end(err error) {
	if r.err == nil {
		r.err = err
	}
	r.queue.Release()
	r.free()
	for _, d := range r.dicts {
		d.Release()
	}
	r.dicts = nil
	r.codecs.close()
	if r.raw != nil {
		r.raw.close()
		r.raw = nil
	}
	if r.ad != nil {
		r.ad.Release()
		r.ad = nil
	}
}

func (r *reader) Close() error {
	r.end(driver.Errorf(driver.Invalid, "the reader is closed"))
	return nil
}

var _ memory.Allocator = (*owner)(nil)
