package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"reflect"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/penstock-data/penstock/internal/fault"
)

func TestRoundTrip(t *testing.T) {
	up := []ToController{
		{Hello: &Hello{Version: Version, Run: "r", Attempt: 2, Rank: 1, PID: 7, Client: "go"}},
		{Report: &Report{N: 3, Metrics: Metrics{"loss": 0.5, "lr": math.Inf(1)}, Dir: "/a b\n<c>", Data: map[string]Place{"train": {Epoch: 1, Step: 9, State: json.RawMessage(`{"version":1}`)}, "more": {Step: 2}}}},
		{Alive: &Alive{Step: 4}},
		{Restore: &Restore{}},
		{Meet: &Meet{Address: "host:1"}},
		{Done: &Done{Error: &Error{Code: "user_code", Text: "x", Trace: "y"}}},
	}
	var b []byte
	var err error
	for _, m := range up {
		if b, err = Append(b, m); err != nil {
			t.Fatal(err)
		}
	}
	if n := bytes.Count(b, []byte("\n")); n != len(up) {
		t.Errorf("%d lines for %d messages", n, len(up))
	}
	for _, src := range []io.Reader{bytes.NewReader(b), iotest.OneByteReader(bytes.NewReader(b))} {
		r := NewReader(src)
		for _, want := range up {
			if got, err := r.FromWorker(); err != nil || !reflect.DeepEqual(got, want) {
				t.Fatalf("%+v, %v; want %+v", got, err, want)
			}
		}
		if _, err := r.FromWorker(); err != io.EOF {
			t.Errorf("at the end: %v", err)
		}
	}
	down := []ToWorker{
		{Welcome: &Welcome{Run: "r", World: 2, Config: json.RawMessage(`{"lr":0.1}`), Data: map[string]Data{"train": {Socket: "/s"}}, Checkpoint: 3, Metrics: Metrics{"a": 1}}},
		{Reported: &Reported{N: 1, Checkpoint: 2}},
		{Restored: &Restored{Dir: "/d"}},
		{Met: &Met{Address: "host:2"}},
		{Preempt: &Preempt{Reason: "SIGTERM", Grace: 30, Report: 4}},
		{Refused: &Error{Code: "invalid", Text: "no"}},
	}
	b = nil
	for _, m := range down {
		if b, err = Append(b, m); err != nil {
			t.Fatal(err)
		}
	}
	r := NewReader(bytes.NewReader(b))
	for _, want := range down {
		if got, err := r.FromController(); err != nil || !reflect.DeepEqual(got, want) {
			t.Fatalf("%+v, %v; want %+v", got, err, want)
		}
	}
}

func TestBadLines(t *testing.T) {
	for _, c := range []struct {
		line, want string
		code       fault.Code
	}{
		{"{}\n", "0 kinds", fault.Unsupported},
		{`{"hello":{},"alive":{}}` + "\n", "2 kinds", fault.Unsupported},
		{`{"goodbye":{}}` + "\n", "0 kinds", fault.Unsupported},
		{"hello\n", "no message", fault.Corrupt},
		{`{"alive":{}}`, "in the midst", fault.Corrupt},
		{`{"report":{"n":"x"}}` + "\n", "no message", fault.Corrupt},
		{`{"report":{"n":1,"metrics":{"loss":"low"}}}` + "\n", `metric "loss"`, fault.Invalid},
		{`{"report":{"n":1,"metrics":{"loss":null}}}` + "\n", `metric "loss"`, fault.Invalid},
		{`{"report":{"n":1,"metrics":[]}}` + "\n", "object of numbers", fault.Invalid},
	} {
		_, err := NewReader(strings.NewReader(c.line)).FromWorker()
		if fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v (%v), want %v with %q", c.line, err, fault.CodeOf(err), c.code, c.want)
		}
	}
	// Unknown fields are for later releases.
	if _, err := NewReader(strings.NewReader(`{"alive":{"step":3,"gpu":1}}` + "\n")).FromWorker(); err != nil {
		t.Error(err)
	}
}

// endless is a line without an end.
type endless struct{ read int64 }

func (e *endless) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = 'x'
	}
	e.read += int64(len(b))
	return len(b), nil
}

func TestLimit(t *testing.T) {
	src := &endless{}
	_, err := NewReader(src).FromWorker()
	if fault.CodeOf(err) != fault.Invalid || src.read > MaxLine+64<<10 {
		t.Errorf("%v after %d bytes", err, src.read)
	}
	long := ToController{Report: &Report{Dir: strings.Repeat("x", MaxLine)}}
	if _, err := Append(nil, long); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a long message: %v", err)
	}
	fits := ToController{Report: &Report{Dir: strings.Repeat("x", MaxLine-100)}}
	b, err := Append(nil, fits)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := NewReader(bytes.NewReader(b)).FromWorker(); err != nil || got.Report.Dir != fits.Report.Dir {
		t.Errorf("the longest message: %v", err)
	}
}

func TestMetrics(t *testing.T) {
	in := Metrics{"a": math.NaN(), "b": math.Inf(1), "c": math.Inf(-1), "d": 1e-300, "e": -0.1}
	b, err := json.Marshal(in)
	if err != nil {
		t.Fatal(err)
	}
	if want := `{"a":"NaN","b":"Infinity","c":"-Infinity","d":1e-300,"e":-0.1}`; string(b) != want {
		t.Errorf("%s, want %s", b, want)
	}
	var out Metrics
	if err := json.Unmarshal(b, &out); err != nil {
		t.Fatal(err)
	}
	for k, v := range in {
		if w := out[k]; v != w && !(math.IsNaN(v) && math.IsNaN(w)) {
			t.Errorf("%s: %v, want %v", k, w, v)
		}
	}
}

func TestErrors(t *testing.T) {
	for c := fault.Unknown; c.Known(); c++ {
		if got := fault.CodeOf(FromError(fault.New(c, "x")).Err()); got != c {
			t.Errorf("%v came as %v", c, got)
		}
	}
	if FromError(nil) != nil || (*Error)(nil).Err() != nil {
		t.Error("nil does not stay nil")
	}
	if err := (&Error{Code: "later", Text: "x", Trace: "at line 3\n"}).Err(); err.Error() != "x\nat line 3" || fault.CodeOf(err) != fault.Unknown {
		t.Error(err)
	}
	if e := FromError(errors.New(strings.Repeat("ä", 1<<20))); len(e.Text) > 64<<10 {
		t.Errorf("a text of %d bytes", len(e.Text))
	}
}

func FuzzFromWorker(f *testing.F) {
	f.Add([]byte(`{"report":{"n":1,"metrics":{"loss":"NaN"},"data":{"a":{"step":1}}}}` + "\n"))
	f.Add([]byte(`{"hello":{"version":1}}` + "\n{}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		r := NewReader(bytes.NewReader(b))
		for {
			m, err := r.FromWorker()
			if err != nil {
				return
			}
			if line, err := Append(nil, m); err != nil {
				t.Fatal(err)
			} else if _, err := NewReader(bytes.NewReader(line)).FromWorker(); err != nil {
				t.Fatalf("%q: %v", line, err)
			}
		}
	})
}
