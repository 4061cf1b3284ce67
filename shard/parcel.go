package shard

import (
	"encoding/binary"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/shard/internal/lanes"
)

// parcel is samples of a step that another node read, in order of n: all that are dealt to ranks of this one.
type parcel struct {
	Message
	step int64 // of the mesh
	rows int
	rec  lanes.Rec
}

// size is the bytes of the rows.
func (p *parcel) size() int64 {
	if p.Record != nil {
		return exec.SizeOf(p.Record)
	}
	return int64(len(p.Packed))
}

// travelling reports whether samples travel packed: where that is all that batches are made of.
func (j *job) travelling() bool { return j.layout != nil && !j.layout.Rest }

// pack makes the message of the samples of a part for another node, one copy, in memory of the job.
func (j *job) pack(step int64, p *part) (msg Message, err error) {
	rows := gather.Count(p.runs)
	msg.Head = say(sayParcel, uint64(step), uint64(rows))
	if j.Lineage {
		msg.Head = appendOrigins(msg.Head, p)
	}
	if j.travelling() {
		err = j.packRows(&msg, p, rows)
	} else {
		recs := make([]arrow.RecordBatch, len(p.recs))
		for i, r := range p.recs {
			recs[i] = r.Batch
		}
		msg.Record, err = gather.Record(j.mesh.memory, j.mesh.schema, recs, p.runs)
	}
	return msg, err
}

// packRows packs the rows of a part by the job's layout. Those of windows that are packed already are copied; of others
// each record's are packed together first.
func (j *job) packRows(msg *Message, p *part, rows int) error {
	size := j.layout.Size
	srcs := make([][]byte, len(p.recs))
	var plain []arrow.RecordBatch
	of := map[int32]int32{} // by number of a record that is not packed: the rows of it that came
	for i, r := range p.recs {
		if srcs[i] = r.Packed; r.Packed == nil {
			of[int32(i)] = 0
		}
	}
	runs := p.runs
	if len(of) > 0 {
		mine := make([][]gather.Run, len(p.recs))
		runs = make([]gather.Run, len(p.runs))
		for i, r := range p.runs {
			runs[i] = r
			if at, ok := of[r.Rec]; ok {
				mine[r.Rec] = append(mine[r.Rec], r)
				runs[i].Row, of[r.Rec] = at, at+r.N
			}
		}
		plain = make([]arrow.RecordBatch, len(p.recs))
		for i, r := range p.recs {
			plain[i] = r.Batch
		}
		for i := range p.recs {
			n, ok := of[int32(i)]
			if !ok {
				continue
			}
			buf := memory.NewResizableBuffer(j.mesh.memory)
			defer buf.Release()
			buf.Resize(int(n) * size)
			if !j.layout.PackRuns(buf.Bytes(), plain, mine[i]) {
				return j.unpackable(plain, mine[i])
			}
			srcs[i] = buf.Bytes()
		}
	}
	buf := memory.NewResizableBuffer(j.mesh.memory)
	buf.Resize(rows * size)
	gather.Fixed(buf.Bytes(), size, srcs, runs)
	msg.Packed, msg.Free = buf.Bytes(), buf.Release
	return nil
}

// unpackable is the error of a batch with rows that do not pack.
func (j *job) unpackable(recs []arrow.RecordBatch, runs []gather.Run) error {
	c, err := NewCollator(j.Schema, j.Form, j.memory)
	if err != nil {
		return err
	}
	b, err := c.Batch(recs, runs, BatchShape{Rows: gather.Count(runs)})
	if err == nil {
		b.Release()
		err = fault.New(fault.Internal, "rows do not pack, but nothing is wrong with them")
	}
	return err
}

// unpack takes over what came, whose head r reads.
func (j *job) unpack(r *header, msg *Message) (*parcel, error) {
	p := &parcel{step: int64(r.next()), rows: int(min(r.next(), maxStep+1))}
	damaged := func(format string, args ...any) error {
		return fault.New(fault.Corrupt, "a parcel of samples is damaged: "+format, args...)
	}
	switch {
	case r.bad || p.rows < 1 || p.rows > maxStep:
		return nil, damaged("%d rows", p.rows)
	case j.travelling() && (msg.Record != nil || len(msg.Packed) != p.rows*j.layout.Size):
		return nil, damaged("%d bytes for %d rows of %d", len(msg.Packed), p.rows, j.layout.Size)
	case !j.travelling() && (msg.Record == nil || msg.Record.NumRows() != int64(p.rows) || !sameTypes(msg.Record.Schema(), j.Schema)):
		return nil, damaged("they are not %d rows of this job's schema", p.rows)
	}
	if j.Lineage {
		origins, ok := readOrigins(r, p.rows)
		if !ok {
			return nil, damaged("where its samples come from cannot be read")
		}
		p.rec.Origin = func(row int) lanes.Origin { return origins[row] }
	}
	p.Message, *msg = *msg, Message{}
	p.rec.Batch, p.rec.Packed = p.Record, p.Packed
	return p, nil
}

// appendOrigins appends where the samples of a part come from: for each the numbers of three texts, each of which stands
// where it is first used, row group and row, and its documents, if it is packed.
func appendOrigins(b []byte, p *part) []byte {
	known := map[string]uint64{}
	text := func(s string) {
		n, ok := known[s]
		if !ok {
			n = uint64(len(known))
			known[s] = n
		}
		if b = binary.AppendUvarint(b, n); !ok {
			b = append(binary.AppendUvarint(b, uint64(len(s))), s...)
		}
	}
	var one func(o *lanes.Origin)
	one = func(o *lanes.Origin) {
		text(o.Source)
		text(o.Split)
		text(o.File)
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(o.RowGroup)), uint64(o.Row))
		b = binary.AppendUvarint(b, uint64(len(o.Parts)))
		for i := range o.Parts {
			one(&o.Parts[i])
		}
	}
	for _, r := range p.runs {
		for k := range r.N {
			o := p.recs[r.Rec].Origin(int(r.Row + k))
			one(&o)
		}
	}
	return b
}

// readOrigins reads what appendOrigins wrote.
func readOrigins(r *header, rows int) (all []lanes.Origin, ok bool) {
	var known []string
	text := func() string {
		n := r.next()
		if n < uint64(len(known)) {
			return known[n]
		}
		r.bad = r.bad || n > uint64(len(known))
		s := r.text()
		known = append(known, s)
		return s
	}
	var one func(depth int) lanes.Origin
	one = func(depth int) lanes.Origin {
		o := lanes.Origin{Source: text(), Split: text(), File: text(), RowGroup: int64(r.next()), Row: int64(r.next())}
		n := r.next()
		if n > uint64(len(r.b)) || depth > 0 && n > 0 {
			r.bad = true
		}
		for ; n > 0 && !r.bad; n-- {
			o.Parts = append(o.Parts, one(depth+1))
		}
		return o
	}
	for range rows {
		if all = append(all, one(0)); r.bad {
			return nil, false
		}
	}
	return all, len(r.b) == 0
}
