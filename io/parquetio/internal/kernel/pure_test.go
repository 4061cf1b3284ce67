//go:build unix && amd64 && !purego

package kernel

// pure runs f without assembly.
func pure(f func()) {
	was := asm
	asm = false
	defer func() { asm = was }()
	f()
}
