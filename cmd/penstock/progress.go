package main

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/cell"
	"github.com/penstock-data/penstock/internal/term"
)

// progress is a line on a terminal that says how a run goes; on anything else it
// is silent.
type progress struct {
	out  *term.Screen
	show bool

	mu    sync.Mutex
	stats func() exec.Stats
	first exec.Stats // what parts of an earlier run have done
	begin time.Time
	quit  chan struct{}
	done  sync.WaitGroup
}

func newProgress(out *term.Screen, quiet bool) *progress {
	return &progress{out: out, show: !quiet && term.IsTerminal(out)}
}

// start begins to draw; it is the run's Observe.
func (p *progress) start(stats func() exec.Stats) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stats, p.first, p.begin = stats, stats(), time.Now()
	if !p.show {
		return
	}
	quit := make(chan struct{})
	p.quit = quit
	p.done.Go(func() {
		t := time.NewTicker(200 * time.Millisecond)
		defer t.Stop()
		for {
			select {
			case <-quit:
				p.out.Redraw("")
				return
			case <-t.C:
				p.out.Redraw(cell.Text(line(stats(), p.first, time.Since(p.begin)), p.out.Width()-1))
			}
		}
	})
}

// stop wipes the line.
func (p *progress) stop() {
	p.mu.Lock()
	quit := p.quit
	p.quit = nil
	p.mu.Unlock()
	if quit != nil {
		close(quit)
		p.done.Wait()
	}
}

// last is the newest statistics.
func (p *progress) last() exec.Stats {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stats == nil {
		return exec.Stats{}
	}
	return p.stats()
}

// line is what the terminal shows: share, rows, rate, time left, memory, slowest stage. The pace is that since first.
func line(st, first exec.Stats, took time.Duration) string {
	var b strings.Builder
	if st.Splits > 0 {
		fmt.Fprintf(&b, "%3d%% ", 100*st.SplitsDone/st.Splits)
	}
	fmt.Fprintf(&b, "%s rows", count(st.RowsIn))
	if s := took.Seconds(); s > 0 {
		fmt.Fprintf(&b, ", %s rows/s, %s/s", count(int64(float64(st.RowsIn-first.RowsIn)/s)), exec.Bytes(int64(float64(st.BytesRead)/s)))
	}
	if done := st.SplitsDone - first.SplitsDone; done > 0 && st.SplitsDone < st.Splits {
		left := time.Duration(float64(took) / float64(done) * float64(st.Splits-st.SplitsDone))
		fmt.Fprintf(&b, ", %s left", left.Round(time.Second))
	}
	fmt.Fprintf(&b, ", memory %s", exec.Bytes(st.HeldBytes))
	if st.StorageRetries > 0 {
		fmt.Fprintf(&b, ", %s made again", some(st.StorageRetries, "request"))
	}
	if st.Bottleneck != "" {
		fmt.Fprintf(&b, ", slowest: %s", st.Bottleneck)
	}
	return b.String()
}

// some is a count with its unit: 1 file, 2,000 files.
func some(n int64, unit string) string {
	if n == 1 {
		return "1 " + unit
	}
	return count(n) + " " + unit + "s"
}

// count groups digits: 1,234,567.
func count(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

func seconds(d time.Duration) string { return fmt.Sprintf("%.2f s", d.Seconds()) }
