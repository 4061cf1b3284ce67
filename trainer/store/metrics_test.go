package store

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

func history(t testing.TB, r *Run) (rows []Row) {
	t.Helper()
	for row, err := range r.History(context.Background()) {
		if err != nil {
			t.Fatal(err)
		}
		rows = append(rows, row)
	}
	return rows
}

// Attempts report, commit now and then, and die at random; now and then a run goes back further, or would have: then the group was not launched, and all is as it was. The model is a list that is cut at every start.
func TestHistory(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		seed := uint64(time.Now().UnixNano())
		t.Logf("seed %d", seed)
		rnd := rand.New(rand.NewPCG(seed, 1))
		newRun(t, storage, "x").Close()
		var model []Row             // that count and are durable
		kept := make(map[int][]Row) // by checkpoint
		var live []int              // checkpoints
		base := time.Unix(1e9, 0).UTC()
		for range 12 {
			r := openRun(t, storage, "x")
			o := BeginOptions{}
			if all := checkWhole(t, r); !slices.Equal(all, live) {
				t.Fatal(all, live)
			} else if len(all) > 1 && rnd.IntN(2) == 0 {
				o.Checkpoint = all[rnd.IntN(len(all))]
			}
			at, err := r.Begin(t.Context(), o)
			if err != nil {
				t.Fatal(err)
			}
			report, ckpt := int64(0), 0
			if at.From != nil {
				report, ckpt = at.From.Report, at.From.Number
			}
			if at.Back && rnd.IntN(2) == 0 {
				die(r)
				if a, b := fmt.Sprint(history(t, openRun(t, storage, "x"))), fmt.Sprint(model); a != b {
					t.Fatalf("%s\n%s", a, b)
				}
				continue
			}
			if at.Back {
				if err := r.Launched(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			live = live[:slices.Index(live, ckpt)+1]
			model = append([]Row(nil), kept[ckpt]...)
			w := r.Metrics(at.Number)
			if r.Metrics(at.Number) != w {
				t.Fatal("two writers of an attempt")
			}
			var waiting []Row
			for range rnd.IntN(30) {
				report++
				row := Row{Attempt: at.Number, Report: report, Epoch: rnd.Uint64(), Step: report * 3, Time: base.Add(time.Duration(report) * time.Second),
					Metrics: Metrics{"loss": rnd.Float64(), "big": math.Inf(1), "text \"\n": 1e-300}}
				if err := w.Append(row); err != nil {
					t.Fatal(err)
				}
				waiting = append(waiting, row)
				switch rnd.IntN(6) {
				case 0:
					if err := w.Flush(t.Context()); err != nil {
						t.Fatal(err)
					}
					model, waiting = append(model, waiting...), nil
				case 1:
					m := commit(t, r, report, nil)
					model, waiting = append(model, waiting...), nil
					kept[m.Number], live = append([]Row(nil), model...), append(live, m.Number)
				case 2:
					if err := r.Prune(t.Context(), Policy{KeepLast: 3}); err != nil {
						t.Fatal(err)
					}
					live = live[max(len(live)-3, 0):]
				}
			}
			die(r)
			if a, b := fmt.Sprint(history(t, openRun(t, storage, "x"))), fmt.Sprint(model); a != b {
				t.Fatalf("%s\n%s", a, b)
			}
		}
	})
}

// Segments have a bounded size, what waits is bounded, and what failed to be written is written by the next Flush, once.
func TestMetricsBounds(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		r := newRun(t, storage, "x")
		at := begin(t, r)
		w := r.Metrics(at.Number)
		long := Metrics{strings.Repeat("m", 1000): 1}
		const n = 9000
		for i := range int64(n) {
			if err := w.Append(Row{Report: i + 1, Time: time.Now(), Step: i, Metrics: long}); err != nil {
				t.Fatal(err)
			}
		}
		if w.Pending() < n*1000 {
			t.Fatal(w.Pending())
		}
		ctx, cancel := context.WithCancelCause(t.Context())
		gone := errors.New("gone")
		r.hook = func(step, key string) {
			if strings.HasSuffix(key, "-000002.jsonl") {
				cancel(gone)
			}
		}
		if err := w.Flush(ctx); !errors.Is(err, gone) || fault.CodeOf(err) != fault.Canceled {
			t.Fatal(err)
		}
		r.hook = nil
		if err := w.Append(Row{Report: n + 1, Time: time.Now(), Step: n}); err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := w.Flush(t.Context()); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		if w.Pending() != 0 {
			t.Fatal(w.Pending())
		}
		rows := history(t, r)
		if len(rows) != n+1 {
			t.Fatal(len(rows))
		}
		for i, row := range rows {
			if row.Report != int64(i+1) {
				t.Fatal(i, row.Report)
			}
		}
		for info, err := range r.b.List(t.Context(), r.prefix+metricsDir) {
			if err != nil || info.Size > segmentSize {
				t.Fatal(info, err)
			}
		}
		// Stop early: nothing goes on.
		for range r.History(t.Context()) {
			break
		}
		if storage[0] != '/' {
			return
		}
		huge := Metrics{strings.Repeat("h", 5<<20): 1}
		var err error
		for i := int64(0); err == nil && i < 20; i++ {
			err = w.Append(Row{Report: n + 2 + i, Time: time.Now(), Metrics: huge})
		}
		wantErr(t, err, fault.Exhausted, "64 MiB")
		if err := w.Flush(t.Context()); err != nil {
			t.Fatal(err)
		}
		segs := 0
		for _, key := range objects(t, r) {
			if strings.HasPrefix(key, metricsDir) {
				segs++
			}
		}
		if segs != 3+12 { // a segment holds one line that is longer than it should be
			t.Fatal(segs)
		}
	})
}

// A segment whose answer was lost is taken for written; another's is an error; a damaged one names file and row.
func TestMetricsConflicts(t *testing.T) {
	r := newRun(t, t.TempDir(), "x")
	at := begin(t, r)
	w := r.Metrics(at.Number)
	now := time.Now()
	add := func(n int64) {
		t.Helper()
		if err := w.Append(Row{Report: n, Time: now, Step: n, Metrics: Metrics{"x": 1}}); err != nil {
			t.Fatal(err)
		}
	}
	add(1)
	if err := r.b.Put(t.Context(), r.prefix+"metrics/000001-000001.jsonl", w.segment(), nil); err != nil {
		t.Fatal(err)
	}
	add(2)
	if err := w.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := history(t, r); len(got) != 2 || got[0].Report != 1 || got[1].Report != 2 {
		t.Fatal(got)
	}
	if err := r.b.Put(t.Context(), r.prefix+"metrics/000001-000003.jsonl", []byte("{\"report\":3}\n{\"report\":\n"), nil); err != nil {
		t.Fatal(err)
	}
	add(4)
	wantErr(t, w.Flush(t.Context()), fault.Exists, "000001-000003.jsonl")
	var last error
	n := 0
	for row, err := range r.History(t.Context()) {
		if last = err; err == nil {
			n++
			_ = row
		}
	}
	wantErr(t, last, fault.Corrupt, "000001-000003.jsonl", "row 1")
	if n != 3 {
		t.Fatal(n)
	}
}
