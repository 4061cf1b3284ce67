package local

import (
	"fmt"
	"math/rand/v2"
	"testing"
)

type wanting struct {
	Node
	n int
}

func (w *wanting) Room() int { return w.n }

// The place that is taken is the one that a look at all of them finds.
func TestPlaces(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	for range 50 {
		var nodes []Node
		for range r.IntN(20) {
			nodes = append(nodes, &wanting{n: r.IntN(5) - 1})
		}
		ps := newPlaces(1+r.IntN(3), nodes)
		var taken []*place
		for range 500 {
			switch k := r.IntN(10); {
			case k < 5:
				best := ps.all[0]
				for _, p := range ps.all[1:] {
					if p.room > 0 && (p.busy+1)*best.room < (best.busy+1)*p.room {
						best = p
					}
				}
				p := ps.take()
				if p != best {
					t.Fatalf("seed %d: place %d, want %d", seed, p.id, best.id)
				}
				taken = append(taken, p)
			case k < 9 && len(taken) > 0:
				i := r.IntN(len(taken))
				ps.free(taken[i])
				taken = append(taken[:i], taken[i+1:]...)
			case len(nodes) > 0:
				i := r.IntN(len(nodes))
				was := ps.rooms - max(nodes[i].(*wanting).n, 0)
				nodes[i].(*wanting).n = r.IntN(5) - 1
				ps.look(i + 1)
				if want := was + max(nodes[i].(*wanting).n, 0); ps.rooms != want {
					t.Fatalf("seed %d: room for %d, want %d", seed, ps.rooms, want)
				}
			}
		}
	}
}

// An attempt takes a place and gives it back, and a node says that it wants more, on many nodes that are half full.
func BenchmarkPlaces(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			var nodes []Node
			for range n {
				nodes = append(nodes, &wanting{n: 4})
			}
			ps := newPlaces(4, nodes)
			var held []*place
			for range 2 * n {
				held = append(held, ps.take())
			}
			for i := 0; b.Loop(); i++ {
				k := i * 7 % len(held)
				ps.free(held[k])
				held[k] = ps.take()
				w := nodes[i%n].(*wanting)
				w.n = 4 + i%2
				ps.look(i%n + 1)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(3*b.N), "ns/event")
		})
	}
}
