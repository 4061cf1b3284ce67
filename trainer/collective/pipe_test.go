package collective

import (
	"context"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// pipes joins ranks by connections in memory, so that a test has its own time (testing/synctest); nodes are their machines. While a rank's entry of stands is true, its process stands still: nothing that it says arrives.
func pipes(t *testing.T, nodes ...int) (gs []*Group, stands []*atomic.Bool) {
	t.Helper()
	world := len(nodes)
	m := meeting{nodes: nodes, me: hello{World: world}}
	for r := range world {
		gs = append(gs, &Group{rank: r, world: world, pids: make([]int, world), turn: make(chan struct{}, 1), failed: make(chan struct{}), most: maxPID})
		gs[r].turn <- struct{}{}
		stands = append(stands, &atomic.Bool{})
	}
	var carriers sync.WaitGroup
	connect := func(a, b int) (net.Conn, net.Conn) {
		near, out := net.Pipe()
		in, far := net.Pipe()
		carriers.Go(func() { carry(in, out, stands[a]) })
		carriers.Go(func() { carry(out, in, stands[b]) })
		return near, far
	}
	for r, g := range gs {
		next := gs[(r+1)%world]
		g.right, next.left = connect(r, next.rank)
		if g.hears, next.tells = g.right, next.left; !m.together(r, r+1) {
			g.hears, next.tells = connect(r, next.rank)
		}
	}
	must(t, each(world, func(r int) error { return gs[r].meet(context.Background(), m.several()) }))
	t.Cleanup(func() {
		for _, g := range gs {
			g.Close()
		}
		carriers.Wait()
	})
	return gs, stands
}

// carry takes what one end of a connection says to the other. It has room for more than networkMost, as a system has.
func carry(to, from net.Conn, stands *atomic.Bool) {
	way := make(chan []byte, 16)
	go func() {
		defer close(way)
		for {
			b := make([]byte, 4<<10)
			n, err := from.Read(b)
			if err != nil {
				return
			}
			if !stands.Load() {
				way <- b[:n]
			}
		}
	}()
	for b := range way {
		if _, err := to.Write(b); err != nil {
			break
		}
	}
	to.Close()
	from.Close()
	for range way {
	}
}
