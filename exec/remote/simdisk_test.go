package remote_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"runtime"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// The disks and the output of a simulated job, and what goes wrong in it. See sim_test.go.

// io is an access to a disk of the machine: mostly fast, sometimes very slow.
func (m *machine) io(ctx context.Context) error {
	w := m.w
	w.mu.Lock()
	var d time.Duration
	switch k := w.dice.IntN(1000); {
	case time.Now().Before(m.slow):
		d = logUniform(w.dice, 10*time.Millisecond, 5*time.Second)
	case k < 2:
		d = logUniform(w.dice, time.Second, 45*time.Second)
		w.counts["slow read or write"]++
	case k < 300:
		d = logUniform(w.dice, 100*time.Microsecond, 100*time.Millisecond)
	}
	w.mu.Unlock()
	if d > 0 {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
		}
	}
	m.thawed(ctx.Done())
	w.mu.Lock()
	defer w.mu.Unlock()
	if m.dead {
		return errDead
	}
	return fault.WithCode(fault.Canceled, context.Cause(ctx))
}

// slowTable is a table on the disks of a machine.
type slowTable struct {
	*exectest.Table
	m *machine
}

type slowReader struct {
	driver.Reader
	m *machine
}

func (t *slowTable) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	if err := t.m.io(ctx); err != nil {
		return nil, err
	}
	r, err := t.Table.Open(ctx, i, o)
	if err != nil {
		return nil, err
	}
	return &slowReader{r, t.m}, nil
}

func (r *slowReader) Next(ctx context.Context) (driver.Batch, error) {
	if err := r.m.io(ctx); err != nil {
		return driver.Batch{}, err
	}
	return r.Reader.Next(ctx)
}

// output is what is durable of a job that writes; what is said of it is what exec/sink promises. Under world.mu.
type output struct {
	perPart  int
	parts    []exec.PartRange
	finished map[int]*finished
	commits  int
}

type finished struct {
	By    string // the attempt whose rows count
	Rows  int
	ids   []int64
	tally exec.Tally
}

// simFiles is the sink of one machine: an exec.Joint.
type simFiles struct {
	m     *machine
	known map[int]*finished // under world.mu
	had   map[int]bool      // of node 0: finished before this attempt of the job
	open  map[int]bool
	all   int
}

func newSimFiles(m *machine) *simFiles {
	return &simFiles{m: m, known: map[int]*finished{}, had: map[int]bool{}, open: map[int]bool{}}
}

func (s *simFiles) Begin(ctx context.Context, _ *arrow.Schema, splits []exec.SinkSplit) (*exec.SinkPlan, error) {
	if err := s.m.io(ctx); err != nil {
		return nil, err
	}
	w := s.m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	o := w.out
	if o.parts == nil {
		o.parts = []exec.PartRange{}
		for i := 0; i < len(splits); i += o.perPart {
			o.parts = append(o.parts, exec.PartRange{First: i, End: min(i+o.perPart, len(splits))})
		}
	}
	p := &exec.SinkPlan{Committed: o.commits > 0, Parts: append([]exec.PartRange{}, o.parts...)}
	for i, f := range o.finished {
		s.known[i], s.had[i] = f, true
		p.Parts[i].Done, p.Parts[i].Rows, p.Parts[i].Tally = true, int64(f.Rows), f.tally
		w.counts["part kept from an attempt before"]++
	}
	return p, nil
}

func (s *simFiles) Join(ctx context.Context, _ *arrow.Schema, _ []exec.SinkSplit) error {
	return s.m.io(ctx)
}

func (s *simFiles) NewPart(ctx context.Context, part int, env *exec.Env) (exec.PartWriter, error) {
	if err := s.m.io(ctx); err != nil {
		return nil, err
	}
	w := s.m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if s.open[part] {
		w.wrong("part %d has two writers on node %d", part, s.m.node)
	}
	if s.m.members[0].files.had[part] {
		w.wrong("part %d, which an attempt before has finished, is written again on node %d", part, s.m.node)
	}
	s.open[part] = true
	s.all++
	return &partOf{s: s, part: part, by: fmt.Sprintf("%p-%d", s, s.all)}, nil
}

func (s *simFiles) Report(part int) ([]byte, error) {
	s.m.w.mu.Lock()
	defer s.m.w.mu.Unlock()
	return json.Marshal(s.known[part])
}

func (s *simFiles) Adopt(ctx context.Context, part int, report []byte) error {
	if err := s.m.io(ctx); err != nil {
		return err
	}
	w := s.m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	var told finished
	f := w.out.finished[part]
	if err := json.Unmarshal(report, &told); err != nil || f == nil || told.By != f.By {
		w.wrong("part %d is adopted as %s, and is %+v: %v", part, report, f, err)
		return fault.New(fault.Internal, "it is not there")
	}
	s.known[part] = f
	return nil
}

func (s *simFiles) Commit(ctx context.Context, _ *exec.CommitEnv) error {
	if err := s.m.io(ctx); err != nil {
		return err
	}
	w := s.m.w
	w.mu.Lock()
	o := w.out
	if o.commits++; o.commits > 1 {
		w.wrong("the job is committed again")
	}
	for i := range o.parts {
		if s.known[i] == nil || s.open[i] {
			w.wrong("commit with part %d unfinished", i)
		}
	}
	w.mu.Unlock()
	return s.m.io(ctx) // a machine that dies now leaves a job that is committed
}

func (s *simFiles) Abort(context.Context) error { return nil }
func (s *simFiles) Leave() error                { return nil }

// partOf writes a part.
type partOf struct {
	s    *simFiles
	part int
	by   string
	ids  []int64
}

func (p *partOf) Write(ctx context.Context, b *exec.Block) error {
	p.ids = append(p.ids, exectest.Ids(b.Batch)...)
	return p.s.m.io(ctx)
}

// Finish: of those that finish a part the first counts.
func (p *partOf) Finish(ctx context.Context, t exec.Tally) error {
	err := p.s.m.io(ctx)
	w := p.s.m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if p.s.m.dead {
		return errDead // open parts stay behind
	}
	p.s.open[p.part] = false
	if err != nil {
		return err
	}
	f := w.out.finished[p.part]
	if f == nil {
		f = &finished{By: p.by, Rows: len(p.ids), ids: p.ids, tally: t}
		w.out.finished[p.part] = f
	} else {
		w.counts["part finished twice"]++
	}
	p.s.known[p.part] = f
	return nil
}

func (p *partOf) Abort(context.Context) error {
	p.s.m.w.mu.Lock()
	defer p.s.m.w.mu.Unlock()
	if !p.s.m.dead {
		p.s.open[p.part] = false
	}
	return nil
}

// strikes are what goes wrong, each drawn about as often as it is named.
var strikes = []string{"connection broken", "connection broken", "half-open connection", "half-open connection", "message delayed", "message delayed", "node frozen", "node frozen",
	"node crashed", "node crashed", "node lost", "node cut off", "leader crashed", "leader lost", "slow disk", "job stopped"}

// trouble has things go wrong, until it has been enough or the job is over.
func (w *world) trouble(r *rand.Rand, over <-chan struct{}) {
	n := r.IntN(9)
	for i := range n {
		gap := logUniform(r, time.Millisecond, 10*time.Second)
		if i == 0 {
			gap = logUniform(r, 100*time.Microsecond, time.Second)
		}
		select {
		case <-time.After(gap):
			w.strike(r, strikes[r.IntN(len(strikes))])
		case <-over:
			return
		}
	}
	w.say("it is calm")
	w.mu.Lock()
	w.calm = true
	w.mu.Unlock()
	select {
	case <-time.After(settles):
	case <-over:
		return
	}
	buf := make([]byte, 1<<20)
	panic(fmt.Sprintf("seed %d (go test -run TestSimulated -seed %d): %v after the last fault the job is not over:\n%s", w.seed, w.seed, settles, buf[:runtime.Stack(buf, true)]))
}

// strike does one thing to a machine, or a connection, of the attempt that is at work.
func (w *world) strike(r *rand.Rand, what string) {
	w.mu.Lock()
	ms := w.current
	if len(ms) == 0 {
		w.mu.Unlock()
		return
	}
	m := ms[1+r.IntN(len(ms)-1)]
	var e *end
	if len(m.ends) > 0 {
		e = m.ends[len(m.ends)-1]
	}
	how := logUniform(r, 10*time.Millisecond, time.Minute)
	if what == "leader crashed" || what == "leader lost" || r.IntN(4) == 0 && (what == "node frozen" || what == "slow disk") {
		m = ms[0]
	}
	select {
	case <-m.done:
		w.mu.Unlock()
		return
	default:
	}
	crash := false
	hit := e != nil && !e.closed && !e.in.lost
	switch what {
	case "connection broken":
		if hit {
			e.in.cut()
			e.out.cut()
		}
	case "half-open connection":
		if hit {
			x := e.in
			if r.IntN(2) == 0 {
				x = e.out
			}
			x.deaf = true
		}
	case "message delayed":
		if hit {
			e.in.slow, e.out.slow = time.Now().Add(how/10), time.Now().Add(how/10)
		}
	case "node frozen":
		if hit = m.ice == nil && !m.dead; hit {
			m.ice = make(chan struct{})
			time.AfterFunc(how, func() { m.thaw() })
		}
	case "slow disk":
		hit = true
		m.slow = time.Now().Add(how)
	case "node cut off": // it works on for a while, and the head does not wait for that
		if hit = !m.dead && !m.cutOff; hit {
			m.cutOff = true
			for _, e := range m.ends {
				e.in.deaf, e.out.deaf = true, true
			}
			m.lostBy(15 * time.Second)
		}
	case "job stopped": // the head moves it, say
		hit = true
		for _, m := range ms {
			m.cancel(errStopped)
		}
	default:
		crash, hit = true, !m.dead
	}
	if hit {
		w.counts[what]++
	}
	w.mu.Unlock()
	w.say("%s: node %d, %v: %v", what, m.node, how, hit)
	if crash {
		silent := what == "node lost" || what == "leader lost"
		m.crash(silent)
		if silent {
			m.lostBy(15 * time.Second)
		}
	}
}

func (m *machine) thaw() {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	close(m.ice)
	m.ice = nil
}
