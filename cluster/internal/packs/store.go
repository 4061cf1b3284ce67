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
	holds map[Hash]int     // that are not removed for others, whether they are there or not
	bytes int64            // of all packs
	half  map[string]int64 // bytes of those that are being written, by the key of who sends them
	taken map[string]int64 // bytes of those that are there, by the keys of their shares
	uses  int64            // counts, for which was used last
}

type kept struct {
	size  int64
	used  int64
	inUse int      // readers: not removed meanwhile
	of    []string // keys of the shares that it takes room of; none: it was there when the store was opened, and nobody has asked for it since
}

// Share is whose room a pack takes. Packs of one share never push out those of another: what has to
// go is of whoever has most.
type Share struct {
	Key  string
	Most int64  // bytes of all its packs
	Of   string // what errors call it, with who can raise Most
}

const temp = ".tmp-"

// OpenStore opens the store in dir, which it makes (mode 0700) where there is none, and removes what an earlier process left half written. limit is how many bytes of packs are kept: beyond it
// those that were used longest ago are removed, but for what is held; 0 is no limit. Each of held is held once, as by Hold, whether it is there or not.
func OpenStore(dir string, limit int64, l Limits, held ...Hash) (*Store, error) {
	s := &Store{dir: dir, limit: limit, limits: l.orDefault(), packs: map[Hash]*kept{}, holds: map[Hash]int{}, half: map[string]int64{}, taken: map[string]int64{}}
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

// HasOf says whether the store has a pack that who has the key has sent, or a job of his has needed
// since the store was opened: who only knows a hash has no part of it.
func (s *Store) HasOf(key string, h Hash) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	p := s.packs[h]
	return p != nil && slices.Contains(p.of, key)
}

// Share adds the keys of shares to a pack, which may not be there.
func (s *Store) Share(h Hash, keys ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.packs[h]; p != nil {
		s.share(p, keys)
	}
}

// Bytes are those of the packs of a share.
func (s *Store) Bytes(key string) int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.taken[key]
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
// Packs that are being written may take as much again as the store's limit (or one pack's, where that is more), those of one sender half of that; what does not fit, there, in the shares, beside what is held or on the disk, is [fault.Exhausted].
// What is there and takes no room of the first share yet is read all the same: who sends it has it.
func (s *Store) Put(ctx context.Context, h Hash, r io.Reader, shares ...Share) error {
	if _, err := ParseHash(string(h)); err != nil {
		return err
	}
	if len(shares) == 0 && s.Has(h) || len(shares) > 0 && s.HasOf(shares[0].Key, h) {
		return nil
	}
	return s.write(shares, func(w io.Writer) (Hash, error) {
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
	err = s.write(nil, func(w io.Writer) (Hash, error) {
		info, err = Create(ctx, dir, w, s.limits)
		return info.Hash, err
	})
	return info, err
}

// write has fill write a new file, and puts it under the name that fill gives.
func (s *Store) write(shares []Share, fill func(io.Writer) (Hash, error)) error {
	f, err := os.CreateTemp(s.dir, temp)
	if err != nil {
		return place(s.dir, full(err))
	}
	defer os.Remove(f.Name()) // after the rename there is none
	out := &writing{f: f, s: s}
	var keys []string
	for _, x := range shares {
		keys = append(keys, x.Key)
	}
	if len(keys) > 0 {
		out.key = keys[0]
	}
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
	if err := s.fit(h, fi.Size(), shares); err != nil {
		return err
	}
	if p := s.packs[h]; p != nil { // another was faster, or had it before
		s.share(p, keys)
		return nil
	}
	if err := s.room(h, fi.Size()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), s.path(h)); err != nil {
		return place(s.dir, err)
	}
	s.add(h, fi.Size())
	s.share(s.packs[h], keys)
	err = syncDir(s.dir)
	s.trim()
	return err
}

// writing counts what is on disk of packs that are not there yet.
type writing struct {
	f   *os.File
	s   *Store
	key string // of who sends it
	n   int64
}

func (w *writing) Write(b []byte) (int, error) {
	w.s.mu.Lock()
	var all int64
	for _, n := range w.s.half {
		all += n
	}
	n := int64(len(b))
	if w.s.limit > 0 && (all+n > max(w.s.limit, w.s.limits.Packed) || w.key != "" && w.s.half[w.key]+n > max(w.s.limit/2, w.s.limits.Packed)) {
		w.s.mu.Unlock()
		return 0, fault.New(fault.Exhausted, "too many packs are being stored at once: try again")
	}
	w.s.half[w.key] += n
	w.n += int64(len(b))
	w.s.mu.Unlock()
	return w.f.Write(b)
}

func (w *writing) done() {
	w.s.mu.Lock()
	if w.s.half[w.key] -= w.n; w.s.half[w.key] == 0 {
		delete(w.s.half, w.key)
	}
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

// fit makes room for a pack in the shares that it is to take room of, by taking others of theirs
// out that nobody needs; where that is not enough it is an error.
func (s *Store) fit(h Hash, size int64, shares []Share) error {
	if p := s.packs[h]; p != nil {
		shares = slices.DeleteFunc(slices.Clone(shares), func(x Share) bool { return slices.Contains(p.of, x.Key) })
	}
	for _, x := range shares {
		for s.taken[x.Key] > x.Most-size {
			oldest := s.oldest(func(other Hash, p *kept) bool { return other != h && slices.Contains(p.of, x.Key) })
			if oldest == "" {
				return fault.New(fault.Exhausted, "a pack of %d bytes does not fit: those of jobs that wait or run take %d of %d bytes of %s", size, s.taken[x.Key], x.Most, x.Of)
			}
			p := s.packs[oldest]
			p.of = slices.DeleteFunc(p.of, func(k string) bool { return k == x.Key })
			s.taken[x.Key] -= p.size
			if len(p.of) == 0 && !s.remove(oldest) {
				return fault.New(fault.Unavailable, "pack %s cannot be removed: see the folder %s", oldest, s.dir)
			}
		}
	}
	return nil
}

// share adds keys to a pack.
func (s *Store) share(p *kept, keys []string) {
	for _, k := range keys {
		if !slices.Contains(p.of, k) {
			p.of = append(p.of, k)
			s.taken[k] += p.size
		}
	}
}

// oldest is the pack that was used longest ago of those that may be removed.
func (s *Store) oldest(of func(Hash, *kept) bool) (oldest Hash) {
	for h, p := range s.packs {
		if p.inUse == 0 && s.holds[h] == 0 && (oldest == "" || p.used < s.packs[oldest].used) && of(h, p) {
			oldest = h
		}
	}
	return oldest
}

// add, drop, remove, touch, trim, room, fit, share and oldest want the lock.
func (s *Store) add(h Hash, size int64) {
	s.uses++
	s.packs[h] = &kept{size: size, used: s.uses}
	s.bytes += size
}

func (s *Store) drop(h Hash) {
	p := s.packs[h]
	s.bytes -= p.size
	for _, k := range p.of {
		if s.taken[k] -= p.size; s.taken[k] == 0 {
			delete(s.taken, k)
		}
	}
	delete(s.packs, h)
}

// remove says whether it could.
func (s *Store) remove(h Hash) bool {
	if err := os.Remove(s.path(h)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false
	}
	s.drop(h)
	return true
}

// touch makes it the last used, in the file system too: another process goes on from there.
func (s *Store) touch(h Hash, p *kept) {
	s.uses++
	p.used = s.uses
	now := time.Now()
	os.Chtimes(s.path(h), now, now) // only an order of removal is lost
}

// trim removes packs until the limit is kept, but for the last used one and those that are read or
// held: those that nobody asked for, then those of the share that has most.
func (s *Store) trim() {
	for s.limit > 0 && s.bytes > s.limit {
		free := func(p *kept) bool { return p.used != s.uses }
		oldest := s.oldest(func(_ Hash, p *kept) bool { return free(p) && len(p.of) == 0 })
		if oldest == "" {
			var most string
			for h, p := range s.packs { // of those that have something that may go
				if p.inUse == 0 && s.holds[h] == 0 && free(p) && (most == "" || s.taken[p.of[0]] > s.taken[most]) {
					most = p.of[0]
				}
			}
			oldest = s.oldest(func(_ Hash, p *kept) bool { return free(p) && len(p.of) > 0 && p.of[0] == most })
		}
		if oldest == "" || !s.remove(oldest) {
			return // it stays, and is tried again at the next
		}
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
