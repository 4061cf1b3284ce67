package jsonio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// Open starts a pass over a byte range of lines, or all of another file.
func (t *table) Open(ctx context.Context, i int, so *driver.ScanOptions) (driver.Reader, error) {
	at := t.at[i]
	r := &reader{path: t.splits[i].File, index: t.splits[i].Index, o: so.WithDefaults(), left: -1}
	r.sink.alloc = r.o.Alloc
	if err := context.Cause(ctx); err != nil {
		return nil, r.place(err)
	}
	if err := fileset.CheckBytes(&r.o, t.Offsets(i), &t.splits[i]); err != nil {
		return nil, err
	}
	if most := fileset.ReadLimit(&r.o); most > 0 {
		r.left = most
	}
	r.queue = fileset.NewQueue(driver.Place{File: r.path, RowGroup: fault.N(r.index)}, &r.o)
	var err error
	if r.ad, err = t.set.Adapter(at.File, t.schema, t.rows, r.o.Columns, r.o.Predicate, 0); err != nil {
		return nil, r.place(err)
	}
	if r.ad.Never {
		r.end(io.EOF)
		return r, nil
	}
	idx, schema, err := cut.Columns(t.rows, append([]string{}, r.ad.FileColumns...)) // nil would mean all
	if err != nil {
		r.end(err)
		return nil, r.place(err)
	}
	r.schema, r.growth = schema, t.set.TextGrowth(at.Part)
	r.sink.growth = r.growth
	if r.p, err = t.parser(&r.sink, idx); err == nil {
		r.in = t.rowsOf(ctx, at, r.p, &r.o)
		r.lines, _ = r.in.(*lines)
	}
	if err != nil {
		r.end(err)
		return nil, r.place(err)
	}
	return r, nil
}

// parser of the columns idx of the files.
func (t *table) parser(s *sink, idx []int) (*parser, error) {
	p := &parser{strict: t.o.Strict, scalar: t.scalar, root: &column{s: s, kind: kStruct, byName: map[string]int{}}, text: text{odd: t.odd}}
	for k, i := range idx {
		f := t.rows.Field(i)
		from := guessed
		switch {
		case t.types[f.Name] != nil:
			from = given
		case t.o.Mixed == "text":
			from = mixed
		}
		c, err := newColumn(s, f, f.Name, from)
		if err != nil {
			return nil, err
		}
		p.root.kids = append(p.root.kids, c)
		p.root.byName[f.Name] = k
		p.root.kidBits += c.nullBits
	}
	p.base64 = t.o.Base64()
	p.raw = map[string]bool{}
	for _, f := range t.rows.Fields() {
		p.raw[f.Name] = !p.base64 && fileset.HasBytes(f.Type)
	}
	if t.o.Strict {
		// Columns that are not read are known all the same.
		p.known = map[string]bool{}
		for _, f := range t.rows.Fields() {
			p.known[f.Name] = true
		}
	}
	return p, nil
}

// rows finds the rows of a split, one after another.
type rows interface {
	// row parses the next row, or skips it: if skip, or if it begins before FromByte. An error of code RowError is about that
	// row, which lies behind then; io.EOF comes after the last; errAlone before one that is so long that it is a batch of its own;
	// others are final.
	row(ctx context.Context, skip bool) error
	// unread goes back to where the row that was parsed last begins.
	unread()
	// used says that what was parsed is not needed any more.
	used()
	close() error
}

var errAlone = errors.New("the next row is long")

func (t *table) rowsOf(ctx context.Context, at place, p *parser, o *driver.ScanOptions) rows {
	if at.layout == onLines {
		begin := at.Range.Off
		p.alone = true
		return &lines{p: p, c: t.set.OpenChunks(ctx, at.Part, 0, o), first: begin == 0, begin: begin, least: begin + o.FromByte}
	}
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // Next has its own
	size := int64(longBytes)
	if t.set.Bytewise(at.Part) {
		size = min(size, at.Range.Len+1)
	}
	a := &elements{p: p, bare: at.layout == inBehind, in: t.set.OpenStream(sctx, at.Part, o), cancel: cancel, alloc: o.Alloc, small: make([]byte, size),
		growth: p.root.s.growth, most: int(min(fileset.MaxLine, p.root.s.growth.Row()))}
	p.text.more = true
	a.buf = a.small
	return a
}

// reader makes batches of rows.
type reader struct {
	path   string
	index  int64
	o      driver.ScanOptions
	queue  fileset.Queue
	ad     *fileset.Adapter
	schema *arrow.Schema
	sink   sink
	p      *parser
	in     rows
	growth *fileset.Growth
	lines  *lines // in, if it is that

	row    int64   // the next one's number in the split
	left   int64   // rows that the limit allows; -1: all
	offs   []int64 // where the rows parsed begin; only if asked for
	behind error   // a bad row behind the batch that was given out
	err    error
}

func (r *reader) place(err error) error {
	if err == nil || err == io.EOF {
		return err
	}
	return driver.Wrap(err, driver.Place{File: r.path, RowGroup: fault.N(r.index)})
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
			err = r.next(ctx)
		}
		if err != nil {
			r.end(r.place(err))
			return driver.Batch{}, r.err
		}
	}
}

// next queues the next rows.
func (r *reader) next(ctx context.Context) error {
	if err := r.behind; err != nil {
		r.behind = nil
		if err := r.badRow(err); err != nil {
			return err
		}
	}
	root := r.p.root
	r.sink.bytes = 0
	r.offs = nil
	limit := r.o.BatchRows
	if r.left >= 0 {
		limit = int(min(int64(limit), r.left))
	}
	for root.n < limit && (root.n == 0 || r.sink.bytes < r.o.BatchBytes) {
		if r.row%256 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		skip := r.row < r.o.FromRow
		err := r.in.row(ctx, skip)
		if err == io.EOF || err == errAlone {
			break
		}
		if err != nil {
			if e, ok := err.(*driver.Error); !ok || e.Code != driver.RowError {
				return driver.Wrap(err, driver.Place{Row: fault.N(r.row)})
			}
			if root.n > 0 { // rows of a batch are neighbours
				r.behind = err
				break
			}
			if err := r.badRow(err); err != nil {
				return err
			}
			continue
		}
		if r.sink.bytes > r.o.BatchBytes && root.n > 1 {
			r.in.unread()
			root.truncate(root.n - 1)
			break
		}
		if r.o.Offsets && root.n > len(r.offs) { // else it was skipped
			r.offs = append(r.offs, r.lines.offset())
		}
		r.row++
	}
	n := root.n
	if n == 0 {
		return io.EOF
	}
	cols := make([]arrow.Array, len(root.kids))
	for i, k := range root.kids {
		d := k.finish(n)
		cols[i] = array.MakeFromData(d)
		d.Release()
		defer cols[i].Release()
	}
	root.n = 0
	r.in.used()
	rec := array.NewRecordBatch(r.schema, cols, int64(n))
	defer rec.Release()
	first := r.row - int64(n)
	if err := r.growth.AddRecord(rec); err != nil {
		return driver.Wrap(err, driver.Place{Row: fault.N(first)})
	}
	bad := new(fileset.BadRows)
	out, err := r.ad.Apply(driver.Batch{Record: rec, Row: first}, r.o.Alloc, bad)
	if err != nil {
		return err
	}
	if r.left >= 0 {
		r.left -= int64(n)
	}
	r.queue.Put(driver.Batch{Record: out, Row: first, Offsets: r.offs}, bad)
	return nil
}

// badRow reports the row at hand and counts it.
func (r *reader) badRow(err error) error {
	err = driver.Wrap(err, driver.Place{Row: fault.N(r.row)})
	over := r.growth.Add(1, r.sink.lost)
	if r.sink.lost = 0; over != nil {
		return driver.Wrap(over, driver.Place{Row: fault.N(r.row)})
	}
	r.row++
	return r.queue.Tell(err)
}

// end keeps err and frees everything.
func (r *reader) end(err error) error {
	if r.err == nil {
		r.err = err
	}
	r.queue.Release()
	if r.p != nil {
		r.p.root.release()
		r.p = nil
	}
	if r.ad != nil {
		r.ad.Release()
		r.ad = nil
	}
	if r.in != nil {
		in := r.in
		r.in = nil
		return in.close()
	}
	return nil
}

func (r *reader) Close() error {
	return r.place(r.end(driver.Errorf(driver.Invalid, "the reader is closed")))
}

// lines are the rows of JSON lines.
type lines struct {
	p        *parser
	c        *fileset.Chunks
	chunk    []byte
	off      int64 // of chunk in the file
	begin    int64 // of the split in the file
	least    int64 // lines that begin before this byte of the file are skipped
	at, last int   // in chunk: the next line, the one parsed last
	first    bool  // a byte order mark may come
	number   int64 // of the line at counted in the file, from 1; 0: unknown, as the split does not begin the file
	counted  int   // offset in chunk
}

// tell adds line, and its number where that is known, to the error of a bad row.
func (l *lines) tell(e *driver.Error, line []byte) *driver.Error {
	where := "the line is"
	if l.count(l.last); l.number > 0 {
		where = fmt.Sprintf("line %d of the file:", l.number)
	}
	return tell(e, where, line)
}

// count moves counted to a later offset.
func (l *lines) count(to int) {
	switch {
	case l.number == 0 || to == l.counted:
	case l.c != nil && l.c.Long(): // one line, in which escapes may have been undone where they were
		l.number += int64(to / len(l.chunk))
	default:
		l.number += int64(bytes.Count(l.chunk[l.counted:to], []byte{'\n'}))
	}
	l.counted = to
}

const tellBytes = 1000

// tell adds up to tellBytes of text to the message of e.
func tell(e *driver.Error, where string, text []byte) *driver.Error {
	text = bytes.TrimSpace(text)
	show := strconv.Quote(string(text[:min(len(text), tellBytes)]))
	if len(text) > tellBytes {
		show += "..."
	}
	c := *e
	c.Err = fmt.Errorf("%w (%s %s)", e.Err, where, show)
	return &c
}

func (l *lines) row(ctx context.Context, skip bool) error {
	for !l.line() {
		var err error
		l.used()
		if l.chunk, l.off, err = l.c.Next(ctx); err != nil {
			l.chunk, l.at = nil, 0
			return err
		}
		if l.off == 0 {
			l.number = 1
		}
		l.begun()
	}
	if skip || l.off+int64(l.last) < l.least {
		return nil
	}
	line := l.chunk[l.last:l.at]
	l.p.lend = nil
	if l.p.ours = l.c.Long(); l.p.ours {
		if l.p.root.n > 0 {
			l.unread()
			return errAlone
		}
		line = bytes.Clone(line[:min(len(line), 2*tellBytes)])
		l.p.lend = l.c.Lend
	}
	return l.parse(line)
}

// begun starts a chunk.
func (l *lines) begun() {
	l.at = 0
	if l.first {
		l.first = false
		l.at = len(l.chunk) - len(bytes.TrimPrefix(l.chunk, bom))
	}
}

// line goes to the next line of the chunk that is not blank, if there is one.
func (l *lines) line() bool {
	for l.at < len(l.chunk) {
		if l.chunk[l.at] == '\n' { // blank lines, perhaps many
			l.at++
			continue
		}
		rest := l.chunk[l.at:]
		n := bytes.IndexByte(rest, '\n') + 1
		if n == 0 {
			n = len(rest)
		}
		l.last = l.at
		l.at += n
		l.p.text.b, l.p.text.i, l.p.text.more = rest[:n:n], 0, false
		if !l.p.blank() {
			return true
		}
	}
	return false
}

// parse makes a row of the line, which looked as given.
func (l *lines) parse(line []byte) error {
	err := l.p.row()
	if e, ok := err.(*syntaxError); ok {
		msg := e.msg
		if e.short {
			msg += "; for values over several lines set layout: elements"
		}
		return l.tell(driver.Errorf(driver.RowError, "%s (byte %d)", msg, l.off+int64(l.last+e.at)), line)
	}
	if e, ok := err.(*driver.Error); ok && e.Code == driver.RowError {
		return l.tell(e, line)
	}
	return err
}

func (l *lines) used() {
	if l.at == len(l.chunk) {
		l.count(l.at)
		l.chunk, l.at, l.counted = nil, 0, 0
		l.c.Done()
	}
}

func (l *lines) unread()      { l.at = l.last }
func (l *lines) close() error { return l.c.Close() }

// offset is the byte of the split at which the row parsed last begins.
func (l *lines) offset() int64 { return l.off - l.begin + int64(l.last) }

// elements are the rows of a JSON array, or values one behind another.
type elements struct {
	p      *parser
	bare   bool // there is no array
	in     io.ReadCloser
	cancel context.CancelFunc
	alloc  memory.Allocator
	growth *fileset.Growth
	most   int            // bytes of an element
	small  []byte         // Go memory
	long   *memory.Buffer // nil unless an element is longer than small
	buf    []byte         // the memory of one of them
	off    int64          // of buf in the file
	eof    bool
	state  int    // of the grammar, below
	last   int    // where the row parsed last begins, with its comma
	before int    // state there
	shown  []byte // the begin of a long element as it was before it was parsed
}

// longBytes is what an element has that is parsed alone, once it is known to be whole.
const longBytes = 1 << 20

const (
	atStart = iota // before '['
	atFirst        // behind it
	atNext         // behind an element
	atEnd          // behind ']'
	amid           // between values that are in no array
)

func (a *elements) row(ctx context.Context, skip bool) error {
	for {
		begin, state := a.p.i, a.state
		err := a.step(skip)
		if err == errMore {
			a.p.i, a.state = begin, state
			if err := a.fill(ctx); err != nil {
				return err
			}
			continue
		}
		if err == errAlone {
			a.p.i, a.state = begin, state
			return err
		}
		a.last, a.before = begin, state
		return a.explain(err, begin)
	}
}

// explain says where what err is about is; the row began at begin.
func (a *elements) explain(err error, begin int) error {
	switch e := err.(type) {
	case *syntaxError:
		what := "the array"
		if a.bare {
			what = "the text"
		}
		return driver.Errorf(driver.Corrupt, "%s is damaged: %s (byte %d)", what, e.msg, a.off+int64(e.at))
	case *driver.Error:
		if e.Code == driver.RowError {
			if a.shown == nil {
				a.shown = bytes.TrimLeft(a.p.b[begin:a.p.i], ", \t\r\n")
			}
			return tell(e, "the element is", a.shown)
		}
	}
	return err
}

// step consumes one row with what comes before it.
func (a *elements) step(skip bool) error {
	p := a.p
	if a.state == atStart {
		if p.more && len(p.b)-p.i < len(bom) {
			return errMore
		}
		p.i += len(p.b[p.i:]) - len(bytes.TrimPrefix(p.b[p.i:], bom))
		if a.bare {
			a.state = amid
			return a.step(skip)
		}
		c, err := p.space()
		if err != nil {
			return err
		}
		if c != '[' {
			return p.fail("%q where an array begins; set layout: lines or elements", c)
		}
		p.i++
		a.state = atFirst
	}
	if a.state == atEnd {
		switch {
		case !p.blank():
			return p.fail("%q behind the array; for several arrays set layout: elements", p.b[p.i])
		case p.more:
			return errMore
		}
		return io.EOF
	}
	if a.state == amid {
		switch {
		case !p.blank():
		case p.more:
			return errMore
		default:
			return io.EOF
		}
		return a.value(skip)
	}
	c, err := p.space()
	if err != nil {
		return err
	}
	switch {
	case c == ']':
		p.i++
		a.state = atEnd
		return a.step(skip)
	case a.state == atNext:
		if c != ',' {
			return p.fail("%q where a comma or ']' is needed", c)
		}
		p.i++
	}
	a.state = atNext
	return a.value(skip)
}

// value consumes the value of a row.
func (a *elements) value(skip bool) error {
	p := a.p
	if skip {
		return p.skip(0)
	}
	p.ours, a.shown = false, nil
	if p.seen == nil && len(p.b)-p.i > longBytes {
		from := p.i
		if err := p.skip(0); err != nil {
			return err
		}
		n := p.i - from
		p.i = from
		if p.ours = n > longBytes; p.ours {
			if p.root.n > 0 {
				return errAlone
			}
			a.shown = bytes.Clone(p.b[from : from+2*tellBytes])
		}
	}
	return p.row()
}

// fill gets more text behind what is left of it.
func (a *elements) fill(ctx context.Context) error {
	rest := a.p.b[a.p.i:]
	left := len(rest)
	a.off += int64(a.p.i)
	switch old := a.long; {
	case left == len(a.buf):
		switch {
		case left > a.most && a.most < fileset.MaxLine:
			return a.growth.LargeRow(fmt.Sprintf("the element at byte %d has", a.off))
		case left > a.most:
			return driver.Errorf(driver.Corrupt, "the element at byte %d is larger than %d bytes", a.off, fileset.MaxLine)
		}
		size := min(2*left, a.most+1)
		larger := memory.NewResizableBuffer(a.alloc)
		larger.ResizeNoShrink(size) // panics where the run gives up while it waits for memory: a.long is still what close releases
		a.long, a.buf = larger, larger.Buf()[:size]
		copy(a.buf, rest)
		if old != nil {
			old.Release()
		}
	case old != nil && left <= len(a.small)/2:
		a.long, a.buf = nil, a.small
		copy(a.buf, rest)
		old.Release()
	default:
		copy(a.buf, rest)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	stop := context.AfterFunc(ctx, a.cancel)
	n, err := io.ReadFull(a.in, a.buf[left:])
	if !stop() { // the stream is canceled, even if it gave this much
		return context.Cause(ctx)
	}
	switch err {
	case nil:
	case io.EOF, io.ErrUnexpectedEOF:
		a.eof = true
	default:
		return err
	}
	a.p.text.b, a.p.text.i, a.p.text.more = a.buf[:left+n], 0, !a.eof
	return nil
}

func (a *elements) unread() { a.p.i, a.state = a.last, a.before }
func (a *elements) used()   {}

func (a *elements) close() error {
	err := a.in.Close()
	a.cancel()
	if a.long != nil {
		a.long.Release()
		a.long, a.buf = nil, nil
	}
	return err
}
