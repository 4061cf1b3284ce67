package parquetio

import (
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

const (
	leastPut = 1 << 20  // bytes of a page from which it is put on disk rather than decompressed again
	hugePage = 32 << 20 // one that a reader of little memory (ScanOptions.AheadBytes) never keeps in memory
)

// huge lets pages of hugePage be decompressed one at a time.
var huge sync.Mutex

// pageFile is a page, decompressed, in a file without a name: mapped while it is used, of which only what is touched
// takes memory.
type pageFile struct {
	pos  int64 // of the page in its file
	f    *os.File
	size int
	view []byte // nil: not mapped
}

// put writes page to a new file; false where that cannot be: then it is decompressed again when it is needed.
func (p *pageFile) put(pos int64, page []byte) bool {
	p.close()
	f, err := os.CreateTemp("", "penstock-page-*")
	if err != nil {
		return false
	}
	_ = os.Remove(f.Name()) // its space lives as long as f
	if _, err := f.Write(page); err != nil {
		f.Close()
		return false
	}
	p.pos, p.f, p.size = pos, f, len(page)
	return true
}

// bytes maps the page at pos; nil if that is not the one, or it cannot be.
func (p *pageFile) bytes(pos int64) []byte {
	if p.f == nil || p.pos != pos {
		return nil
	}
	if p.view == nil {
		view, err := unix.Mmap(int(p.f.Fd()), 0, p.size, unix.PROT_READ, unix.MAP_SHARED)
		if err != nil {
			return nil
		}
		p.view = view
	}
	return p.view
}

// holds reports whether at is an address inside the mapped page.
func (p *pageFile) holds(at uintptr) bool {
	return len(p.view) > 0 && at-address(p.view) < uintptr(len(p.view))
}

// forget gives back the memory of what was touched; the mapping stays.
func (p *pageFile) forget() {
	if p.view != nil {
		_ = unix.Madvise(p.view, unix.MADV_DONTNEED) // a hint: the pages are the file's
	}
}

func (p *pageFile) unmap() {
	if p.view != nil {
		_ = unix.Munmap(p.view) // only a wrong address is refused
		p.view = nil
	}
}

func (p *pageFile) close() {
	p.unmap()
	if p.f != nil {
		_ = p.f.Close() // it is gone with it
		p.f = nil
	}
}

// putPage moves the page at pos, which is c's page in memory, to disk and returns it from there; body itself if it cannot be.
func (c *column) putPage(pos int64, body []byte) []byte {
	if !c.out.put(pos, body) {
		return body
	}
	view := c.out.bytes(pos)
	if view == nil {
		c.out.close()
		return body
	}
	shared := c.d.user == c
	c.d.freePage(c)
	if shared {
		c.d.freeShared()
	}
	return view
}

func (d *decoder) freeShared() {
	d.freeStage()
	if d.shared != nil {
		d.acct.alloc.Free(d.shared)
		d.shared = nil
	}
}

// Kept implements driver.Rester: pages and what was decoded ahead, and of local files what was read.
func (r *reader) Kept() int64 {
	if r.dec == nil {
		return 0
	}
	n := r.dec.kept + int64(len(r.dec.shared)+len(r.dec.stage))
	for _, c := range r.dec.cols {
		for _, x := range c.ready {
			n += x.o.bytes()
		}
		if n += int64(len(c.out.view)); c.win.f.fetch == nil {
			n += int64(len(c.win.mem) + len(c.win.view.Bytes()))
		}
	}
	return n
}

// Shrink implements driver.Rester. Columns come back to their place in a page by decompressing it again, those in large ones
// from disk; nothing is fetched again from a bucket.
func (r *reader) Shrink() {
	d := r.dec
	if d == nil {
		return
	}
	for _, c := range d.cols {
		c.dropReady()
		if c.slices.open {
			continue // its values lie in the window
		}
		if len(c.body) >= leastPut && (c.mem != nil || d.user == c) {
			c.putPage(c.page.pos, c.body)
		}
		d.freePage(c)
		c.out.unmap()
		if c.win.f.fetch == nil {
			c.win.unmap()
			c.win.freeMem()
		}
	}
	d.freeShared()
}
