package killtest

import (
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/testserver"
)

// Storage of the cases of a test: folders, and buckets of one S3 service, each behind a proxy that fails now and then.
type Storage struct {
	s3      *testserver.Server
	proxies []*testserver.Proxy
}

// NewStorage starts the service, for the rest of the test. The test imports the driver.
func NewStorage(t *testing.T) *Storage { return &Storage{s3: testserver.S3(t)} }

// Of a case: what a run gets as its storage, the same without faults, and the folder that it is on disk.
func (s *Storage) Of(t *testing.T, c Case) (storage, direct, dir string) {
	if !c.S3 {
		dir = t.TempDir()
		return dir, dir, dir
	}
	bucket := "case-" + strconv.Itoa(len(s.proxies))
	s.s3.CreateBucket(t, bucket)
	p := testserver.NewProxy(t, s.s3, testserver.Faults{Seed: c.Seed, Error: 0.01, Reset: 0.01, Truncate: 0.05, Slow: 0.1, Latency: 5 * time.Millisecond})
	s.proxies = append(s.proxies, p)
	return s.s3.Via(p).URL(bucket), s.s3.URL(bucket), filepath.Join(s.s3.Dir(), bucket)
}

// Check fails the test where a kind of fault never came in all of its cases over S3.
func (s *Storage) Check(t *testing.T) {
	var requests, errors, resets, truncated int64
	for _, p := range s.proxies {
		requests, errors, resets, truncated = requests+p.Requests.Load(), errors+p.Errors.Load(), resets+p.Resets.Load(), truncated+p.Truncated.Load()
	}
	t.Logf("%d requests to S3: %d errors, %d resets, %d truncated", requests, errors, resets, truncated)
	if errors == 0 || resets == 0 || truncated == 0 {
		t.Error("some faults never came")
	}
}

// Tally counts the kills of cases.
type Tally map[Case]int

// Add what a case did.
func (y Tally) Add(kills []Kill) {
	for _, k := range kills {
		if k.Hit {
			y[Case{Victim: k.Victim, Moment: k.Moment}]++
		}
	}
}

// Hit reports whether a case's victim was killed at its moment.
func (y Tally) Hit(c Case) bool { return y[Case{Victim: c.Victim, Moment: c.Moment}] > 0 }

// Check fails the test where a victim or a moment was never hit; with all, where a victim was not hit at a moment.
func (y Tally) Check(t *testing.T, all bool) {
	byVictim, byMoment := map[string]int{}, map[string]int{}
	for _, victim := range victims {
		for _, moment := range moments {
			n := y[Case{Victim: victim, Moment: moment}]
			byVictim[victim], byMoment[moment] = byVictim[victim]+n, byMoment[moment]+n
			t.Logf("%s, %s: %d", victim, moment, n)
			if all && n == 0 {
				t.Errorf("the %s was never killed in its moment (%s)", victim, moment)
			}
		}
	}
	for _, n := range []map[string]int{byVictim, byMoment} {
		for name, n := range n {
			if n == 0 {
				t.Errorf("no kill hit: %s", name)
			}
		}
	}
}
