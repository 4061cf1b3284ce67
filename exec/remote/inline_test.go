package remote

import (
	"bufio"
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/narrow"
)

// TestInlineBounded: blocks that nobody asked for are paid for from when they come, and a node that sends more of them than it may is cut off.
func TestInlineBounded(t *testing.T) {
	rec := aRecord(memory.DefaultAllocator, 50)
	defer rec.Release()
	r, err := ipcrecord.New(rec)
	if err != nil {
		t.Fatal(err)
	}
	defer r.End()
	var body bytes.Buffer
	if err := r.Write(narrow.NewWriter(&body)); err != nil {
		t.Fatal(err)
	}
	full := &blockHead{split: 2, span: 50, rows: 50, inline: true, meta: r.Meta, record: r.Size}
	empty := &blockHead{split: 2, span: 50, inline: true}
	for name, c := range map[string]struct {
		head *blockHead
		ids  []uint64 // tasks of blocks, in turns
		most int64    // that may come unasked of all
		want int64    // comes
	}{
		"one task":            {full, []uint64{1}, 1 << 20, inlineBytes},
		"all tasks":           {full, []uint64{1, 2, 3, 4}, 100 << 10, 100 << 10},
		"tasks given up":      {full, []uint64{7}, 10 << 10, -1},
		"blocks without rows": {empty, []uint64{1}, 1 << 20, inlineBytes},
		"none may":            {full, []uint64{1}, 0, 0},
	} {
		t.Run(name, func(t *testing.T) {
			alloc := memtest.New(t)
			var charged int64
			p, s := deafPeer(rec, c.most, alloc, func(n int64) func() {
				charged += n
				return func() { charged -= n }
			})
			streams := map[uint64]*stream{1: s}
			for id := uint64(2); id <= 4; id++ {
				if streams[id], err = p.send(&local.Task{ID: id, Split: 2, Part: -1, To: -1, Attempt: 1}, s.hand); err != nil {
					t.Fatal(err)
				}
			}
			came, said := int64(0), int64(len(p.l.said))
			for i := 0; ; i++ {
				h := *c.head
				h.id = c.ids[i%len(c.ids)]
				p.l.br = bufio.NewReaderSize(bytes.NewReader(body.Bytes()), readBuffer)
				err := p.body(&h)
				if c.want < 0 { // they leave nothing but a word for many
					if came += h.cost(); err != nil || charged != 0 || p.inline+p.owed != c.most || int64(len(p.l.said)) > said+came/p.enough*(headSize+12) {
						t.Fatalf("block %d: %v, %d bytes are paid for, %d and %d of %d may come, %d bytes are to be said", i, err, charged, p.inline, p.owed, c.most, len(p.l.said))
					}
					if i == 1000 {
						break
					}
					continue
				}
				if err != nil {
					if fault.CodeOf(err) != fault.Corrupt || came+h.cost() <= c.want {
						t.Errorf("after %d bytes, of %d: %v", came, c.want, err)
					}
					break
				}
				if came += h.cost(); came > c.want {
					t.Fatalf("%d bytes came, of %d", came, c.want)
				}
				if paid := came - int64(i+1)*blockCost; charged != paid {
					t.Fatalf("%d bytes are paid for, of %d", charged, paid)
				}
			}
			for id, s := range streams {
				p.forget(id, s)
			}
			if charged != 0 || p.inline+p.owed != c.most {
				t.Errorf("%d bytes are still paid for, and %d of %d may come", charged, p.inline, c.most)
			}
		})
	}
}

// TestInlineGoesOn: what is handled may come again, of the task and of others.
func TestInlineGoesOn(t *testing.T) {
	rec := aRecord(memory.DefaultAllocator, 50)
	defer rec.Release()
	p, s := deafPeer(rec, 3000, memtest.New(t), nil)
	for i := range 1000 {
		if err := p.body(&blockHead{id: 1, split: 2, span: 50, inline: true}); err != nil {
			t.Fatalf("block %d: %v", i, err)
		}
		if _, err := p.handle(t.Context(), &local.Task{ID: 1, Split: 2, Part: -1}, s, i%2 == 0); err != nil {
			t.Fatal(err)
		}
	}
	back := int64(0) // as the node hears it
	l := &link{br: bufio.NewReaderSize(bytes.NewReader(p.l.said), readBuffer)}
	p.forget(1, s)
	for {
		kind, said, err := l.next(nil)
		if err != nil {
			break
		}
		if w := (&words{b: said}); kind == kindGrant {
			if w.uint(); !w.flag() {
				t.Error("not unasked")
			}
			back += w.num(maxBlock)
		}
	}
	if back < 1000*blockCost-3000 {
		t.Errorf("%d bytes may come again, of %d", back, 1000*blockCost)
	}
	if p.inline != 3000 {
		t.Errorf("%d of 3000 may come", p.inline)
	}
}

// TestNothingAfterTheEnd: what comes of a task after its result is nobody's, however much it is.
func TestNothingAfterTheEnd(t *testing.T) {
	rec := aRecord(memory.DefaultAllocator, 50)
	defer rec.Release()
	p, s := deafPeer(rec, 1<<20, memtest.New(t), nil)
	for range 3 {
		p.push(1, event{want: -1, done: &local.Result{}})
		p.push(1, event{want: -1, err: fault.New(fault.UserCode, "x")})
		if err := p.wanted(1, 100); err != nil {
			t.Error(err)
		}
		if err := p.body(&blockHead{id: 1, split: 2, span: 50, inline: true}); err != nil {
			t.Error(err)
		}
	}
	if len(s.events) != 1 || p.inline+p.owed != 1<<20 {
		t.Errorf("%d events wait, %d and %d bytes may come", len(s.events), p.inline, p.owed)
	}
	p.forget(1, s)
}
