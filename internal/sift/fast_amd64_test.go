//go:build !purego

package sift

import "golang.org/x/sys/cpu"

// setFast turns the assembly on or off, where the CPU has what it needs, and
// returns what it was.
func setFast(on bool) bool {
	was := fast
	fast = on && cpu.X86.HasAVX512F && cpu.X86.HasBMI2
	return was
}
