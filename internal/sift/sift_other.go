//go:build !amd64 || purego

package sift

const fast = false

func head[T Width](_, _ []T, _ []uint64) (words, values int) { return 0, 0 }

func extract(v, mask uint64) uint64 { return extractGo(v, mask) }
