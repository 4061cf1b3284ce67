package blobio_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/blobio"
)

// randomBytes are the same for the same seed.
func randomBytes(seed uint64, n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	r.Read(b)
	return b
}

func open(t testing.TB, url string, o *blobio.Options) *blobio.Bucket {
	t.Helper()
	b, err := blobio.Open(t.Context(), url, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

func put(t testing.TB, b *blobio.Bucket, key string, data []byte) blobio.Info {
	t.Helper()
	if err := b.Put(t.Context(), key, data, nil); err != nil {
		t.Fatal(err)
	}
	return stat(t, b, key)
}

func stat(t testing.TB, b *blobio.Bucket, key string) blobio.Info {
	t.Helper()
	info, err := b.Stat(t.Context(), key)
	if err != nil {
		t.Fatal(err)
	}
	return info
}

func keys(t testing.TB, seq func(func(blobio.Info, error) bool)) []string {
	t.Helper()
	var ks []string
	for info, err := range seq {
		if err != nil {
			t.Fatal(err)
		}
		if info.Dir != strings.HasSuffix(info.Key, "/") {
			t.Errorf("%+v", info)
		}
		ks = append(ks, info.Key)
	}
	return ks
}

func wantCode(t testing.TB, err error, want fault.Code, file string) {
	t.Helper()
	if fault.CodeOf(err) != want {
		t.Errorf("error %v: code %v, want %v", err, fault.CodeOf(err), want)
	}
	if got := fault.PlaceOf(err).File; got != file {
		t.Errorf("error %v: file %q, want %q", err, got, file)
	}
}

// readAll checks every way to read o against want.
func readAll(t testing.TB, o *blobio.Object, want []byte, seed uint64) {
	t.Helper()
	ctx, rnd := t.Context(), rand.New(rand.NewPCG(seed, 1))
	size := len(want)
	got := make([]byte, size)
	if n, err := o.ReadAt(ctx, got, 0); n != size || err != nil || !bytes.Equal(got, want) {
		t.Fatalf("ReadAt of all: %d, %v, equal %v (seed %d)", n, err, bytes.Equal(got, want), seed)
	}
	if n, err := o.ReadAt(ctx, make([]byte, 10), int64(size)-3); n != min(3, size) && size >= 3 || err != io.EOF {
		t.Errorf("ReadAt over the end: %d, %v", n, err)
	}
	if n, err := o.ReadAt(ctx, make([]byte, 1), int64(size)+100); n != 0 || err != io.EOF {
		t.Errorf("ReadAt behind the end: %d, %v", n, err)
	}
	var rs []blobio.Range
	for range 20 {
		off := rnd.IntN(size)
		rs = append(rs, blobio.Range{Off: int64(off), Len: int64(rnd.IntN(min(size-off, 1<<rnd.IntN(22)) + 1))})
	}
	alloc := memtest.New(t)
	f, err := o.Fetch(ctx, rs, alloc)
	if err != nil {
		t.Fatalf("Fetch: %v (seed %d)", err, seed)
	}
	for _, r := range rs {
		b, ok := f.Bytes(r.Off, r.Len)
		if !ok || !bytes.Equal(b, want[r.Off:r.Off+r.Len]) {
			t.Fatalf("Fetch of %+v among %+v: ok %v (seed %d)", r, rs, ok, seed)
		}
	}
	f.Release()
	off := rnd.IntN(size)
	s := o.Stream(ctx, int64(off), int64(size))
	b, err := io.ReadAll(s)
	if err != nil || !bytes.Equal(b, want[off:]) {
		t.Fatalf("Stream from %d: %d bytes of %d, %v (seed %d)", off, len(b), size-off, err, seed)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Read(make([]byte, 1)); err == nil {
		t.Error("a closed stream reads")
	}
}

var oddKeys = []string{
	"plain.csv", "with space.csv", "pct%41%2F.csv", "plus+plus", "quo\"te'.csv", "ümläut/日本語.parquet", "a=b/c=d&e.csv",
	"hash#tag", "semi;colon,comma", "question?mark=1", "back\\slash", "[brackets]{}", "star*", "tilde~$!()@:", "a/b/c/d/e/f", "..dots..",
	"a", "a-b", "a.txt", "A", "ends?",
}

// suite checks a bucket of any kind. url must be of an empty bucket; large is the
// size of the largest object written, such that it is uploaded in parts.
func suite(t *testing.T, url string, large int) {
	const size = 3 << 20 // of what is read most
	b := open(t, url, &blobio.Options{MaxRequest: 1 << 20})
	ctx := t.Context()

	t.Run("read", func(t *testing.T) {
		want := randomBytes(1, size)
		info := put(t, b, "big/one.bin", want)
		if info.Size != int64(size) || info.Key != "big/one.bin" {
			t.Fatalf("%+v", info)
		}
		var s, s2 blobio.Stats
		o := b.Object(info, &s).With(&s2)
		readAll(t, o, want, 7)
		if s.Requests.Load() == 0 || s.Bytes.Load() < int64(size) || s.Requests.Load() != s2.Requests.Load() {
			t.Errorf("stats: %v, %v", &s, &s2)
		}
		for listed, err := range b.List(ctx, "big/") {
			if err != nil {
				t.Fatal(err)
			}
			if listed.Size != info.Size || listed.ETag != info.ETag || listed.ModTime.Unix() != info.ModTime.Unix() {
				t.Errorf("listed %+v, stat %+v", listed, info)
			}
			readAll(t, b.Object(listed, nil), want, 8)
		}
		if got, err := b.ReadAll(ctx, info.Key, info.Size); err != nil || !bytes.Equal(got, want) {
			t.Errorf("ReadAll: %v", err)
		}
		_, err := b.ReadAll(ctx, info.Key, info.Size-1)
		wantCode(t, err, fault.Invalid, b.Path(info.Key))
		if _, err := o.Fetch(ctx, []blobio.Range{{Off: int64(size) - 1, Len: 2}}, memtest.New(t)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("Fetch over the end: %v", err)
		}
	})

	t.Run("empty", func(t *testing.T) {
		o := b.Object(put(t, b, "empty", nil), nil)
		if n, err := o.ReadAt(ctx, make([]byte, 4), 0); n != 0 || err != io.EOF {
			t.Errorf("ReadAt: %d, %v", n, err)
		}
		if got, err := io.ReadAll(o.Stream(ctx, 0, 100)); len(got) > 0 || err != nil {
			t.Errorf("Stream: %q, %v", got, err)
		}
		f, err := o.Fetch(ctx, []blobio.Range{{}}, memtest.New(t))
		if err != nil {
			t.Fatal(err)
		}
		if p, ok := f.Bytes(0, 0); len(p) != 0 || !ok {
			t.Errorf("Bytes: %q, %v", p, ok)
		}
		f.Release()
		if got, err := b.ReadAll(ctx, "empty", 0); len(got) > 0 || err != nil {
			t.Errorf("ReadAll: %q, %v", got, err)
		}
		if _, _, ok, err := o.Map(); ok || err != nil {
			t.Errorf("Map: %v, %v", ok, err)
		}
	})

	t.Run("keys", func(t *testing.T) {
		for _, k := range oddKeys {
			put(t, b, "odd/"+k+"/"+k, []byte(k)) // the name as a directory and as a file
		}
		var want []string
		for _, k := range oddKeys {
			want = append(want, "odd/"+k+"/"+k)
		}
		slices.Sort(want)
		got := keys(t, b.List(ctx, "odd/"))
		if !slices.Equal(got, want) {
			t.Errorf("List:\n got %q\nwant %q", got, want)
		}
		for _, k := range got {
			data, err := b.ReadAll(ctx, k, 100)
			if err != nil || !strings.HasSuffix(k, "/"+string(data)) {
				t.Errorf("%q: %q, %v", k, data, err)
			}
			_, back, err := blobio.Split(b.Path(k))
			if b.Path(k)[0] != '/' && (err != nil || back != k) {
				t.Errorf("Split(Path(%q)) = %q, %v", k, back, err)
			}
		}
	})

	t.Run("list", func(t *testing.T) {
		var want []string
		for _, k := range []string{"l/a", "l/a.b/x", "l/a/b/c", "l/a-b/x", "l/ab", "l/z/1", "l/z/2", "l/z/10"} {
			if k == "l/a" { // a file system cannot have both l/a and l/a/b/c
				continue
			}
			put(t, b, k, []byte(k))
			want = append(want, k)
		}
		slices.Sort(want)
		if got := keys(t, b.List(ctx, "l/")); !slices.Equal(got, want) {
			t.Errorf("List:\n got %q\nwant %q", got, want)
		}
		for _, c := range []struct {
			prefix    string
			list, dir []string
		}{
			{"l/z/", []string{"l/z/1", "l/z/10", "l/z/2"}, []string{"l/z/1", "l/z/10", "l/z/2"}},
			{"l/", want, []string{"l/a-b/", "l/a.b/", "l/a/", "l/ab", "l/z/"}},
			{"l/a", []string{"l/a-b/x", "l/a.b/x", "l/a/b/c", "l/ab"}, nil},
			{"l/z/1", []string{"l/z/1", "l/z/10"}, nil},
			{"l/nothing", nil, nil},
			{"l/nothing/", nil, nil},
			{"l/z/1/", nil, nil},
		} {
			if got := keys(t, b.List(ctx, c.prefix)); !slices.Equal(got, c.list) {
				t.Errorf("List %q:\n got %q\nwant %q", c.prefix, got, c.list)
			}
			if !strings.HasSuffix(c.prefix, "/") {
				continue
			}
			if got := keys(t, b.ListDir(ctx, c.prefix)); !slices.Equal(got, c.dir) {
				t.Errorf("ListDir %q:\n got %q\nwant %q", c.prefix, got, c.dir)
			}
		}
		for range b.List(ctx, "l/") { // stopping early is fine
			break
		}
		for _, err := range b.ListDir(ctx, "l") {
			wantCode(t, err, fault.Invalid, b.Path("l"))
		}
		canceled, cancel := context.WithCancelCause(ctx)
		cause := errors.New("enough")
		cancel(cause)
		for _, err := range b.List(canceled, "l/") {
			if wantCode(t, err, fault.Canceled, b.Path("l/")); !errors.Is(err, cause) {
				t.Errorf("List: %v", err)
			}
		}
	})

	t.Run("missing", func(t *testing.T) {
		p := b.Path("no/such thing")
		_, err := b.Stat(ctx, "no/such thing")
		wantCode(t, err, fault.NotFound, p)
		_, err = b.Stat(ctx, "l/z") // a directory is no object
		wantCode(t, err, fault.NotFound, b.Path("l/z"))
		_, err = b.ReadAll(ctx, "no/such thing", 1)
		wantCode(t, err, fault.NotFound, p)
		_, err = b.Object(blobio.Info{Key: "no/such thing", Size: 5}, nil).ReadAt(ctx, make([]byte, 5), 0)
		wantCode(t, err, fault.NotFound, p)
		if err := b.Delete(ctx, "no/such thing"); err != nil {
			t.Error(err)
		}
		for _, k := range []string{"", "a/", "nul\x00"} {
			_, err := b.Stat(ctx, k)
			wantCode(t, err, fault.Invalid, b.Path(k))
			wantCode(t, b.Put(ctx, k, nil, nil), fault.Invalid, b.Path(k))
			wantCode(t, b.Delete(ctx, k), fault.Invalid, b.Path(k))
			_, err = b.Create(ctx, k, nil)
			wantCode(t, err, fault.Invalid, b.Path(k))
		}
	})

	t.Run("delete", func(t *testing.T) {
		put(t, b, "gone/x", []byte("x"))
		if err := b.Delete(ctx, "gone/x"); err != nil {
			t.Fatal(err)
		}
		_, err := b.Stat(ctx, "gone/x")
		wantCode(t, err, fault.NotFound, b.Path("gone/x"))
	})

	t.Run("replaced", func(t *testing.T) {
		for i, next := range [][]byte{randomBytes(4, 3<<20), randomBytes(4, 3<<20+1), randomBytes(4, 10), nil} {
			key := fmt.Sprintf("replaced/%d", i)
			info := put(t, b, key, randomBytes(3, 3<<20))
			s := b.Object(info, nil).Stream(ctx, 0, info.Size)
			if len(next) == int(info.Size) {
				waitTick(t, b, info)
			}
			put(t, b, key, next)
			_, err := b.Object(info, nil).ReadAt(ctx, make([]byte, 100), 2<<20)
			wantCode(t, err, fault.Changed, b.Path(key))
			if err != nil && !strings.Contains(err.Error(), "changed after it was listed") {
				t.Error(err)
			}
			if _, err := b.Object(info, nil).Fetch(ctx, []blobio.Range{{Off: 5, Len: 2 << 20}}, memtest.New(t)); fault.CodeOf(err) != fault.Changed {
				t.Errorf("Fetch: %v", err)
			}
			_, err = io.ReadAll(s)
			wantCode(t, err, fault.Changed, b.Path(key))
			s.Close()
			if got, err := b.ReadAll(ctx, key, 4<<20); err != nil || !bytes.Equal(got, next) {
				t.Errorf("%d: %v", i, err)
			}
		}
	})

	t.Run("create", func(t *testing.T) {
		for _, n := range []int{0, 10, large} {
			key, want := fmt.Sprintf("created/%d", n), randomBytes(9, n)
			w, err := b.Create(ctx, key, &blobio.PutOptions{ContentType: "text/csv"})
			if err != nil {
				t.Fatal(err)
			}
			for rest := want; len(rest) > 0; {
				k := min(len(rest), 300_000)
				if m, err := w.Write(rest[:k]); m != k || err != nil {
					t.Fatal(m, err)
				}
				rest = rest[k:]
			}
			if got := keys(t, b.List(ctx, key)); len(got) > 0 {
				t.Errorf("visible before Close: %q", got)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			w.Abort() // does nothing any more
			if err := w.Close(); fault.CodeOf(err) != fault.Internal {
				t.Errorf("second Close: %v", err)
			}
			if got, err := b.ReadAll(ctx, key, int64(n)); err != nil || !bytes.Equal(got, want) {
				t.Errorf("%d bytes: %v", n, err)
			}
		}
	})

	t.Run("abort", func(t *testing.T) {
		for _, n := range []int{0, 10, large} {
			canceled, cancel := context.WithCancel(ctx)
			w, err := b.Create(ctx, "aborted/a", nil)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(randomBytes(1, n)); err != nil {
				t.Fatal(err)
			}
			w.Abort()
			if w, err = b.Create(canceled, "aborted/b", nil); err != nil {
				t.Fatal(err)
			}
			if _, err := w.Write(randomBytes(1, n)); err != nil {
				t.Fatal(err)
			}
			cancel()
			wantCode(t, w.Close(), fault.Canceled, b.Path("aborted/b"))
			wantCode(t, b.Put(canceled, "aborted/c", randomBytes(1, n), nil), fault.Canceled, b.Path("aborted/c"))
			_, err = b.Create(canceled, "aborted/d", nil)
			wantCode(t, err, fault.Canceled, b.Path("aborted/d"))
			if got := keys(t, b.List(ctx, "aborted/")); len(got) > 0 {
				t.Errorf("aborted writes of %d bytes left %q", n, got)
			}
		}
	})

	t.Run("ifnotexist", func(t *testing.T) {
		fresh := &blobio.PutOptions{IfNotExist: true}
		for _, n := range []int{10, large} {
			key := fmt.Sprintf("fresh/%d", n)
			first := randomBytes(1, n)
			if err := b.Put(ctx, key, first, fresh); err != nil {
				t.Fatal(err)
			}
			wantCode(t, b.Put(ctx, key, randomBytes(2, n), fresh), fault.Exists, b.Path(key))
			w, err := b.Create(ctx, key, fresh)
			if err != nil {
				t.Fatal(err)
			}
			if _, err = w.Write(randomBytes(3, n)); err == nil {
				err = w.Close()
			} else {
				w.Abort()
			}
			wantCode(t, err, fault.Exists, b.Path(key))
			if got, err := b.ReadAll(ctx, key, int64(n)); err != nil || !bytes.Equal(got, first) {
				t.Errorf("%d bytes: the first is gone: %v", n, err)
			}
		}
		// Of writers at once, one wins.
		var wg sync.WaitGroup
		var won atomic.Int64
		for i := range 8 {
			wg.Go(func() {
				err := b.Put(ctx, "fresh/race", []byte{byte(i)}, fresh)
				if err == nil {
					won.Add(1 + int64(i)<<8)
				} else {
					wantCode(t, err, fault.Exists, b.Path("fresh/race"))
				}
			})
		}
		wg.Wait()
		got, err := b.ReadAll(ctx, "fresh/race", 1)
		if w := won.Load(); err != nil || w&0xff != 1 || int64(got[0]) != w>>8 {
			t.Errorf("winners %#x, content %v, %v", w, got, err)
		}
	})

	t.Run("canceled", func(t *testing.T) {
		info := stat(t, b, "big/one.bin")
		canceled, cancel := context.WithCancelCause(ctx)
		cause := errors.New("enough")
		cancel(cause)
		o := b.Object(info, nil)
		_, err := o.ReadAt(canceled, make([]byte, 100), 0)
		if wantCode(t, err, fault.Canceled, b.Path(info.Key)); !errors.Is(err, cause) {
			t.Error(err)
		}
		_, err = o.Fetch(canceled, []blobio.Range{{Len: info.Size}}, memtest.New(t))
		wantCode(t, err, fault.Canceled, b.Path(info.Key))
		s := o.Stream(canceled, 0, info.Size)
		_, err = s.Read(make([]byte, 10))
		wantCode(t, err, fault.Canceled, b.Path(info.Key))
		s.Close()
		_, err = b.Stat(canceled, info.Key)
		wantCode(t, err, fault.Canceled, b.Path(info.Key))
		wantCode(t, b.Delete(canceled, info.Key), fault.Canceled, b.Path(info.Key))
	})

	t.Run("readerat", func(t *testing.T) {
		info := stat(t, b, "big/one.bin")
		r := io.NewSectionReader(blobio.ReaderAt(ctx, b.Object(info, nil)), 100, 1000)
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, randomBytes(1, size)[100:1100]) {
			t.Error(err)
		}
	})
}

// waitTick waits until an object written now has another time than info, where
// that is what tells them apart.
func waitTick(t *testing.T, b *blobio.Bucket, info blobio.Info) {
	t.Helper()
	p, ok := b.Local(info.Key)
	if strings.HasPrefix(b.Path(""), "gs:") || strings.HasPrefix(b.Path(""), "azblob:") {
		for put(t, b, "tick", nil).ModTime.Unix() == info.ModTime.Unix() {
		}
	}
	for ok {
		probe := p + ".tick"
		if err := os.WriteFile(probe, nil, 0o666); err != nil {
			t.Fatal(err)
		}
		fi, err := os.Stat(probe)
		if err != nil {
			t.Fatal(err)
		}
		os.Remove(probe)
		if fi.ModTime().After(info.ModTime) {
			return
		}
	}
}
