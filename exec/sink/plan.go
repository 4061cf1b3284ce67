package sink

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"strings"

	"github.com/penstock-data/penstock/exec"
)

const (
	maxParts      = 10_000
	unknownBytes  = 32 << 20 // what a split of unknown size is taken for: a range of text;
	rowBytes      = 128      // and a row of one whose rows are known
	parallelParts = 16       // small outputs aim at as many parts,
	minPartBytes  = 32 << 20 // none smaller than this
)

// group cuts splits into parts: neighbours whose expected bytes reach about
// target (0: DefaultTargetBytes, less where that gives few parts). It returns the first split of each. A function
// of its arguments alone.
func group(splits []exec.SinkSplit, target int64) []int {
	if len(splits) == 0 {
		return nil
	}
	size := func(s exec.SinkSplit) int64 {
		switch {
		case s.Bytes > 0:
			return min(s.Bytes, 1<<50)
		case s.Rows >= 0:
			return min(s.Rows, 1<<40) * rowBytes
		}
		return unknownBytes
	}
	var total int64
	for _, s := range splits {
		total = min(total+size(s), 1<<62)
	}
	if target == 0 {
		target = min(DefaultTargetBytes, max(minPartBytes, total/parallelParts))
	}
	target = max(target, total/(maxParts/2)+1)
	first := []int{0}
	var have int64
	for i, s := range splits {
		n := size(s)
		// End before a split that would take the part further beyond the target than
		// it is short of it now.
		if i > first[len(first)-1] && (have >= target || have+n-target > target-have) {
			first = append(first, i)
			have = 0
		}
		have += n
	}
	return first[:min(len(first), maxParts)] // two neighbours have more than target: it hardly ever cuts
}

// digestSplits identifies the list of splits: their ids, in order.
func digestSplits(splits []exec.SinkSplit) string {
	h := sha256.New()
	var n [8]byte
	for _, s := range splits {
		binary.BigEndian.PutUint64(n[:], uint64(len(s.ID)))
		h.Write(n[:])
		h.Write([]byte(s.ID))
	}
	return hex.EncodeToString(h.Sum(nil))
}

// short is 8 hex digits of the hash of its arguments.
func short(parts ...string) string {
	h := sha256.New()
	for _, p := range parts {
		h.Write([]byte(p))
		h.Write([]byte{0})
	}
	return hex.EncodeToString(h.Sum(nil)[:4])
}

// tagOf is what stands for a job in file names: the beginning of a fingerprint (32
// hex digits or more), the hash of another name.
func tagOf(job string) string {
	if b, err := hex.DecodeString(job); err == nil && len(b) >= 16 {
		return strings.ToLower(job[:8])
	}
	return short(job)
}
