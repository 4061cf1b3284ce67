package blobio_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/blobio"
	"gocloud.dev/gcerrors"
)

// After an error reading goes on where it got to.
func TestRetryResumes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{script: func(i int, _, _ int64) step {
			return []step{{cut: 1000}, {err: errNet}, {stay: 500}, {stay: -1}, {wait: time.Hour}, {err: &statusError{503}}, {}}[i]
		}}
		_, o, s := openFake(t, d, 5000, &blobio.Options{Retries: 6})
		begin := time.Now()
		got := make([]byte, 4000)
		if _, err := o.ReadAt(t.Context(), got, 100); err != nil || !bytes.Equal(got, d.data[100:4100]) {
			t.Fatal(err)
		}
		want := []blobio.Range{{100, 4000}, {1100, 3000}, {1100, 3000}, {1600, 2500}, {1600, 2500}, {1600, 2500}, {1600, 2500}}
		if !slices.Equal(d.asked, want) {
			t.Errorf("asked\n%v, want\n%v", d.asked, want)
		}
		if s.Requests.Load() != 7 || s.Retries.Load() != 6 || s.Bytes.Load() != 4000 || s.Hedges.Load() != 0 {
			t.Error(s)
		}
		// Three attempts stood still for the 30 s that are allowed.
		if took := time.Since(begin); took < 90*time.Second || took > 120*time.Second {
			t.Errorf("took %v", took)
		}
	})
}

func TestRetryGivesUp(t *testing.T) {
	for _, c := range []struct {
		name    string
		err     error
		retries int
		asked   int
		code    fault.Code
		text    string
	}{
		{"reset", errNet, 0, 6, fault.Unavailable, "after 6 tries"},
		{"none", errNet, -1, 1, fault.Unavailable, "reset"},
		{"two", &statusError{429}, 2, 3, fault.Unavailable, "status 429"},
		{"status500", &statusError{500}, 1, 2, fault.Unavailable, "status 500"},
		{"notfound", coded{errNet, gcerrors.NotFound}, 0, 1, fault.NotFound, ""},
		{"gone", &statusError{404}, 0, 1, fault.NotFound, ""},
		{"denied", coded{errNet, gcerrors.PermissionDenied}, 0, 1, fault.Denied, "access denied"},
		{"forbidden", &statusError{403}, 0, 1, fault.Denied, "check the credentials"},
		{"range", &statusError{416}, 0, 1, fault.Changed, "changed after it was listed"},
		{"wrapped", fmt.Errorf("sdk: %w", errors.Join(errNet, &statusError{400})), 0, 1, fault.Invalid, ""},
		{"unimplemented", coded{errNet, gcerrors.Unimplemented}, 0, 1, fault.Unsupported, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &fakeDriver{script: func(int, int64, int64) step { return step{err: c.err} }}
				_, o, _ := openFake(t, d, 100, &blobio.Options{Retries: c.retries})
				begin := time.Now()
				_, err := o.ReadAt(t.Context(), make([]byte, 100), 0)
				wantCode(t, err, c.code, o.Path())
				if err == nil || !strings.Contains(err.Error(), c.text) {
					t.Errorf("error %v, want %q in it", err, c.text)
				}
				// Waits of up to 100, 200, ... ms, each drawn at random.
				if took := time.Since(begin); len(d.asked) != c.asked || took > 3100*time.Millisecond {
					t.Errorf("%d requests in %v, want %d", len(d.asked), took, c.asked)
				}
			})
		})
	}
}

// The wait before a try is drawn at random, out of a range that doubles up to 10 s.
func TestRetryWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const tries, runs = 12, 60
		var waits [tries][]time.Duration
		for range runs {
			var last time.Time
			d := &fakeDriver{script: func(i int, _, _ int64) step {
				if i > 0 {
					waits[i-1] = append(waits[i-1], time.Since(last))
				}
				last = time.Now()
				return step{err: errNet}
			}}
			_, o, _ := openFake(t, d, 100, &blobio.Options{Retries: tries})
			if _, err := o.ReadAt(t.Context(), make([]byte, 100), 0); fault.CodeOf(err) != fault.Unavailable {
				t.Fatal(err)
			}
		}
		for i, w := range waits {
			most := min(100*time.Millisecond<<i, 10*time.Second)
			slices.Sort(w)
			if len(w) != runs || w[runs-1] >= most || w[runs-1] < most*3/4 || w[0] > most/4 {
				t.Errorf("try %d: %d waits of %v to %v, of at most %v", i+1, len(w), w[0], w[len(w)-1], most)
			}
		}
	})
}

// The time limit is on progress, not on the request.
func TestTrickleIsProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{script: func(int, int64, int64) step { return step{each: 29 * time.Second} }}
		_, o, _ := openFake(t, d, 100, nil)
		got := make([]byte, 100)
		if _, err := o.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, d.data) || len(d.asked) != 1 {
			t.Errorf("%d requests, %v", len(d.asked), err)
		}
	})
}

func TestChangedIsSeen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{script: func(i int, _, _ int64) step {
			if i == 0 {
				return step{cut: 10}
			}
			return step{mod: time.Second} // replaced between two attempts
		}}
		_, o, _ := openFake(t, d, 100, nil)
		_, err := o.ReadAt(t.Context(), make([]byte, 100), 0)
		if wantCode(t, err, fault.Changed, o.Path()); len(d.asked) != 2 {
			t.Errorf("%d requests", len(d.asked))
		}
	})
}

// Every way to wait ends when the context does, and nothing is left running.
func TestCancelDuringHang(t *testing.T) {
	for _, s := range []step{{wait: time.Hour}, {stay: -1}, {stay: 10}, {err: errNet}} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDriver{
				script: func(int, int64, int64) step { return s },
				list:   func(int, string) ([]string, error) { return nil, errNet },
				write:  func(int) (bool, error) { return true, nil },
			}
			b, o, _ := openFake(t, d, 1<<20, &blobio.Options{MaxRequest: 100_000, Concurrency: 3, Timeout: time.Hour, Retries: 1000})
			cause := errors.New("enough")
			for name, f := range map[string]func(ctx context.Context) error{
				"ReadAt": func(ctx context.Context) error {
					_, err := o.ReadAt(ctx, make([]byte, 1000), 0)
					return err
				},
				"Fetch": func(ctx context.Context) error {
					_, err := o.Fetch(ctx, []blobio.Range{{0, 1 << 20}}, memtest.New(t))
					return err
				},
				"Stream": func(ctx context.Context) error {
					r := o.Stream(ctx, 0, 1<<20)
					defer r.Close()
					_, err := io.ReadAll(r)
					return err
				},
				"List": func(ctx context.Context) error {
					for _, err := range b.List(ctx, "") {
						return err
					}
					return nil
				},
				"Put": func(ctx context.Context) error { return b.Put(ctx, "p", make([]byte, 10), nil) },
				"Create": func(ctx context.Context) error {
					w, err := b.Create(ctx, "p", nil)
					if err != nil {
						return err
					}
					if _, err := w.Write(make([]byte, 1<<20)); err != nil {
						w.Abort()
						return err
					}
					return w.Close()
				},
			} {
				ctx, cancel := context.WithTimeoutCause(t.Context(), 5*time.Second, cause)
				begin := time.Now()
				err := f(ctx)
				cancel()
				if fault.CodeOf(err) != fault.Canceled || !errors.Is(err, cause) || time.Since(begin) != 5*time.Second {
					t.Errorf("%s under %+v: %v after %v", name, s, err, time.Since(begin))
				}
			}
			if d.inFlight != 0 || len(d.written) != 0 {
				t.Errorf("in flight %d, written %d", d.inFlight, len(d.written))
			}
		})
	}
}

// Hedges cut the tail, and are few.
func TestHedgeCutsTail(t *testing.T) {
	const requests = 3000
	for _, c := range []struct {
		name    string
		slow    float64 // share of requests that take 2 s
		noHedge bool
	}{{"two percent", 0.02, false}, {"ten percent", 0.1, false}, {"off", 0.02, true}} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(1, 2))
				d := &fakeDriver{script: func(int, int64, int64) step {
					if rnd.Float64() < c.slow {
						return step{wait: 2 * time.Second}
					}
					return step{wait: 10*time.Millisecond + rand.N(10*time.Millisecond)}
				}}
				_, o, s := openFake(t, d, 1<<20, &blobio.Options{NoHedge: c.noHedge})
				var took []time.Duration
				for i := range requests {
					off := int64(i) * 100
					got := make([]byte, 5000)
					begin := time.Now()
					if _, err := o.ReadAt(t.Context(), got, off); err != nil || !bytes.Equal(got, d.data[off:off+5000]) {
						t.Fatal(err)
					}
					took = append(took, time.Since(begin))
				}
				slices.Sort(took)
				extra := len(d.asked) - requests
				p50, p99 := took[requests/2], took[requests*99/100]
				t.Logf("p50 %v, p99 %v, max %v, extra requests %d; %v", p50, p99, took[requests-1], extra, s)
				if s.Requests.Load() != int64(len(d.asked)) || s.Hedges.Load() != int64(extra) || extra > requests*3/100 {
					t.Errorf("extra requests %d of %d; %v", extra, requests, s)
				}
				switch {
				case c.noHedge && (extra != 0 || p99 < 2*time.Second):
					t.Errorf("not hedged: p99 %v, extra %d", p99, extra)
				case c.slow == 0.02 && !c.noHedge && (p99 > 100*time.Millisecond || extra < requests/100):
					t.Errorf("p99 %v, extra %d", p99, extra)
				case c.slow == 0.1 && extra < requests*2/100:
					t.Errorf("extra %d: the allowance was not used", extra)
				}
				if d.inFlight != 0 {
					t.Errorf("in flight %d", d.inFlight)
				}
			})
		})
	}
}

// TestHedgeWaits: with a request in twelve that takes 20 times the median, only those get a second one that last longer than 95 % of the recent ones, which twice the median
// would not tell.
func TestHedgeWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const late, stuck = 200 * time.Millisecond, 10 * time.Second
		wait := func(i int) time.Duration {
			if i%12 == 0 {
				return late - time.Duration(i)*time.Microsecond // less than those before: never just when a second one is due
			}
			return 10 * time.Millisecond
		}
		const warm = 240
		n := 0
		d := &fakeDriver{script: func(int, int64, int64) step {
			n++
			if n == warm+1 {
				return step{wait: stuck}
			}
			return step{wait: wait(n)}
		}}
		_, o, s := openFake(t, d, 1<<20, nil)
		for i := range warm {
			if _, err := o.ReadAt(t.Context(), make([]byte, 1000), int64(i)*100); err != nil {
				t.Fatal(err)
			}
		}
		if s.Hedges.Load() != 0 {
			t.Errorf("%d of %d requests that were late as others are had a second one", s.Hedges.Load(), warm)
		}
		begin := time.Now()
		if _, err := o.ReadAt(t.Context(), make([]byte, 1000), 0); err != nil || s.Hedges.Load() != 1 {
			t.Errorf("%v, %d hedges", err, s.Hedges.Load())
		}
		if took := time.Since(begin); took < late || took > late+10*time.Millisecond {
			t.Errorf("the one that was stuck took %v", took)
		}
	})
}

// Whichever of two requests fails, the other one's bytes are right.
func TestHedgeOutcomes(t *testing.T) {
	const warm = 40
	ms := time.Millisecond
	for _, c := range []struct {
		name          string
		first, second step
		asked         int // after warming up
		took          time.Duration
	}{
		{"second wins", step{wait: time.Hour}, step{wait: 10 * ms}, 2, 30 * ms},
		{"first wins", step{wait: 25 * ms}, step{wait: time.Hour}, 2, 25 * ms},
		{"second fails", step{wait: 50 * ms}, step{err: errNet}, 2, 50 * ms},
		{"first fails", step{wait: 25 * ms, err: errNet}, step{wait: 30 * ms}, 2, 50 * ms},
		{"second resumes", step{stay: 1000}, step{wait: 10 * ms}, 2, 30 * ms},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &fakeDriver{script: func(i int, _, _ int64) step {
					switch i {
					case warm:
						return c.first
					case warm + 1:
						return c.second
					}
					return step{wait: 10 * ms}
				}}
				_, o, s := openFake(t, d, 5000, nil)
				var took time.Duration
				for range warm + 1 {
					got := make([]byte, 5000)
					begin := time.Now()
					if _, err := o.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, d.data) {
						t.Fatal(err)
					}
					took = time.Since(begin)
				}
				if took != c.took || len(d.asked) != warm+c.asked || s.Hedges.Load() != 1 || d.inFlight != 0 {
					t.Errorf("took %v, want %v; %d requests; %v; in flight %d", took, c.took, len(d.asked), s, d.inFlight)
				}
				if last := d.asked[warm+1]; c.name == "second resumes" && last != (blobio.Range{Off: 1000, Len: 4000}) {
					t.Errorf("hedged %v", last)
				}
			})
		})
	}
}

// A request that is stuck while the allowance is used up gets its hedge later.
func TestHedgeAsksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		stuck := map[int64]bool{1: true, 2: true}
		d := &fakeDriver{script: func(_ int, off, _ int64) step {
			if stuck[off] {
				delete(stuck, off)
				return step{wait: time.Hour}
			}
			return step{wait: 10 * time.Millisecond}
		}}
		_, o, s := openFake(t, d, 20_000, nil)
		read := func(off int64) error {
			got := make([]byte, 5000)
			_, err := o.ReadAt(t.Context(), got, off)
			if err == nil && !bytes.Equal(got, d.data[off:off+5000]) {
				err = errors.New("other bytes")
			}
			return err
		}
		for range 40 {
			if err := read(100); err != nil {
				t.Fatal(err)
			}
		}
		begin := time.Now()
		done := make(chan error, 2)
		for _, off := range []int64{1, 2} {
			go func() { done <- read(off) }()
		}
		synctest.Wait()
		for range 40 { // until the second hedge is allowed
			if err := read(100); err != nil {
				t.Fatal(err)
			}
		}
		for range 2 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if took := time.Since(begin); took > time.Second || s.Hedges.Load() != 2 {
			t.Errorf("took %v; %v", took, s)
		}
	})
}

func TestConcurrencyLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{script: func(int, int64, int64) step { return step{wait: time.Second} }}
		_, o, _ := openFake(t, d, 1<<20, &blobio.Options{Concurrency: 5, MaxRequest: 1 << 14})
		alloc := memtest.New(t)
		done := make(chan error)
		begin := time.Now()
		for range 4 { // four at once share the bucket's five
			go func() {
				f, err := o.Fetch(t.Context(), []blobio.Range{{0, 1 << 20}}, alloc)
				if err == nil {
					if b, ok := f.Bytes(0, 1<<20); !ok || !bytes.Equal(b, d.data) {
						err = errors.New("other bytes")
					}
					f.Release()
				}
				done <- err
			}()
		}
		for range 4 {
			if err := <-done; err != nil {
				t.Error(err)
			}
		}
		if want := 52 * time.Second; d.most != 5 || len(d.asked) != 256 || time.Since(begin) != want {
			t.Errorf("%d at once, %d requests, %v", d.most, len(d.asked), time.Since(begin))
		}
	})
}

func TestCoalesce(t *testing.T) {
	for _, c := range []struct {
		gap, most int64
		in, asked []blobio.Range
	}{
		{10, 1000, []blobio.Range{{50, 10}, {0, 10}, {20, 10}}, []blobio.Range{{0, 30}, {50, 10}}},
		{10, 1000, []blobio.Range{{0, 100}, {10, 5}, {90, 20}, {111, 1}}, []blobio.Range{{0, 112}}},
		{-1, 1000, []blobio.Range{{0, 10}, {10, 10}, {21, 10}}, []blobio.Range{{0, 20}, {21, 10}}},
		{10, 100, []blobio.Range{{0, 250}}, []blobio.Range{{0, 84}, {84, 83}, {167, 83}}},
		{10, 100, []blobio.Range{{5, 0}, {3, 100}, {7, 0}}, []blobio.Range{{3, 100}}},
		{10, 100, nil, nil},
	} {
		synctest.Test(t, func(t *testing.T) {
			d := &fakeDriver{}
			_, o, _ := openFake(t, d, 2000, &blobio.Options{Gap: c.gap, MaxRequest: c.most})
			f, err := o.Fetch(t.Context(), c.in, memtest.New(t))
			if err != nil {
				t.Fatal(err)
			}
			for _, r := range c.in {
				if b, ok := f.Bytes(r.Off, r.Len); !ok || !bytes.Equal(b, d.data[r.Off:r.Off+r.Len]) {
					t.Errorf("%v of %v: %v", r, c.in, ok)
				}
			}
			for _, r := range []blobio.Range{{1999, 1}, {0, 2000}, {-1, 1}, {0, -1}, {1 << 62, 1 << 62}} {
				if _, ok := f.Bytes(r.Off, r.Len); ok {
					t.Errorf("%v is there", r)
				}
			}
			f.Release()
			f.Release()
			slices.SortFunc(d.asked, func(a, b blobio.Range) int { return int(a.Off - b.Off) })
			if !slices.Equal(d.asked, c.asked) {
				t.Errorf("%v: asked %v, want %v", c.in, d.asked, c.asked)
			}
		})
	}
	for _, r := range []blobio.Range{{-1, 2}, {0, -1}, {1999, 2}, {1 << 62, 1 << 62}, {2001, 0}} {
		synctest.Test(t, func(t *testing.T) {
			_, o, _ := openFake(t, &fakeDriver{}, 2000, nil)
			_, err := o.Fetch(t.Context(), []blobio.Range{{0, 1}, r}, memtest.New(t))
			wantCode(t, err, fault.Invalid, o.Path())
		})
	}
}

// What is aligned in the object is aligned in memory.
func TestFetchAligns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, o, _ := openFake(t, &fakeDriver{}, 5000, &blobio.Options{Gap: -1})
		f, err := o.Fetch(t.Context(), []blobio.Range{{64, 7}, {333, 40}, {1024, 64}}, memtest.New(t))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Release()
		var base uintptr
		for i, off := range []int64{64, 370, 1024} {
			b, _ := f.Bytes(off, 1)
			if at := addr(b) - uintptr(off); i == 0 {
				base = at % 64
			} else if at%64 != base {
				t.Errorf("offset %d lies at %d mod 64, want %d", off, at%64, base)
			}
		}
	})
}

// A stream reads ahead, but little before it is known that much will be read.
func TestStreamReadsAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{script: func(int, int64, int64) step { return step{wait: time.Second} }}
		const size = 40 << 20
		_, o, s := openFake(t, d, size, nil)
		r := o.Stream(t.Context(), 0, size)
		synctest.Wait()
		if len(d.asked) != 0 {
			t.Error("a stream that is not read asks")
		}
		if _, err := r.Read(make([]byte, 10)); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if !slices.Equal(d.asked, []blobio.Range{{0, 1 << 20}}) {
			t.Errorf("asked at first %v", d.asked)
		}
		begin := time.Now()
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, d.data[10:]) {
			t.Fatal(err)
		}
		// 1, 2, 4, 8, 8, ... MiB: nine pieces, of which up to four at once.
		if took := time.Since(begin); len(d.asked) != 8 || d.most != 4 || took > 4*time.Second {
			t.Errorf("%d requests, %d at once, %v; %v", len(d.asked), d.most, took, s)
		}
		r.Close()
		r = o.Stream(t.Context(), 0, size)
		r.Read(make([]byte, 1<<20))
		r.Read(make([]byte, 1<<20))
		r.Close() // with pieces in flight
		if d.inFlight != 0 {
			t.Errorf("in flight %d", d.inFlight)
		}
	})
}

func TestListRemote(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		last := "d/x"
		d := &fakeDriver{list: func(i int, token string) ([]string, error) {
			switch {
			case i == 0 || i == 2:
				return nil, errNet
			case token != "":
				return []string{last}, nil
			}
			// Out of order within a page, and a directory marker.
			page := []string{"c", "b", "a", "d/", "more"}
			for i := range 996 {
				page = append(page, fmt.Sprintf("b%04d", i))
			}
			return page, nil
		}}
		b, _, _ := openFake(t, d, 1, nil)
		got := keys(t, b.List(t.Context(), ""))
		if len(got) != 1000 || !slices.IsSorted(got) || got[0] != "a" || got[999] != "d/x" || d.lists != 4 {
			t.Errorf("%d keys, %q to %q, %d lists", len(got), got[0], got[len(got)-1], d.lists)
		}
		last = "aa" // out of order across pages: no way to put that right
		var err error
		for _, err = range b.List(t.Context(), "") {
		}
		wantCode(t, err, fault.Unsupported, b.Path(""))
	})
}

func TestPutRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &fakeDriver{write: func(i int) (bool, error) {
			switch i {
			case 0:
				return false, errNet
			case 1:
				return true, nil
			case 3:
				return false, coded{errNet, gcerrors.FailedPrecondition}
			case 4:
				return false, coded{errNet, gcerrors.PermissionDenied}
			}
			return false, nil
		}}
		b, _, _ := openFake(t, d, 1, nil)
		begin := time.Now()
		if err := b.Put(t.Context(), "a", []byte("data"), nil); err != nil || string(d.written["a"]) != "data" || d.writes != 3 {
			t.Errorf("%v, %d writes", err, d.writes)
		}
		if took := time.Since(begin); took < 300*time.Second || took > 301*time.Second {
			t.Errorf("took %v", took)
		}
		wantCode(t, b.Put(t.Context(), "b", nil, &blobio.PutOptions{IfNotExist: true}), fault.Exists, b.Path("b"))
		wantCode(t, b.Put(t.Context(), "b", nil, nil), fault.Denied, b.Path("b"))
		// A refusal that was lost is found out.
		d.write = func(int) (bool, error) { return false, errNet }
		wantCode(t, b.Put(t.Context(), "b", nil, &blobio.PutOptions{IfNotExist: true}), fault.Exists, b.Path("b"))
		d.write = func(int) (bool, error) { return true, nil }
		// A streamed write cannot be sent again, but its end is not waited for forever.
		w, err := b.Create(t.Context(), "c", nil)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour) // the producer may take its time
		if _, err := w.Write(make([]byte, 1<<20)); err != nil {
			t.Fatal(err)
		}
		begin = time.Now()
		wantCode(t, w.Close(), fault.Unavailable, b.Path("c"))
		if took := time.Since(begin); took != 300*time.Second {
			t.Errorf("took %v", took)
		}
	})
}
