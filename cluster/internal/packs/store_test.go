package packs

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// blob is a pack as far as a store is concerned: bytes and their hash.
func blob(seed, n int) (Hash, []byte) {
	r := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8)})
	b := make([]byte, n)
	r.Read(b)
	sum := sha256.Sum256(b)
	return Hash(hex.EncodeToString(sum[:])), b
}

func names(dir string) (out []string) {
	for _, e := range must(os.ReadDir(dir)) {
		out = append(out, e.Name())
	}
	return out
}

func TestStore(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "packs")
	s := must(OpenStore(dir, 0, Limits{Packed: 5000}))
	h, b := blob(1, 1000)
	if s.Has(h) {
		t.Error("has what nobody put")
	}
	_, _, err := s.Open(h)
	wants(t, err, fault.NotFound, string(h))
	for range 2 {
		if err := s.Put(t.Context(), h, bytes.NewReader(b)); err != nil {
			t.Fatal(err)
		}
	}
	r, n, err := s.Open(h)
	if err != nil || n != 1000 {
		t.Fatal(n, err)
	}
	if got, err := io.ReadAll(r); err != nil || !bytes.Equal(got, b) {
		t.Error("read:", err)
	}
	ok(r.Close())

	other, _ := blob(2, 1000)
	wants(t, s.Put(t.Context(), other, bytes.NewReader(b)), fault.Corrupt, string(other), string(h))
	big, bb := blob(3, 5001)
	wants(t, s.Put(t.Context(), big, bytes.NewReader(bb)), fault.Exhausted, "5000")
	wants(t, s.Put(t.Context(), other, io.MultiReader(bytes.NewReader(b[:500]), broken{})), fault.Unavailable, "broke")
	wants(t, s.Put(t.Context(), "../x", bytes.NewReader(b)), fault.Invalid)
	wants(t, s.Put(t.Context(), Hash(strings.ToUpper(string(other))), bytes.NewReader(b)), fault.Invalid)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	if err := s.Put(ctx, other, bytes.NewReader(b)); err == nil || err.Error() != "enough" {
		t.Error(err)
	}
	if got := names(dir); len(got) != 1 || got[0] != string(h) {
		t.Errorf("in the folder: %v", got)
	}

	// Damaged on disk: seen at the end of the read, and not had any more.
	ok(os.WriteFile(filepath.Join(dir, string(h)), append(bytes.Clone(b[:999]), b[999]^1), 0o600))
	r, _, err = s.Open(h)
	ok(err)
	_, err = io.ReadAll(r)
	wants(t, err, fault.Corrupt, "sent again")
	ok(r.Close())
	if s.Has(h) || len(names(dir)) != 0 {
		t.Error("it is still there")
	}
	// Removed under it.
	ok(s.Put(t.Context(), h, bytes.NewReader(b)))
	ok(os.Remove(filepath.Join(dir, string(h))))
	_, _, err = s.Open(h)
	wants(t, err, fault.NotFound)
	if s.Has(h) {
		t.Error("has what is gone")
	}
	ok(s.Put(t.Context(), h, bytes.NewReader(b)))
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, fault.New(fault.Unavailable, "the line broke") }

func TestStoreUnpacks(t *testing.T) {
	s := must(OpenStore(filepath.Join(t.TempDir(), "packs"), 0, Limits{}))
	src := write(t.TempDir(), sample)
	info := must(s.Create(t.Context(), src))
	if again := must(s.Create(t.Context(), src)); again != info || !s.Has(info.Hash) {
		t.Errorf("%+v, then %+v", info, again)
	}
	parent := t.TempDir()
	var wg sync.WaitGroup
	for i := range 4 { // a copy for each job
		wg.Go(func() { ok(s.Unpack(context.Background(), info.Hash, filepath.Join(parent, fmt.Sprint(i)))) })
	}
	wg.Wait()
	one := read(t, filepath.Join(parent, "0"))
	for i := range 4 {
		if got := read(t, filepath.Join(parent, fmt.Sprint(i))); got != one || len(one) < 100 {
			t.Errorf("copy %d differs", i)
		}
	}
	// A pack that is damaged where decompression does not see it: nothing is unpacked.
	path := filepath.Join(s.dir, string(info.Hash))
	ok(os.WriteFile(path, append(must(os.ReadFile(path)), skippable(20)...), 0o600))
	err := s.Unpack(t.Context(), info.Hash, filepath.Join(parent, "bad"))
	wants(t, err, fault.Corrupt, "damaged")
	if n := len(names(parent)); n != 4 || s.Has(info.Hash) {
		t.Errorf("left: %v", names(parent))
	}
}

func TestStoreRemovesTheOldest(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "packs")
	s := must(OpenStore(dir, 3500, Limits{}))
	var h [6]Hash
	put := func(i int) {
		var b []byte
		h[i], b = blob(i, 1000)
		ok(s.Put(t.Context(), h[i], bytes.NewReader(b)))
	}
	have := func(want ...bool) {
		t.Helper()
		for i, w := range want {
			if s.Has(h[i]) != w {
				t.Errorf("pack %d: has %v", i, !w)
			}
		}
	}
	put(0)
	put(1)
	put(2)
	r0, _, err := s.Open(h[0]) // used last, and in use
	ok(err)
	put(3)
	have(true, false, true, true)
	put(4)
	put(5)
	have(true, false, false, false, true, true)
	if got, err := io.ReadAll(r0); err != nil || len(got) != 1000 {
		t.Errorf("what is read is not removed: %v", err)
	}
	ok(r0.Close())
	r0.Close()
	if n := s.packs[h[0]].inUse; n != 0 {
		t.Errorf("in use %d times after Close, and another", n)
	}
	// A new process knows the order, and what an earlier one left half.
	ok(os.WriteFile(filepath.Join(dir, temp+"123"), []byte("half"), 0o600))
	ok(os.WriteFile(filepath.Join(dir, "README"), []byte("not ours"), 0o600))
	at := time.Unix(1e9, 0)
	for i, k := range []int{5, 0, 4} {
		ok(os.Chtimes(filepath.Join(dir, string(h[k])), at, at.Add(time.Duration(i)*time.Hour)))
	}
	s = must(OpenStore(dir, 2500, Limits{}))
	have(true, false, false, false, true, false)
	if got := names(dir); len(got) != 3 {
		t.Errorf("in the folder: %v", got)
	}
	// One larger than the limit is kept as long as it is the last.
	big, b := blob(9, 4000)
	ok(s.Put(t.Context(), big, bytes.NewReader(b)))
	if !s.Has(big) || s.bytes != 4000 {
		t.Errorf("has %v, %d bytes", s.Has(big), s.bytes)
	}
	put(1)
	if s.Has(big) || s.bytes != 1000 {
		t.Errorf("has %v, %d bytes", s.Has(big), s.bytes)
	}
}

// Many at once, of the same and other packs, with removal: whatever is opened reads as it should.
func TestStoreConcurrently(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "packs")
	s := must(OpenStore(dir, 20_000, Limits{}))
	var wg sync.WaitGroup
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 1))
			for range 100 {
				h, b := blob(r.IntN(12), 4000)
				ok(s.Put(context.Background(), h, bytes.NewReader(b)))
				f, _, err := s.Open(h)
				if fault.CodeOf(err) == fault.NotFound {
					continue // removed already
				}
				ok(err)
				if got, err := io.ReadAll(f); err != nil || !bytes.Equal(got, b) {
					t.Errorf("read: %v", err)
				}
				ok(f.Close())
			}
		})
	}
	wg.Wait()
	var size int64
	for _, n := range names(dir) {
		if _, err := ParseHash(n); err != nil {
			t.Errorf("left: %s", n)
		}
		size += must(os.Stat(filepath.Join(dir, n))).Size()
	}
	if size != s.bytes || size > 20_000 {
		t.Errorf("%d bytes on disk, %d counted", size, s.bytes)
	}
}

const childEnv = "PACKS_TEST_STORE"

// child puts packs until it is killed; it says when it has begun.
func child(dir string) {
	s := must(OpenStore(dir, 0, Limits{}))
	for i := 0; ; i++ {
		h, b := blob(i, 200_000)
		if i == 3 {
			fmt.Println("ready")
		}
		ok(s.Put(context.Background(), h, bytes.NewReader(b)))
	}
}

// packAs packs a folder as a user to whom permissions mean something.
func packAs(t *testing.T, dir string) ([]byte, Info, error) {
	t.Helper()
	if os.Geteuid() != 0 {
		return pack(t, dir, Limits{})
	}
	// Root reads everything: give the file system's identity of this thread away for the call.
	var raw []byte
	var info Info
	var err error
	asNobody(t, dir, func() { raw, info, err = pack(t, dir, Limits{}) })
	return raw, info, err
}

func TestKilled(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "packs")
	for round := range 5 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childEnv+"="+dir)
		out := must(cmd.StdoutPipe())
		ok(cmd.Start())
		must(io.ReadFull(out, make([]byte, 5)))
		ok(cmd.Process.Signal(syscall.SIGKILL))
		cmd.Wait()
		for _, n := range names(dir) {
			if strings.HasPrefix(n, temp) {
				continue
			}
			sum := sha256.Sum256(must(os.ReadFile(filepath.Join(dir, n))))
			if hex.EncodeToString(sum[:]) != n {
				t.Fatalf("round %d: half a pack %s", round, n)
			}
		}
		s := must(OpenStore(dir, 0, Limits{}))
		for _, n := range names(dir) {
			if strings.HasPrefix(n, temp) || !s.Has(Hash(n)) {
				t.Fatalf("round %d: left %s", round, n)
			}
			ok(os.Remove(filepath.Join(dir, n)))
		}
	}
}

// What is held stays until it is let go as often, whatever comes; what does not fit beside it is refused.
func TestStoreHolds(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "packs")
	s := must(OpenStore(dir, 2500, Limits{}))
	var h [7]Hash
	put := func(i, size int) error {
		var b []byte
		h[i], b = blob(i, size)
		return s.Put(t.Context(), h[i], bytes.NewReader(b))
	}
	have := func(want ...bool) {
		t.Helper()
		for i, w := range want {
			if s.Has(h[i]) != w {
				t.Errorf("pack %d: has %v", i, !w)
			}
		}
	}
	none, _ := blob(99, 1)
	wants(t, s.Hold(none), fault.NotFound, string(none), "send it first")
	ok(put(0, 1000))
	ok(s.Hold(h[0]))
	ok(s.Hold(h[0]))
	ok(put(1, 1000))
	ok(put(2, 1000))
	have(true, false, true)
	s.Release(h[0])
	ok(put(3, 1000))
	have(true, false, false, true)
	ok(s.Hold(h[3]))
	wants(t, put(4, 501), fault.Exhausted, "a pack of 501 bytes", "take 2000 of 2500", "wait until some have ended, or stop some")
	have(true, false, false, true, false)
	ok(put(5, 500))
	have(true, false, false, true, false, true)
	if got := names(dir); len(got) != 3 {
		t.Errorf("in the folder: %v", got)
	}
	// A new process is told what is held before it removes anything. What is not there can come.
	at := time.Unix(1e9, 0)
	ok(os.Chtimes(filepath.Join(dir, string(h[0])), at, at))
	s = must(OpenStore(dir, 1200, Limits{}, h[0], h[4]))
	have(true, false, false, false, false, true) // the last used one may be more than the limit
	wants(t, put(1, 500), fault.Exhausted)
	ok(put(4, 501))
	have(true, false, false, false, true, false) // it is wanted: the limit is not looked at
	s.Release(h[0])
	have(false, false, false, false, true, false)
	s.Release(h[4])
	ok(put(6, 1000))
	have(false, false, false, false, false, false, true)
	if len(s.holds) != 0 {
		t.Errorf("held: %v", s.holds)
	}
}
