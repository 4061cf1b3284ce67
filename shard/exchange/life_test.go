package exchange

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/faulttest"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/shard"
)

// pair is two nodes of a gang, closed with the test.
func pair(t testing.TB) [2]*Exchange {
	t.Helper()
	x, err := connect(t.Context(), gangtest.New(t, 2), "pair")
	if err != nil {
		t.Fatal(err)
	}
	both := [2]*Exchange{x[0].(*Exchange), x[1].(*Exchange)}
	t.Cleanup(func() { closeAll(both[:]...) })
	return both
}

// piped is two nodes over a pipe in this process.
func piped() [2]*Exchange {
	a, b := net.Pipe()
	return [2]*Exchange{New(0, []net.Conn{nil, a}), New(1, []net.Conn{b, nil})}
}

func closeAll(xs ...*Exchange) {
	var g sync.WaitGroup
	for _, x := range xs {
		g.Go(func() { x.Close() })
	}
	g.Wait()
}

// mute swallows what is written from some time on, as a cable does that is cut: nothing ends.
type mute struct {
	net.Conn
	cut atomic.Bool
}

func (m *mute) Write(b []byte) (int, error) {
	if m.cut.Load() {
		return len(b), nil
	}
	return m.Conn.Write(b)
}

// Nodes that say nothing stay, for any time; one from which nothing comes any more is lost after the time of Silence, whoever waits for it.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := net.Pipe()
		cable := &mute{Conn: b}
		x, y := New(0, []net.Conn{nil, a}), New(1, []net.Conn{cable, nil})
		defer closeAll(x, y)
		got := make(chan error, 1)
		go func() { _, err := x.Receive(t.Context(), 1, memory.DefaultAllocator); got <- err }()
		time.Sleep(time.Hour)
		select {
		case err := <-got:
			t.Fatal(err)
		default:
		}
		cable.cut.Store(true)
		begin := time.Now()
		err := <-got
		faulttest.Wants(t, err, fault.WorkerLost, "node 1", "20s")
		if d := time.Since(begin); d > Silence || d < Silence/2 {
			t.Errorf("lost after %v", d)
		}
		faulttest.Wants(t, x.Send(t.Context(), 1, shard.Message{Head: []byte("x")}), fault.WorkerLost)
		_, err = y.Receive(t.Context(), 0, memory.DefaultAllocator)
		faulttest.Wants(t, err, fault.WorkerLost, "node 0", "has died") // it is told
	})
}

// A node that does not read is no lost one: the sender waits, for as long as it lives, and not after.
func TestNotRead(t *testing.T) {
	for _, dies := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			x := piped()
			rows, freed := make([]byte, 1<<20), 0
			sent := make(chan error, 1)
			go func() {
				sent <- x[0].Send(t.Context(), 1, shard.Message{Packed: rows, Free: func() { freed++ }})
			}()
			time.Sleep(time.Hour)
			select {
			case err := <-sent:
				t.Fatalf("node 1 reads nothing, and Send returns %v", err)
			default:
			}
			if dies {
				x[1].kill()
				faulttest.Wants(t, <-sent, fault.WorkerLost, "node 1")
			} else {
				m, err := x[1].Receive(t.Context(), 0, memory.DefaultAllocator)
				if err != nil || len(m.Packed) != len(rows) || <-sent != nil {
					t.Errorf("%d bytes, %v", len(m.Packed), err)
				}
				m.Release()
			}
			if freed != 1 {
				t.Errorf("freed %d times", freed)
			}
			closeAll(x[0], x[1])
		})
	}
}

// refusing is an allocator that has no room for a while.
type refusing struct {
	memory.Allocator
	times int
}

func (r *refusing) Allocate(n int) []byte {
	if r.times--; r.times >= 0 {
		panic(fault.New(fault.Exhausted, "no room"))
	}
	return r.Allocator.Allocate(n)
}

// A message whose reception was given up in the middle, or had no memory, comes whole by a later call.
func TestGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		alloc := memory.NewCheckedAllocator(memory.NewGoAllocator())
		defer alloc.AssertSize(t, 0)
		rows := make([]byte, 3*believed)
		rng := rand.New(rand.NewPCG(1, 1))
		for i := range rows {
			rows[i] = byte(rng.Uint32())
		}
		a, slow := net.Pipe()
		y := New(0, []net.Conn{nil, a})
		defer closeAll(y)
		frames := append((&header{kind: framePacked, head: 5, rows: int64(len(rows))}).append(nil), "hello"...)
		go func() {
			slow.Write(frames)
			for i := 0; i < len(rows); i += 1 << 20 {
				time.Sleep(time.Second)
				slow.Write(rows[i : i+1<<20])
			}
			io.Copy(io.Discard, slow)
		}()
		defer slow.Close()
		r := &refusing{Allocator: alloc, times: 1}
		func() {
			defer func() {
				if e, _ := recover().(*fault.Error); e == nil || e.Code != fault.Exhausted {
					t.Errorf("an allocator without room: %v", e)
				}
			}()
			y.Receive(t.Context(), 1, r)
		}()
		tries := 0
		for {
			tries++
			ctx, cancel := context.WithTimeout(t.Context(), 2500*time.Millisecond)
			m, err := y.Receive(ctx, 1, alloc)
			cancel()
			if err != nil {
				faulttest.Wants(t, err, fault.Canceled)
				if n := alloc.CurrentAlloc(); n != 0 {
					t.Fatalf("%d bytes are held after a call that failed", n)
				}
				continue
			}
			if string(m.Head) != "hello" || string(m.Packed) != string(rows) {
				t.Error("another message")
			}
			m.Release()
			break
		}
		if tries < 8 {
			t.Errorf("%d tries", tries)
		}
	})
}

// A Send that is given up in the middle loses the connection, and both sides know; one that did not begin does nothing.
func TestGiveUp(t *testing.T) {
	x := pair(t)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	freed := 0
	free := func() { freed++ }
	faulttest.Wants(t, x[0].Send(ended, 1, shard.Message{Packed: make([]byte, 1), Free: free}), fault.Canceled)
	if err := x[0].Send(t.Context(), 1, shard.Message{Head: []byte("whole")}); err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 256<<20) // more than systems hold
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	faulttest.Wants(t, x[0].Send(ctx, 1, shard.Message{Packed: large, Free: free}), fault.Canceled)
	faulttest.Wants(t, x[0].Send(t.Context(), 1, shard.Message{Packed: make([]byte, 1), Free: free}), fault.Canceled, "in the middle", "node 1")
	_, err := x[0].Receive(t.Context(), 1, memory.DefaultAllocator)
	faulttest.Wants(t, err, fault.Canceled, "in the middle")
	alloc := memtest.New(t)
	if m, err := x[1].Receive(t.Context(), 0, alloc); err != nil || string(m.Head) != "whole" {
		t.Errorf("%+v, %v", m, err)
	}
	_, err = x[1].Receive(t.Context(), 0, alloc)
	faulttest.Wants(t, err, fault.WorkerLost, "node 0")
	if freed != 3 {
		t.Errorf("%d of 3 were released", freed)
	}
}

// Closing delivers all that was sent, also where it is taken slowly or not yet; the other's own messages hold up nothing.
func TestClose(t *testing.T) {
	for _, both := range []bool{false, true} {
		x := pair(t)
		alloc := memtest.New(t)
		const n = 24
		var g sync.WaitGroup
		g.Go(func() {
			for i := range n {
				err := x[0].Send(t.Context(), 1, shard.Message{Head: []byte{byte(i)}, Packed: make([]byte, 1<<20)})
				if err != nil && (!both || !errors.Is(err, io.EOF)) {
					t.Error(err)
				}
			}
			x[0].Close()
		})
		back := make(chan error, 1)
		g.Go(func() { // until node 0 has left
			for {
				if err := x[1].Send(t.Context(), 0, shard.Message{Head: []byte("back"), Packed: make([]byte, 1<<16)}); err != nil {
					back <- err
					return
				}
			}
		})
		g.Go(func() {
			for {
				m, err := x[0].Receive(t.Context(), 1, alloc)
				if err != nil {
					return
				}
				m.Release()
			}
		})
		for i := range n {
			m, err := x[1].Receive(t.Context(), 0, alloc)
			if err != nil || m.Head[0] != byte(i) {
				t.Fatalf("message %d: %v, %v", i, m.Head, err)
			}
			m.Release()
			if i == n/2 && both {
				break
			}
		}
		begin := time.Now()
		if both {
			closeAll(x[1])
		} else {
			for range 2 {
				_, err := x[1].Receive(t.Context(), 0, alloc)
				faulttest.Wants(t, err, fault.WorkerLost, "node 0 has closed")
				if !errors.Is(err, io.EOF) {
					t.Error(err)
				}
			}
		}
		if err := <-back; fault.CodeOf(err) != fault.WorkerLost && fault.CodeOf(err) != fault.Canceled {
			t.Error(err)
		}
		g.Wait()
		if d := time.Since(begin); d > farewell/2 {
			t.Errorf("it took %v", d)
		}
		closeAll(x[0], x[1])
		faulttest.Wants(t, x[0].Send(t.Context(), 1, shard.Message{}), fault.Canceled, "closed")
		_, err := x[0].Receive(t.Context(), 1, alloc)
		faulttest.Wants(t, err, fault.Canceled, "closed")
	}
}

// Small messages that nobody receives do not hold up closing; rows that nobody receives do, for the time of a farewell.
func TestFarewell(t *testing.T) {
	for _, rows := range []int{0, 1 << 20} {
		synctest.Test(t, func(t *testing.T) {
			x := piped()
			sent := make(chan bool)
			go func() {
				for range 20 {
					x[0].Send(t.Context(), 1, shard.Message{Head: []byte("x")})
				}
				if rows > 0 {
					x[0].Send(t.Context(), 1, shard.Message{Packed: make([]byte, rows)})
				}
				close(sent)
			}()
			synctest.Wait()
			begin := time.Now()
			closeAll(x[0])
			if d := time.Since(begin); rows == 0 && d > 0 || rows > 0 && d != farewell {
				t.Errorf("closing took %v", d)
			}
			<-sent
			for range 20 {
				if _, err := x[1].Receive(t.Context(), 0, memory.DefaultAllocator); err != nil {
					t.Error(err)
				}
			}
			_, err := x[1].Receive(t.Context(), 0, memory.DefaultAllocator)
			faulttest.Wants(t, err, fault.WorkerLost)
			closeAll(x[1])
		})
	}
}

// Calls that wait end when their own exchange is closed.
func TestCloseEnds(t *testing.T) {
	x := pair(t)
	done := make(chan error, 1)
	go func() { _, err := x[0].Receive(t.Context(), 1, memory.DefaultAllocator); done <- err }()
	runtime.Gosched()
	closeAll(x[0])
	faulttest.Wants(t, <-done, fault.Canceled, "closed")
	closeAll(x[0])
}

// What cannot be connected says why, and leaves nothing open.
func TestConnect(t *testing.T) {
	gs := gangtest.New(t, 3)
	if _, err := Connect(t.Context(), gs[0], "x", []string{"127.0.0.1:1"}); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("addresses of one node: %v", err)
	}
	if _, err := Connect(t.Context(), gs[0], "", nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("no service: %v", err)
	}
	// Node 2 does not come.
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	_, err := connect(ctx, gs[:2], "late")
	if code := fault.CodeOf(err); code != fault.Canceled && code != fault.Unavailable {
		t.Errorf("a node that does not come: %v", err)
	}
	// They meet by the same name again, also at addresses that are said.
	addresses := []string{gs[0].Address(), gs[1].Address(), gs[2].Address()}
	var g sync.WaitGroup
	xs := make([]*Exchange, 3)
	for k := range gs {
		g.Go(func() {
			x, err := Connect(t.Context(), gs[k], "late", addresses)
			if err != nil {
				t.Error(err)
			}
			xs[k] = x
		})
	}
	g.Wait()
	if !t.Failed() {
		closeAll(xs...)
	}
	// What answers is something else, or another release.
	for _, c := range []struct {
		say  []byte
		code fault.Code
		text string
	}{
		{[]byte(strings.Repeat("HTTP/1.1 200 OK\n", 2)), fault.Unsupported, "one release"},
		{append(hello(2, 1, 0)[:16], append([]byte{2, 0, 0, 0}, hello(2, 1, 0)[20:]...)...), fault.Unsupported, "version 2"},
		{hello(3, 1, 0), fault.Invalid, "same job"}, {hello(2, 0, 0), fault.Invalid, "same job"},
		{nil, fault.Unavailable, "ended the connection"},
	} {
		two := gangtest.New(t, 2)
		l, err := two[1].Listen("x")
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			conn, _, err := l.Accept(t.Context())
			if err != nil {
				return
			}
			conn.Write(c.say)
			if c.say != nil {
				io.Copy(io.Discard, conn)
			}
			conn.Close()
		}()
		_, err = Connect(t.Context(), two[0], "x", nil)
		faulttest.Wants(t, err, c.code, "node 1", c.text)
		// And where that dials.
		if c.say == nil {
			continue
		}
		done := make(chan error, 1)
		go func() { _, err := Connect(t.Context(), two[1], "y", nil); done <- err }()
		conn, err := two[0].Dial(t.Context(), 1, "y")
		if err != nil {
			t.Fatal(err)
		}
		say := c.say
		if string(say[:8]) == "penstock" {
			say = append([]byte{}, say...)
			if say[20] == 2 { // numbers of the other way round
				say[24], say[28] = 1, 1
			}
		}
		conn.Write(say)
		faulttest.Wants(t, <-done, c.code, "node 0", c.text)
		conn.Close()
	}
}

// bloated makes the heads of messages with rows too long to be sent, from one on.
type bloated struct {
	shard.Exchange
	from int
}

func (b *bloated) Send(ctx context.Context, to int, m shard.Message) error {
	if m.Packed != nil || m.Record != nil {
		if b.from--; b.from < 0 {
			m.Head = make([]byte, shard.MaxHead+1)
		}
	}
	return b.Exchange.Send(ctx, to, m)
}

// What a node cannot send to another is its own failure, with what is to be done, and the other hears of it: it does not take the node for lost.
func TestJobRefused(t *testing.T) {
	dir := documents(t)
	for _, kind := range jobs {
		xs, err := connect(t.Context(), gangtest.New(t, 2), kind)
		if err != nil {
			t.Fatal(err)
		}
		xs[0] = &bloated{xs[0], 3}
		errs := make([]error, 2)
		var g sync.WaitGroup
		for k, x := range xs {
			g.Go(func() {
				its, err := open(t.Context(), kind, dir, false, &shard.Nodes{Exchange: x, Ranks: places[0], Lanes: []int{1, 0}})
				if err != nil {
					t.Error(err)
					return
				}
				errs[k] = read(t.Context(), its, func(string, string) {})
			})
		}
		g.Wait()
		for k, x := range []shard.Exchange{xs[0].(*bloated).Exchange, xs[1]} {
			x.(*Exchange).Close()
			err := errs[k]
			if fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "take smaller batches") || errors.Is(err, shard.ErrElsewhere) != (k == 1) ||
				!strings.Contains(err.Error(), []string{"what node 1 is to get", "node 0 failed"}[k]) {
				t.Errorf("%s, node %d: %v", kind, k, err)
			}
		}
	}
}
