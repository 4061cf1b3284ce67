// Package whereabouts keeps what the tasks of a process are at in a file, where whoever started the process finds it after an end that left no time for words: a signal, or too much memory.
package whereabouts

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"sync"
	"syscall"
	"unicode"
)

// Env names a folder. A process that has it in its environment, and each of its children, keeps a file of its own there.
const Env = "PENSTOCK_WHEREABOUTS"

const (
	slotBytes = 512 // divides a page: a write is there as a whole, or not at all
	slots     = 64

	mostRead = 16 * slots // places of a process, which has one file
)

// places are the slots of a file. One is a line: what a task is at; empty: none has it.
type places struct {
	f    *os.File
	mu   sync.Mutex
	used [slots]bool
}

// mine is this process's; nil: nobody wants to know, or there is no room for it.
var mine = sync.OnceValue(func() *places {
	dir := os.Getenv(Env)
	if dir == "" {
		return nil
	}
	f, err := os.CreateTemp(dir, fmt.Sprintf("%d-*", os.Getpid()))
	if err != nil {
		return nil
	}
	return &places{f: f}
})

// Begin notes what a task is at, until end: a write each, and none where nobody wants to know. Where more tasks are at work than there is room for, some are not noted. It never fails: at worst nobody learns of it.
func Begin(what func() string) (end func()) {
	p := mine()
	if p == nil {
		return func() {}
	}
	return p.begin(what())
}

func (p *places) begin(what string) (end func()) {
	p.mu.Lock()
	i := slices.Index(p.used[:], false)
	if i >= 0 {
		p.used[i] = true
	}
	p.mu.Unlock()
	if i < 0 {
		return func() {}
	}
	_, _ = p.f.WriteAt([]byte(line(what)+"\n"), int64(i)*slotBytes)
	return func() {
		_, _ = p.f.WriteAt([]byte("\n"), int64(i)*slotBytes)
		p.mu.Lock()
		p.used[i] = false
		p.mu.Unlock()
	}
}

// line is s in one line that fits a slot: of what is longer, the end.
func line(s string) string {
	s = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return '?'
		}
		return r
	}, s)
	if most := slotBytes - 1; len(s) > most {
		s = "..." + s[len(s)-most+len("..."):]
	}
	return strings.ToValidUTF8(s, "")
}

// Read is what a process that kept a file in a folder was at when it ended, each place once,
// sorted; of its children, which may have ended long before it, nothing. What is no such file is
// passed over. The folder may be of a user who is not trusted: nothing outside it is read, and
// nothing is waited for.
func Read(dir string, pid int) []string {
	root, err := os.OpenRoot(dir + "/") // of a pipe that is no wait, but an error
	if err != nil {
		return nil
	}
	defer root.Close()
	in, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return nil
	}
	var all []string
	for _, e := range in {
		if !strings.HasPrefix(e.Name(), fmt.Sprintf("%d-", pid)) {
			continue
		}
		f, err := root.OpenFile(e.Name(), os.O_RDONLY|syscall.O_NONBLOCK, 0)
		if err != nil {
			continue
		}
		var b []byte
		if st, err := f.Stat(); err == nil && st.Mode().IsRegular() {
			b, _ = io.ReadAll(io.LimitReader(f, slots*slotBytes))
		}
		f.Close()
		for slot := range slices.Chunk(b, slotBytes) {
			if s, _, ok := strings.Cut(string(slot), "\n"); ok && s != "" {
				all = append(all, line(s))
			}
		}
		if len(all) >= mostRead {
			break
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
