//go:build !linux

package main

// keepToItself and closeOnExec: see secrets_linux.go. Other systems have no such means.
func keepToItself(bool) error { return nil }

func closeOnExec() error { return nil }
