package agent

import (
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// trim gives back the pages of the program's file that the start of the process alone has touched: most of what an idle agent would hold. They are the kernel's copies of a file that nobody writes, and come back
// from there when they are used again. What has pages of this process's own among them stays: the loader writes to some, and makes them read-only afterwards. Where it cannot be done nothing is lost.
func trim() {
	if exe, err := os.Readlink("/proc/self/exe"); err == nil {
		trimFile(exe)
	}
}

func trimFile(exe string) {
	maps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return
	}
	var from, to uint64 // of the mapping that the lines are of; to 0: it stays
	for line := range strings.Lines(string(maps)) {
		// 55d0c0a00000-55d0c0b00000 r-xp 00001000 fe:00 1234      /usr/bin/penstock
		// Anonymous:             0 kB
		f := strings.Fields(line)
		switch {
		case len(f) == 6 && len(f[1]) == 4:
			a, b, _ := strings.Cut(f[0], "-")
			from, err = strconv.ParseUint(a, 16, 64)
			if to = 0; err == nil && strings.HasSuffix(line, " "+exe+"\n") && (f[1] == "r-xp" || f[1] == "r--p") {
				to, _ = strconv.ParseUint(b, 16, 64)
			}
		case len(f) > 1 && f[0] == "Anonymous:" && f[1] != "0":
			to = 0
		case len(f) > 1 && f[0] == "Swap:" && f[1] == "0" && to > from: // it comes after the other
			_, _, _ = unix.Syscall(unix.SYS_MADVISE, uintptr(from), uintptr(to-from), unix.MADV_DONTNEED)
		}
	}
}
