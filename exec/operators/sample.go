package operators

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"math"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// Sample keeps the rows whose hash falls into a range.
// Order kept. Rows dropped. Memory: at most one copy of the block.
//
// The hash of a row is mix(key + mix(row)), where key is the first 8 bytes of SHA-256 of
// ("penstock/sample/1", seed, source, split) joined by zero bytes; after an explode, mix(row) is
// mixed with the ordinal. With key columns, key is of (version, seed) and every column in turn adds
// its hash(): h = mix(h + mix(hash)). A golden test keeps it.
type Sample struct {
	op
	lo, hi uint64 // [lo, hi) of 2^64; hi 0 with all set means 2^64
	all    bool   // no upper bound
	seed   uint64
	keys   []*expr.Program
	cols   []int
}

// NewSample: out as in [NewFilter].
func NewSample(step Step, in *arrow.Schema, lo, hi float64, seed uint64, key []string, out []string) (*Sample, error) {
	s := &Sample{lo: scale(lo), hi: scale(hi), all: hi >= 1, seed: seed}
	if lo >= 1 {
		s.lo, s.hi, s.all = 0, 0, false // nothing
	}
	for _, k := range key {
		h, err := ops.KeyHash(k)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Step: step.Step})
		}
		p, err := h.Bind(in, step.Site)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Step: step.Step, Column: k})
		}
		s.keys = append(s.keys, p)
	}
	schema, cols, err := narrow(in, out)
	if err != nil {
		return nil, err
	}
	s.op, s.cols = newOp(step, schema), cols
	return s, nil
}

func scale(f float64) uint64 {
	if f >= 1 {
		return 0
	}
	return uint64(math.Ldexp(f, 64))
}

// NeedsRows: the hash is of positions.
func (s *Sample) NeedsRows() bool { return len(s.keys) == 0 }

func (s *Sample) NewTask(env *exec.Env) (exec.Task, error) { return &sampleTask{s: s, env: env}, nil }

type sampleTask struct {
	noClose
	s   *Sample
	env *exec.Env

	origin exec.Origin
	key    uint64
	keyed  bool // key is that of origin
}

func (t *sampleTask) Process(_ context.Context, in *exec.Block, emit exec.Emit) error {
	n := int(in.Batch.NumRows())
	if n == 0 {
		return t.s.none(in, emit)
	}
	hashes, err := t.hashes(in, n)
	if err != nil {
		return t.s.fail(err, in, 0)
	}
	bits := memory.NewResizableBuffer(t.env.Alloc)
	defer bits.Release()
	bits.Resize((n + 7) / 8)
	b := bits.Bytes()
	clear(b)
	s := t.s
	for i, h := range hashes {
		if h >= s.lo && (s.all || h < s.hi) {
			b[i/8] |= 1 << (i % 8)
		}
	}
	mask := array.NewBoolean(n, bits, nil, 0)
	defer mask.Release()
	return s.keep(t.env, in, s.cols, mask, emit)
}

// hashes gives one per row of in.
func (t *sampleTask) hashes(in *exec.Block, n int) ([]uint64, error) {
	hs := make([]uint64, n)
	if t.s.keys == nil {
		if !t.keyed || t.origin != in.Origin {
			t.origin, t.keyed = in.Origin, true
			t.key = sampleKey(t.s.seed, strconv.Itoa(in.Origin.Source), in.Origin.Split)
		}
		for i := range hs {
			v := mix(uint64(in.RowAt(i)))
			if in.Ords != nil && in.Ords[i] != 0 {
				v = mix(v ^ in.Ords[i])
			}
			hs[i] = mix(t.key + v)
		}
		return hs, nil
	}
	key := sampleKey(t.s.seed)
	for i := range hs {
		hs[i] = key
	}
	for _, p := range t.s.keys {
		a, err := p.Eval(in.Batch, nil, t.env.Alloc)
		if err != nil {
			return nil, err
		}
		var vals []uint64
		switch a := a.(type) {
		case *array.Int64:
			vals = arrow.Uint64Traits.CastFromBytes(arrow.Int64Traits.CastToBytes(a.Int64Values()))
		case *array.Uint64:
			vals = a.Uint64Values()
		default:
			a.Release()
			return nil, fault.New(fault.Internal, "hash() gives %s", a.DataType())
		}
		for i, v := range vals {
			if a.IsNull(i) {
				v = 0x6e756c6c // a value of its own
			}
			hs[i] = mix(hs[i] + mix(v))
		}
		a.Release()
	}
	return hs, nil
}

func sampleKey(seed uint64, more ...string) uint64 {
	b := append([]byte("penstock/sample/1\x00"), strconv.FormatUint(seed, 10)...)
	for _, m := range more {
		b = append(append(b, 0), m...)
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:8])
}

// mix is the finaliser of splitmix64.
func mix(x uint64) uint64 {
	x += 0x9E3779B97F4A7C15
	x = (x ^ x>>30) * 0xBF58476D1CE4E5B9
	x = (x ^ x>>27) * 0x94D049BB133111EB
	return x ^ x>>31
}
