package store

import (
	"bytes"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// startOf identifies a process of this machine that has not ended: boot id, namespace of process numbers, start time in clock ticks since the boot.
func startOf(pid int) (started string, there bool) {
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return "", false
	}
	// The name, in parentheses, may hold anything. The state follows, then 18 numbers before the start.
	fields := strings.Fields(string(stat[bytes.LastIndexByte(stat, ')')+1:]))
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return "", false
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return "", true
	}
	space, err := os.Readlink("/proc/self/ns/pid")
	if err != nil {
		return "", true
	}
	return strings.TrimSpace(string(boot)) + "/" + space + "/" + fields[19], true
}

// bootID changes with every boot of the machine.
func bootID() string {
	boot, _ := os.ReadFile("/proc/sys/kernel/random/boot_id") // without: "", as if it never booted
	return strings.TrimSpace(string(boot))
}

// disk is how many bytes are free for this user, and there, on the disk that a file is on.
func disk(f *os.File) (free, all int64, known bool) {
	var st unix.Statfs_t
	if unix.Fstatfs(int(f.Fd()), &st) != nil || st.Blocks == 0 { // some have no number of their own
		return 0, 0, false
	}
	return int64(st.Bavail) * st.Bsize, int64(st.Blocks) * st.Bsize, true
}
