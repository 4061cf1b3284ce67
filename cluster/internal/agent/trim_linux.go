package agent

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// trim gives back the pages of the program's file that the start of the process alone has touched: most of what an idle agent would hold. They are the kernel's copies of a file that nobody writes, and come back
// from there when they are used again. Where it cannot be done nothing is lost.
func trim() {
	exe, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return
	}
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return
	}
	for line := range strings.Lines(string(maps)) {
		// 55d0c0a00000-55d0c0b00000 r-xp 00001000 fe:00 1234      /usr/bin/penstock
		at, rest, _ := strings.Cut(line, " ")
		mode, rest, _ := strings.Cut(rest, " ")
		if path := strings.IndexByte(rest, '/'); path < 0 || strings.TrimSuffix(rest[path:], "\n") != exe || mode != "r-xp" && mode != "r--p" {
			continue
		}
		from, to, _ := strings.Cut(at, "-")
		a, err := strconv.ParseUint(from, 16, 64)
		b, err2 := strconv.ParseUint(to, 16, 64)
		if err == nil && err2 == nil && a < b {
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(a), uintptr(b-a), unix.MADV_DONTNEED)
		}
	}
}
