package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/internal/fault"
)

// keepToItself keeps what this process knows from other processes, those of its own user too, but
// for root's: its memory, and the secrets in what the kernel shows of its environment and, with
// args, of its arguments. Then texts that share memory with an argument are to be copied before
// (strings.Clone): a token there is overwritten.
func keepToItself(args bool) error {
	mem, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0) // first: what /proc has of a process that keeps to itself is root's
	if err == nil {
		defer mem.Close()
	}
	if e := unix.Prctl(unix.PR_SET_DUMPABLE, 0, 0, 0, 0); e != nil {
		return fault.New(fault.Unsupported, "keep other processes from this one's memory: %w", e)
	}
	if err == nil {
		err = wipe(mem, args)
	}
	if err != nil && shownSecret(args) {
		return fault.New(fault.Unsupported, "take secrets out of this process's environment and arguments (%w): give them in files", err)
	}
	return nil
}

// shownSecret says that the kernel may show one.
func shownSecret(args bool) bool {
	secret := func(word string) bool { return secretAt(word) >= 0 }
	return slices.ContainsFunc(os.Environ(), secret) || args && slices.ContainsFunc(os.Args, secret)
}

// wipe overwrites secrets where the process has its environment from, which Go has copied, and with
// args its arguments, which it has not.
func wipe(mem *os.File, args bool) error {
	stat, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return err
	}
	f := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:])) // f[0] is field 3
	fields := []int{50}                                                  // env_start, env_end
	if args {
		fields = append(fields, 48) // arg_start, arg_end
	}
	for _, field := range fields {
		if len(f) < field {
			return fmt.Errorf("/proc/self/stat has %d fields", len(f))
		}
		from, err := strconv.ParseInt(f[field-3], 10, 64)
		if err != nil {
			return err
		}
		to, err := strconv.ParseInt(f[field-2], 10, 64)
		if err != nil {
			return err
		}
		block := make([]byte, to-from)
		if _, err := mem.ReadAt(block, from); err != nil {
			return err
		}
		for word := range bytes.SplitSeq(block, []byte{0}) {
			if at := secretAt(string(word)); at >= 0 {
				if _, err := mem.WriteAt(bytes.Repeat([]byte{'*'}, len(word)-at), from+int64(at)); err != nil {
					return err
				}
			}
			from += int64(len(word)) + 1
		}
	}
	return nil
}

// closeOnExec has what this process starts not inherit the descriptors that it was started with
// itself; its own are never inherited.
func closeOnExec() error {
	in, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fault.New(fault.Unsupported, "find the files that this process was given: %w", err)
	}
	for _, e := range in {
		if fd, err := strconv.Atoi(e.Name()); err == nil && fd > 2 {
			_, _ = unix.FcntlInt(uintptr(fd), unix.F_SETFD, unix.FD_CLOEXEC) // that of the folder is closed
		}
	}
	return nil
}
