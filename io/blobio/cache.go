package blobio

import (
	"context"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-data/penstock/io/blobcache"
	"golang.org/x/sync/errgroup"
)

// fresh is the age up to which an object that has no version but the time of its last change is
// not cached: it may be replaced within the same tick of the service's clock.
const fresh = time.Minute

// name decides whether o is cached, and under which name: bucket URL, key, ETag, size, and
// the time of the last change where there is no ETag.
func (o *Object) name() {
	i := &o.info
	if o.b.cache == nil {
		return
	}
	version := i.ETag
	if version == "" && !i.ModTime.IsZero() {
		version = "t" + strconv.FormatInt(i.ModTime.UnixNano(), 16)
	}
	if version == "" || strings.HasPrefix(version, "t") && time.Since(i.ModTime) < fresh {
		return
	}
	o.id, o.cached = blobcache.MakeID(o.b.url, i.Key, version, strconv.FormatInt(i.Size, 10)), true
}

// inCache reports whether all of the ranges are in the cache, so that joining
// them over gaps would only cost.
func (o *Object) inCache(rs []Range) bool {
	if !o.cached {
		return false
	}
	for _, r := range rs {
		if !o.b.cache.Has(o.id, r.Off, r.Len) {
			return false
		}
	}
	return true
}

// read fills dst from off: from the cache, and where that has nothing, from the
// bucket, which the cache is then told.
func (o *Object) read(ctx context.Context, dst []byte, off int64) error {
	if !o.cached {
		return o.get(ctx, dst, off)
	}
	missing := o.b.cache.Read(ctx, o.id, dst, off)
	// What lies between two gaps is asked for with them where that is cheaper than another request.
	joined := missing[:0]
	for _, m := range missing {
		if n := len(joined) - 1; n >= 0 && int64(m.Off-joined[n].Off-joined[n].Len) <= o.b.o.Gap {
			joined[n].Len = m.Off + m.Len - joined[n].Off
			continue
		}
		joined = append(joined, m)
	}
	fetched := 0
	fetch := func(ctx context.Context, m blobcache.Span) error {
		part := dst[m.Off : m.Off+m.Len : m.Off+m.Len]
		if err := o.get(ctx, part, off+int64(m.Off)); err != nil {
			return err
		}
		o.b.cache.Write(o.id, part, off+int64(m.Off))
		return nil
	}
	for _, m := range joined {
		fetched += m.Len
	}
	o.count(func(s *Stats) { s.Cached.Add(int64(len(dst) - fetched)) })
	switch len(joined) {
	case 0:
		return nil
	case 1:
		return fetch(ctx, joined[0])
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, m := range joined {
		g.Go(func() error { return fetch(gctx, m) })
	}
	return g.Wait()
}
