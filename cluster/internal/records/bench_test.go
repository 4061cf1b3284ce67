package records

import (
	"context"
	"fmt"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// What a record of a node or a job costs: some hundred bytes.
var benchValue = thing{Name: strings.Repeat("x", 400)}

// The disk decides: each round of writes is one fsync of the log, so writes that come together share it. TMPDIR says which disk.
func BenchmarkPut(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprint(callers), func(b *testing.B) {
			s := open(b, Options{Dir: b.TempDir()})
			things := In[thing](s, "things")
			var (
				wg   sync.WaitGroup
				next atomic.Int64
			)
			b.ResetTimer()
			for range callers {
				wg.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						if _, err := things.Put(b.Context(), Record[thing]{ID: fmt.Sprint(i), Value: benchValue}); err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "puts/s")
		})
	}
}

func BenchmarkGet(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	things := In[thing](s, "things")
	if _, err := things.Put(b.Context(), Record[thing]{ID: "a", Value: benchValue}); err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := things.Get(b.Context(), "a"); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkKeepAlive(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	l, err := s.Grant(b.Context(), time.Minute)
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := s.KeepAlive(b.Context(), l.ID); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkOpen opens a store with 10,000 records, and closes it.
func BenchmarkOpen(b *testing.B) {
	dir := b.TempDir()
	fillStore(b, dir)
	for b.Loop() {
		s, err := Open(b.Context(), Options{Dir: dir})
		if err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
}

// BenchmarkMemory reports what a process holds in memory that has opened a store: a new one, and one with 10,000 records.
func BenchmarkMemory(b *testing.B) {
	for _, full := range []bool{false, true} {
		b.Run(fmt.Sprintf("full=%v", full), func(b *testing.B) {
			dir := b.TempDir()
			if full {
				fillStore(b, dir)
			}
			for b.Loop() {
				c := start(b, "memory", "RECORDS_DIR="+dir)
				var rss, file float64
				if _, err := fmt.Sscan(c.line(b), &rss, &file); err != nil {
					b.Fatal(err)
				}
				c.kill()
				b.ReportMetric(rss, "MB-anonymous")
				b.ReportMetric(file, "MB-of-files")
			}
		})
	}
}

func fillStore(b *testing.B, dir string) {
	b.Helper()
	s := open(b, Options{Dir: dir})
	things := In[thing](s, "things")
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			for i := g; i < 10_000; i += 64 {
				if _, err := things.Put(b.Context(), Record[thing]{ID: fmt.Sprint(i), Value: benchValue}); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	s.Close()
}

func childMemory() {
	s, err := Open(context.Background(), Options{Dir: os.Getenv("RECORDS_DIR")})
	if err != nil {
		say("%v", err)
		return
	}
	if _, err := ids(In[thing](s, "things")); err != nil {
		say("%v", err)
		return
	}
	if _, err := s.Next(context.Background(), "n"); err != nil {
		say("%v", err)
		return
	}
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		say("%v", err)
		return
	}
	mb := map[string]float64{}
	for line := range strings.Lines(string(status)) {
		var kb float64
		name, rest, _ := strings.Cut(line, ":")
		if n, _ := fmt.Sscanf(rest, "%f kB", &kb); n == 1 {
			mb[name] = kb / 1024
		}
	}
	say("%.1f %.1f", mb["RssAnon"], mb["RssFile"])
	s.Close()
}

// BenchmarkIdle reports what a store costs that nobody asks anything, for the time of a lease of 5 s.
func BenchmarkIdle(b *testing.B) {
	s := open(b, Options{Dir: b.TempDir()})
	things := In[thing](s, "things")
	cpu := func() time.Duration {
		var u syscall.Rusage
		if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
			b.Fatal(err)
		}
		return time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	for b.Loop() {
		l, err := s.Grant(b.Context(), 5*time.Second)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := things.Put(b.Context(), Record[thing]{ID: "a", Lease: l.ID}); err != nil {
			b.Fatal(err)
		}
		began, before := time.Now(), cpu()
		err = things.Watch(b.Context(), 0, func(e Event[thing]) error {
			if e.Kind == Gone {
				return errEnough
			}
			return nil
		})
		if err != errEnough {
			b.Fatal(err)
		}
		b.ReportMetric(float64((cpu()-before).Microseconds())/time.Since(began).Seconds(), "cpu-us/s")
	}
}
