//go:build !linux

package agent

func trim() {}
