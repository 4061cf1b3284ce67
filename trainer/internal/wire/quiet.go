package wire

import (
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"unicode/utf8"

	"github.com/penstock-data/penstock/internal/fault"
)

// MaxQuiet is the most bytes of a report in a pipe: see [Ear].
const MaxQuiet = 512

// likeness is what reports in a pipe are like: the line of one that came last.
type likeness struct {
	names []string // of its metrics, in order
	data  string   // its one data set; "": nothing may be like it
}

// likenessOf a report. Both sides must come to the same, so what JSON does not hold as it is, as names that are not UTF-8, is like nothing.
func likenessOf(r *Report) likeness {
	l := likeness{names: slices.Sorted(maps.Keys(r.Metrics))}
	if len(r.Data) == 1 && l.size() <= MaxQuiet && !slices.ContainsFunc(l.names, func(s string) bool { return !utf8.ValidString(s) }) {
		for l.data = range r.Data {
		}
	}
	return l
}

// size of a report in the pipe, in bytes.
func (l likeness) size() int { return 8 * (4 + len(l.names)) }

// append appends r. False: it is not like that.
func (l likeness) append(b []byte, r *Report) ([]byte, bool) {
	place, ok := r.Data[l.data]
	if !ok || len(r.Data) != 1 || r.Dir != "" || len(r.Metrics) != len(l.names) {
		return b, false
	}
	for _, v := range []uint64{uint64(r.N), place.Epoch, uint64(place.Step), uint64(r.At)} {
		b = binary.LittleEndian.AppendUint64(b, v)
	}
	for _, name := range l.names {
		v, ok := r.Metrics[name]
		if !ok {
			return b, false
		}
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(v))
	}
	return b, true
}

// numberOf the report that b begins with; false: b is too short to say.
func numberOf(b []byte) (int64, bool) {
	if len(b) < 8 {
		return 0, false
	}
	return int64(binary.LittleEndian.Uint64(b)), true
}

// report is that at the beginning of b.
func (l likeness) report(b []byte) (*Report, error) {
	if l.data == "" || len(b) < l.size() {
		return nil, fault.New(fault.Corrupt, "in the pipe of a worker are %d bytes, where a report with %d metrics of data set %q is due", len(b), len(l.names), l.data)
	}
	word := func(i int) uint64 { return binary.LittleEndian.Uint64(b[8*i:]) }
	if word(2) > math.MaxInt64 || word(3) > math.MaxInt64 {
		return nil, fault.New(fault.Corrupt, "report %d in the pipe of a worker is of step %d, made at %d", word(0), word(2), word(3))
	}
	r := &Report{N: int64(word(0)), At: int64(word(3)), Metrics: make(Metrics, len(l.names)), Data: map[string]Place{l.data: {Epoch: word(1), Step: int64(word(2))}}}
	for i, name := range l.names {
		r.Metrics[name] = math.Float64frombits(word(4 + i))
	}
	return r, nil
}
