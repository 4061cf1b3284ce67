package store

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"path"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sync/errgroup"
)

const (
	segmentSize = 4 << 20  // bytes of a segment at most, but for a longer line
	metricsRoom = 64 << 20 // bytes that may wait to be written
	readSegment = 32 << 20 // bytes of a line, and more
)

// Row is a report. Epoch and Step are where the ranks were in their training data set; of several, in the one that is furthest.
type Row struct {
	Attempt int       `json:"-"`
	Report  int64     `json:"report"`
	Time    time.Time `json:"time"` // UTC
	Epoch   uint64    `json:"epoch"`
	Step    int64     `json:"step"` // done in this epoch
	Metrics Metrics   `json:"metrics"`
}

// MetricsWriter keeps the reports of an attempt and writes them as segments, RUN/metrics/AAAAAA-NNNNNN.jsonl, a JSON object per line, each created at most once.
// Safe for concurrent use. Nothing to close; what was not flushed is lost with the process.
type MetricsWriter struct {
	r       *Run
	attempt int

	flush semaphore
	next  int // number of the segment to be written; guarded by flush

	mu     sync.Mutex
	buf    []byte // whole lines
	frozen int    // of buf, that a Flush is writing, or tried to
}

// Metrics is the writer for an attempt, which Begin gave; for the same attempt the same one. Commit flushes the writer of the attempt that was asked for last.
func (r *Run) Metrics(attempt int) *MetricsWriter {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.metrics == nil || r.metrics.attempt != attempt {
		r.metrics = &MetricsWriter{r: r, attempt: attempt, flush: make(semaphore, 1), next: 1}
	}
	return r.metrics
}

func (r *Run) flushMetrics(ctx context.Context) error {
	r.mu.Lock()
	w := r.metrics
	r.mu.Unlock()
	if w == nil {
		return nil
	}
	return w.Flush(ctx)
}

// Append keeps a report to be written, without I/O. Reports of an attempt come in order. When 64 MiB wait it is an Exhausted error: the storage has not taken any for long.
func (w *MetricsWriter) Append(row Row) error {
	row.Time = row.Time.UTC()
	line, err := json.Marshal(row)
	if err != nil {
		return fault.New(fault.Invalid, "metrics of report %d: %w", row.Report, err)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.buf)+len(line) >= metricsRoom {
		return fault.New(fault.Exhausted, "%d MiB of metrics wait to be written: the storage takes none, or flushes are too rare", metricsRoom>>20).At(w.r.place(metricsDir))
	}
	w.buf = append(append(w.buf, line...), '\n')
	return nil
}

// Pending is how many bytes wait to be written.
func (w *MetricsWriter) Pending() int64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return int64(len(w.buf))
}

// Flush writes what was appended before. What an error left waits for the next Flush.
func (w *MetricsWriter) Flush(ctx context.Context) error {
	if err := w.flush.lock(ctx); err != nil {
		return err
	}
	defer w.flush.unlock()
	for left := int(w.Pending()); left > 0; {
		seg := w.segment()
		rel := fmt.Sprintf("%s%s-%s.jsonl", metricsDir, numbered(w.attempt), numbered(w.next))
		won, err := w.r.putNew(ctx, rel, seg)
		if err != nil {
			return err
		}
		if !won { // written before, and the answer was lost: a segment that was tried keeps its bytes
			is, err := w.r.b.ReadAll(ctx, w.r.prefix+rel, readSegment)
			if err != nil {
				return err
			}
			if !bytes.Equal(is, seg) {
				return fault.New(fault.Exists, "these metrics are another controller's: attempt %d is not this one's", w.attempt).At(w.r.place(rel))
			}
		}
		w.next++
		left -= len(seg)
		w.written(len(seg))
	}
	return nil
}

// segment is what to write next: whole lines.
func (w *MetricsWriter) segment() []byte {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.frozen == 0 {
		w.frozen = len(w.buf)
		if w.frozen > segmentSize {
			w.frozen = bytes.LastIndexByte(w.buf[:segmentSize], '\n') + 1
			if w.frozen == 0 {
				w.frozen = bytes.IndexByte(w.buf, '\n') + 1
			}
		}
	}
	return w.buf[:w.frozen:w.frozen] // Append writes behind it
}

func (w *MetricsWriter) written(n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.buf, w.frozen = w.buf[n:], 0
	if len(w.buf) == 0 {
		w.buf = nil
	}
}

var segmentRE = regexp.MustCompile(`^([0-9]{6,10})-([0-9]{6,10})\.jsonl$`)

// segment of metrics.
type segment struct {
	rel             string
	size            int64
	attempt, number int
	after, upTo     int64 // reports in (after, upTo] count
}

// History reads the metrics of all reports that count, in order: where an attempt went on from a checkpoint, the reports after it that were made before are
// superseded. What has not been flushed is not seen. The first error is the last element.
func (r *Run) History(ctx context.Context) iter.Seq2[Row, error] {
	return func(yield func(Row, error) bool) {
		segs, err := r.segments(ctx)
		if err != nil {
			yield(Row{}, err)
			return
		}
		for len(segs) > 0 {
			n := min(len(segs), inFlight)
			data := make([][]byte, n)
			g, gctx := errgroup.WithContext(ctx)
			for i, s := range segs[:n] {
				if s.size > large { // only hostile runs have many
					continue
				}
				g.Go(func() (err error) {
					data[i], err = r.b.ReadAll(gctx, r.prefix+s.rel, large)
					return err
				})
			}
			if err := g.Wait(); err != nil {
				yield(Row{}, err)
				return
			}
			for i, s := range segs[:n] {
				if s.size > large {
					if data[i], err = r.b.ReadAll(ctx, r.prefix+s.rel, readSegment); err != nil {
						yield(Row{}, err)
						return
					}
				}
				if !r.rows(s, data[i], yield) {
					return
				}
				data[i] = nil
			}
			segs = segs[n:]
		}
	}
}

func (r *Run) rows(s segment, data []byte, yield func(Row, error) bool) bool {
	sc := bufio.NewScanner(bytes.NewReader(data))
	sc.Buffer(nil, readSegment)
	for line := int64(0); sc.Scan(); line++ {
		row := Row{Attempt: s.attempt}
		if err := json.Unmarshal(sc.Bytes(), &row); err != nil {
			yield(Row{}, fault.New(fault.Corrupt, "not a line of metrics: %w", err).At(fault.Place{File: r.path(s.rel), Row: fault.N(line)}))
			return false
		}
		if err := row.check(); err != nil {
			yield(Row{}, fault.Wrap(err, fault.Place{File: r.path(s.rel), Row: fault.N(line)}))
			return false
		}
		if row.Report > s.after && row.Report <= s.upTo && !yield(row, nil) {
			return false
		}
	}
	if err := sc.Err(); err != nil {
		yield(Row{}, fault.New(fault.Corrupt, "%w", err).At(r.place(s.rel)))
		return false
	}
	return true
}

// segments of the attempts in order, with the reports that count.
func (r *Run) segments(ctx context.Context) ([]segment, error) {
	entries, err := r.readLog(ctx)
	if err != nil {
		return nil, err
	}
	all := attempts(entries)
	type span struct{ after, upTo int64 }
	spans := make(map[int]span, len(all))
	upTo := int64(1<<63 - 1)
	for _, s := range slices.Backward(all) {
		spans[s.Attempt] = span{s.Report, upTo}
		upTo = min(upTo, s.Report)
	}
	var segs []segment
	for info, err := range r.b.ListDir(ctx, r.prefix+metricsDir) {
		if err != nil {
			return nil, err
		}
		m := segmentRE.FindStringSubmatch(path.Base(info.Key))
		if m == nil || info.Dir {
			continue
		}
		s := segment{rel: metricsDir + m[0], size: info.Size}
		s.attempt, _ = strconv.Atoi(m[1]) // digits, few
		s.number, _ = strconv.Atoi(m[2])
		sp, ok := spans[s.attempt]
		if s.after, s.upTo = sp.after, sp.upTo; ok && s.after < s.upTo {
			segs = append(segs, s)
		}
	}
	slices.SortFunc(segs, func(a, b segment) int {
		if a.attempt != b.attempt {
			return a.attempt - b.attempt
		}
		return a.number - b.number
	})
	return segs, nil
}
