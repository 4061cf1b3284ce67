package store

import (
	"bytes"
	"os"
	"strconv"
	"strings"
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
