package trainer

import (
	"context"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/store"
)

// A connection that does not say whose hand it is, at all or a byte at a time, is not kept for long, and the end of the run does not wait for it.
func TestUnknownHand(t *testing.T) {
	for name, say := range map[string]func(conn net.Conn){
		"silent": func(net.Conn) {},
		"slow": func(conn net.Conn) {
			for {
				if _, err := conn.Write([]byte{' '}); err != nil {
					return
				}
				time.Sleep(silence / 2)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ns := &nodes{unknown: map[net.Conn]bool{}}
				var says sync.WaitGroup
				defer says.Wait()
				come := func() (near net.Conn, heard chan struct{}) {
					near, far := net.Pipe()
					heard = make(chan struct{})
					ns.work.Go(func() {
						ns.hear(far, 1)
						close(heard)
					})
					return near, heard
				}
				first, heard := come()
				at := time.Now()
				says.Go(func() { say(first) })
				<-heard
				if took := time.Since(at); took > helloTime {
					t.Errorf("it is kept for %v", took)
				}
				first.Close()
				near, _ := come()
				defer near.Close()
				says.Go(func() { say(near) })
				synctest.Wait()
				at = time.Now()
				ns.close()
				if took := time.Since(at); took > time.Second {
					t.Errorf("the end waited for %v", took)
				}
				late, heard := come() // accepted before the listener was closed
				defer late.Close()
				<-heard
			})
		})
	}
}

// All hands are told of the end at once: those that do not read hold up nobody else.
func TestByeAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there := make(chan struct{})
		close(there)
		c := &controller{ctx: t.Context()}
		ns := &nodes{c: c, there: there, all: []*node{nil}}
		for k := 1; k < 8; k++ {
			near, far := net.Pipe()
			defer far.Close()
			ns.all = append(ns.all, &node{number: k, of: ns, line: newHandLine(near), gone: make(chan struct{}), waits: map[int64]*handWait{}})
		}
		at := time.Now()
		ns.bye(t.Context(), &wire.HandOver{})
		if took := time.Since(at); took > byeTime+sendTime {
			t.Errorf("seven hands that do not read took %v", took)
		}
	})
}

// Who comes late to a run that was finished before finds node 0, and hears so; of another end, or of a caller that gives up, nobody waits for long.
func TestByeLate(t *testing.T) {
	for name, c := range map[string]struct {
		state string
		comes time.Duration
		stops time.Duration
		took  time.Duration
		told  error
	}{
		"finished":              {store.Finished, 40 * time.Second, time.Hour, 40 * time.Second, nil},
		"finished, never":       {store.Finished, time.Hour, 2 * time.Hour, time.Minute, nil},
		"finished, and stops":   {store.Finished, time.Hour, 20 * time.Second, 20 * time.Second, nil},
		"finished, and noticed": {store.Finished, time.Hour, 2 * time.Hour, lateTime, preempted("test")},
		"failed":                {store.Failed, 40 * time.Second, time.Hour, lateTime, nil},
		"nothing":               {"", 40 * time.Second, 0, lateTime, nil},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), c.stops)
				defer cancel()
				there := make(chan struct{})
				time.AfterFunc(c.comes, func() { close(there) })
				ns := &nodes{c: &controller{site: site{cfg: Config{StartTimeout: time.Minute}}, ctx: t.Context(), noticed: c.told}, there: there, all: []*node{nil}}
				at := time.Now()
				ns.bye(ctx, &wire.HandOver{State: c.state})
				if took := time.Since(at); took != c.took {
					t.Errorf("it took %v, want %v", took, c.took)
				}
			})
		})
	}
}

// A notice ends the waiting for hands of a run that was finished before.
func TestByeNotice(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &controller{site: site{cfg: Config{StartTimeout: 10 * time.Minute}}, over: make(chan struct{}), gone: make(chan struct{})}
		c.ctx, c.stop = context.WithCancelCause(t.Context())
		c.nodes = &nodes{c: c, there: make(chan struct{}), notices: make(chan string, 1), all: []*node{nil}}
		own := make(chan string)
		c.nodes.work.Go(func() { c.nodes.hearOwn(own) })
		time.AfterFunc(time.Minute, func() {
			select {
			case own <- "terminated":
			case <-time.After(time.Hour):
				t.Error("nobody hears the notice")
			}
		})
		at := time.Now()
		if err := c.close(t.Context(), &wire.HandOver{State: store.Finished}); err != nil {
			t.Error(err)
		}
		if took := time.Since(at); took != time.Minute {
			t.Errorf("it took %v", took)
		}
	})
}

// The good end of a worker hides nothing but that it was itself refused: not that another process was, on its node or with its number on another.
func TestTurnedAway(t *testing.T) {
	why := fault.New(fault.Exists, "rank 1 is connected already")
	const rank = 1
	for name, c := range map[string]struct {
		refused  error
		stranger refusedID
		came     bool // somebody for the rank
		want     bool
	}{
		"nobody was refused":                   {nil, refusedID{}, true, false},
		"nobody was, and nobody came":          {nil, refusedID{}, false, false},
		"it was, and another has its rank":     {why, refusedID{1, 100}, true, true},
		"another of its node was":              {why, refusedID{1, 101}, true, false},
		"one of another node, of its number":   {why, refusedID{0, 100}, true, false},
		"one that did not say its number":      {why, refusedID{1, 0}, true, false},
		"somebody was, and nobody came for it": {why, refusedID{0, 101}, false, true},
	} {
		at := &attempt{peers: make([]*peer, 2), refused: c.refused, stranger: c.stranger}
		if c.came {
			at.peers[rank] = &peer{}
		}
		if got := at.turnedAway(rank, refusedID{1, 100}); got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
	at := &attempt{peers: []*peer{{}, {}}, refused: why}
	if at.turnedAway(0, refusedID{}) {
		t.Error("a process without a number is taken for one that did not say its own")
	}
}

// A node whose storage has the name of node 0's and is another folder is refused: without the run, or with another of its name.
func TestStorageNotShared(t *testing.T) {
	theirs, mine := t.TempDir(), t.TempDir()
	create := func(storage string) string {
		run, err := store.Create(t.Context(), storage, store.Record{Name: "x", Workers: 2, Program: "test"})
		if err != nil {
			t.Fatal(err)
		}
		defer run.Close()
		return run.Record().ID
	}
	id := create(theirs)
	for _, c := range []string{"there is no run", "there is another run"} {
		h := &hand{site: site{cfg: Config{Storage: mine}}}
		_, err := h.welcome(t.Context(), &wire.HandWelcome{Run: "x", ID: id})
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "is not the same one on this machine as on node 0") || !strings.Contains(err.Error(), c) || h.run != nil {
			t.Errorf("%v, want %q", err, c)
		}
		if c == "there is no run" {
			create(mine)
		}
	}
}
