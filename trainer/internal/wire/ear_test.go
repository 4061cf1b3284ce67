package wire

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// pair is a connection: the worker's side, and the other.
func pair(t *testing.T) (ours, theirs *net.UnixConn) {
	t.Helper()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err != nil {
		t.Fatal(err)
	}
	var all [2]*net.UnixConn
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "")
		c, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		all[i] = c.(*net.UnixConn)
	}
	return all[0], all[1]
}

// worker is one that reports.
type worker struct {
	*testing.T
	conn *net.UnixConn
	pipe *Pipe
	left int
}

func newWorker(t *testing.T, conn *net.UnixConn) *worker {
	p, err := NewPipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Close)
	w := &worker{t, conn, p, 0}
	if err := p.Hello(conn, w.line(ToController{Hello: &Hello{Version: Version}})); err != nil {
		t.Fatal(err)
	}
	return w
}

func (w *worker) line(m ToController) []byte {
	b, err := Append(nil, m)
	if err != nil {
		w.Error(err)
	}
	return b
}

func (w *worker) say(m ToController) {
	if _, err := w.conn.Write(w.line(m)); err != nil {
		w.Error(err)
	}
	w.pipe.Said(m.Report)
}

func (w *worker) report(r *Report, unanswered int64) {
	if w.pipe.Leave(r, unanswered) {
		w.left++
	} else {
		w.say(ToController{Report: r})
	}
}

// same reports whether two reports are; NaN is NaN.
func same(a, b *Report) bool { return fmt.Sprintf("%+v", a) == fmt.Sprintf("%+v", b) }

// Reports arrive in their order, whichever way they go, and before the end, whatever is said between them.
func TestEar(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	left := 0
	for range 60 {
		ours, theirs := pair(t)
		var want []*Report
		names := []string{"a", "b", "ä %s\"", strings.Repeat("x", 40)}
		shape, set := rnd.Perm(4)[:rnd.IntN(5)], "train"
		n, done := int64(rnd.IntN(3)), rnd.IntN(2) == 0
		for range 1 + rnd.IntN(300) {
			n++
			r := &Report{N: n, At: rnd.Int64(), Data: map[string]Place{set: {Epoch: rnd.Uint64(), Step: rnd.Int64()}}}
			for _, k := range shape {
				if r.Metrics == nil {
					r.Metrics = Metrics{}
				}
				r.Metrics[names[k]] = [...]float64{rnd.NormFloat64(), math.NaN(), math.Inf(-1), 1e300, math.Copysign(0, -1)}[rnd.IntN(5)]
			}
			switch rnd.IntN(20) {
			case 0:
				shape = rnd.Perm(4)[:rnd.IntN(5)]
			case 1:
				set = []string{"train", "more"}[rnd.IntN(2)]
			case 2:
				r.Dir = "/d"
			case 3:
				r.Data["second"] = Place{Step: n}
			case 4:
				r.Data = nil
			}
			want = append(want, r)
		}
		plan := make([]int, len(want)) // what is said before each
		for i := range plan {
			plan[i] = rnd.IntN(8)
		}
		lefts := make(chan int, 1)
		go func() {
			w := newWorker(t, ours)
			for i, r := range want {
				if plan[i] == 0 {
					w.say(ToController{Alive: &Alive{}})
				}
				w.report(r, int64(plan[i]-1)*9) // sometimes too many
			}
			if done {
				w.say(ToController{Done: &Done{}})
			}
			lefts <- w.left
			w.pipe.Close()
			ours.Close()
		}()
		ear := NewEar(theirs)
		if m, err := ear.FromWorker(); err != nil || m.Hello == nil {
			t.Fatal(m, err)
		}
		got, ended := 0, false
		for {
			m, err := ear.FromWorker()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			switch {
			case m.Report != nil:
				if got == len(want) || !same(m.Report, want[got]) || ended {
					t.Fatalf("report %d is %+v, want %+v", got, m.Report, want[got])
				}
				got++
			case m.Done != nil:
				ended = true
			}
		}
		if got != len(want) || ended != done {
			t.Fatalf("%d reports of %d, the end %v of %v", got, len(want), ended, done)
		}
		ear.Close()
		left += <-lefts
	}
	if left < 1000 {
		t.Errorf("%d reports were left in pipes", left)
	}
}

// A report that is left is found without a word more.
func TestEarLooks(t *testing.T) {
	ours, theirs := pair(t)
	w := newWorker(t, ours)
	report := func(n int64) *Report {
		return &Report{N: n, Metrics: Metrics{"loss": float64(n)}, Data: map[string]Place{"train": {Step: n}}}
	}
	w.report(report(1), 0)
	ear := NewEar(theirs)
	defer ear.Close()
	for n := int64(0); n < 5; n++ {
		m, err := ear.FromWorker()
		if err != nil || n > 0 && !same(m.Report, report(n)) {
			t.Fatalf("%+v, %v", m.Report, err)
		}
		if n > 0 {
			w.report(report(n+1), 0)
		}
	}
	if w.left != 4 || !w.pipe.Quiet() {
		t.Errorf("%d reports were left, %v", w.left, w.pipe.Quiet())
	}
	// Who closes the connection ends it.
	stop := time.AfterFunc(time.Millisecond, func() { theirs.Close() })
	defer stop.Stop()
	for {
		if _, err := ear.FromWorker(); err != nil {
			if !errors.Is(err, net.ErrClosed) {
				t.Error(err)
			}
			break
		}
	}
}

func TestEarBad(t *testing.T) {
	numbers := func(all ...uint64) (b []byte) {
		for _, v := range all {
			b = binary.LittleEndian.AppendUint64(b, v)
		}
		return b
	}
	one := ToController{Report: &Report{N: 1, Metrics: Metrics{"a": 1}, Data: map[string]Place{"train": {}}}}
	bare := ToController{Report: &Report{N: 1, Metrics: Metrics{"a": 1}}}
	for _, c := range []struct {
		name string
		line ToController
		left []byte
		want string
	}{
		{"number before", one, numbers(1, 0, 0, 0, 0), "report 1 is in the pipe of a worker, where report 2 is due"},
		{"number after", one, numbers(3, 0, 0, 0, 0), "40 bytes in the pipe of a worker that are no report after number 1"},
		{"short", one, numbers(2, 0, 0, 0), "32 bytes, where a report with 1 metrics"},
		{"long", one, append(numbers(2, 0, 0, 0, 0), 1), "1 bytes in the pipe"},
		{"no data set", bare, numbers(2, 0, 0, 0, 0), `data set ""`},
		{"before a line", ToController{Alive: &Alive{}}, numbers(1, 0, 0, 0, 0), "40 bytes in the pipe"},
		{"negative step", one, numbers(2, 0, 1<<63, 0, 0), "step"},
		{"time", one, numbers(2, 0, 0, 1<<63, 0), "made at"},
		{"much", one, make([]byte, 60<<10), "report 0 is in the pipe of a worker, where report 2 is due"},
	} {
		ours, theirs := pair(t)
		w := newWorker(t, ours)
		w.say(c.line)
		if _, err := w.pipe.write.Write(c.left); err != nil {
			t.Fatal(err)
		}
		ours.Close()
		ear := NewEar(theirs)
		var err error
		for err == nil {
			_, err = ear.FromWorker()
		}
		if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
		ear.Close()
	}
	// What comes along is one pipe.
	f, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := NewPipe()
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for want, fds := range map[string][]int{"no pipe": {int(f.Fd())}, "one pipe, not 2": {int(p.read.Fd()), int(p.read.Fd())}} {
		ours, theirs := pair(t)
		line, err := Append(nil, ToController{Hello: &Hello{}})
		if err != nil {
			t.Fatal(err)
		}
		if _, _, err := ours.WriteMsgUnix(line, syscall.UnixRights(fds...), nil); err != nil {
			t.Fatal(err)
		}
		ear := NewEar(theirs)
		if _, err := ear.Line(); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
		ear.Close()
	}
	// None at all is well: the connection may come from another machine.
	ours, theirs := pair(t)
	if _, err := ours.Write([]byte("{\"alive\":{}}\n")); err != nil {
		t.Fatal(err)
	}
	ours.Close()
	ear := NewEar(theirs)
	defer ear.Close()
	if m, err := ear.FromWorker(); err != nil || m.Alive == nil {
		t.Error(m, err)
	}
	if _, err := ear.Line(); err != io.EOF {
		t.Error(err)
	}
}

// A pipe that is full, or whose other end is gone, takes nothing.
func TestPipeFull(t *testing.T) {
	ours, theirs := pair(t)
	w := newWorker(t, ours)
	report := &Report{N: 1, Data: map[string]Place{"train": {}}}
	w.say(ToController{Report: report})
	for w.pipe.Leave(report, 0) {
		w.left++
	}
	if w.left < 64 || w.left > 1<<20/32 {
		t.Errorf("%d reports", w.left)
	}
	ear := NewEar(theirs)
	if _, err := ear.Line(); err != nil {
		t.Fatal(err)
	}
	ear.Close()
	if w.pipe.Leave(report, 0) {
		t.Error("a report was left for nobody")
	}
}

// FuzzEar: whatever lies in a pipe is reports in their order, or an error.
func FuzzEar(f *testing.F) {
	f.Add([]byte(`{"report":{"n":1,"metrics":{"a":1},"data":{"train":{"epoch":0,"step":1}}}}`), binary.LittleEndian.AppendUint64(nil, 2))
	f.Add([]byte(`{"report":{"n":1,"data":{"train":{}}}}`), append([]byte{2, 0, 0, 0, 0, 0, 0, 0}, make([]byte, 24)...))
	f.Add([]byte(`{"report":{"n":-1}}`), []byte{0, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, line, left []byte) {
		r := reportOf(line)
		if r == nil {
			return
		}
		e := &Ear{pipe: -1, left: left, next: r.N + 1, like: likenessOf(r)}
		for next := e.next; ; next++ {
			got, err := e.quiet()
			if err != nil && fault.CodeOf(err) != fault.Corrupt {
				t.Fatal(err)
			}
			if got == nil {
				return
			}
			// Another node would be told of it by a line.
			b, err := Append(nil, ToController{Report: got})
			if err != nil {
				t.Fatal(err)
			}
			m, err := NewReader(strings.NewReader(string(b))).FromWorker()
			if err != nil || m.Report == nil || m.Report.N != next || !reflect.DeepEqual(keys(m.Report.Metrics), keys(r.Metrics)) {
				t.Fatalf("%s: %v", b, err)
			}
		}
	})
}

func keys(m Metrics) map[string]bool {
	all := map[string]bool{}
	for k := range m {
		all[k] = true
	}
	return all
}

// The end of a worker is the end of what it said, though something that it left behind holds its connection, and is found behind all of that.
func TestEarFinish(t *testing.T) {
	for i, pipe := range []bool{true, false, true, false} {
		ours, theirs := pair(t)
		ear := NewEar(theirs)
		defer ear.Close()
		report := &Report{N: 1, Metrics: Metrics{"loss": 1}, Data: map[string]Place{"train": {}}}
		want := int64(1)
		if pipe {
			w := newWorker(t, ours)
			w.say(ToController{Report: report})
			for report.N++; report.N < 9 && w.pipe.Leave(report, 0); report.N++ {
				want++
			}
		} else if _, err := ours.Write([]byte("{\"alive\":{}}\n{\"report\":{\"n\":1}}\n")); err != nil {
			t.Fatal(err)
		}
		if i < 2 { // before it is looked at, else while it is waited for
			ear.Finish()
			// What was there before is read all the same.
			theirs.SetReadDeadline(time.Time{})
		}
		last := int64(0)
		for {
			m, err := ear.FromWorker()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if m.Report != nil {
				last = m.Report.N
			}
			if last == want && i >= 2 {
				time.AfterFunc(time.Millisecond, ear.Finish)
			}
		}
		if last != want {
			t.Errorf("%v: the last report is %d, want %d", pipe, last, want)
		}
	}
}

// A report that others wait for is found at once, not with the next look; a line in pieces is whole, whoever wakes the ear meanwhile.
func TestEarWant(t *testing.T) {
	ours, theirs := pair(t)
	w := newWorker(t, ours)
	report := func(n int64) *Report {
		return &Report{N: n, Metrics: Metrics{"loss": 1}, Data: map[string]Place{"train": {}}}
	}
	w.report(report(1), 0)
	ear := NewEar(theirs)
	defer ear.Close()
	for range 2 {
		if _, err := ear.FromWorker(); err != nil {
			t.Fatal(err)
		}
	}
	begin := time.Now()
	for n := int64(2); n < 22; n++ {
		ear.Want(n)
		w.report(report(n), 0)
		if m, err := ear.FromWorker(); err != nil || !same(m.Report, report(n)) {
			t.Fatal(m.Report, err)
		}
	}
	if d := time.Since(begin); w.left != 20 || d > 10*quietTick {
		t.Errorf("%d reports were found in %v, one look is each %v", w.left, d, quietTick)
	}
	long := report(22)
	long.Dir = strings.Repeat("d", 1<<20)
	line := w.line(ToController{Report: long})
	go func() {
		for len(line) > 0 {
			n := min(len(line), 10<<10)
			ear.Want(100)
			if _, err := ours.Write(line[:n]); err != nil {
				t.Error(err)
			}
			line = line[n:]
		}
	}()
	if m, err := ear.FromWorker(); err != nil || !same(m.Report, long) {
		t.Fatal(err)
	}
}

// Names that JSON cannot hold are said in lines.
func TestPipeNames(t *testing.T) {
	ours, _ := pair(t)
	w := newWorker(t, ours)
	for _, name := range []string{"\xff", "ä", "\ufffd"} {
		r := &Report{N: 1, Metrics: Metrics{name: 1}, Data: map[string]Place{"train": {}}}
		w.say(ToController{Report: r})
		if left := w.pipe.Leave(r, 0); left != (name != "\xff") {
			t.Errorf("%q: %v", name, left)
		}
	}
}
