package trainer

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/store"
)

// A report without files returns before it is answered, and says where the rank is; its error is that of a later call. One with files sends the state, and waits.
func TestReportIsNotWaitedFor(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	f := feeder.Local(dir, []feeder.Set{feeder.Of("train", train().Dataset, train().Options, false)}, nil)
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	sockets, _, err := f.Start(t.Context(), feeder.Start{Ranks: 1})
	if err != nil {
		t.Fatal(err)
	}
	l, err := feed.Listen(filepath.Join(dir, "c"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	said := make(chan *wire.Report, 2*ahead)
	answers := make(chan wire.Reported, 2*ahead)
	defer close(answers)
	go func() { // the controller
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer conn.Close()
		say := func(m wire.ToWorker) {
			if b, err := wire.Append(nil, m); err == nil {
				_, _ = conn.Write(b) // seen by who waits for it
			}
		}
		r := wire.NewReader(conn)
		if m, err := r.FromWorker(); err != nil || m.Hello == nil {
			return
		}
		say(wire.ToWorker{Welcome: &wire.Welcome{Run: "r", Attempt: 1, World: 1, Config: []byte("{}"), Reports: 3, Data: map[string]wire.Data{"train": {Socket: sockets["train"]}}}})
		go func() {
			for a := range answers {
				say(wire.ToWorker{Reported: &a})
			}
		}()
		for {
			m, err := r.FromWorker()
			if err != nil {
				return
			}
			if m.Report != nil {
				said <- m.Report
			}
		}
	}()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second) // of a Report that waits for what never comes
	defer cancel()
	c, err := join(ctx, identity{socket: l.Addr().String(), run: "r", attempt: 1})
	if err != nil {
		t.Fatal(err)
	}
	defer c.leave()
	s, err := c.Shard("train")
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Next(ctx)
	if err != nil {
		t.Fatal(err)
	}
	b.Release()
	for i := range ahead {
		if err := c.Report(nil, ""); err != nil {
			t.Fatalf("report %d: %v", i+1, err)
		}
	}
	for n := int64(4); n < 4+ahead; n++ {
		if r := <-said; r.N != n || r.Dir != "" || len(r.Data) != 1 || r.Data["train"].Step != 1 || r.Data["train"].Epoch != 0 || r.Data["train"].State != nil {
			t.Fatalf("report %d: %+v", n, r)
		}
	}
	answers <- wire.Reported{N: 4, Error: wire.FromError(fault.New(fault.Exhausted, "not kept"))}
	if err := c.Report(nil, ""); fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "not kept") {
		t.Errorf("the call after an error: %v", err)
	}
	for n := int64(5); n <= 5+ahead; n++ {
		answers <- wire.Reported{N: n}
	}
	if err := os.WriteFile(filepath.Join(dir, "model"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := c.Report(nil, dir); err != nil {
		t.Error(err)
	}
	<-said // that after the error
	r := <-said
	p := r.Data["train"]
	if at, err := shard.ParseState(p.State); err != nil || r.Dir != dir || p.Step != 1 || at.Step != 1 || at.Sample != batch {
		t.Errorf("with files: %+v, %v", r, err)
	}
	if got, want := p.State, mustJSON(t, s.State()); string(got) != want {
		t.Errorf("sent %s, the state is %s", got, want)
	}
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// A checkpoint holds states of where the ranks are, or is none.
func TestPlaced(t *testing.T) {
	at := func(epoch uint64, step int64) store.Data {
		return store.Data{State: json.RawMessage(mustJSON(t, shard.State{Version: shard.StateVersion, Order: 1, Epoch: epoch, Step: step}))}
	}
	for name, c := range map[string]struct {
		data   map[string]store.Data
		places map[string]wire.Place
		code   fault.Code
		want   string
	}{
		"nothing":                  {},
		"a state":                  {map[string]store.Data{"a": at(1, 2)}, map[string]wire.Place{"a": {Epoch: 1, Step: 2}}, 0, ""},
		"restored, not opened":     {map[string]store.Data{"a": at(1, 2)}, nil, 0, ""},
		"opened, nothing was read": {nil, map[string]wire.Place{"a": {Epoch: 4}}, 0, ""},
		"not of this step":         {map[string]store.Data{"a": at(1, 2)}, map[string]wire.Place{"a": {Epoch: 1, Step: 3}}, fault.Invalid, `step 3 of epoch 1 of data set "a"`},
		"not of this epoch":        {map[string]store.Data{"a": at(1, 2)}, map[string]wire.Place{"a": {Epoch: 2, Step: 2}}, fault.Invalid, "open every training data set"},
		"no state":                 {nil, map[string]wire.Place{"a": {Step: 3}}, fault.Invalid, "no rank that gives files has opened it"},
		"edited":                   {map[string]store.Data{"a": {State: json.RawMessage(`{"version":1,"step":3}`)}}, map[string]wire.Place{"a": {Step: 3}}, fault.Corrupt, `the state of data set "a"`},
	} {
		if err := placed(c.data, c.places); c.want == "" && err != nil || c.want != "" && (fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s: %v (%v)", name, err, fault.CodeOf(err))
		}
	}
}

// A rank that gives files does not wait for the next look at the reports of others, which are made beside it: on its machine, or on another node.
func TestCheckpointIsNotLate(t *testing.T) {
	dir := t.TempDir()
	least := time.Hour
	loop := func(k *Context) error {
		s, err := k.Shard("train")
		if err != nil {
			return err
		}
		for n := range 24 {
			b, err := s.Next(k)
			if err != nil {
				return err
			}
			b.Release()
			if err := k.Barrier(); err != nil {
				return err
			}
			files := ""
			if k.Rank() == 0 && n%4 == 2 { // not with the last, after which all is said by lines
				files = filepath.Join(dir, k.Run(), strconv.Itoa(n))
				if err := os.MkdirAll(files, 0o755); err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(files, "a"), []byte("x"), 0o644); err != nil {
					return err
				}
			}
			begin := time.Now()
			if err := k.Report(map[string]float64{"loss": 1}, files); err != nil {
				return err
			}
			if files != "" {
				least = min(least, time.Since(begin))
			}
		}
		return nil
	}
	check := func() {
		t.Helper()
		if least > 60*time.Millisecond {
			t.Errorf("each checkpoint took %v or more", least)
		}
		least = time.Hour
	}
	c := quick(t, "late")
	c.Workers = 2
	fitOK(t, loop, c)
	check()
	k := newConf(t, "nodes")
	k.Loop = "goroutines"
	_, errs := trained(t, 2, func(g *gang.Gang, dir string) *Trainer { return New(loop, k.quiet(t, g, dir)) })
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
	check()
}

// The history has the time at which a report was made, whenever the controller heard of it.
func TestTimesOfReports(t *testing.T) {
	c := quick(t, "times")
	c.Workers = 1
	begin := time.Now()
	fitOK(t, func(k *Context) error {
		s, err := k.Shard("train")
		if err != nil {
			return err
		}
		for range steps {
			b, err := s.Next(k)
			if err != nil {
				return err
			}
			b.Release()
			if err := k.Report(map[string]float64{"us": float64(time.Since(begin).Microseconds())}, ""); err != nil {
				return err
			}
		}
		return nil
	}, c)
	run, err := store.Open(t.Context(), c.Storage, c.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	n, early := 0, 0
	last := begin
	for row, err := range run.History(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		before := begin.Add(time.Duration(row.Metrics["us"]) * time.Microsecond)
		if row.Time.Before(before) || row.Time.Before(last) {
			t.Errorf("report %d was made at %v, after %v, and is of %v", row.Report, before.Sub(begin), last.Sub(begin), row.Time.Sub(begin))
		}
		if n++; n > 1 && before.After(last) { // the one before was made by then
			early++
		}
		last = row.Time
	}
	if n != steps || early != steps-1 {
		t.Errorf("%d reports, %d of them with a time before the next began", n, early)
	}
}

// What a worker said before it ended is passed on, though it cannot be answered any more.
func TestDownLeavesWhatWasSaid(t *testing.T) {
	dir := t.TempDir()
	if err := os.Chmod(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := feed.Listen(filepath.Join(dir, "c"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	worker, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := l.AcceptUnix()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	said := []byte(strings.Repeat("a line\n", 1000))
	if _, err := worker.Write(said); err != nil {
		t.Fatal(err)
	}
	worker.Close()
	up, controller := net.Pipe()
	go func() {
		for range 3 {
			controller.Write([]byte("an answer\n"))
		}
		controller.Close()
	}()
	down(conn, up)
	if got, err := io.ReadAll(conn); err != nil || string(got) != string(said) {
		t.Errorf("%d of %d bytes, %v", len(got), len(said), err)
	}
}
