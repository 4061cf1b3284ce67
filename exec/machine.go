package exec

import (
	"bytes"
	"os"
	"strconv"
)

// DefaultMemory returns the byte budget of a run that names none: half of what
// is available, at most 4 GiB, at least 64 MiB.
func DefaultMemory() int64 { return max(min(AvailableMemory()/2, 4<<30), 64<<20) }

// AvailableMemory returns the bytes that the machine and the process's control group can still give
// without swapping; 8 GiB where neither says.
func AvailableMemory() int64 {
	free := int64(8 << 30)
	if raw, err := os.ReadFile("/proc/meminfo"); err == nil {
		for line := range bytes.Lines(raw) {
			if rest, ok := bytes.CutPrefix(line, []byte("MemAvailable:")); ok {
				if kib, ok := number(bytes.TrimSuffix(bytes.TrimSpace(rest), []byte(" kB"))); ok {
					free = kib << 10
				}
			}
		}
	}
	for _, f := range [][2]string{
		{"/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"},
		{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"},
	} {
		limit, ok1 := readNumber(f[0])
		used, ok2 := readNumber(f[1])
		if ok1 && ok2 {
			free = min(free, max(limit-used, 0))
		}
	}
	return free
}

func readNumber(path string) (int64, bool) {
	raw, err := os.ReadFile(path)
	if err != nil {
		return 0, false
	}
	return number(bytes.TrimSpace(raw)) // "max" is no number: no limit
}

func number(b []byte) (int64, bool) {
	n, err := strconv.ParseInt(string(bytes.TrimSpace(b)), 10, 64)
	return n, err == nil
}
