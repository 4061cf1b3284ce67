package blobio_test

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobcache"
	"github.com/penstock-data/penstock/io/blobio"
)

func newCache(t *testing.T, dir string) *blobcache.Cache {
	t.Helper()
	c, err := blobcache.New(blobcache.Options{Dir: dir, Max: 512 << 20})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// What was read in any way is not asked for again, however it is read then.
func TestCacheSavesRequests(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	const size = 20 << 20
	cache := newCache(t, t.TempDir())
	d := &fakeDriver{}
	_, o, s := openFake(t, d, size, &blobio.Options{Cache: cache, MaxRequest: 3 << 20})
	alloc := memtest.New(t)
	ways := []func(rs []blobio.Range){
		func(rs []blobio.Range) {
			for _, r := range rs {
				got := make([]byte, r.Len)
				if _, err := o.ReadAt(t.Context(), got, r.Off); err != nil || !bytes.Equal(got, d.data[r.Off:r.Off+r.Len]) {
					t.Fatalf("ReadAt %v: %v", r, err)
				}
			}
		},
		func(rs []blobio.Range) {
			f, err := o.Fetch(t.Context(), rs, alloc)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Release()
			for _, r := range rs {
				if b, ok := f.Bytes(r.Off, r.Len); !ok || !bytes.Equal(b, d.data[r.Off:r.Off+r.Len]) {
					t.Fatalf("Fetch %v", r)
				}
			}
		},
		func(rs []blobio.Range) {
			for _, r := range rs {
				st := o.Stream(t.Context(), r.Off, r.Len)
				got, err := io.ReadAll(st)
				st.Close()
				if err != nil || !bytes.Equal(got, d.data[r.Off:r.Off+r.Len]) {
					t.Fatalf("Stream %v: %v", r, err)
				}
			}
		},
	}
	// Every third stretch of 100,000 bytes: what lies between is never needed.
	var rs []blobio.Range
	for off := int64(0); off+100_000 <= size; off += 300_000 {
		rs = append(rs, blobio.Range{Off: off, Len: 100_000})
	}
	for i, first := range ways {
		for _, then := range ways {
			if i > 0 { // begin anew, as another version
				d.mtime = d.mtime.Add(time.Second)
				o = reopen(t, d, cache, s)
			}
			rnd.Shuffle(len(rs), func(a, b int) { rs[a], rs[b] = rs[b], rs[a] })
			k := rnd.IntN(len(rs))
			first(rs[:k])
			first(rs[k:])
			asked, bytes := len(d.asked), s.Bytes.Load()
			if i > 0 && asked == 0 {
				t.Error("nothing was asked for at first")
			}
			rnd.Shuffle(len(rs), func(a, b int) { rs[a], rs[b] = rs[b], rs[a] })
			then(rs)
			then(rs[:3])
			if len(d.asked) != asked || s.Bytes.Load() != bytes {
				t.Errorf("the second time %d requests for %d bytes", len(d.asked)-asked, s.Bytes.Load()-bytes)
			}
			d.asked = nil
		}
	}
	if s.Cached.Load() == 0 || cache.Stats().Corrupt != 0 {
		t.Error(s, cache.Stats())
	}
}

func reopen(t *testing.T, d *fakeDriver, c *blobcache.Cache, s *blobio.Stats) *blobio.Object {
	t.Helper()
	mtime, data := d.mtime, d.data
	b, _, _ := openFake(t, d, len(d.data), &blobio.Options{Cache: c, MaxRequest: 3 << 20})
	d.mtime, d.data = mtime, data
	return b.Object(stat(t, b, "k"), s)
}

// What several reads miss at once is fetched once, whatever ranges they are of.
func TestCacheFetchesOnce(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for round := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(time.Unix(1e9, 0)) + time.Hour) // of the bubble: the object is old enough to be kept
			rnd := rand.New(rand.NewPCG(seed, round))
			const size = 3 << 20
			d := &fakeDriver{script: func(int, int64, int64) step { return step{wait: time.Second} }}
			_, o, s := openFake(t, d, size, &blobio.Options{Cache: newCache(t, t.TempDir()), Gap: -1, NoHedge: true, MaxRequest: 1 << 20})
			wanted := make([]bool, size)
			var wg sync.WaitGroup
			for range 2 + rnd.IntN(8) {
				off := rnd.IntN(size)
				n := 1 + rnd.IntN(min(size-off, 1<<(10+rnd.IntN(12))))
				for i := off; i < off+n; i++ {
					wanted[i] = true
				}
				wg.Go(func() {
					got := make([]byte, n)
					if _, err := o.ReadAt(t.Context(), got, int64(off)); err != nil || !bytes.Equal(got, d.data[off:off+n]) {
						t.Errorf("[%d, +%d): %v", off, n, err)
					}
				})
			}
			wg.Wait()
			union, asked := int64(0), int64(0)
			for _, w := range wanted {
				if w {
					union++
				}
			}
			for _, r := range d.asked {
				asked += r.Len
			}
			if asked != union || s.Bytes.Load() != union {
				t.Errorf("%d bytes were asked for, and %d received, of %d (round %d)", asked, s.Bytes.Load(), union, round)
			}
		})
	}
}

// Who waits for another's fetch does without it, if that fails or ends, and leaves if he is told to.
func TestCacheFetchThatFails(t *testing.T) {
	for name, fail := range map[string]func(cancel func()) step{
		"fails":  func(func()) step { return step{wait: time.Second, err: &statusError{403}} },
		"cancel": func(cancel func()) step { time.AfterFunc(time.Second, cancel); return step{wait: time.Hour} },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(time.Until(time.Unix(1e9, 0)) + time.Hour)
				first, cancel := context.WithCancel(t.Context())
				d := &fakeDriver{}
				d.script = func(i int, _, _ int64) step {
					if i == 0 {
						return fail(cancel)
					}
					return step{}
				}
				_, o, _ := openFake(t, d, 1<<20, &blobio.Options{Cache: newCache(t, t.TempDir()), NoHedge: true, Timeout: 2 * time.Hour})
				var wg sync.WaitGroup
				read := func(ctx context.Context, want fault.Code) {
					wg.Go(func() {
						got := make([]byte, len(d.data))
						_, err := o.ReadAt(ctx, got, 0)
						if fault.CodeOf(err) != want || err == nil && !bytes.Equal(got, d.data) {
							t.Errorf("%v, want %v", err, want)
						}
					})
					synctest.Wait()
				}
				code := fault.Denied
				if name == "cancel" {
					code = fault.Canceled
				}
				read(first, code)
				begin := time.Now()
				short, stop := context.WithTimeout(t.Context(), time.Millisecond)
				defer stop()
				read(short, fault.Canceled)
				read(t.Context(), fault.Unknown)
				read(t.Context(), fault.Unknown)
				d.mu.Lock()
				if len(d.asked) != 1 {
					t.Errorf("%d requests at once", len(d.asked))
				}
				d.mu.Unlock()
				wg.Wait()
				if took := time.Since(begin); took != time.Second {
					t.Errorf("took %v", took)
				}
				cancel()
			})
		})
	}
}

// Another version is another object; one that is too young to be told apart is not kept.
func TestCacheKnowsVersions(t *testing.T) {
	cache := newCache(t, t.TempDir())
	d := &fakeDriver{}
	_, o, s := openFake(t, d, 1<<20, &blobio.Options{Cache: cache})
	read := func() {
		t.Helper()
		got := make([]byte, len(d.data))
		if _, err := o.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, d.data) {
			t.Fatal(err)
		}
	}
	read()
	read()
	if len(d.asked) != 1 {
		t.Errorf("%d requests", len(d.asked))
	}
	d.mtime, d.data = d.mtime.Add(time.Hour), randomBytes(7, len(d.data))
	o = reopen(t, d, cache, s)
	read()
	read()
	if len(d.asked) != 2 {
		t.Errorf("%d requests", len(d.asked))
	}
	d.mtime = time.Now()
	o = reopen(t, d, cache, s)
	read()
	read()
	if len(d.asked) != 4 {
		t.Errorf("%d requests for an object just written", len(d.asked))
	}
}

// A real bucket: a second pass, by another process as it were, sends no GET; what was damaged or replaced is read anew.
func TestCacheOfS3(t *testing.T) {
	srv := testserver.S3(t)
	srv.CreateBucket(t, "cached")
	p := testserver.NewProxy(t, srv, testserver.Faults{})
	plain := open(t, srv.URL("cached"), nil)
	data := randomBytes(3, 30<<20)
	put := func() {
		if err := plain.Put(t.Context(), "a b/?x", data, nil); err != nil {
			t.Fatal(err)
		}
	}
	put()
	dir := t.TempDir()
	read := func() (gets int64) {
		t.Helper()
		cache := newCache(t, dir)
		b := open(t, srv.Via(p).URL("cached"), &blobio.Options{Cache: cache})
		var s blobio.Stats
		o := b.Object(stat(t, b, "a b/?x"), &s)
		before := p.Requests.Load()
		got := make([]byte, len(data))
		if _, err := o.ReadAt(t.Context(), got, 0); err != nil || !bytes.Equal(got, data) {
			t.Fatal(err)
		}
		if n := s.Requests.Load(); n != p.Requests.Load()-before {
			t.Errorf("%d requests counted, %d seen", n, p.Requests.Load()-before)
		}
		return s.Requests.Load()
	}
	if first, second := read(), read(); first == 0 || second != 0 {
		t.Errorf("%d requests, then %d", first, second)
	}
	f, err := os.OpenFile(filepath.Join(dir, "penstock-cache", "blocks"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		t.Fatal(err)
	}
	for off := int64(8192); off < fi.Size(); off += 99_991 {
		f.WriteAt([]byte("damage"), off)
	}
	if damaged, again := read(), read(); damaged == 0 || again != 0 {
		t.Errorf("%d requests after damage, then %d", damaged, again)
	}
	data = randomBytes(4, 30<<20)
	put()
	if replaced := read(); replaced == 0 {
		t.Error("the old version was read")
	}
}
