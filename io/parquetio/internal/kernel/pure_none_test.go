//go:build unix && (!amd64 || purego)

package kernel

func pure(f func()) { f() }
