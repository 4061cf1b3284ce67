package head

import (
	"bytes"
	"log/slog"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/core"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/records"
)

// back has a store answer again when the head says that it does not.
type back struct {
	process *os.Process
	times   int // the loop's
}

func (b *back) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("the store does not take records")) {
		b.times++
		b.process.Signal(syscall.SIGCONT)
	}
	return len(line), nil
}

// TestAwayAgain: wherever the loop reads or writes what follows from what has happened, it does not matter that the store is away just then.
func TestAwayAgain(t *testing.T) {
	process, address := etcd(t)
	b := &back{process: process}
	h, err := Start(t.Context(), Config{Dir: shortDir(t), Lease: time.Minute, Log: slog.New(slog.NewTextHandler(b, nil)), Store: records.Options{Endpoints: []string{address}, Timeout: 500 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	defer h.Stop(0)
	var id string
	in := func(what string, away bool, f func() error) {
		t.Helper()
		if err := h.do(t.Context(), func() error {
			was := b.times
			if away {
				if err := process.Signal(syscall.SIGSTOP); err != nil {
					return err
				}
				if _, err := syscall.Wait4(process.Pid, nil, syscall.WUNTRACED, nil); err != nil { // until it has stopped
					return err
				}
			}
			err := f()
			if away && b.times != was+1 {
				t.Errorf("%s: the store was missed %d times", what, b.times-was)
			}
			return err
		}); err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	in("a node", false, func() (err error) {
		id, err = h.newNode(t.Context(), &pb.Inventory{Name: "a", Capacity: &pb.Resources{MilliCpus: 1000}}, "10.0.0.1", false, nil, "")
		return err
	})
	in("a record that was written", true, func() error {
		r, err := read(h, h.t.nodes, id)
		if err == nil && r.Value.Inventory.GetName() != "a" {
			t.Errorf("read: %v", r)
		}
		return err
	})
	s := &session{node: id, epoch: 1, end: func(error) {}, more: make(chan struct{}, 1)}
	in("its session", false, func() error {
		h.sessions[id] = s
		if err := h.grant(s); err != nil {
			return err
		}
		return h.step(core.Event{Kind: core.Attach, Node: h.nodes[id].Value.node(id), Epoch: 1})
	})
	over := func() error { return h.leaseOver(id, h.live[id].Revision) }
	granted := func(what string) {
		t.Helper()
		if r, err := h.t.live.Get(t.Context(), id); err != nil || r.Lease == 0 {
			t.Errorf("%s: %+v, %v", what, r, err)
		}
	}
	s.missed.Store(true)
	in("a lease that nobody could renew", true, over)
	granted("a lease that nobody could renew")
	in("a lease of a node that has not attached again", true, func() error {
		delete(h.sessions, id)
		h.excused = time.Now().Add(time.Hour)
		return over()
	})
	granted("a lease of a node that has not attached again")
	const later = 1 << 40 // than what the watch says of it
	in("a lease that ends", false, func() error {
		h.excused = time.Time{}
		live := *h.live[id]
		live.Revision = later
		h.live[id] = &live
		return h.store.Revoke(t.Context(), live.Lease)
	})
	in("a list of the leases that there are", true, func() error {
		return h.liveChanged(records.Event[liveRecord]{Kind: records.Current, Record: records.Record[liveRecord]{Revision: later}})
	})
	in("the node", false, func() error {
		if h.live[id] != nil || h.nodes[id].Value.State != core.Gone {
			t.Errorf("its lease was not missed: %+v", h.nodes[id].Value)
		}
		return nil
	})
}
