package shard

import (
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/shard/internal/lanes"
)

// far is the samples of a step that go to other nodes, or come from them.
type far struct {
	m     *mesh
	owner []int32 // node of each lane
	home  []int32 // node of each rank
	out   []part  // by node
	in    []inbound
	with  []bool // nodes that read samples of the step
}

// inbound is what comes from a node: so many rows, of a record that is filled in once it is there.
type inbound struct {
	rows   int32
	slot   int32 // in assembly.recs
	parcel *parcel
}

func newFar(m *mesh, lanes int) *far {
	n := m.j.Nodes
	f := &far{m: m, owner: make([]int32, lanes), home: make([]int32, len(n.Ranks)), out: make([]part, len(m.peers)), in: make([]inbound, len(m.peers)), with: make([]bool, len(m.peers))}
	for v := range f.owner {
		f.owner[v] = int32(n.owner(v))
	}
	for r, node := range n.Ranks {
		f.home[r] = int32(node)
	}
	return f
}

// release gives back what came.
func (f *far) release() {
	for i := range f.in {
		if p := f.in[i].parcel; p != nil {
			p.Release()
			f.in[i].parcel = nil
		}
	}
	for i := range f.out {
		f.out[i].clear(0)
	}
}

// mine puts the samples that are read here into p, in any order.
func (w *assembly) mine(p *part) {
	p.clear(0)
	p.recs = append(p.recs, w.recs...)
	for _, r := range w.recs {
		p.rows = append(p.rows, rowsOf(r))
	}
	for i := range w.rows {
		s := &w.rows[i]
		p.runs = append(p.runs, gather.Run{Rec: s.rec, Row: s.row, N: s.n})
	}
}

// exchange deals the step, sends what other nodes get of it, and waits for what they send. What came is there until far.release.
func (w *assembly) exchange(lengths map[string]int) error {
	f, j := w.far, w.j
	w.dealtFar()
	clear(f.with)
	for _, v := range w.seq {
		f.with[f.owner[v]] = true
	}
	for node := range f.out {
		p := &f.out[node]
		if len(p.runs) == 0 {
			continue
		}
		msg, err := j.pack(f.m.step, p)
		if err != nil {
			return fault.Wrap(err, fault.Place{Step: "samples for another node"})
		}
		f.m.parcelOut(node, msg, gather.Count(p.runs))
	}
	if lengths != nil {
		if err := f.m.longest(j.work, lengths, f.with); err != nil {
			return err
		}
	}
	for node := range f.in {
		x := &f.in[node]
		if x.rows == 0 {
			continue
		}
		p, err := f.m.parcel(j.work, node, int(x.rows))
		if err != nil {
			return err
		}
		x.parcel = p
		*w.recs[x.slot] = p.rec
	}
	for i := range w.parts {
		p := &w.parts[i]
		for k, r := range p.recs {
			p.rows[k] = rowsOf(r)
		}
	}
	return nil
}

// dealtFar is dealt where samples come from other nodes, and go to them.
func (w *assembly) dealtFar() {
	f := w.far
	self := int32(f.m.self)
	for node := range f.in {
		f.in[node] = inbound{slot: int32(len(w.recs))}
		w.recs = append(w.recs, new(lanes.Rec))
	}
	begin := func(p *part, n int) {
		p.clear(n)
		for range w.recs {
			p.slot = append(p.slot, -1)
		}
	}
	for i, it := range w.j.iters {
		if it.rank != feeder {
			begin(&w.parts[i], w.j.shares[it.rank])
		}
	}
	for node := range f.out {
		begin(&f.out[node], 0)
	}
	w.rewind()
	w.dealer.Begin(w.seq)
	for i, x := range w.numbers {
		end := len(w.seq)
		if i+1 < len(w.numbers) {
			end = w.numbers[i+1].at
		}
		n := x.n
		for at := x.at; at < end; at += dealChunk {
			seq := w.seq[at:min(end, at+dealChunk)]
			w.ranks = w.dealer.Deal(seq, w.ranks)
			for k, v := range seq {
				r := w.ranks[k]
				from, to := f.owner[v], f.home[r]
				var rec, row int32
				if from == self {
					l := &w.lanes[v]
					if l.left == 0 {
						w.next(l)
					}
					rec, row = l.rec, l.row
					l.row, l.left = l.row+1, l.left-1
				}
				switch {
				case to == self:
					if from != self {
						in := &f.in[from]
						rec, row = in.slot, in.rows
						in.rows++
					}
					if p := w.of[r]; p != nil {
						p.take(w, rec, row)
						p.ns = append(p.ns, n)
					}
				case from == self:
					f.out[to].take(w, rec, row)
				}
				n++
			}
		}
	}
}
