package feeder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// endless is the beginning of a line, and then no end of it.
type endless struct {
	begin io.Reader
	read  int64
}

func noEnd(begin string) *endless { return &endless{begin: strings.NewReader(begin)} }

func (e *endless) Read(p []byte) (n int, err error) {
	if n, err = e.begin.Read(p); n == 0 {
		for i := range p {
			p[i] = 'A'
		}
		n, err = len(p), nil
	}
	e.read += int64(n)
	return n, err
}

// Lines of up to so many bytes are read, however they come; of longer ones no more than that.
func TestLines(t *testing.T) {
	const most = 1000
	fits := `"` + strings.Repeat("x", most-3) + `"`
	l := newLines(strings.NewReader(fits+"\n7\n"+fits+"\n"+fits+"\n"), most)
	for i := range 4 {
		var v any
		if err := l.next(&v); err != nil {
			t.Fatalf("value %d: %v", i, err)
		}
	}
	if err := l.next(new(any)); err != io.EOF {
		t.Errorf("at the end: %v", err)
	}
	for in, code := range map[string]fault.Code{fits + " \n": fault.Invalid, "{\n": fault.Invalid, "7": fault.Corrupt} { // one too many, no JSON, no end
		if err := newLines(strings.NewReader(in), most).next(new(any)); fault.CodeOf(err) != code {
			t.Errorf("%.20s: %v", in, err)
		}
	}
	for name, in := range map[string]*endless{
		"a text":         noEnd(`"`),
		"a second value": noEnd(`"x"` + "\n" + `{"ledger":"`),
		"nothing":        noEnd(strings.Repeat(" ", 1<<20)),
	} {
		l := newLines(in, most)
		var err error
		for i := 0; err == nil && i < 3; i++ {
			err = l.next(new(any))
		}
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "more than 1000 bytes") || in.read > 3*most {
			t.Errorf("%s: %v, after %d bytes", name, err, in.read)
		}
	}
}

// A side that says a line without an end is cut off, with a word why; the controller's is the end of what is served.
func TestEndlessLine(t *testing.T) {
	cut := 0
	l := newLine(io.Discard, func() { cut++ })
	l.most = 1000
	err := l.read(noEnd(`{"ledger":"`))
	l.end(err)
	if _, err := l.ledger(t.Context(), "train"); !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "a line of more than 1000 bytes") || cut == 0 {
		t.Errorf("cut off %d times: %v", cut, err)
	}
	c := &control{out: io.Discard, most: 1000}
	if err := c.run(t.Context(), noEnd(`{"start":{"at":{"`)); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "a line of more than 1000 bytes") {
		t.Error(err)
	}
}

// What the other side would not take is not sent: a request is refused, an answer is an error.
func TestLongLine(t *testing.T) {
	var out bytes.Buffer
	l := newLine(&out, func() { t.Error("cut off") })
	l.most = 200
	long := make([]byte, 200)
	if _, _, err := l.start(t.Context(), "", Start{Ranks: 1, At: map[string]At{"train": {Ledger: long}}}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "ledgers of the data sets are too long") {
		t.Error(err)
	}
	if _, err := l.listen(t.Context(), string(long)); fault.CodeOf(err) != fault.Invalid {
		t.Error(err)
	}
	if out.Len() > 0 || len(l.waits) > 0 || l.failed != nil {
		t.Errorf("%d bytes are sent, %d wait", out.Len(), len(l.waits))
	}
	c := &control{out: &out, most: 300}
	_, c.end = context.WithCancelCause(t.Context())
	c.send(reply{ID: 7, Ledger: make([]byte, 300)})
	var a reply
	if err := newLines(&out, 300).next(&a); err != nil || a.ID != 7 || fault.CodeOf(a.Error.fault()) != fault.Invalid || !strings.Contains(a.Error.Text, "ledgers of the data sets are too long") {
		t.Errorf("%v: %+v", err, a)
	}
}

// What is left after Fit goes into a line.
func TestFit(t *testing.T) {
	for want, sizes := range map[string][3]int{"[]": {20 << 20, 24 << 20, 0}, "[b]": {20 << 20, 25 << 20, 0}, "[a]": {30 << 20, 30 << 20, 1}, "[b a]": {45 << 20, 50 << 20, 1}} {
		at := map[string]At{}
		for i, n := range sizes {
			at[string(rune('a'+i))] = At{State: shard.State{Epoch: 7}, Ledger: make([]byte, n)}
		}
		if got := fmt.Sprint(Fit(at)); got != want {
			t.Errorf("%d: %s, want %s", sizes, got, want)
		}
		if _, err := lineOf(request{Start: &Start{At: at}}, maxLine); err != nil || len(at) != 3 || at["a"].State.Epoch != 7 {
			t.Error(err)
		}
	}
}
