package shard

import (
	"context"
	"fmt"
	"math/bits"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/units"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/shard/internal/lanes"
	"github.com/penstock-data/penstock/shard/internal/order"
)

const (
	windowBytes = 4 << 20   // of a default window
	resident    = 512 << 20 // default of Shuffle.Resident
	maxLanes    = 64        // by default
	groupBytes  = 4 << 20   // the reader of one of several lanes holds no more of a row group at once
	maxWindow   = 1 << 30   // rows, or bytes
	laneLimit   = 1 << 16
)

// Layout is how a source is cut: splits, lanes and windows, with what they cost.
// It follows from metadata; where a format does not know its rows and cannot tell where they
// begin, from a counting pass.
type Layout struct {
	Mode  Mode
	Bytes bool // units are bytes of text, not rows
	shape order.Shape
	named Shuffle // what was asked for; the rest are defaults, and give way to a state's
	scans []*exec.Stage
	units [][]int64 // per scan and split
	total int64

	rowBytes int64 // of a row of the columns read, decoded; an estimate
	group    int64 // most that a reader holds of a row group
	counted  int   // splits whose rows were counted
}

// NewLayout lays out the scans of g. sources is how many share the shuffle's resident memory.
func NewLayout(ctx context.Context, g *exec.Graph, s Shuffle, sources int) (*Layout, error) {
	l := &Layout{Mode: s.Mode, named: s}
	if err := l.flatten(g.Root); err != nil {
		return nil, err
	}
	switch {
	case s.Lanes < 0 || s.Lanes > laneLimit:
		return nil, fault.New(fault.Invalid, "shuffle: lanes must be 1 to %d, have %d", laneLimit, s.Lanes)
	case s.WindowRows < 0 || s.WindowRows > maxWindow || s.WindowBytes < 0 || s.WindowBytes > maxWindow:
		return nil, fault.New(fault.Invalid, "shuffle: a window has 1 to %d rows (or bytes, of text)", maxWindow)
	case s.Resident < 0:
		return nil, fault.New(fault.Invalid, "shuffle: resident must not be negative")
	case s.Mode != ModeWindow && s.Mode != ModeBlocks && s.Mode != ModeNone:
		return nil, fault.New(fault.Invalid, "shuffle: mode %q; have window, blocks, none", s.Mode)
	case s.Mode != ModeWindow && s.Lanes > 1:
		return nil, fault.New(fault.Invalid, "shuffle: mode %s has one lane; lanes are for mode window", s.Mode)
	}
	if err := l.measure(ctx); err != nil {
		return nil, err
	}
	switch {
	case sources == 1 && l.Bytes && s.WindowRows > 0:
		return nil, fault.New(fault.Invalid, "shuffle: rows of text are not counted before they are read, so its windows are in bytes: give window_bytes instead of window_rows")
	case sources == 1 && l.counted > 0 && s.WindowBytes > 0:
		return nil, fault.New(fault.Invalid, "shuffle: the rows of this text are counted, as they cannot be found from the middle (compressed, JSON arrays, line breaks in fields), so its windows are in rows: give window_rows")
	case sources == 1 && !l.Bytes && s.WindowBytes > 0:
		return nil, fault.New(fault.Invalid, "shuffle: window_bytes is for text; this source knows its rows: give window_rows")
	}
	return l, l.choose(s, sources)
}

// flatten finds the scans of a stage.
func (l *Layout) flatten(st *exec.Stage) error {
	switch {
	case st.Scan != nil:
		l.scans = append(l.scans, st)
		return nil
	case st.Limit >= 0 || len(st.Ops) > 0:
		return fault.New(fault.Invalid, "limit: only as the last step, with shuffle none: shards in another order have no first rows; use sample for a fraction of them")
	}
	for _, in := range st.Inputs {
		if err := l.flatten(in); err != nil {
			return err
		}
	}
	return nil
}

// measure finds the units of all splits.
func (l *Layout) measure(ctx context.Context) error {
	known, enter := true, true
	for _, st := range l.scans {
		o, ok := st.Scan.Table.(driver.Offsetter)
		for i, s := range st.Scan.Table.Splits() {
			if s.Rows < 0 {
				known = false
				enter = enter && ok && o.Offsets(i)
			}
		}
	}
	l.Bytes = !known && enter
	for _, st := range l.scans {
		splits := st.Scan.Table.Splits()
		units := make([]int64, len(splits))
		var unknown []int
		for i, s := range splits {
			switch {
			case l.Bytes:
				units[i] = max(s.Bytes, s.Rows) // no row is less than a byte
			case s.Rows >= 0:
				units[i] = s.Rows
			default:
				unknown = append(unknown, i)
			}
		}
		if len(unknown) > 0 {
			rows, err := countRows(ctx, st.Scan.Table, unknown)
			if err != nil {
				return fault.Wrap(err, fault.Place{Step: st.Scan.Step})
			}
			for k, i := range unknown {
				units[i] = rows[k]
			}
			l.counted += len(unknown)
		}
		for _, u := range units {
			if u < 0 || l.total+u < l.total {
				return fault.New(fault.Internal, "%s: a split of %d units", st.Scan.Step, u)
			}
			l.total += u
		}
		l.units = append(l.units, units)
	}
	return nil
}

// choose fixes lanes and window.
func (l *Layout) choose(s Shuffle, sources int) error {
	var rows, decoded int64
	splits := 0
	for k, st := range l.scans {
		sizer, _ := st.Scan.Table.(driver.Sizer)
		for i, sp := range st.Scan.Table.Splits() {
			n := sp.Rows
			if n < 0 {
				n = l.units[k][i]
			}
			var fetch, size int64
			if sizer != nil {
				fetch, size = sizer.Size(i, st.Scan.Columns)
			} else if !l.Bytes {
				fetch, size = sp.Bytes, n*rowWidth(st.Scan)
			}
			rows += n
			decoded += size
			if l.units[k][i] > 0 {
				splits++
			}
			l.group = max(l.group, min(max(fetch, 0), groupBytes))
		}
	}
	if rows > 0 && !l.Bytes {
		l.rowBytes = (decoded + rows - 1) / rows
	}
	l.rowBytes = max(l.rowBytes, 1)
	l.shape = order.Shape{Mode: l.Mode.order(), Lanes: 1, Window: s.WindowRows}
	if l.Bytes {
		l.rowBytes, l.group = 1, max(l.group, 1<<20)
		l.shape.Window = s.WindowBytes
	}
	if l.shape.Window == 0 {
		l.shape.Window = powerOfTwo(windowBytes / l.rowBytes)
	}
	if l.Mode != ModeWindow {
		return nil
	}
	room := s.Resident
	if room == 0 {
		room = resident
	}
	room /= int64(sources)
	lane := l.shape.Window*l.rowBytes + l.group
	if s.Lanes > 0 {
		l.shape.Lanes = s.Lanes
		return nil
	}
	if lane > room {
		return fault.New(fault.Invalid, "shuffle: one window of %d %s and a row group take %s, more than the %s that a source may keep resident: make the window smaller, or raise resident",
			l.shape.Window, l.unit(), exec.Bytes(lane), exec.Bytes(room))
	}
	l.shape.Lanes = int(powerOfTwo(min(maxLanes, int64(splits)/4, room/lane)))
	return nil
}

func (l *Layout) unit() string {
	if l.Bytes {
		return "bytes"
	}
	return "rows"
}

// powerOfTwo is the largest one that is at most n, and at least 1.
func powerOfTwo(n int64) int64 {
	if n < 1 {
		return 1
	}
	return 1 << (bits.Len64(uint64(n)) - 1)
}

func (m Mode) order() order.Mode {
	switch m {
	case ModeBlocks:
		return order.Blocks
	case ModeWindow:
		return order.Window
	}
	return order.None
}

// rowWidth guesses the decoded size of a row of a scan whose table cannot tell.
func rowWidth(s *exec.Scan) int64 {
	schema := s.Table.Schema()
	cols := s.Columns
	if cols == nil {
		for _, f := range schema.Fields() {
			cols = append(cols, f.Name)
		}
	}
	var n int64
	for _, c := range cols {
		if is := schema.FieldIndices(c); len(is) > 0 {
			n += typeWidth(schema.Field(is[0]).Type)
		}
	}
	return n
}

func typeWidth(t arrow.DataType) int64 {
	switch t := t.(type) {
	case *arrow.FixedSizeListType:
		return int64(t.Len()) * typeWidth(t.Elem())
	case *arrow.StructType:
		var n int64
		for _, f := range t.Fields() {
			n += typeWidth(f.Type)
		}
		return n
	case arrow.FixedWidthDataType:
		return max(int64(t.BitWidth()/8), 1)
	}
	return 32 // of a string or list that nothing is known of
}

// resident is what open windows and row groups take, about.
func (l *Layout) resident() int64 {
	lane := min(l.shape.Window, max(l.total/int64(l.shape.Lanes), 1))*l.rowBytes + l.group
	return int64(l.shape.Lanes) * lane
}

// Runs makes g what the layout's splits are read by: the same scans with other columns.
func (l *Layout) Runs(g *exec.Graph) error {
	n := Layout{}
	if err := n.flatten(g.Root); err != nil {
		return err
	}
	if len(n.scans) != len(l.scans) {
		return fault.New(fault.Internal, "%d scans for a layout of %d", len(n.scans), len(l.scans))
	}
	l.scans = n.scans
	return nil
}

// leaf is scan k as package lanes wants it.
func (l *Layout) leaf(k int, st *exec.Stage) lanes.Leaf {
	leaf := lanes.Leaf{Stage: st, Units: l.units[k]}
	if splits := st.Scan.Table.Splits(); !l.Bytes && len(splits) > 0 {
		leaf.Counted = splits[0].Rows < 0
	}
	if splits := st.Scan.Table.Splits(); l.Bytes && len(splits) > 0 && splits[0].Rows >= 0 {
		for _, s := range splits {
			leaf.Rows = append(leaf.Rows, s.Rows)
		}
	}
	return leaf
}

// flat is the units of all splits.
func (l *Layout) flat() []int64 {
	var all []int64
	for _, u := range l.units {
		all = append(all, u...)
	}
	return all
}

// Explain describes the layout in a few lines.
func (l *Layout) Explain() string { return l.explain(1) }

// explain is Explain where windows, once they are made, take grown times as much as their rows.
func (l *Layout) explain(grown float64) string {
	var b strings.Builder
	splits := 0
	for _, u := range l.units {
		splits += len(u)
	}
	fmt.Fprintf(&b, "shuffle %s: %s, %d %s; %s, windows of %d %s", l.Mode, units.Count(splits, "split"), l.total, l.unit(), units.Count(l.shape.Lanes, "lane"), l.shape.Window, l.unit())
	readers := int64(l.shape.Lanes) * l.group
	windows := int64(float64(l.resident()-readers) * grown)
	fmt.Fprintf(&b, "\n  resident: about %s (windows %s, readers up to %s)", exec.Bytes(windows+readers), exec.Bytes(windows), exec.Bytes(readers))
	if grown > 1 {
		fmt.Fprintf(&b, "; windows are packed to records, %.3g times as large as their tokens, and wait on disk where the memory budget has no room for them. Tensors (columns) take less", grown)
	}
	if l.Mode == ModeWindow {
		q := order.Expect(l.flat(), l.shape)
		fmt.Fprintf(&b, "\n  quality: samples come from %d resident %s of about %.0f splits (%.1f per window)", q.ResidentUnits, l.unit(), q.ResidentSplits, q.SplitsPerWindow)
		if q.Correlation < 1 { // of few splits nothing can be said
			fmt.Fprintf(&b, "; orders of two epochs correlate by at most %.3f", q.Correlation)
		}
	}
	if l.counted > 0 {
		fmt.Fprintf(&b, "\n  %d splits had to be counted, as their rows cannot be found from the middle (compressed, JSON arrays, line breaks in fields); they are read from their start after a resume", l.counted)
	}
	return b.String()
}

// explain describes the order of all sources.
func (j *job) explain() string {
	var b strings.Builder
	for i := range j.Sources {
		s := &j.Sources[i]
		if len(j.Sources) > 1 {
			fmt.Fprintf(&b, "source %s, weight %d: ", s.Name, j.Weights[0].Weights[i])
		}
		b.WriteString(s.Layout.explain(j.grown(i)))
		b.WriteByte('\n')
	}
	return b.String()
}

// grown is how much larger the windows of source i are than their rows: those that are packed to records have three
// columns or four.
func (j *job) grown(i int) float64 {
	s := &j.Sources[i]
	if s.Pack == nil || !j.packsRecords() {
		return 1
	}
	t, err := s.Pack.schema(s.Graph.Schema)
	if err != nil {
		return 1
	}
	whole := int64(0)
	for _, f := range t.Fields() {
		whole += typeWidth(f.Type)
	}
	return float64(whole) / float64(typeWidth(t.Field(0).Type))
}

// packsRecords reports whether windows are packed to records, not to bins that batches are made of: where batches are
// records, or rows go to other nodes.
func (j *job) packsRecords() bool {
	return !j.Form.Tensors || j.Nodes != nil && j.Nodes.Exchange.Nodes() > 1
}

// Shuffle is the layout's shuffle with its defaults filled in.
func (l *Layout) Shuffle() Shuffle {
	s := Shuffle{Mode: l.Mode, WindowRows: l.shape.Window}
	if l.Bytes {
		s.WindowRows, s.WindowBytes = 0, l.shape.Window
	}
	if l.Mode == ModeWindow {
		s.Lanes = l.shape.Lanes
	}
	return s
}
