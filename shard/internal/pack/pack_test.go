package pack

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/memtest"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// randomLengths has all the borders in it.
func randomLengths(rng *rand.Rand, length int) []int32 {
	n := make([]int32, rng.IntN(60))
	for i := range n {
		switch rng.IntN(8) {
		case 0:
			n[i] = 0
		case 1:
			n[i] = 1
		case 2:
			n[i] = int32(length)
		case 3:
			n[i] = int32(length + 1)
		case 4:
			n[i] = int32(10 * length)
		default:
			n[i] = rng.Int32N(int32(2 * length))
		}
	}
	return n
}

func plan(m Method, n []int32, length int, o Overlong) *Plan {
	if m == MethodConcat {
		return Concat(n, length, o)
	}
	return BestFit(n, length, o)
}

// Every token once and in order, no bin too full, none empty, the rules of each method.
func TestPlans(t *testing.T) {
	for seed := range uint64(3000) {
		rng := rand.New(rand.NewPCG(seed, 2))
		length := 1 + rng.IntN(200)
		if seed%50 == 0 {
			length = 5000 + rng.IntN(5000) // the upper level of the set
		}
		n := randomLengths(rng, length)
		for _, m := range []Method{MethodConcat, MethodBestFit} {
			for _, over := range []Overlong{Split, Drop} {
				where := fmt.Sprintf("seed %d, %s, %s, length %d, documents %v", seed, m, over, length, n)
				p := plan(m, n, length, over)
				if q := plan(m, n, length, over); !slices.Equal(p.Pieces, q.Pieces) || !slices.Equal(p.Bins, q.Bins) {
					t.Fatalf("%s: not the same twice", where)
				}
				checkPlan(t, where, p, n, length, m, over)
			}
		}
	}
}

func checkPlan(t *testing.T, where string, p *Plan, n []int32, length int, m Method, over Overlong) {
	t.Helper()
	byDoc := make([][]Piece, len(n))
	if p.Bins[0] != 0 || int(p.Bins[p.NumBins()]) != len(p.Pieces) {
		t.Fatalf("%s: bins %v of %d pieces", where, p.Bins, len(p.Pieces))
	}
	opener := Piece{Doc: -1}
	for b := range p.NumBins() {
		pieces := p.Pieces[p.Bins[b]:p.Bins[b+1]]
		sum := 0
		longest := Piece{}
		for i, x := range pieces {
			byDoc[x.Doc] = append(byDoc[x.Doc], x)
			sum += int(x.N)
			if x.N > longest.N {
				longest = x
			}
			if i > 0 && (pieces[i-1].Doc > x.Doc || pieces[i-1].Doc == x.Doc && m == MethodConcat) {
				t.Fatalf("%s: bin %d is out of order: %v", where, b, pieces)
			}
		}
		if sum < 1 || sum > length || m == MethodConcat && sum < length && b < p.NumBins()-1 {
			t.Fatalf("%s: bin %d has %d tokens", where, b, sum)
		}
		if m == MethodBestFit {
			if longest.Doc < opener.Doc || longest.Doc == opener.Doc && longest.From < opener.From {
				t.Fatalf("%s: bin %d, opened by %v, comes after %v", where, b, longest, opener)
			}
			opener = longest
		}
	}
	dropped := 0
	for d, n := range n {
		if int(n) > length && over == Drop {
			dropped++
			n = 0
		}
		if m == MethodBestFit {
			slices.SortFunc(byDoc[d], func(a, b Piece) int { return int(a.From - b.From) })
			if want := (int(n) + length - 1) / length; len(byDoc[d]) != want {
				t.Fatalf("%s: document %d of %d tokens in %d pieces, want %d", where, d, n, len(byDoc[d]), want)
			}
		}
		at := int32(0)
		for _, x := range byDoc[d] {
			if x.From != at || x.N < 1 {
				t.Fatalf("%s: document %d has piece %v where token %d comes next", where, d, x, at)
			}
			at += x.N
		}
		if at != n {
			t.Fatalf("%s: document %d has %d tokens of %d", where, d, at, n)
		}
	}
	if p.Dropped != dropped {
		t.Fatalf("%s: %d dropped, want %d", where, p.Dropped, dropped)
	}
}

// BestFit places every piece as its comment says; this is that comment in the plainest form.
func TestBestFitIsBestFit(t *testing.T) {
	for seed := range uint64(1000) {
		rng := rand.New(rand.NewPCG(seed, 3))
		length := 1 + rng.IntN(300)
		n := randomLengths(rng, length)
		var pieces []Piece
		for d, n := range n {
			for from := int32(0); from < n; from += int32(length) {
				pieces = append(pieces, Piece{int32(d), from, min(n-from, int32(length))})
			}
		}
		longest := slices.Clone(pieces)
		slices.SortStableFunc(longest, func(a, b Piece) int { return int(b.N - a.N) })
		type bin struct {
			pieces      []Piece
			room, since int
		}
		var bins []*bin
		for tick, x := range longest {
			var best *bin
			for _, b := range bins {
				if b.room >= int(x.N) && (best == nil || b.room < best.room || b.room == best.room && b.since > best.since) {
					best = b
				}
			}
			if best == nil {
				best = &bin{room: length}
				bins = append(bins, best)
			}
			best.pieces = append(best.pieces, x)
			best.room -= int(x.N)
			best.since = tick
		}
		order := func(a, b Piece) int { return slices.Compare([]int32{a.Doc, a.From}, []int32{b.Doc, b.From}) }
		slices.SortFunc(bins, func(a, b *bin) int { return order(a.pieces[0], b.pieces[0]) })
		want := &Plan{Bins: []int32{0}}
		for _, b := range bins {
			slices.SortFunc(b.pieces, order)
			want.Pieces = append(want.Pieces, b.pieces...)
			want.Bins = append(want.Bins, int32(len(want.Pieces)))
		}
		got := BestFit(n, length, Split)
		if !slices.Equal(got.Pieces, want.Pieces) || !slices.Equal(got.Bins, want.Bins) {
			t.Fatalf("seed %d, length %d, documents %v: got %v, want %v", seed, length, n, got, want)
		}
	}
}

// logNormal draws lengths of mean 600 and sigma 1.2, cut at 2,048.
func logNormal(rng *rand.Rand, n int) []int32 {
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(max(1, min(2048, math.Exp(math.Log(600)-1.2*1.2/2+1.2*rng.NormFloat64()))))
	}
	return out
}

func TestPadding(t *testing.T) {
	worst := 0.0
	for seed := range uint64(200) {
		p := BestFit(logNormal(rand.New(rand.NewPCG(seed, 4)), 1000), 2048, Split)
		worst = max(worst, 1-float64(p.Tokens())/float64(p.NumBins()*2048))
	}
	if worst > 0.03 {
		t.Errorf("%.2f %% of padding in the worst of 200 windows of 1000 documents, want at most 3 %%", 100*worst)
	}
	t.Logf("padding at most %.2f %%", 100*worst)
}

// The bins of a window come in no order of length: the first quarter holds about as
// many documents per bin as the rest.
func TestLongDocumentsDoNotComeFirst(t *testing.T) {
	var first, all, bins, quarter int
	for seed := range uint64(50) {
		p := BestFit(logNormal(rand.New(rand.NewPCG(seed, 5)), 1000), 2048, Split)
		q := p.NumBins() / 4
		first, quarter = first+int(p.Bins[q]), quarter+q
		all, bins = all+len(p.Pieces), bins+p.NumBins()
	}
	have, want := float64(first)/float64(quarter), float64(all)/float64(bins)
	if math.Abs(have-want) > 0.1*want {
		t.Errorf("%.2f documents per bin in the first quarter, %.2f in all", have, want)
	}
}

var tokenTypes = []arrow.DataType{arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64,
	arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64}

func appendNumber(b array.Builder, v int64) {
	if err := b.AppendValueFromString(fmt.Sprint(v)); err != nil {
		panic(err)
	}
}

// number reads any of the types of tokens and masks.
func number(a arrow.Array, i int) int64 {
	var v int64
	switch s := a.ValueStr(i); s {
	case "true":
		v = 1
	case "false":
	default:
		if _, err := fmt.Sscan(s, &v); err != nil {
			panic(err)
		}
	}
	return v
}

// documents are random, over several records cut out of longer ones, in random order.
type documents struct {
	tokens, masks []arrow.Array
	runs          []gather.Run
	want          [][]int64 // nil: a null list
	wantMask      [][]int64
}

func (d *documents) release() {
	for _, a := range append(d.tokens, d.masks...) {
		a.Release()
	}
}

func randomDocuments(rng *rand.Rand, alloc memory.Allocator, t, mask arrow.DataType, length int) *documents {
	d := &documents{}
	large := rng.IntN(2) == 0
	builder := func(t arrow.DataType) array.ListLikeBuilder {
		if large {
			return array.NewBuilder(alloc, arrow.LargeListOf(t)).(array.ListLikeBuilder)
		}
		return array.NewBuilder(alloc, arrow.ListOf(t)).(array.ListLikeBuilder)
	}
	type doc struct{ ids, mask []int64 }
	var docs []doc
	for range 1 + rng.IntN(3) {
		a, b := builder(t), builder(mask)
		n := append(randomLengths(rng, length), 3)
		skip := rng.IntN(len(n))
		for i, n := range n {
			if rng.IntN(10) == 0 {
				a.AppendNull()
				b.AppendNull()
				if i >= skip {
					docs = append(docs, doc{})
				}
				continue
			}
			a.Append(true)
			b.Append(true)
			x := doc{ids: make([]int64, n), mask: make([]int64, n)}
			for k := range n {
				x.ids[k], x.mask[k] = int64(1+rng.IntN(100)), int64(rng.IntN(2))
				appendNumber(a.ValueBuilder(), x.ids[k])
				if mask.ID() == arrow.BOOL {
					b.ValueBuilder().(*array.BooleanBuilder).Append(x.mask[k] == 1)
				} else {
					appendNumber(b.ValueBuilder(), x.mask[k])
				}
			}
			if i >= skip {
				docs = append(docs, x)
			}
		}
		for _, x := range []struct {
			b   array.Builder
			dst *[]arrow.Array
		}{{a, &d.tokens}, {b, &d.masks}} {
			built := x.b.NewArray()
			whole := shifted(alloc, built)
			built.Release()
			*x.dst = append(*x.dst, array.NewSlice(whole, int64(skip), int64(whole.Len())))
			whole.Release()
			x.b.Release()
		}
		for row := range len(n) - skip {
			d.runs = append(d.runs, gather.Run{Rec: int32(len(d.tokens) - 1), Row: int32(row), N: 1})
		}
	}
	rng.Shuffle(len(docs), func(i, k int) {
		docs[i], docs[k] = docs[k], docs[i]
		d.runs[i], d.runs[k] = d.runs[k], d.runs[i]
	})
	for _, x := range docs {
		d.want, d.wantMask = append(d.want, x.ids), append(d.wantMask, x.mask)
	}
	return d
}

// shifted is the same lists, whose values begin at an offset of their own.
func shifted(alloc memory.Allocator, a arrow.Array) arrow.Array {
	d := a.Data()
	values := array.MakeFromData(d.Children()[0])
	defer values.Release()
	head := array.NewSlice(values, 0, int64(min(3, values.Len())))
	defer head.Release()
	whole, err := array.Concatenate([]arrow.Array{head, values}, alloc)
	if err != nil {
		panic(err)
	}
	defer whole.Release()
	child := array.NewSliceData(whole.Data(), int64(head.Len()), int64(whole.Len()))
	defer child.Release()
	out := array.NewData(d.DataType(), d.Len(), d.Buffers(), []arrow.ArrayData{child}, d.NullN(), d.Offset())
	defer out.Release()
	return array.MakeFromData(out)
}

// Record for record against the definition of each column.
func TestPack(t *testing.T) {
	settled := 0
	defer func() {
		if settled < 50 || settled > 190 {
			t.Errorf("%d of 200 were settled", settled)
		}
	}()
	for seed := range uint64(200) {
		rng := rand.New(rand.NewPCG(seed, 6))
		alloc := memtest.New(t)
		eos := int64(126)
		o := Options{Length: 1 + rng.IntN(60), Pad: 127, LossMask: rng.IntN(2) == 0,
			Method: []Method{"", MethodConcat, MethodBestFit}[rng.IntN(3)], Overlong: []Overlong{"", Split, Drop}[rng.IntN(3)]}
		if rng.IntN(2) == 0 {
			o.EOS = &eos
		}
		mask := []arrow.DataType{arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Int8, arrow.FixedWidthTypes.Boolean}[rng.IntN(3)]
		token := tokenTypes[seed%uint64(len(tokenTypes))]
		d := randomDocuments(rng, alloc, token, mask, o.Length)
		var masks []arrow.Array
		if o.LossMask && rng.IntN(2) == 0 {
			masks = d.masks
		}
		where := fmt.Sprintf("seed %d, %s, %+v", seed, token, o)
		rec, plan, err := packAll(alloc, o, d.tokens, masks, d.runs)
		if err != nil {
			t.Fatalf("%s: %v", where, err)
		}
		want, err := Schema(d.tokens[0].DataType(), o)
		if err != nil || !rec.Schema().Equal(want) {
			t.Fatalf("%s: schema %v, want %v (%v)", where, rec.Schema(), want, err)
		}
		n := make([]int32, len(d.want))
		for i, ids := range d.want {
			if n[i] = int32(len(ids)); n[i] > 0 && o.EOS != nil {
				d.want[i] = append(ids, eos)
				d.wantMask[i] = append(d.wantMask[i], 1)
				n[i]++
			}
		}
		over := o.Overlong
		if over == "" {
			over = Split
		}
		method := o.Method
		if method == "" {
			method = MethodBestFit
		}
		checkPlan(t, where, plan, n, o.Length, method, over)
		checkRows(t, where, rec, plan, d, o, masks != nil)

		// A part of the bins is the same as a slice.
		p, err := New(alloc, o, d.tokens, masks, d.runs, nil)
		if err != nil {
			t.Fatal(err)
		}
		from := rng.IntN(plan.NumBins() + 1)
		slice := rec.NewSlice(int64(from), rec.NumRows())
		part := p.Record(alloc, from, plan.NumBins())
		if !array.RecordEqual(part, slice) {
			t.Fatalf("%s: bins from %d on differ", where, from)
		}
		part.Release()

		// And once the tokens were copied, without the documents.
		owns := p.Settle()
		if short := int(plan.Tokens())*p.width < sparse*len(plan.Pieces); owns != short {
			t.Fatalf("%s: settled %v: %d tokens in %d pieces", where, owns, plan.Tokens(), len(plan.Pieces))
		}
		if owns {
			settled++
			d.release()
			each := int64(p.width)
			if masks != nil {
				each++
			}
			if most := plan.Tokens()*each + int64(len(plan.Pieces))*4 + int64(plan.NumBins()+1)*12; p.Size() != most {
				t.Fatalf("%s: settled, %d bytes are held, want %d", where, p.Size(), most)
			}
		}
		part = p.Record(alloc, from, plan.NumBins())
		if !array.RecordEqual(part, slice) {
			t.Fatalf("%s: settled, bins from %d on differ", where, from)
		}
		part.Release()
		p.Release()
		slice.Release()
		rec.Release()
		if !owns {
			d.release()
		}
	}
}

func checkRows(t *testing.T, where string, rec arrow.RecordBatch, plan *Plan, d *documents, o Options, masks bool) {
	t.Helper()
	if int(rec.NumRows()) != plan.NumBins() || int(rec.NumCols()) != 3+map[bool]int{true: 1}[o.LossMask] {
		t.Fatalf("%s: %d rows for %d bins, %d columns", where, rec.NumRows(), plan.NumBins(), rec.NumCols())
	}
	cols := make([]arrow.Array, rec.NumCols())
	for i := range cols {
		cols[i] = rec.Column(i).(*array.FixedSizeList).ListValues()
	}
	for b := range plan.NumBins() {
		at := b * o.Length
		expect := func(v ...int64) {
			for c, v := range v[:len(cols)] {
				if got := number(cols[c], at); got != v {
					t.Fatalf("%s: bin %d, token %d, %s: %d, want %d", where, b, at-b*o.Length, rec.ColumnName(c), got, v)
				}
			}
			at++
		}
		for s, x := range plan.Pieces[plan.Bins[b]:plan.Bins[b+1]] {
			for k := range int(x.N) {
				m := int64(1)
				if masks {
					m = d.wantMask[x.Doc][int(x.From)+k]
				}
				expect(d.want[x.Doc][int(x.From)+k], int64(s+1), int64(k), m)
			}
		}
		for at < (b+1)*o.Length {
			expect(o.Pad, 0, 0, 0)
		}
	}
}

func fromJSON(t *testing.T, alloc memory.Allocator, typ arrow.DataType, json string) arrow.Array {
	t.Helper()
	a, _, err := array.FromJSON(alloc, typ, strings.NewReader(json))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestBadInput(t *testing.T) {
	alloc := memtest.New(t)
	typ := arrow.ListOf(arrow.PrimitiveTypes.Uint8)
	good := fromJSON(t, alloc, typ, `[[1,2,3],[4]]`)
	null := fromJSON(t, alloc, typ, `[[1],null,[2,null]]`)
	floats := fromJSON(t, alloc, arrow.ListOf(arrow.PrimitiveTypes.Float32), `[[1],[2]]`)
	short := fromJSON(t, alloc, typ, `[[1,1,1],[]]`)
	for _, a := range []arrow.Array{good, null, floats, short} {
		defer a.Release()
	}
	big := int64(256)
	ok := Options{Length: 4, LossMask: true}
	for _, c := range []struct {
		o             Options
		tokens, masks arrow.Array
		code          fault.Code
		text          string
	}{
		{Options{}, good, nil, fault.Invalid, "length must be"},
		{Options{Length: MaxLength + 1}, good, nil, fault.Invalid, "length must be"},
		{Options{Length: 4, Method: "worst"}, good, nil, fault.Invalid, `use "concat" or "best_fit"`},
		{Options{Length: 4, Overlong: "keep"}, good, nil, fault.Invalid, `use "split" or "drop"`},
		{Options{Length: 4, Pad: -1}, good, nil, fault.Invalid, "pad token -1 does not fit uint8"},
		{Options{Length: 4, EOS: &big}, good, nil, fault.Invalid, "eos token 256 does not fit uint8"},
		{ok, floats, nil, fault.Invalid, "must be a list of integers"},
		{ok, null, nil, fault.RowError, "token 1 of document 2 is null"},
		{ok, good, floats, fault.Invalid, "list of uint8, int8 or bool"},
		{Options{Length: 4}, good, good, fault.Invalid, "set loss_mask"},
		{ok, good, short, fault.RowError, "document 1 has 1 tokens and a mask of 0"},
	} {
		runs := []gather.Run{{Rec: 0, Row: 0, N: int32(c.tokens.Len())}}
		var masks []arrow.Array
		if c.masks != nil {
			masks = []arrow.Array{c.masks}
		}
		_, _, err := packAll(alloc, c.o, []arrow.Array{c.tokens}, masks, runs)
		if fault.CodeOf(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("got %v (%v), want %v with %q", err, fault.CodeOf(err), c.code, c.text)
		}
	}
	rec, plan, err := packAll(alloc, Options{Length: 4}, []arrow.Array{good}, nil, nil)
	if err != nil || rec.NumRows() != 0 || plan.NumBins() != 0 {
		t.Errorf("no documents: %v, %v", plan, err)
	}
	rec.Release()
}

// packAll is New and the Record of all bins.
func packAll(alloc memory.Allocator, o Options, tokens, masks []arrow.Array, runs []gather.Run) (arrow.RecordBatch, *Plan, error) {
	var plan Plan
	p, err := New(alloc, o, tokens, masks, runs, &plan)
	if err != nil {
		return nil, nil, err
	}
	defer p.Release()
	return p.Record(alloc, 0, p.NumBins()), &plan, nil
}
