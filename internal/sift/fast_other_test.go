//go:build !amd64 || purego

package sift

func setFast(bool) bool { return false }
