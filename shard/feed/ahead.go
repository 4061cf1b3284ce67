package feed

import "time"

const (
	aheadLeast = 2  // batches
	aheadMost  = 16 // batches
	aheadBytes = 4 << 20
	aheadTime  = 200 * time.Millisecond
	freeBytes  = 512 << 10 // of batches that were given back: the data process is told at once, of less with the next request
)

// ahead is how far a consumer reads ahead. Without a number of batches it is so many that they take the bytes that the data process offers, at
// least aheadLeast and at most aheadMost; and no more than the consumer uses in aheadTime, so that a notice, which counts after all that was sent, is not late for consumers
// with small batches and long steps. When half of them have been used, as many are asked for at once: where they are small, a request takes longer than a batch.
type ahead struct {
	fixed bool  // n is what the consumer wants
	bytes int64 // offered
	n     int   // batches beside the one in use
	asked int   // frames that were asked for and not taken
	last  time.Time
	pace  time.Duration // from batch to batch, of late; 0: not known
}

// ask returns how many more frames to ask for before one is taken, and counts them as asked for.
func (a *ahead) ask() int {
	missing := a.n + 1 - a.asked // one is for the taker
	if missing < max(a.n/2, 1) {
		return 0
	}
	a.asked += missing
	return missing
}

// take notes that a frame was taken at now, with a batch of size bytes, or the end of an epoch (0).
func (a *ahead) take(size int64, now time.Time) {
	a.asked--
	if a.fixed {
		return
	}
	if !a.last.IsZero() {
		d := max(now.Sub(a.last), 1)
		if a.pace == 0 {
			a.pace = d
		}
		a.pace = max(a.pace+(d-a.pace)/8, 1)
	}
	a.last = now
	if size > 0 && a.pace > 0 {
		a.n = int(min(max(min(a.bytes/size, int64(aheadTime/a.pace)), aheadLeast), aheadMost))
	}
}
