package store

import (
	"crypto/sha256"
	"fmt"
	"hash"
	"regexp"
	"strings"

	"github.com/zeebo/xxh3"
)

// Sums of files are XXH3 of 128 bits: they find damage (torn, swapped or flipped bytes; one in
// 2^128 is missed) at the speed of memory, so that they cost an upload nothing. They do not hold
// against somebody who forges a file; who may write to the storage can forge manifests as well. In
// a run whose records are sealed ([EnvKey]), where manifests cannot be forged, they are SHA-256.
const (
	fastPrefix   = "xxh3:"
	strongPrefix = "sha256:"
)

var sumRE = regexp.MustCompile(`^(xxh3:[0-9a-f]{32}|sha256:[0-9a-f]{64})$`)

// sum computes one.
type sum struct {
	fast   *xxh3.Hasher
	strong hash.Hash // nil: fast
}

func newSum(strong bool) sum {
	if strong {
		return sum{strong: sha256.New()}
	}
	return sum{fast: xxh3.New()}
}

// sumLike computes one that can be compared with text.
func sumLike(text string) sum { return newSum(strings.HasPrefix(text, strongPrefix)) }

func (s sum) Write(p []byte) (int, error) {
	if s.strong != nil {
		return s.strong.Write(p)
	}
	return s.fast.Write(p)
}

func (s sum) text() string {
	if s.strong != nil {
		return fmt.Sprintf("%s%x", strongPrefix, s.strong.Sum(nil))
	}
	return fmt.Sprintf("%s%x", fastPrefix, s.fast.Sum128().Bytes())
}

func (s sum) of(data []byte) string {
	s.Write(data)
	return s.text()
}

// strongSums is an error where a file has a sum that can be forged.
func (m *Manifest) strongSums() error {
	weak := func(f *File) error {
		if strings.HasPrefix(f.Sum, strongPrefix) {
			return nil
		}
		return corrupt("files", "has %q with a sum that is not SHA-256, in a run whose records are sealed", f.Path)
	}
	for i := range m.Files {
		if err := weak(&m.Files[i]); err != nil {
			return err
		}
	}
	for _, d := range m.Data {
		if d.LedgerFile != nil {
			if err := weak(d.LedgerFile); err != nil {
				return err
			}
		}
	}
	return nil
}
