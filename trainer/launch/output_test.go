//go:build linux

package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"
)

// screenOf is what a terminal shows of what f has it show.
func screenOf(t *testing.T, ranks int, f func(*terminal)) string {
	t.Helper()
	var b bytes.Buffer
	synctest.Test(t, func(t *testing.T) {
		var n []int
		for r := range ranks {
			n = append(n, r)
		}
		term := newTerminal(&b, &sync.Mutex{}, n, rankName)
		f(term)
		term.close()
	})
	return b.String()
}

func TestTerminal(t *testing.T) {
	for _, c := range []struct {
		name string
		show func(*terminal)
		want string
	}{
		{"folds", func(x *terminal) {
			x.line(0, "a")
			for range 215 {
				x.line(0, "b")
			}
			x.line(0, "c")
		}, "[rank 0] a\n[rank 0] b\n[rank 0] last line repeated 214 times\n[rank 0] c\n"},
		{"folds at the end", func(x *terminal) { x.line(0, "a"); x.line(0, "a") }, "[rank 0] a\n[rank 0] last line repeated once\n"},
		{"says repetitions of a worker that is quiet", func(x *terminal) {
			x.line(0, "a")
			x.line(0, "a")
			time.Sleep(repeatFor + time.Second)
			x.line(1, "b")
			x.line(0, "a")
		}, "[rank 0] a\n[rank 0] last line repeated once\n[rank 1] b\n[rank 0] last line repeated once\n"},
		{"joins ranks", func(x *terminal) {
			for r := range 4 {
				x.line(r, "same")
				x.line(r, fmt.Sprint("own ", r%2))
			}
		}, "[ranks 0-3] same\n[ranks 0,2] own 0\n[ranks 1,3] own 1\n"},
		{"keeps the order of a rank", func(x *terminal) {
			x.line(0, "x")
			x.line(1, "y")
			x.line(1, "x")
		}, "[rank 0] x\n[rank 1] y\n[rank 1] x\n"},
		{"joins within a moment only", func(x *terminal) {
			x.line(0, "same")
			time.Sleep(time.Second)
			x.line(1, "same")
		}, "[rank 0] same\n[rank 1] same\n"},
	} {
		if got := screenOf(t, 4, c.show); got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	named := newTerminal(io.Discard, &sync.Mutex{}, []int{0, 1}, func(r int) string { return string(rune('a' + r)) })
	defer named.close()
	named.colour = true
	var b bytes.Buffer
	named.prefix(&b, []int{1, 0})
	if b.String() != "\x1b[33m[b, a]\x1b[0m " {
		t.Errorf("%q", b.String())
	}
}

// stuckWriter takes nothing while it is told so.
type stuckWriter struct {
	mu   sync.Mutex
	got  bytes.Buffer
	stop chan struct{} // nil: takes
}

func (w *stuckWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	stop := w.stop
	w.mu.Unlock()
	if stop != nil {
		<-stop
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.got.Write(p)
}

// A terminal that takes nothing holds a worker up for a second, once, and others not at all.
func TestTerminalStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &stuckWriter{stop: make(chan struct{})}
		x := newTerminal(w, &sync.Mutex{}, []int{0, 1}, rankName)
		began := time.Now()
		long := strings.Repeat("x", 1000)
		for i := range 1000 {
			x.line(0, fmt.Sprint(i, long))
		}
		if took := time.Since(began); took != stuckFor {
			t.Errorf("held up for %v", took)
		}
		x.line(1, "other")
		if took := time.Since(began); took != stuckFor {
			t.Errorf("the other is held up for %v", took)
		}
		x.mu.Lock()
		if x.slots[0].bytes > roomFor || x.slots[0].skipped < 900 {
			t.Errorf("%+v", x.slots[0])
		}
		skipped := x.slots[0].skipped
		x.mu.Unlock()
		close(w.stop)
		time.Sleep(time.Second)
		x.line(0, "again")
		x.close()
		got := w.got.String()
		if !strings.Contains(got, fmt.Sprintf("[rank 0] %d lines are not shown", skipped)) || !strings.Contains(got, "[rank 1] other\n") || !strings.HasSuffix(got, "[rank 0] again\n") {
			t.Errorf("%.200q ... %.200q", got, got[len(got)-200:])
		}
		if n := strings.Count(got, "xxx\n"); n+skipped != 1000 {
			t.Errorf("%d lines shown and %d skipped", n, skipped)
		}
	})
}

// A slow terminal loses nothing.
func TestTerminalSlow(t *testing.T) {
	got := screenOf(t, 1, func(x *terminal) {
		for i := range 5000 {
			x.line(0, fmt.Sprint(i, strings.Repeat("x", 100)))
		}
	})
	if n := strings.Count(got, "\n"); n != 5000 {
		t.Errorf("%d lines", n)
	}
}

// What a worker prints does nothing to a terminal but print, in what is shown and in the last
// lines; the file has the bytes.
func TestOutputPrints(t *testing.T) {
	const said = "\x1b]0;title\x07\x1b[2J\u009b2J\u202egnp \x1b[31mred\x1b[0m\xff\x1b[K\n"
	path := filepath.Join(t.TempDir(), "log")
	file, err := openLog(path, 1<<30)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		colours bool
		want    string
	}{{false, `\x1b]0;title\x07\u009b2J\u202egnp red\xff` + "\n"}, {true, `\x1b]0;title\x07\u009b2J\u202egnp ` + "\x1b[31mred\x1b[0m" + `\xff` + "\x1b[0m\n"}} {
		var tail []string
		shown := collect(t, func(o *output) {
			o.file, o.term.colour = file, c.colours
			feed(t, o, func(w *os.File) { io.WriteString(w, said) })
			tail = o.tail.last()
		})
		if shown = strings.ReplaceAll(shown, "\x1b[36m[rank 0]\x1b[0m ", ""); shown != c.want {
			t.Errorf("colours %v: %q, want %q", c.colours, shown, c.want)
		}
		if len(tail) != 1 || tail[0] != `\x1b]0;title\x07\u009b2J\u202egnp red\xff` {
			t.Errorf("tail %q", tail)
		}
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != said+said {
		t.Errorf("%q, %v", b, err)
	}
	if err := file.close(); err != nil {
		t.Error(err)
	}
}

// feed runs a stream over a pipe: f writes to it.
func feed(t *testing.T, o *output, f func(w *os.File)) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	s := newStream(o, r, true)
	go s.read()
	f(w)
	w.Close()
	<-s.done
}

// collect is a terminal whose lines are read.
func collect(t *testing.T, f func(o *output)) string {
	t.Helper()
	var b bytes.Buffer
	x := newTerminal(&b, &sync.Mutex{}, []int{0}, rankName)
	f(&output{term: x})
	x.close()
	return strings.ReplaceAll(b.String(), "[rank 0] ", "")
}

func TestProgressBars(t *testing.T) {
	bar := func(w io.Writer, end string) {
		for i := range 1000 {
			fmt.Fprintf(w, "\r%d%%", i/10)
		}
		io.WriteString(w, "\r100%"+end)
	}
	for _, c := range []struct {
		name, want, tail string
		write            func(w *os.File)
	}{
		{"then lines", "before\n0%\n100%\nafter\n", "before|100%|after", func(w *os.File) { io.WriteString(w, "before\n"); bar(w, "\n"); io.WriteString(w, "after\n") }},
		{"and no line end", "0%\n100%\n", "100%", func(w *os.File) { bar(w, "") }},
		{"return at the end of each", "a\nz\n", "z", func(w *os.File) { io.WriteString(w, "a\rb\rc\rz\r") }},
		{"overwritten by a line", "a\nline\n", "line", func(w *os.File) { io.WriteString(w, "a\rb\rline\n") }},
		{"DOS lines", "one\ntwo\n\nthree\n", "one|two|three", func(w *os.File) { io.WriteString(w, "one\r\ntwo\r\n\r\nthree\r\n") }},
		{"no line end", "one\ntwo\n", "one|two", func(w *os.File) { io.WriteString(w, "one\ntwo") }},
	} {
		o := &output{}
		got := collect(t, func(with *output) {
			o = with
			feed(t, o, c.write)
		})
		if got != c.want {
			t.Errorf("%s: shows %q, want %q", c.name, got, c.want)
		}
		if tail := strings.Join(o.tail.last(), "|"); tail != c.tail {
			t.Errorf("%s: tail %q, want %q", c.name, tail, c.tail)
		}
	}
}

// A line end that comes in two pieces is one.
func TestLineEndInPieces(t *testing.T) {
	var o *output
	got := collect(t, func(with *output) {
		o = with
		s := newStream(o, nil, false)
		for _, piece := range []string{"one\r", "\none\r", "\n", "one\r", "\ntwo\n", "two\r", "\r\n"} {
			s.take([]byte(piece))
		}
		s.flush()
	})
	if want := "one\nlast line repeated 2 times\ntwo\nlast line repeated once\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	if tail := strings.Join(o.tail.last(), "|"); tail != "one|one|one|two|two" {
		t.Errorf("tail %q", tail)
	}
}

// Whatever the pieces in which a worker writes: the file has the bytes, and the terminal and the tail the lines.
func TestOutputPieces(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 30 {
		var text strings.Builder
		var lines []string
		for i := range 1 + r.IntN(200) {
			l := fmt.Sprint(i, strings.Repeat("\u00e4", r.IntN(3000)*r.IntN(2)))
			lines = append(lines, l)
			text.WriteString(l + []string{"\n", "\r\n"}[r.IntN(2)])
		}
		path := filepath.Join(t.TempDir(), "log")
		file, err := openLog(path, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		var tail []string
		shown := collect(t, func(o *output) {
			o.file = file
			feed(t, o, func(w *os.File) {
				for s := text.String(); s != ""; {
					n := min(len(s), 1+r.IntN(10000))
					io.WriteString(w, s[:n])
					s = s[n:]
				}
			})
			tail = o.tail.last()
			o.closeFile()
		})
		if got, err := os.ReadFile(path); err != nil || string(got) != text.String() {
			t.Fatalf("seed %d: file differs: %d bytes, want %d, %v", seed, len(got), text.Len(), err)
		}
		if want := strings.Join(lines, "\n") + "\n"; shown != want {
			t.Fatalf("seed %d: %d bytes shown, want %d", seed, len(shown), len(want))
		}
		if n := len(tail); n == 0 || n > tailLines || !strings.HasPrefix(lines[len(lines)-1], strings.TrimSuffix(strings.ToValidUTF8(tail[n-1], ""), "\ufffd")) {
			t.Fatalf("seed %d: tail %.100q", seed, tail)
		}
	}
}

func TestLongLines(t *testing.T) {
	var long string // of characters of three bytes, no multiple of which fits
	for i := range 5 {
		long += strings.Repeat(string(rune(0x4f60+i)), 20_000)
	}
	got := collect(t, func(o *output) { feed(t, o, func(w *os.File) { io.WriteString(w, long+"\nend\n") }) })
	lines := strings.Split(got, "\n")
	if len(lines) < 6 || strings.ReplaceAll(got, "\n", "") != long+"end" {
		t.Errorf("%d lines of %d bytes", len(lines), len(got))
	}
	for _, l := range lines {
		if len(l) > maxLine || !utf8.ValidString(l) {
			t.Errorf("a line of %d bytes, valid: %v", len(l), utf8.ValidString(l))
		}
	}
}

// What has no line end is seen after a while.
func TestPrompt(t *testing.T) {
	dir := t.TempDir()
	g := launch(t, Options{Logs: dir}, sh(0, "printf 'connecting to'; exec sleep 1000", "PENSTOCK_ATTEMPT=2"))
	until(t, "the file has it", func() bool {
		b, _ := os.ReadFile(filepath.Join(dir, "attempt-2", "rank-0.log"))
		return string(b) == "connecting to"
	})
	g.Stop(0)
}

// The terminal is stuck: nobody is held up by it.
func TestStuckTerminalEnds(t *testing.T) {
	w := &stuckWriter{stop: make(chan struct{})}
	defer close(w.stop)
	g := launch(t, Options{Terminal: w, Logs: t.TempDir()}, again(t, 0, "print", "LAUNCH_BYTES=10000000"), sh(1, "echo quick; exit 3"))
	began := time.Now()
	got := exits(t, g)
	if took := time.Since(began); took > 10*time.Second || !got[0].OK() || got[1].Code != 3 {
		t.Errorf("%v: %v", took, got)
	}
	g.Stop(0)
}

func TestLogFull(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Fatal(err)
	}
	f, err := openLog("/dev/full", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	got := collect(t, func(o *output) {
		o.file = f
		feed(t, o, func(w *os.File) {
			for i := range 5 {
				fmt.Fprintln(w, i)
			}
		})
		o.closeFile()
	})
	if f, err = openLog("/dev/full", 1<<20); err != nil {
		t.Fatal(err)
	}
	defer f.close()
	for i := range 3 {
		if err := f.write([]byte("x")); (err != nil) != (i == 0) {
			t.Errorf("write %d: %v", i, err)
		}
	}
	// Where there is no terminal, the end of the worker says it.
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "attempt-1"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/dev/full", filepath.Join(dir, "attempt-1", "rank-0.log")); err != nil {
		t.Fatal(err)
	}
	e := exits(t, launch(t, Options{Logs: dir}, sh(0, "echo lost"), sh(1, "echo kept")))
	if !e[0].OK() || !errors.Is(e[0].Lacks, syscall.ENOSPC) || !slices.Equal(e[0].Tail, []string{"lost"}) || !e[1].OK() || e[1].Lacks != nil {
		t.Errorf("%+v", e)
	}
	if strings.Count(got, "its log cannot be written") != 1 || !strings.Contains(got, "\n4\n") {
		t.Errorf("%q", got)
	}
}

// A file that can be written again says where it lacks lines, at its end too.
func TestLogFullForAWhile(t *testing.T) {
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	path := filepath.Join(t.TempDir(), "log")
	l, err := openLog(path, 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	free := l.f
	for i := range 9 {
		if l.f = free; i == 2 || i == 3 || i == 8 {
			l.f = full
		}
		_ = l.write(fmt.Appendf(nil, "%d\n", i))
	}
	l.f = free
	if err := l.close(); err != nil {
		t.Fatal(err)
	}
	lacks := "\npenstock: lines are missing here: write /dev/full: no space left on device\n"
	if got, err := os.ReadFile(path); err != nil || string(got) != "0\n1\n"+lacks+"4\n5\n6\n7\n"+lacks {
		t.Errorf("%q, %v", got, err)
	}
}

// Of a long line the tail has the begin, whatever the pieces that it comes in.
func TestTailOfLongLine(t *testing.T) {
	line := strings.Repeat("0123456789", 10*tailLine) + "end"
	for _, piece := range []int{100, tailLine - 1, tailLine, maxLine} {
		var tail tail
		for i := 0; i < len(line); i += piece {
			tail.add([]byte(line[i:min(len(line), i+piece)]))
		}
		if got := tail.last(); !slices.Equal(got, []string{line[:tailLine]}) {
			t.Errorf("in pieces of %d: %q", piece, got)
		}
	}
	var tail tail
	tail.add([]byte(strings.Repeat("x", tailLine-1) + "\u00e4\n"))
	if got := tail.last(); !slices.Equal(got, []string{strings.Repeat("x", tailLine-1)}) {
		t.Errorf("half a character: %q", got)
	}
}

func TestRotate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	f, err := openLog(path, 100)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		if err := f.write(fmt.Appendf(nil, "line %02d ..\n", i)); err != nil { // 11 bytes
			t.Fatal(err)
		}
	}
	f.close()
	var got string
	for _, name := range []string{".2", ".1", ""} {
		b, err := os.ReadFile(path + name)
		if err != nil || len(b) > 100 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
		got += string(b)
	}
	if !strings.HasPrefix(got, "line 18 ..\n") || !strings.HasSuffix(got, "line 39 ..\n") || strings.Count(got, "\n") != 22 {
		t.Errorf("%q", got)
	}
	if _, err := os.Stat(path + ".3"); err == nil {
		t.Error("a fourth file")
	}
}

// What a line costs on its way to a terminal that takes everything.
func BenchmarkTerminal(b *testing.B) {
	x := newTerminal(io.Discard, &sync.Mutex{}, []int{0}, rankName)
	defer x.close()
	s := newStream(&output{term: x}, nil, false)
	var text []byte
	for i := range 700 {
		text = fmt.Appendf(text, "step %6d loss 0.%06d throughput 1234.5 samples per second, learning rate 1e-4\n", i, i)
	}
	b.SetBytes(int64(len(text)))
	for b.Loop() {
		s.take(text)
	}
}

// What a process prints that is no worker goes to its file and the terminal by lines, however it is cut, and whole at the end.
func TestLog(t *testing.T) {
	var b bytes.Buffer
	dir := t.TempDir()
	l, err := Processes(Options{Logs: dir, Terminal: &b, Rotate: 64}).Log("data")
	if err != nil {
		t.Fatal(err)
	}
	text := "one\ntwo\nthree\nfour\x1b[2J\nfive"
	for i := range text {
		if n, err := l.Write([]byte(text[i : i+1])); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	long := strings.Repeat("x", 50) + "\n"
	for _, s := range []string{"\n", long, long} {
		if _, err := l.Write([]byte(s)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := l.Write([]byte("six")); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	var kept string
	for _, name := range []string{"data.log.2", "data.log.1", "data.log"} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil && (name == "data.log" || !os.IsNotExist(err)) { // how often files were begun depends on how much came at once
			t.Error(err)
		}
		kept += string(got)
	}
	if want := text + "\n" + long + long + "six"; !strings.HasSuffix(want, kept) || kept == "" { // what is older was rotated away
		t.Errorf("files: %q, not %q", kept, want)
	}
	x := strings.TrimSuffix(long, "\n")
	if want := "[data] one\n[data] two\n[data] three\n[data] four\n[data] five\n[data] " + x + "\n[data] last line repeated once\n[data] six\n"; b.String() != want {
		t.Errorf("terminal: %q", b.String())
	}
}
