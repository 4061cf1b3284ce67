//go:build !linux

package feeder

import "syscall"

// procAttr: here a data process ends with its controller by the end of its input alone.
func procAttr() *syscall.SysProcAttr { return nil }
