package packs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Store keeps packs by their hash in a folder, one file each. It may be used by many goroutines; a folder belongs to one Store of one process.
type Store struct {
	dir    string
	limit  int64
	limits Limits

	mu    sync.Mutex
	packs map[Hash]*kept
	holds map[Hash]int // that are not removed for others, whether they are there or not
	bytes int64        // of all packs
	half  int64        // bytes of those that are being written
	uses  int64        // counts, for which was used last
}

type kept struct {
	size  int64
	used  int64
	inUse int // readers: not removed meanwhile
}

const temp = ".tmp-"

// OpenStore opens the store in dir, which it makes (mode 0700) where there is none, and removes what an earlier process left half written. limit is how many bytes of packs are kept: beyond it
// those that were used longest ago are removed, but for what is held; 0 is no limit. Each of held is held once, as by Hold, whether it is there or not.
func OpenStore(dir string, limit int64, l Limits, held ...Hash) (*Store, error) {
	s := &Store{dir: dir, limit: limit, limits: l.orDefault(), packs: map[Hash]*kept{}, holds: map[Hash]int{}}
	for _, h := range held {
		s.holds[h]++
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, place(dir, err)
	}
	list, err := os.ReadDir(dir)
	if err != nil {
		return nil, place(dir, err)
	}
	type found struct {
		h    Hash
		at   time.Time
		size int64
	}
	var all []found
	for _, e := range list {
		path := filepath.Join(dir, e.Name())
		if strings.HasPrefix(e.Name(), temp) {
			if err := os.Remove(path); err != nil {
				return nil, place(path, err)
			}
			continue
		}
		h, err := ParseHash(e.Name())
		if err != nil || !e.Type().IsRegular() {
			continue // not ours
		}
		fi, err := e.Info()
		if err != nil {
			return nil, place(path, err)
		}
		all = append(all, found{h, fi.ModTime(), fi.Size()})
	}
	slices.SortFunc(all, func(a, b found) int {
		if c := a.at.Compare(b.at); c != 0 {
			return c
		}
		return strings.Compare(string(a.h), string(b.h))
	})
	for _, f := range all {
		s.add(f.h, f.size)
	}
	s.trim()
	return s, nil
}

// Has says whether the store has a pack.
func (s *Store) Has(h Hash) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.packs[h] != nil
}

// Hold keeps a pack until Release was called as often as Hold: it is not removed for others. What is not there is [fault.NotFound], and not held.
func (s *Store) Hold(h Hash) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.packs[h]
	if p == nil {
		return fault.New(fault.NotFound, "there is no pack %s: send it first", h)
	}
	s.holds[h]++
	s.touch(h, p)
	return nil
}

// Release ends one Hold.
func (s *Store) Release(h Hash) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.holds[h]--; s.holds[h] <= 0 {
		delete(s.holds, h)
	}
	s.trim()
}

// Put keeps the pack that r reads to its end, if it is that of h. It is there complete or not at all. What is there already is not written again, nor is r read.
// Packs that are being written may take as much again as the store's limit (or one pack's, where that is more); what does not fit, there, beside what is held or on the disk, is [fault.Exhausted].
func (s *Store) Put(ctx context.Context, h Hash, r io.Reader) error {
	if _, err := ParseHash(string(h)); err != nil {
		return err
	}
	if s.Has(h) {
		return nil
	}
	return s.write(func(w io.Writer) (Hash, error) {
		sum := sha256.New()
		n, err := io.Copy(io.MultiWriter(w, sum), io.LimitReader(reader{ctx, r}, s.limits.Packed+1))
		if err != nil {
			return "", err
		}
		if n > s.limits.Packed {
			return "", fault.New(fault.Exhausted, "the pack has more than %d bytes", s.limits.Packed)
		}
		if got := hex.EncodeToString(sum.Sum(nil)); got != string(h) {
			return "", fault.New(fault.Corrupt, "the pack that came as %s is %s: it was damaged on its way, or is not what it says; send it again", h, got)
		}
		return h, nil
	})
}

// Create packs a folder into the store.
func (s *Store) Create(ctx context.Context, dir string) (info Info, err error) {
	err = s.write(func(w io.Writer) (Hash, error) {
		info, err = Create(ctx, dir, w, s.limits)
		return info.Hash, err
	})
	return info, err
}

// write has fill write a new file, and puts it under the name that fill gives.
func (s *Store) write(fill func(io.Writer) (Hash, error)) error {
	f, err := os.CreateTemp(s.dir, temp)
	if err != nil {
		return place(s.dir, full(err))
	}
	defer os.Remove(f.Name()) // after the rename there is none
	out := &writing{f: f, s: s}
	defer out.done()
	h, err := fill(out)
	if err == nil {
		err = f.Sync()
	}
	fi, e := f.Stat()
	if err == nil {
		err = e
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return full(err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.packs[h] != nil {
		return nil // another was faster
	}
	if err := s.room(h, fi.Size()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), s.path(h)); err != nil {
		return place(s.dir, err)
	}
	s.add(h, fi.Size())
	err = syncDir(s.dir)
	s.trim()
	return err
}

// writing counts what is on disk of packs that are not there yet.
type writing struct {
	f *os.File
	s *Store
	n int64
}

func (w *writing) Write(b []byte) (int, error) {
	w.s.mu.Lock()
	if w.s.limit > 0 && w.s.half+int64(len(b)) > max(w.s.limit, w.s.limits.Packed) {
		w.s.mu.Unlock()
		return 0, fault.New(fault.Exhausted, "too many packs are being stored at once: try again")
	}
	w.s.half += int64(len(b))
	w.n += int64(len(b))
	w.s.mu.Unlock()
	return w.f.Write(b)
}

func (w *writing) done() {
	w.s.mu.Lock()
	w.s.half -= w.n
	w.s.mu.Unlock()
}

// Open reads a pack. At its end Read gives [fault.Corrupt] in place of io.EOF if the bytes are not those of the hash, and the store forgets it. The caller closes it.
func (s *Store) Open(h Hash) (io.ReadCloser, int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.packs[h]
	if p == nil {
		return nil, 0, fault.New(fault.NotFound, "there is no pack %s", h)
	}
	f, err := os.Open(s.path(h))
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) { // somebody removed it
			s.drop(h)
		}
		return nil, 0, place(s.path(h), err)
	}
	s.touch(h, p)
	p.inUse++
	return &verified{s: s, h: h, p: p, f: f, sum: sha256.New()}, p.size, nil
}

// Unpack makes the new folder dir from a pack of the store, after it has been read in full and found to be that of its hash.
func (s *Store) Unpack(ctx context.Context, h Hash, dir string) error {
	r, _, err := s.Open(h)
	if err != nil {
		return err
	}
	defer r.Close()
	return Unpack(ctx, r, dir, s.limits)
}

func (s *Store) path(h Hash) string { return filepath.Join(s.dir, string(h)) }

// room is an error where a pack does not fit beside those that are held. One that is held itself is wanted, and where nothing is held each has room.
func (s *Store) room(h Hash, size int64) error {
	var held int64
	for h := range s.holds {
		if p := s.packs[h]; p != nil {
			held += p.size
		}
	}
	if s.limit > 0 && s.holds[h] == 0 && held > 0 && held+size > s.limit {
		return fault.New(fault.Exhausted, "a pack of %d bytes does not fit: those of jobs that wait or run take %d of %d; wait until some have ended, or stop some", size, held, s.limit)
	}
	return nil
}

// add, drop, touch, trim and room want the lock.
func (s *Store) add(h Hash, size int64) {
	s.uses++
	s.packs[h] = &kept{size: size, used: s.uses}
	s.bytes += size
}

func (s *Store) drop(h Hash) {
	s.bytes -= s.packs[h].size
	delete(s.packs, h)
}

// touch makes it the last used, in the file system too: another process goes on from there.
func (s *Store) touch(h Hash, p *kept) {
	s.uses++
	p.used = s.uses
	now := time.Now()
	os.Chtimes(s.path(h), now, now) // only an order of removal is lost
}

// trim removes packs until the limit is kept, but for the last used one and those that are read or held.
func (s *Store) trim() {
	for s.limit > 0 && s.bytes > s.limit {
		var oldest Hash
		for h, p := range s.packs {
			if p.inUse == 0 && s.holds[h] == 0 && p.used != s.uses && (oldest == "" || p.used < s.packs[oldest].used) {
				oldest = h
			}
		}
		if oldest == "" {
			return
		}
		if err := os.Remove(s.path(oldest)); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return // it stays, and is tried again at the next
		}
		s.drop(oldest)
	}
}

// verified reads a pack and judges it at its end.
type verified struct {
	s    *Store
	h    Hash
	p    *kept
	f    *os.File
	sum  hash.Hash
	once sync.Once
}

func (v *verified) Read(b []byte) (int, error) {
	n, err := v.f.Read(b)
	v.sum.Write(b[:n])
	if err == io.EOF && hex.EncodeToString(v.sum.Sum(nil)) != string(v.h) {
		v.s.mu.Lock()
		if v.s.packs[v.h] == v.p {
			v.s.drop(v.h)
			os.Remove(v.s.path(v.h))
		}
		v.s.mu.Unlock()
		err = fault.New(fault.Corrupt, "the pack is damaged: it was removed and is to be sent again").At(fault.Place{File: v.s.path(v.h)})
	}
	return n, err
}

func (v *verified) Close() error {
	v.once.Do(func() {
		v.s.mu.Lock()
		v.p.inUse--
		v.s.trim()
		v.s.mu.Unlock()
	})
	return v.f.Close()
}

// reader ends with the context.
type reader struct {
	ctx context.Context
	r   io.Reader
}

func (r reader) Read(b []byte) (int, error) {
	if err := r.ctx.Err(); err != nil {
		return 0, context.Cause(r.ctx)
	}
	return r.r.Read(b)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return place(dir, err)
	}
	defer d.Close()
	return place(dir, d.Sync())
}

func place(path string, err error) error { return fault.Wrap(err, fault.Place{File: path}) }
