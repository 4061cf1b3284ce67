package order

import "math"

// Quality is what to expect of a window shuffle before it runs.
type Quality struct {
	ResidentUnits   int64   // of the windows that are open at once: where a sample can come from
	SplitsPerWindow float64 // mean number of splits that a full window touches
	ResidentSplits  float64 // of the open windows together
	Correlation     float64 // see CorrelationBound
}

// Expect computes the quality of a shape over splits of these units. The splits of a
// window are estimated as if all lanes had the same number of splits, dealt evenly.
func Expect(units []int64, s Shape) Quality {
	var n int64
	splits := 0
	for _, u := range units {
		if n += u; u > 0 {
			splits++
		}
	}
	if n == 0 {
		return Quality{}
	}
	used := min(s.Lanes, splits) // lanes with units
	open := s.Window             // units of a window, at most a lane
	if open > n/int64(used) {
		open = (n + int64(used) - 1) / int64(used)
	}
	q := Quality{Correlation: CorrelationBound(units, s.Lanes)}
	q.ResidentUnits = min(open*int64(used), n)
	// A lane of k splits has k-1 edges between them; a window meets the share of them that it has of the lane.
	q.SplitsPerWindow = 1 + (float64(splits)/float64(used)-1)*float64(open)*float64(used)/float64(n)
	q.ResidentSplits = min(q.SplitsPerWindow*float64(used), float64(splits))
	return q
}

// CorrelationBound bounds the rank correlation of the sequences of two epochs. Two
// independent permutations of the splits correlate by less than 3/sqrt(splits), three
// standard deviations. A split of s of the source's N units that is long against a lane's share L = N/lanes
// spreads over s/L of every epoch, and so correlates with itself: it adds (s/N) *
// min(1, s/L)^2. Splits without units do not count.
func CorrelationBound(units []int64, lanes int) float64 {
	var total float64
	splits := 0
	for _, u := range units {
		if total += float64(u); u > 0 {
			splits++
		}
	}
	if splits == 0 {
		return 0
	}
	bound := 3 / math.Sqrt(float64(splits))
	for _, u := range units {
		of := min(1, float64(u)*float64(lanes)/total)
		bound += float64(u) / total * of * of
	}
	return bound
}
