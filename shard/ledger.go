package shard

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
)

// Ledger is how many samples every window had that a job has read: all that a process
// must know to compute the order without the data. Where no step changes the number
// of rows it follows from metadata. Safe for concurrent use.
type Ledger struct {
	mu      sync.Mutex
	plan    string
	data    string
	seed    uint64
	shapes  []ledgerShape // of the sources
	windows map[ledgerKey]*laneLedger
}

// ledgerShape is how a source is cut into the windows that are counted: a job may choose it anew where
// its spec does not name it, so it is no part of the plan.
type ledgerShape struct {
	lanes  int
	window int64
}

// leastGap windows between two parts of a lane that are known are always bridged. More are where
// more windows than that are kept: so a ledger takes memory for what it was told, whatever the
// numbers are.
const leastGap = 1 << 10

// laneLedger is the samples of neighbouring windows.
type laneLedger struct {
	first   int64
	samples []int64 // -1: not known
}

func (l *laneLedger) set(window, samples int64) {
	if len(l.samples) == 0 {
		l.first = window
	}
	most := max(leastGap, int64(len(l.samples)))
	if gap := l.first - window; gap > most {
		l.first, l.samples = window, nil // of another part of the epoch, far behind
	} else if gap > 0 {
		front := make([]int64, gap, gap+int64(len(l.samples)))
		for i := range front {
			front[i] = -1
		}
		l.first, l.samples = window, append(front, l.samples...)
	}
	if window-l.first-int64(len(l.samples)) > most {
		l.first, l.samples = window, nil
	}
	for int64(len(l.samples)) <= window-l.first {
		l.samples = append(l.samples, -1)
	}
	l.samples[window-l.first] = samples
}

func (l *laneLedger) get(window int64) (int64, bool) {
	if i := window - l.first; i >= 0 && i < int64(len(l.samples)) && l.samples[i] >= 0 {
		return l.samples[i], true
	}
	return 0, false
}

type ledgerKey struct {
	epoch, pass uint64
	source      int
	lane        int
}

func newLedger(j *job) *Ledger {
	return &Ledger{plan: j.Plan, data: j.Data, seed: j.Exec.Seed, shapes: j.ledgerShapes(), windows: map[ledgerKey]*laneLedger{}}
}

func (j *job) ledgerShapes() (out []ledgerShape) {
	for i := range j.Sources {
		s := j.Sources[i].Layout.shape
		out = append(out, ledgerShape{s.Lanes, s.Window})
	}
	return out
}

// reshape makes the ledger one of windows of other shapes. What it knew was of others.
func (l *Ledger) reshape(shapes []ledgerShape) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Equal(l.shapes, shapes) {
		l.shapes = shapes
		clear(l.windows)
	}
}

func (l *Ledger) add(epoch, pass uint64, source, lane int, window, samples int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	k := ledgerKey{epoch, pass, source, lane}
	m := l.windows[k]
	if m == nil {
		m = &laneLedger{}
		l.windows[k] = m
	}
	m.set(window, samples)
}

// clone is a ledger that knows the same.
func (l *Ledger) clone() *Ledger {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := &Ledger{plan: l.plan, data: l.data, seed: l.seed, shapes: slices.Clone(l.shapes), windows: make(map[ledgerKey]*laneLedger, len(l.windows))}
	for k, m := range l.windows {
		c.windows[k] = &laneLedger{first: m.first, samples: slices.Clone(m.samples)}
	}
	return c
}

// Samples of a window; false if the ledger does not know.
func (l *Ledger) Samples(epoch, pass uint64, source, lane int, window int64) (int64, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if m := l.windows[ledgerKey{epoch, pass, source, lane}]; m != nil {
		return m.get(window)
	}
	return 0, false
}

// Windows is how many windows the ledger knows.
func (l *Ledger) Windows() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	n := 0
	for _, m := range l.windows {
		for _, s := range m.samples {
			if s >= 0 {
				n++
			}
		}
	}
	return n
}

// covers says what the ledger knows of an epoch.
func (l *Ledger) covers(epoch uint64) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	var have []uint64
	for k := range l.windows {
		if k.epoch == epoch {
			return fmt.Sprintf("does not reach that far in epoch %d", epoch)
		}
		if !slices.Contains(have, k.epoch) {
			have = append(have, k.epoch)
		}
	}
	slices.Sort(have)
	if len(have) == 0 {
		return "is empty"
	}
	return fmt.Sprintf("is of epoch %s", strings.Trim(fmt.Sprint(have), "[]"))
}

// Forget drops what is known of epochs before one.
func (l *Ledger) Forget(before uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for k := range l.windows {
		if k.epoch < before {
			delete(l.windows, k)
		}
	}
}

const (
	ledgerName  = "penstock/ledger/"
	ledgerMagic = ledgerName + "2\n"
	maxLedger   = 1 << 30 // bytes read
)

// WriteTo writes the ledger, with a SHA-256 of it at the end: a header with the fingerprints, and the lanes
// and windows of the sources, then for each lane of each pass the samples of its windows plus 1, in order (0: not known), numbers as
// varints: two or three bytes per window.
func (l *Ledger) WriteTo(w io.Writer) (int64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := []byte(ledgerMagic)
	str := func(s string) { b = append(binary.AppendUvarint(b, uint64(len(s))), s...) }
	str(l.plan)
	str(l.data)
	b = binary.AppendUvarint(b, l.seed)
	b = binary.AppendUvarint(b, uint64(len(l.shapes)))
	for _, s := range l.shapes {
		b = binary.AppendUvarint(binary.AppendUvarint(b, uint64(s.lanes)), uint64(s.window))
	}
	keys := make([]ledgerKey, 0, len(l.windows))
	for k := range l.windows {
		keys = append(keys, k)
	}
	sort.Slice(keys, func(i, k int) bool {
		a, b := keys[i], keys[k]
		switch {
		case a.epoch != b.epoch:
			return a.epoch < b.epoch
		case a.source != b.source:
			return a.source < b.source
		case a.pass != b.pass:
			return a.pass < b.pass
		}
		return a.lane < b.lane
	})
	b = binary.AppendUvarint(b, uint64(len(keys)))
	for _, k := range keys {
		m := l.windows[k]
		for _, v := range []uint64{k.epoch, k.pass, uint64(k.source), uint64(k.lane), uint64(m.first), uint64(len(m.samples))} {
			b = binary.AppendUvarint(b, v)
		}
		for _, n := range m.samples {
			b = binary.AppendUvarint(b, uint64(n+1))
		}
	}
	sum := sha256.Sum256(b)
	n, err := w.Write(append(b, sum[:]...))
	return int64(n), err
}

// ReadLedger reads what WriteTo wrote. Damage is a Corrupt error, another version an Unsupported one.
func ReadLedger(r io.Reader) (*Ledger, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxLedger+1))
	if err != nil {
		return nil, fault.New(fault.Unavailable, "reading the ledger: %w", err)
	}
	if len(b) > maxLedger {
		return nil, fault.New(fault.Invalid, "the ledger is larger than %d bytes", maxLedger)
	}
	if v, ok := bytes.CutPrefix(b[:min(len(b), 40)], []byte(ledgerName)); ok {
		if v, _, ok := bytes.Cut(v, []byte("\n")); ok && ledgerName+string(v)+"\n" != ledgerMagic {
			return nil, fault.New(fault.Unsupported, "the ledger has version %q, this program reads version 2: use the release that wrote it, or leave the ledger out to have the samples counted", v)
		}
	}
	if !bytes.HasPrefix(b, []byte(ledgerMagic)) {
		return nil, fault.New(fault.Corrupt, "not a ledger, or cut short: it does not begin with %q", ledgerMagic)
	}
	if len(b) < len(ledgerMagic)+sha256.Size || sha256.Sum256(b[:len(b)-sha256.Size]) != [sha256.Size]byte(b[len(b)-sha256.Size:]) {
		return nil, fault.New(fault.Corrupt, "the ledger is damaged or cut short")
	}
	b = b[len(ledgerMagic) : len(b)-sha256.Size]
	bad := false
	num := func() uint64 {
		v, n := binary.Uvarint(b)
		if n <= 0 {
			bad, b = true, nil
			return 0
		}
		b = b[n:]
		return v
	}
	str := func() string {
		n := num()
		if n > uint64(len(b)) {
			bad, b = true, nil
			return ""
		}
		s := string(b[:n])
		b = b[n:]
		return s
	}
	l := &Ledger{plan: str(), data: str(), windows: map[ledgerKey]*laneLedger{}}
	l.seed = num()
	for n := num(); n > 0 && !bad; n-- {
		l.shapes = append(l.shapes, ledgerShape{int(num() & (1<<31 - 1)), int64(num() & (1<<62 - 1))})
	}
	for n := num(); n > 0 && !bad; n-- {
		k := ledgerKey{epoch: num(), pass: num(), source: int(num() & (1<<31 - 1)), lane: int(num() & (1<<31 - 1))}
		m := &laneLedger{first: int64(num() & (1<<62 - 1))}
		c := num()
		if c == 0 || c > uint64(len(b)) || k.epoch > maxCount || k.pass > maxCount || // a byte each, at least
			k.source >= len(l.shapes) || k.lane >= l.shapes[k.source].lanes || l.windows[k] != nil {
			bad = true
			break
		}
		m.samples = make([]int64, c)
		for i := range m.samples {
			m.samples[i] = int64(num()&(1<<62-1)) - 1
		}
		l.windows[k] = m
	}
	if bad || len(b) > 0 {
		return nil, fault.New(fault.Corrupt, "the ledger is damaged or cut short")
	}
	return l, nil
}

// check refuses a ledger of another job.
func (l *Ledger) check(j *job) error {
	switch {
	case l.plan != j.Plan && l.plan == j.OtherPolicy && !j.GoesOn:
		return fault.New(fault.Invalid, "the ledger is of another job: %s", j.otherPolicy())
	case l.plan != j.Plan && l.plan != j.OtherPolicy:
		return fault.New(fault.Invalid, "the ledger is of another plan (%.12s, this one is %.12s)", l.plan, j.Plan)
	case l.data != j.Data:
		return fault.New(fault.Invalid, "the ledger is of other data (%.12s, this is %.12s)", l.data, j.Data)
	case l.seed != j.Exec.Seed:
		return fault.New(fault.Invalid, "the ledger is of seed %d, this job has %d", l.seed, j.Exec.Seed)
	case len(l.shapes) != len(j.Sources):
		return fault.New(fault.Invalid, "the ledger has %d sources, this job has %d", len(l.shapes), len(j.Sources))
	}
	for i, s := range j.ledgerShapes() {
		if x := l.shapes[i]; x != s {
			return fault.New(fault.Invalid, "the ledger is of source %q in %d lanes and windows of %d, this job has %d and %d: name lanes and windows as they were, or give a state of that job",
				j.Sources[i].Name, x.lanes, x.window, s.lanes, s.window)
		}
	}
	return nil
}
