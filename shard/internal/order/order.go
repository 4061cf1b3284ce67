// Package order is the arithmetic of the global order of samples: how splits are
// dealt to lanes, lanes cut into windows, windows permuted, samples merged by
// progress, sources mixed and steps dealt to ranks. It is pure: no I/O, no
// goroutine, no clock. docs/order.md explains the model; the reference model in the
// tests is the same thing written to be obviously right.
//
// Everything here belongs to order version 1 and never changes within it: golden
// files of sequences see to that.
package order

// Version of the order, in states and in keys.
const Version = 1

// Mode of shuffling.
type Mode uint8

const (
	None   Mode = iota // one lane, canonical order
	Blocks             // one lane, splits permuted
	Window             // lanes, splits permuted, rows permuted within windows
)

// Shape of a source's shuffle; fixed when a job is created.
type Shape struct {
	Mode   Mode
	Lanes  int   // >= 1; 1 unless Mode is Window
	Window int64 // units (source rows, or bytes) per window, >= 1
}

// Key names one pass over one source.
type Key struct {
	Seed, Epoch, Pass uint64
	Source            string
}

// Segment is a run of units of one split: [From, To), within the split.
type Segment struct {
	Split    int
	From, To int64
}

// Pos is how far a lane has been given out: Window is the last one that begins
// before the time of the source's last sample given (0 if none was), Given how many
// of its samples were.
type Pos struct{ Window, Given int64 }
