package parquetio

import (
	"context"
	"errors"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

const (
	localAhead   = 8 << 20  // bytes read at once, all columns together
	localStep    = 1 << 20  // of one column: what is read stays in the cache until it is decoded
	remoteAhead  = 16 << 20 // the same; twice that is held
	minStep      = 64 << 10
	maxBatchGrow = 8        // a batch may take this many times BatchBytes before it is cut
	leastLimit   = 16 << 20 // which is at least this
	maxRowBytes  = 2 << 30  // of one row, decoded
)

// reader is a pass over one row group.
type reader struct {
	place    fault.Place
	o        driver.ScanOptions
	queue    fileset.Queue // decoded, to be handed out
	in       *input
	s        *fileSchema
	g        *rowGroup
	fields   []int
	all      []int         // their places in the decoder
	schema   *arrow.Schema // of fields; nil until the first batch
	ranges   []rowRange    // left to read
	late     *late         // nil: rows are not judged before they are decoded
	deferred *deferred     // nil: all columns are fetched together
	dec      *decoder      // nil until the first row is needed
	start    func(ctx context.Context) (*decoder, error)
	finish   func(b driver.Batch, bad *fileset.BadRows) (arrow.RecordBatch, error)
	done     func()
	growth   *fileset.Growth
	batch    int64 // rows of a batch by estimate
	err      error
}

// scan is what a pass over a row group needs to know.
type scan struct {
	place  fault.Place
	in     *input
	s      *fileSchema
	g      *rowGroup
	fields []int // of the schema, in its order
	extra  []int // decoded besides, for the terms
	terms  driver.Predicate
	o      driver.ScanOptions // with defaults; Columns are not looked at
	never  bool
	growth *fileset.Growth // nil: what it becomes is not bounded
}

// newReader plans the pass; it reads the page index, if that can help, and no data.
func newReader(ctx context.Context, c scan) (*reader, error) {
	r := &reader{place: c.place, o: c.o, in: c.in, s: c.s, g: c.g, fields: c.fields, growth: c.growth}
	r.queue = fileset.NewQueue(r.place, &r.o)
	from := max(c.o.FromRow, 0)
	to := c.g.rows
	if most := c.limit(); most > 0 {
		to = min(to, from+most)
	}
	if from >= to {
		return r, nil
	}
	r.ranges = []rowRange{{from, to}}
	for _, i := range c.fields {
		for _, l := range c.s.fields[i].leaves {
			if err := c.g.chunks[l].readable(); err != nil {
				return nil, fault.Wrap(err, fault.Place{Column: c.s.leaves[l].name})
			}
		}
	}
	if !c.never {
		r.late, c.extra = newLate(&c)
	}
	pages, err := r.prune(ctx, &c)
	if err != nil {
		return nil, err
	}
	if len(r.ranges) == 0 {
		return r, nil
	}
	r.batch = c.batchRows()
	if len(c.fields) > 0 {
		for k := range c.fields {
			r.all = append(r.all, k)
		}
		ranges, fields := slices.Clone(r.ranges), c.decoded()
		if r.late != nil {
			if r.deferred = newDeferred(&c, r.late, pages); r.deferred != nil {
				fields = at(fields, r.late.first)
			}
		}
		r.start = func(ctx context.Context) (*decoder, error) { return c.open(ctx, fields, ranges, pages) }
	}
	return r, nil
}

// limit is how many rows are read at most, 0: all. One of rows after the predicate, of which only
// parts may be known here, is none.
func (c *scan) limit() int64 {
	if len(c.terms) > 0 {
		return 0
	}
	return fileset.ReadLimit(&c.o)
}

// readable reports why a column chunk cannot be read.
func (c *chunk) readable() error {
	switch {
	case c.flags&encrypted != 0:
		return fault.New(fault.Unsupported, "encrypted columns are not supported")
	case c.flags&external != 0:
		return fault.New(fault.Unsupported, "columns in other files are not supported")
	case c.flags&beyond != 0:
		return fault.New(fault.Corrupt, "the column chunk lies where the file has no data; leave the column out, or write the file anew")
	}
	return checkCodec(c.codec)
}

// term finds the leaf whose statistics a term can be held against.
func (s *fileSchema) term(t *driver.Term) (leaf int, ok bool) {
	is := s.arrow.FieldIndices(t.Column)
	if len(is) != 1 || len(s.fields[is[0]].leaves) != 1 {
		return 0, false
	}
	leaf = s.fields[is[0]].leaves[0]
	return leaf, s.leaves[leaf].kind != kindNone
}

// keepGroup judges by the statistics of the row group.
func (s *fileSchema) keepGroup(g *rowGroup, p driver.Predicate) bool {
	for i := range p {
		if l, ok := s.term(&p[i]); ok {
			b := g.chunks[l].bounds(s.leaves[l].kind)
			if !b.keep(&p[i]) {
				return false
			}
		}
	}
	return true
}

// prune narrows the ranges, and returns the offset indexes for them.
func (r *reader) prune(ctx context.Context, c *scan) (map[int][]pageLoc, error) {
	before := r.ranges[0].to - r.ranges[0].from
	defer func() {
		for _, x := range r.ranges {
			before -= x.to - x.from
		}
		c.o.Stats.Pruned.Add(before)
	}()
	if c.never || !c.s.keepGroup(c.g, c.terms) {
		r.ranges = nil
		return nil, nil
	}
	var terms []int
	for i := range c.terms {
		if l, ok := c.s.term(&c.terms[i]); ok && c.g.chunks[l].ciLen > 0 && !slices.Contains(terms, l) {
			terms = append(terms, l)
		}
	}
	known := map[int][]pageLoc{}
	if len(terms) > 0 {
		ois, cis, err := c.g.indexes(ctx, c.in, c.s, terms, true)
		if err != nil {
			return nil, err
		}
		known = ois
		for i := range c.terms {
			if l, ok := c.s.term(&c.terms[i]); ok && cis[l] != nil {
				r.ranges = intersect(r.ranges, matching(&c.terms[i], c.s.leaves[l].kind, c.g.rows, ois[l], cis[l]))
			}
		}
	}
	if len(r.ranges) == 0 || len(r.ranges) == 1 && r.ranges[0] == (rowRange{0, c.g.rows}) {
		return nil, nil
	}
	var missing []int
	for _, i := range c.decoded() {
		for _, l := range c.s.fields[i].leaves {
			if _, ok := known[l]; !ok {
				missing = append(missing, l)
			}
		}
	}
	ois, _, err := c.g.indexes(ctx, c.in, c.s, missing, false)
	for l, ps := range ois {
		known[l] = ps
	}
	return known, err
}

// decoded are the fields that the decoder is made for.
func (c *scan) decoded() []int { return slices.Concat(c.fields, c.extra) }

// batchRows estimates how many rows make BatchBytes.
func (c *scan) batchRows() int64 {
	n := int64(c.o.BatchRows)
	if per := c.s.decodedBytes(c.g, c.fields) / max(c.g.rows, 1); per > 0 {
		n = min(n, c.o.BatchBytes/per)
	}
	return max(n, 1)
}

// open makes the decoder: windows over what the ranges need of the fields, which are those that are decoded, or some of them.
func (c *scan) open(ctx context.Context, fields []int, ranges []rowRange, pages map[int][]pageLoc) (*decoder, error) {
	wins := map[int]*window{}
	for _, i := range c.decoded() {
		for _, l := range c.s.fields[i].leaves {
			wins[l] = &window{f: c.in, alloc: c.o.Alloc}
		}
	}
	if err := c.fill(ctx, wins, fields, ranges, pages); err != nil {
		return nil, err
	}
	d, err := newDecoder(c.s, c.g, c.decoded(), wins, pages, c.o.Alloc)
	if err != nil {
		for _, w := range wins {
			w.close()
		}
		return nil, err
	}
	d.growth = c.growth
	if most := c.o.AheadBytes; most > 0 {
		d.keep, d.ahead = min(d.keep, most), min(d.ahead, most/2)
	}
	return d, nil
}

// indexed reports whether all leaves of a field have an offset index.
func (c *scan) indexed(field int, pages map[int][]pageLoc) bool {
	for _, l := range c.s.fields[field].leaves {
		if pages[l] == nil {
			return false
		}
	}
	return true
}

// fill says to the windows of some fields what is read, and in what steps, and fetches what they begin with.
func (c *scan) fill(ctx context.Context, wins map[int]*window, fields []int, ranges []rowRange, pages map[int][]pageLoc) error {
	var order, whole []*window
	var total int64
	for _, i := range fields {
		f := &c.s.fields[i]
		indexed := c.indexed(i, pages)
		for _, l := range f.leaves {
			ch, w := &c.g.chunks[l], wins[l]
			if indexed {
				w.dict = blobio.Range{Off: ch.start, Len: pages[l][0].off - ch.start}
				w.runs = neededRuns(f, l, ranges, pages)
				if c.in.fetch != nil {
					w.runs = merged(w.runs, c.in.fetch.Gap())
				}
			} else if ch.size > 0 {
				w.runs = []blobio.Range{{Off: ch.start, Len: ch.size}}
				whole = append(whole, w)
			}
			total += w.dict.Len
			for _, r := range w.runs {
				total += r.Len
			}
			order = append(order, w)
		}
	}
	// Columns are used up at about the same rate of rows, so that windows in
	// proportion to their bytes are refilled together.
	budget := int64(localAhead)
	if c.in.fetch != nil {
		budget = remoteAhead
	}
	if most := c.o.AheadBytes; most > 0 {
		if c.in.fetch != nil {
			most /= 2 // the next read is under way while one is used
		}
		budget = min(budget, most)
	}
	for _, w := range order {
		var sum int64
		for _, r := range w.runs {
			sum += r.Len
		}
		w.step = sum
		if total > budget {
			w.step = min(sum, max(minStep, sum*budget/total))
		}
		if c.in.fetch == nil {
			w.step = min(w.step, localStep)
			if w.keep = 2 * w.step; c.o.AheadBytes == 0 {
				w.keep = max(w.keep, min(maxWindow, maxWindows/int64(len(order))))
			}
		}
	}
	if c.limit() > 0 || len(ranges) == 1 && ranges[0].to < c.g.rows/2 {
		// Little may be wanted of what could not be narrowed.
		rows := ranges[len(ranges)-1].to
		for _, w := range whole {
			w.step = min(w.step, max(minStep, w.step*rows/max(c.g.rows, 1)))
		}
	}
	if c.in.fetch != nil {
		return fetchFirst(ctx, c.in, order, c.o.Alloc)
	}
	return nil
}

// neededRuns are the bytes of the pages of leaf l that ranges need.
func neededRuns(f *field, l int, ranges []rowRange, pages map[int][]pageLoc) []blobio.Range {
	ps := pages[l]
	var out []blobio.Range
	add := func(from, to int64) {
		if from >= to {
			return
		}
		if n := len(out); n > 0 && out[n-1].Off+out[n-1].Len >= from {
			out[n-1].Len = max(out[n-1].Len, to-out[n-1].Off)
			return
		}
		out = append(out, blobio.Range{Off: from, Len: to - from})
	}
	for _, r := range ranges {
		from := r.from
		if f.repeated {
			from = commonStart(f.leaves, pages, from)
		}
		for i := pageOf(ps, from); i < len(ps) && ps[i].row < r.to; i++ {
			add(ps[i].off, ps[i].off+ps[i].size)
		}
	}
	return out
}

// commonStart is the last row, not after row, at which every leaf begins a page.
func commonStart(leaves []int, pages map[int][]pageLoc, row int64) int64 {
	for again := true; again; {
		again = false
		for _, l := range leaves {
			if at := pages[l][pageOf(pages[l], row)].row; at < row {
				row, again = at, true
			}
		}
	}
	return row
}

// Next implements driver.Reader.
func (r *reader) Next(ctx context.Context) (driver.Batch, error) {
	if r.err != nil {
		return driver.Batch{}, r.err
	}
	b, err := r.next(ctx)
	if err != nil {
		if err != io.EOF {
			err = fault.Wrap(err, r.place)
		}
		r.err = err
		return driver.Batch{}, err
	}
	return b, nil
}

func (r *reader) next(ctx context.Context) (driver.Batch, error) {
	if err := ctx.Err(); err != nil {
		return driver.Batch{}, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	for {
		if b, ok, err := r.queue.Next(); ok || err != nil {
			return b, err
		}
		l := r.late
		if l != nil && len(l.left) > 0 {
			row := l.left[0].from
			err := r.survivors(ctx)
			if err != nil {
				err = r.leaveOut(err, l.leave)
			}
			if err != nil {
				return driver.Batch{}, fault.Wrap(err, fault.Place{Row: fault.N(row)})
			}
			continue
		}
		if d := r.deferred; d != nil && r.dec == nil {
			if err := r.judgeAll(ctx, d); err != nil {
				return driver.Batch{}, err
			}
		}
		if d := r.deferred; d != nil && len(d.queue) > 0 {
			r.pop(d)
			continue
		}
		if len(r.ranges) == 0 {
			if err := r.dec.finish(ctx); err != nil {
				return driver.Batch{}, err
			}
			return driver.Batch{}, io.EOF
		}
		x := &r.ranges[0]
		row, n := x.from, r.rows(x)
		var err error
		if l != nil {
			n, err = r.judge(ctx, row, n)
		} else {
			n, err = r.decode(ctx, row, n)
		}
		if err != nil {
			if err = r.leaveOut(err, r.leave); err == nil {
				continue
			}
			return driver.Batch{}, fault.Wrap(err, fault.Place{Row: fault.N(row)})
		}
		if x.from += n; x.from == x.to {
			r.ranges = r.ranges[1:]
		}
	}
}

// leaveOut leaves out the row in which err refuses a value, if whoever reads wants that: leave does it.
func (r *reader) leaveOut(err error, leave func(row int64)) error {
	row, ok := badRow(err)
	if !ok || r.o.OnBadRow == nil {
		return err
	}
	if err := r.queue.Tell(err); err != nil {
		return err
	}
	leave(row)
	return nil
}

// leave leaves out a row of the first range.
func (r *reader) leave(row int64) { r.ranges = without(r.ranges, row) }

// without leaves row out of the first of some ranges, which has it.
func without(ranges []rowRange, row int64) []rowRange {
	x := ranges[0]
	out := make([]rowRange, 0, len(ranges)+1)
	for _, part := range []rowRange{{x.from, row}, {row + 1, x.to}} {
		if part.from < part.to {
			out = append(out, part)
		}
	}
	return append(out, ranges[1:]...)
}

// Stops implements driver.Stopper.
func (t *table) Stops() bool { return true }

// rows is how many to read next of x: those up to a stop in equal parts.
func (r *reader) rows(x *rowRange) int64 {
	n, every := x.to-x.from, r.o.StopEvery
	if every <= 0 {
		return min(n, r.batch)
	}
	stop := (r.o.StopRow-x.from-1)%every + 1
	if stop <= 0 {
		stop += every
	}
	n = min(n, stop)
	parts := (n + r.batch - 1) / r.batch
	return (n + parts - 1) / parts
}

// decode queues n rows, or fewer if they take too much memory, and says how many.
func (r *reader) decode(ctx context.Context, row, n int64) (int64, error) {
	if r.start == nil { // no column: rows that only count
		if err := r.growth.Add(n, 0); err != nil {
			return 0, err
		}
		rec := array.NewRecordBatch(arrow.NewSchema(nil, nil), nil, n)
		defer rec.Release()
		return n, r.finished(driver.Batch{Record: rec, Row: row})
	}
	cols, n, err := r.columns(ctx, r.all, row, n, nil, 1)
	if err != nil {
		return 0, err
	}
	defer releaseAll(cols)
	return n, r.record(cols, driver.Batch{Row: row}, n)
}

// columns reads n rows of fields of the decoder, or the chosen ones, or those of fewer rows if they take more than their share
// of what a batch may.
func (r *reader) columns(ctx context.Context, which []int, row, n int64, keep *chosen, share int64) ([]arrow.Array, int64, error) {
	if r.dec == nil {
		d, err := r.start(ctx)
		if err != nil {
			return nil, 0, err
		}
		r.dec = d
	}
	for {
		limit := max(maxBatchGrow*r.o.BatchBytes, leastLimit) / share
		if n == 1 {
			limit = min(maxRowBytes, r.growth.Row())
		}
		cols, err := r.dec.readFields(ctx, which, row, int(n), keep, limit)
		if large, ok := errors.AsType[errTooLarge](err); ok {
			if n == 1 && limit < maxRowBytes {
				return nil, 0, r.growth.LargeRow("the row takes")
			}
			if n == 1 {
				return nil, 0, fault.New(fault.Unsupported, "one row takes more than %d bytes: %w", maxRowBytes, large)
			}
			n = max(n/4, 1)
			r.batch = n // what follows will be alike
			if keep = keep.part(0, int(n)); keep.count(int(n)) == 0 {
				return nil, n, nil
			}
			continue
		}
		return cols, n, err
	}
}

// record queues the n rows of at, of the wanted columns, which it borrows.
func (r *reader) record(cols []arrow.Array, at driver.Batch, n int64) error {
	if r.schema == nil {
		fields := make([]arrow.Field, len(cols))
		for i, f := range r.fields {
			fields[i] = r.s.arrow.Field(f)
		}
		r.schema = arrow.NewSchema(fields, nil)
	}
	at.Record = array.NewRecordBatch(r.schema, cols, n)
	defer at.Record.Release()
	return r.finished(at)
}

// finished queues rows whose columns are the file's; it borrows their record.
func (r *reader) finished(b driver.Batch) error {
	bad := new(fileset.BadRows)
	if r.finish == nil {
		b.Record.Retain()
	} else {
		rec, err := r.finish(b, bad)
		if err != nil {
			return err
		}
		b.Record = rec
	}
	r.slice(b, bad)
	return nil
}

// slice queues b, which it takes over, in pieces of at most BatchBytes, by average; a piece has at
// least one row.
func (r *reader) slice(b driver.Batch, bad *fileset.BadRows) {
	rec := b.Record
	rows := rec.NumRows()
	var size int64
	for _, c := range rec.Columns() {
		switch {
		case c.DataType().ID() == arrow.DICTIONARY:
			size += cut.Bytes(c.Data(), 0, rows)
			if dict := c.Data().Dictionary(); !r.dec.shares(dict) {
				size += int64(dict.(*array.Data).SizeInBytes())
			}
		case r.late != nil: // a part of a window, whose buffers may hold more
			size += cut.Bytes(c.Data(), 0, rows)
		default:
			size += int64(c.Data().SizeInBytes())
		}
	}
	pieces := (size + r.o.BatchBytes - 1) / r.o.BatchBytes
	if pieces <= 1 {
		r.queue.Put(b, bad)
		return
	}
	defer rec.Release()
	per := max(rows/pieces, 1)
	for at := int64(0); at < rows; at += per {
		end := min(at+per, rows)
		r.queue.Put(b.Slice(at, end), bad.Part(int(at), int(end)))
	}
}

// Close implements driver.Reader.
func (r *reader) Close() error {
	r.queue.Release()
	r.ranges = nil
	if r.late != nil {
		r.late.release()
	}
	if r.deferred != nil {
		r.deferred.release()
	}
	if r.dec != nil {
		r.dec.close()
		r.dec = nil
	}
	err := r.in.close()
	if r.done != nil {
		r.done()
		r.done = nil
	}
	if r.err == nil {
		r.err = io.EOF
	}
	return err
}
