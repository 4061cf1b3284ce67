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

// name decides whether o is cached, and under which name: bucket URL and the server that
// it means, key, ETag, size, and the time of the last change where there is no ETag.
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
	o.id, o.cached = blobcache.MakeID(o.b.url, o.b.server, i.Key, version, strconv.FormatInt(i.Size, 10)), true
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
// bucket, which the cache is then told. What another read is fetching is waited for.
func (o *Object) read(ctx context.Context, dst []byte, off int64) error {
	if !o.cached {
		return o.get(ctx, dst, off)
	}
	cache := o.b.cache
	missing := join(cache.Read(ctx, o.id, dst, off), o.b.o.Gap)
	mine, theirs, done := cache.Claim(o.id, missing, off)
	fetched, err := func() (int64, error) {
		defer done()
		return o.fetchSpans(ctx, o.stillMissing(ctx, mine, dst, off), dst, off)
	}()
	if err != nil {
		return err
	}
	var left []blobcache.Span // that the others did not get, or the cache did not take
	for _, w := range theirs {
		select {
		case <-w.Done:
		case <-ctx.Done():
			return o.b.canceled(ctx, o.info.Key)
		}
		for _, m := range cache.Read(ctx, o.id, dst[w.Off:w.Off+w.Len], off+int64(w.Off)) {
			left = append(left, blobcache.Span{Off: w.Off + m.Off, Len: m.Len})
		}
	}
	more, err := o.fetchSpans(ctx, join(left, 0), dst, off) // not what lies between: that was fetched, and counted
	if err != nil {
		return err
	}
	o.count(func(s *Stats) { s.Cached.Add(int64(len(dst)) - fetched - more) })
	return nil
}

// stillMissing reads those of spans, which were missing a moment ago, that another read has put into the cache since, and returns the rest.
func (o *Object) stillMissing(ctx context.Context, spans []blobcache.Span, dst []byte, off int64) []blobcache.Span {
	var left []blobcache.Span
	for _, m := range spans {
		if !o.b.cache.Has(o.id, off+int64(m.Off), int64(m.Len)) {
			left = append(left, m)
			continue
		}
		for _, k := range o.b.cache.Read(ctx, o.id, dst[m.Off:m.Off+m.Len], off+int64(m.Off)) {
			left = append(left, blobcache.Span{Off: m.Off + k.Off, Len: k.Len})
		}
	}
	return left
}

// join puts spans together that have no more than gap bytes between them, which is cheaper to ask for than another request.
func join(spans []blobcache.Span, gap int64) []blobcache.Span {
	joined := spans[:0]
	for _, m := range spans {
		if n := len(joined) - 1; n >= 0 && int64(m.Off-joined[n].Off-joined[n].Len) <= gap {
			joined[n].Len = m.Off + m.Len - joined[n].Off
			continue
		}
		joined = append(joined, m)
	}
	return joined
}

// fetchSpans fetches spans of dst, in parallel, and tells the cache. It returns how many bytes they are.
func (o *Object) fetchSpans(ctx context.Context, spans []blobcache.Span, dst []byte, off int64) (fetched int64, err error) {
	fetch := func(ctx context.Context, m blobcache.Span) error {
		part := dst[m.Off : m.Off+m.Len : m.Off+m.Len]
		if err := o.get(ctx, part, off+int64(m.Off)); err != nil {
			return err
		}
		o.b.cache.Write(o.id, part, off+int64(m.Off))
		return nil
	}
	for _, m := range spans {
		fetched += int64(m.Len)
	}
	switch len(spans) {
	case 0:
		return 0, nil
	case 1:
		return fetched, fetch(ctx, spans[0])
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, m := range spans {
		g.Go(func() error { return fetch(gctx, m) })
	}
	return fetched, g.Wait()
}
