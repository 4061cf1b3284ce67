package parquetio

import (
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
)

// One zstd decoder in ten is nearly twice as slow as the others, for as long as it
// lives: it depends on where its tables lie in memory, and shows on dense data only.
// So every decoder is compared with a new one now and then, on pages that it decodes
// anyway, and the slower of the two is dropped.
const (
	trialRounds = 3        // pages that are timed
	trialBytes  = 16 << 10 // smaller pages do not count
	trialFirst  = 64       // pages before the first trial; then four times as many
	trialLast   = 4096     // but not more
	trialSlower = 1.25     // how much slower loses
)

// zstdFunc decodes all frames of src into dst[:0], never beyond its capacity.
type zstdFunc func(src, dst []byte) ([]byte, error)

// newZstd makes a decoder. It verifies checksums of frames: few writers give pages
// one of their own.
func newZstd() (zstdFunc, error) {
	d, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecodeAllCapLimit(true))
	if err != nil {
		return nil, err
	}
	return d.DecodeAll, nil
}

// zstdPool keeps decoders that nobody uses, as many as there are processors at most.
// Safe for concurrent use.
type zstdPool struct {
	fresh func() (zstdFunc, error)

	mu   sync.Mutex
	idle []*zstdDecoder // the last is used first
}

var zstds = zstdPool{fresh: newZstd}

// decode is zstdFunc by one of the decoders.
func (p *zstdPool) decode(src, dst []byte) ([]byte, error) {
	d, err := p.get()
	if err != nil {
		return nil, err
	}
	out, err := d.decode(src, dst)
	if err != nil {
		return nil, err // the decoder goes, whatever state it is in
	}
	if len(out) >= trialBytes {
		if d.pages++; d.pages >= d.due {
			out, err = d.try(p.fresh, src, dst)
		}
	}
	p.put(d)
	return out, err
}

func (p *zstdPool) get() (*zstdDecoder, error) {
	p.mu.Lock()
	if n := len(p.idle); n > 0 {
		d := p.idle[n-1]
		p.idle = p.idle[:n-1]
		p.mu.Unlock()
		return d, nil
	}
	p.mu.Unlock()
	f, err := p.fresh()
	return &zstdDecoder{decode: f, due: trialFirst}, err
}

func (p *zstdPool) put(d *zstdDecoder) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) < runtime.GOMAXPROCS(0) {
		p.idle = append(p.idle, d)
	}
}

// zstdDecoder is used by one goroutine at a time.
type zstdDecoder struct {
	decode zstdFunc
	pages  int // since the last trial
	due    int // when the next begins

	rival zstdFunc // while a trial runs
	times [2][]time.Duration
}

// try decodes a page once more, which d has just decoded, with the rival and with d:
// both find it in the cache. After enough pages it keeps the faster of the two.
func (d *zstdDecoder) try(fresh func() (zstdFunc, error), src, dst []byte) ([]byte, error) {
	if d.rival == nil {
		f, err := fresh()
		if err != nil {
			return nil, err
		}
		d.rival, d.times = f, [2][]time.Duration{}
		if out, err := f(src, dst); err != nil { // its first page takes longer
			return out, err
		}
	}
	var out []byte
	for i, f := range []zstdFunc{d.rival, d.decode} {
		begin := time.Now()
		var err error
		if out, err = f(src, dst); err != nil {
			return out, err
		}
		d.times[i] = append(d.times[i], time.Since(begin))
	}
	if len(d.times[0]) == trialRounds {
		for _, t := range d.times {
			slices.Sort(t)
		}
		rival, own := d.times[0][trialRounds/2], d.times[1][trialRounds/2]
		if float64(own) > trialSlower*float64(rival) {
			d.decode = d.rival
		}
		d.rival, d.pages, d.due = nil, 0, min(4*d.due, trialLast)
	}
	return out, nil
}
