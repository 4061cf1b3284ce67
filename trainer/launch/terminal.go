package launch

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/term"
)

const (
	mergeFor  = 50 * time.Millisecond // lines are held back so long, to join what several ranks print
	roomFor   = 64 << 10              // bytes of one worker that wait to be shown
	stuckFor  = time.Second           // a terminal that takes nothing for so long is stuck: its lines are skipped
	repeatFor = 10 * time.Second      // how often it is said that a line is repeated
	flushFor  = 2 * time.Second       // what is left at the end has so long
)

// terminal shows lines of the workers of a group. Its goroutine writes; those who have lines wait for it only while it gets somewhere.
type terminal struct {
	w      io.Writer
	screen *sync.Mutex // of w
	colour bool

	mu     sync.Mutex
	room   *sync.Cond // lines were written, or time has passed
	queue  []shownLine
	byText map[string]int // the latest of the queue
	slots  []slot
	stuck  bool
	closed bool
	folded time.Time // a repetition is to be said then; zero: there is none

	wake chan struct{} // there is something to write
	full chan struct{} // at once, somebody waits
	done chan struct{} // closed when the goroutine has ended
}

type shownLine struct {
	slots []int
	text  string
}

// slot is what is shown of one worker.
type slot struct {
	rank    int
	name    string
	bytes   int // in the queue, or being written
	last    int // index of its last line in the queue; -1: none
	text    string
	any     bool // there is a text
	repeats int  // of text, not said yet
	skipped int  // lines, not said yet
}

func newTerminal(w io.Writer, screen *sync.Mutex, ranks []int, name func(int) string) *terminal {
	t := &terminal{w: w, screen: screen, colour: term.Colors(w), byText: map[string]int{}, wake: make(chan struct{}, 1), full: make(chan struct{}, 1), done: make(chan struct{})}
	t.room = sync.NewCond(&t.mu)
	for _, r := range ranks {
		t.slots = append(t.slots, slot{rank: r, name: name(r), last: -1})
	}
	go t.write()
	return t
}

// line shows one. Equal ones in a row are counted instead.
func (t *terminal) line(at int, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := &t.slots[at]
	if s.any && s.text == text {
		s.repeats++
		if t.folded.IsZero() {
			t.folded = time.Now().Add(repeatFor)
			poke(t.wake)
		}
		return
	}
	t.repeated(at)
	s.any, s.text = true, text
	t.push(at, text)
}

// say shows what the launcher has to say of a worker.
func (t *terminal) say(at int, text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.repeated(at)
	t.slots[at].any = false
	t.push(at, term.Line(text))
}

// repeated says how often the last line came again.
func (t *terminal) repeated(at int) {
	if s := &t.slots[at]; s.repeats > 0 {
		often := "once"
		if s.repeats > 1 {
			often = fmt.Sprintf("%d times", s.repeats)
		}
		s.repeats = 0
		t.push(at, "last line repeated "+often)
	}
}

// push adds a line to the queue, or the worker to an equal line that waits there, if that comes after all others of this worker.
func (t *terminal) push(at int, text string) {
	s := &t.slots[at]
	if !t.hasRoom(s, len(text)) {
		s.skipped++
		return
	}
	if n := s.skipped; n > 0 {
		s.skipped = 0
		t.add(at, fmt.Sprintf("%d lines are not shown: the terminal did not take them", n))
	}
	if i, ok := t.byText[text]; ok && i > s.last && i < len(t.queue) {
		t.queue[i].slots = append(t.queue[i].slots, at)
		s.last = i
		return
	}
	t.add(at, text)
}

func (t *terminal) add(at int, text string) {
	s := &t.slots[at]
	s.last = len(t.queue)
	s.bytes += len(text) + 1
	t.byText[text] = len(t.queue)
	t.queue = append(t.queue, shownLine{[]int{at}, text})
	poke(t.wake)
}

// hasRoom waits until there is some, or the terminal is stuck.
func (t *terminal) hasRoom(s *slot, n int) bool {
	if s.bytes == 0 || s.bytes+n < roomFor {
		return true
	}
	if t.stuck || t.closed {
		return false
	}
	poke(t.full)
	end := time.Now().Add(stuckFor)
	timer := time.AfterFunc(stuckFor, func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		t.room.Broadcast()
	})
	defer timer.Stop()
	for s.bytes+n >= roomFor && s.bytes > 0 && !t.closed {
		if t.stuck || !time.Now().Before(end) {
			t.stuck = true
			return false
		}
		t.room.Wait()
	}
	return !t.closed
}

// write is the goroutine.
func (t *terminal) write() {
	defer close(t.done)
	for {
		t.mu.Lock()
		closed, folded, any := t.closed, t.folded, len(t.queue) > 0
		t.mu.Unlock()
		if !any && closed {
			return
		}
		if !any {
			var again <-chan time.Time
			if !folded.IsZero() {
				again = time.After(time.Until(folded))
			}
			select {
			case <-t.wake:
				continue
			case <-again:
				t.sayRepeats()
				continue
			}
		}
		if !closed {
			select {
			case <-time.After(mergeFor):
			case <-t.full:
			}
		}
		t.put()
	}
}

// sayRepeats says them for all workers.
func (t *terminal) sayRepeats() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.folded = time.Time{}
	for i := range t.slots {
		t.repeated(i)
	}
}

// put writes what is in the queue.
func (t *terminal) put() {
	t.mu.Lock()
	queue := t.queue
	t.queue = nil
	clear(t.byText)
	sizes := make([]int, len(t.slots))
	for i := range t.slots {
		sizes[i], t.slots[i].last = t.slots[i].bytes, -1
	}
	t.mu.Unlock()

	var b bytes.Buffer
	for _, l := range queue {
		t.prefix(&b, l.slots)
		b.WriteString(l.text)
		b.WriteByte('\n')
	}
	t.screen.Lock()
	_, _ = t.w.Write(b.Bytes()) // a terminal that is gone takes no notice either
	t.screen.Unlock()

	t.mu.Lock()
	for i := range t.slots {
		t.slots[i].bytes -= sizes[i]
	}
	t.stuck = false
	t.room.Broadcast()
	t.mu.Unlock()
}

// prefix is "[rank 0] ", "[ranks 0-3,7] " or the names that were given.
func (t *terminal) prefix(b *bytes.Buffer, slots []int) {
	label := t.slots[slots[0]].name
	if len(slots) > 1 {
		ranks := make([]int, len(slots))
		names := make([]string, len(slots))
		plain := true
		for i, s := range slots {
			ranks[i], names[i] = t.slots[s].rank, t.slots[s].name
			plain = plain && names[i] == rankName(ranks[i])
		}
		label = strings.Join(names, ", ")
		if plain {
			slices.Sort(ranks)
			label = "ranks " + ranges(ranks)
		}
	}
	if !t.colour {
		fmt.Fprintf(b, "[%s] ", label)
		return
	}
	colours := []int{36, 33, 32, 35, 34, 31} // cyan first, red last
	b.WriteString(term.Paint("["+label+"]", colours[t.slots[slots[0]].rank%len(colours)]) + " ")
}

// ranges of sorted numbers: "0-3,7".
func ranges(n []int) string {
	var parts []string
	for i := 0; i < len(n); {
		j := i
		for j+1 < len(n) && n[j+1] == n[j]+1 {
			j++
		}
		p := strconv.Itoa(n[i])
		if j > i {
			p += "-" + strconv.Itoa(n[j])
		}
		parts = append(parts, p)
		i = j + 1
	}
	return strings.Join(parts, ",")
}

// close shows what is left, unless the terminal is stuck: then its goroutine ends when that takes something.
func (t *terminal) close() {
	t.sayRepeats()
	t.mu.Lock()
	for i := range t.slots {
		if s := &t.slots[i]; s.skipped > 0 {
			t.add(i, fmt.Sprintf("%d lines are not shown: the terminal did not take them", s.skipped))
			s.skipped = 0
		}
	}
	t.closed = true
	t.room.Broadcast()
	t.mu.Unlock()
	poke(t.wake)
	poke(t.full)
	timer := time.NewTimer(flushFor)
	defer timer.Stop()
	select {
	case <-t.done:
	case <-timer.C:
	}
}

// poke puts something into a channel of one, if it is empty.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
