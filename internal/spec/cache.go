package spec

import "github.com/penstock-data/penstock/io/blobcache"

// Cache is local disk for what is fetched from buckets.
type Cache struct {
	Dir string `json:"dir" doc:"folder on a local disk; made if need be" required:"true"`
	Max Size   `json:"max" doc:"most bytes that it takes there, e.g. 100GiB, at least 32MiB; processes that share the folder should give the same" required:"true" min:"33554432"`
}

// Cache is that of run.cache, for all sources of the spec: the same one in every call; nil if there is none. No I/O. Close
// it at the end. Not safe for concurrent use.
func (s *Spec) Cache() (*blobcache.Cache, error) {
	if s.cache == nil && s.Run.Cache != nil {
		c, err := blobcache.New(blobcache.Options{Dir: s.Run.Cache.Dir, Max: int64(s.Run.Cache.Max), Warn: s.warn})
		if err != nil {
			return nil, s.at("run.cache", err)
		}
		s.cache = c
	}
	return s.cache, nil
}

// OnWarning has f told, at most once each, of what a run can do without and has to, such as a cache that cannot be used. Call it
// before Dataset and Cache; f may be called from any goroutine.
func (s *Spec) OnWarning(f func(error)) { s.warn = f }
