//go:build race

package memtest

// Race says whether the race detector is on, which keeps several bytes for every byte of the Go heap.
const Race = true
