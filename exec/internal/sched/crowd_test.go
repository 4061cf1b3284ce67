package sched

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// doing is an attempt under way, or one that is to begin.
type doing struct {
	Task
	n    int // attempt
	made int // blocks
	in   *[]*doing
	at   int // there
}

func (d *doing) leave() {
	in := *d.in
	last := len(in) - 1
	in[d.at] = in[last]
	in[d.at].at = d.at
	*d.in = in[:last]
}

func (d *doing) enter(in *[]*doing) {
	d.in, d.at = in, len(*in)
	*in = append(*in, d)
}

// crowd makes events that can happen, of what it was told to do.
type crowd struct {
	r                    *rand.Rand
	blocks, vary         int // a task makes blocks - N % vary
	bytes                int64
	able, parked, asleep []*doing
	attempts             map[Task]*doing
	pulled, over         bool
	did                  [Abort + 1]int
	again                int // attempts that are not the first
}

func (c *crowd) do(acts []Action) {
	for _, a := range acts {
		c.did[a.Kind]++
		switch a.Kind {
		case Start:
			d := &doing{Task: a.Task, n: a.Attempt}
			d.enter(&c.able)
			c.attempts[d.Task] = d
			if d.n > 1 {
				c.again++
			}
		case Park, Resume, Cancel:
			to := &c.able
			if a.Kind == Park {
				to = &c.parked
			}
			d := c.attempts[a.Task]
			d.leave()
			d.enter(to)
		case Sleep:
			(&doing{Task: a.Task, n: a.Attempt}).enter(&c.asleep)
		case Deliver:
			c.pulled = false
		case End, Abort:
			c.over = true
		}
	}
}

func (c *crowd) any(in []*doing) *doing { return in[c.r.IntN(len(in))] }

func (c *crowd) pull() Event {
	c.pulled = true
	return Event{Kind: Pull}
}

// end takes note that an attempt is through.
func (c *crowd) end(d *doing) {
	d.leave()
	delete(c.attempts, d.Task)
}

// goOn is what an attempt does next.
func (c *crowd) goOn(d *doing) Event {
	e := Event{Kind: Finish, Task: d.Task, Attempt: d.n}
	if d.made >= c.blocks-d.N%c.vary {
		c.end(d)
		return e
	}
	d.made++
	e.Kind, e.Block = Emit, Meta{Row: int64(d.made), Rows: 1, Bytes: c.bytes}
	return e
}

// next is anything that can happen.
func (c *crowd) next(cpus int) Event {
	for {
		switch x := c.r.IntN(1000); {
		case x < 300 && !c.pulled:
			return c.pull()
		case x < 900 && len(c.able) > 0:
			e := c.goOn(c.any(c.able))
			if e.Kind == Emit && c.r.IntN(100) == 0 {
				e.Block.Row += 100 // another block than the attempt before
			}
			return e
		case x < 950 && len(c.asleep) > 0:
			d := c.any(c.asleep)
			d.leave()
			return Event{Kind: Timer, Task: d.Task, Attempt: d.n}
		case x < 985:
			for _, in := range [][]*doing{c.parked, c.able} {
				if len(in) > 0 {
					d := c.any(in)
					c.end(d)
					e := Event{Kind: Fail, Task: d.Task, Attempt: d.n, Class: Unavailable + Class(c.r.IntN(int(Moved)))}
					if c.r.IntN(50) == 0 {
						e.Class = Fatal
					}
					return e
				}
			}
		case x < 999:
			return Event{Kind: Room, CPUs: 1 + c.r.IntN(2*cpus)}
		case c.r.IntN(10) == 0:
			return Event{Kind: Stop}
		}
	}
}

// TestScanning: a scheduler that looks at all open tasks says the same, and what is kept of tasks goes when they do.
func TestScanning(t *testing.T) {
	var did [Abort + 1]int
	again := 0
	for seed := range uint64(4000) {
		cfg := newWorld(seed).cfg
		r := rand.New(rand.NewPCG(seed, 9))
		k := 1 + r.IntN(8)
		for i := range cfg.Stages {
			st := &cfg.Stages[i]
			st.Tasks *= k
			for range max(st.Tasks-len(st.Empty), 0) {
				st.Empty = append(st.Empty, r.IntN(8) == 0)
			}
			st.Most = r.IntN(2) * r.IntN(8)
		}
		cfg.CPUs *= k
		cfg.AheadTasks *= k
		cfg.AheadBytes *= int64(k)
		cfg.EnoughBytes *= int64(k)
		for i := range cfg.Retry[1:] {
			cfg.Retry[1+i] *= 3
		}
		c := &crowd{r: r, blocks: r.IntN(6), vary: 1 + r.IntN(4), bytes: 1 + r.Int64N(3), attempts: map[Task]*doing{}}
		s, ref := New(cfg), scanning{New(cfg)}
		for step := range 300 {
			e := c.next(cfg.CPUs)
			got, want := s.Step(e), ref.Step(e)
			if !slices.Equal(got, want) {
				t.Fatalf("seed %d, event %d: %+v: do\n%+v, want\n%+v", seed, step, e, got, want)
			}
			if c.do(got); c.over {
				break
			}
			for _, st := range s.stages {
				if n := len(st.tasks); !st.closed && (len(st.full) > n || len(st.parked) > n+c.again || len(st.ready) > n+c.again) {
					t.Fatalf("seed %d, event %d: of %d open tasks %d are kept as full, %d as parked, %d as ready, after %d attempts again", seed, step, n, len(st.full), len(st.parked), len(st.ready), c.again)
				}
			}
		}
		for i, n := range c.did {
			did[i] += n
		}
		again += c.again
	}
	if slices.Contains(did[:], 0) || again < 1000 {
		t.Errorf("actions by kind %v, %d attempts again: some are missing", did, again)
	}
}

// BenchmarkStep: the events of a large scan on nodes of 2 CPUs as exec/local makes them, of attempts that go on by chance. The consumer keeps up, or it wants a
// block only when all attempts wait for room.
func BenchmarkStep(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		for _, consumer := range []string{"fast", "slow", "slow,unordered"} {
			b.Run(fmt.Sprintf("nodes=%d/consumer=%s", n, consumer), func(b *testing.B) {
				s := New(Config{
					Stages: []Stage{{Tasks: 1 << 40, Limit: -1}}, CPUs: 2 + 2*n, Unordered: consumer == "slow,unordered", AheadTasks: max(64*(1+n), 2048),
					OwnBytes: 4 << 20, AheadBytes: 8 << 30, EnoughBytes: 8<<20 + int64(n)*128<<20, WholeBytes: 32 << 20,
				})
				c := &crowd{r: rand.New(rand.NewPCG(1, 1)), blocks: 4, vary: 1, bytes: 1 << 20, attempts: map[Task]*doing{}}
				step := func() {
					if !c.pulled && (consumer == "fast" || len(c.able) == 0) {
						c.do(s.Step(c.pull()))
					} else {
						c.do(s.Step(c.goOn(c.any(c.able))))
					}
				}
				for range 50_000 { // until all is as it then stays
					step()
				}
				b.ReportAllocs()
				for b.Loop() {
					step()
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N), "ns/event")
			})
		}
	}
}
