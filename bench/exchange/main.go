// Command exchange measures the transport of samples between the nodes of a job (shard/exchange), and that of the blocks of a plan (exec/remote), beside plain gRPC streaming of the same bytes, with TLS 1.3 both: two processes over loopback, and over a link
// of a limited rate between two network namespaces (root, with the programs ip and tc). It prints a table, each figure beside its goal. `ONLY=exchange bench/run.sh` makes all of it and writes bench/results/exchange.md.
//
//	exchange [-only PART,...] [-quick] DIR
//
// The parts are loopback, link and trip. In each round the exchange (or a plan), gRPC and the exchange again take their turns, so that a figure is beside its own noise: "A/A" is the second against the first.
// gRPC sends messages of one bytes field (wrapperspb.BytesValue) over one stream, with what grpc-go does by default but for the largest message. Its receiver has the bytes in a message of its own, as the exchange's has them in memory of its pool.
// The blocks of a plan are those of a source in the memory of node 1, with nothing after it: each is asked for and granted, and comes into memory of node 0's budget. A plan begins with its nodes connected, and ends with the stream of its
// blocks; another split, which waits, keeps node 0 from reading. gRPC sends from node 0 to node 1, blocks go from 1 to 0.
package main

import (
	"fmt"
	"log"
	"os"
	"strings"

	"github.com/penstock-data/penstock/bench/internal/kit"
)

var parts = []kit.Part[func(*bench) error]{
	{Name: "loopback", Run: loopback},
	{Name: "link", Run: link},
	{Name: "trip", Run: trip},
}

var table = kit.Table{
	Out: os.Stdout, Program: "exchange", Title: "Samples and blocks between nodes",
	About: ": two processes of one machine, which share its cores, with TLS 1.3 both ways. The exchange (or a plan whose blocks come from the other node), gRPC and the exchange (or the plan) again take turns: ratios are of the same round, \"median (smallest to largest, of how many)\", and A/A is its second turn against its first. Rates and times are medians.",
	Foot:  "What is in a figure besides is said in `bench/exchange`.",
}

// bench is what parts share.
type bench struct{ kit.Bench }

func main() {
	log.SetFlags(0)
	if len(os.Args) == 3 && os.Args[1] == "node" {
		if err := node(os.Args[2]); err != nil {
			log.Fatalf("exchange, node %s: %v", os.Args[2], err)
		}
		return
	}
	b := &bench{kit.Bench{Table: table}}
	kit.Main(&b.Bench, parts, b, nil)
}

const mib = 1 << 20

// loopback sends messages of several sizes.
func loopback(b *bench) error {
	p, err := b.pair("127.0.0.1", "127.0.0.1", nil, nil)
	if err != nil {
		return err
	}
	defer p.close()
	for _, size := range []int{64 << 10, mib, 16 * mib} {
		if err := b.throughput(p, "loopback", size, b.Few(512, 32)*mib, b.Few(7, 1)); err != nil {
			return err
		}
	}
	return nil
}

// link does it between network namespaces.
func link(b *bench) error {
	for _, x := range []struct {
		rate  string
		total int
	}{{"1gbit", 96}, {"4gbit", 256}} {
		l, err := newLink(x.rate)
		if err != nil {
			b.Add("a link of "+x.rate+"/s", "", "not measured: %s", strings.TrimSpace(err.Error()))
			continue
		}
		p, err := b.pair(l.host(0), l.host(1), l.in(0), l.in(1))
		if err == nil {
			err = b.throughput(p, "a link of "+x.rate+"/s (tc tbf)", mib, b.Few(x.total, 8)*mib, b.Few(5, 1))
			p.close()
		}
		l.remove()
		if err != nil {
			return err
		}
	}
	return nil
}

// rounds lets the kind of t, gRPC and that kind again do a task in turns.
func (b *bench) rounds(p *pair, t task, rounds int) (x, g, again []result, err error) {
	ours := t.Kind
	for range rounds {
		for _, r := range []struct {
			kind string
			to   *[]result
		}{{ours, &x}, {"grpc", &g}, {ours, &again}} {
			t.Kind = r.kind
			got, err := p.run(t)
			if err != nil {
				return nil, nil, nil, err
			}
			*r.to = append(*r.to, got)
		}
	}
	return x, g, again, nil
}

// throughput adds the lines of a size: of the exchange, and of a plan.
func (b *bench) throughput(p *pair, where string, size, total, rounds int) error {
	gb := float64(total) / 1e9
	rate := func(r result) float64 { return gb / r.Wall.Seconds() }
	cpu := func(r result) float64 { return r.both.Seconds() / gb }
	for _, k := range []struct{ kind, what string }{{"exchange", "messages"}, {"plan", "blocks of a plan"}} {
		x, g, again, err := b.rounds(p, task{Kind: k.kind, Size: size, Count: total / size}, rounds)
		if err != nil {
			return err
		}
		what := fmt.Sprintf("%s, %s of %d KiB", where, k.what, size>>10)
		b.compare(what+": rate against gRPC", ">= 0.8x", "GB/s", rate, x, g, again)
		b.compare(what+": CPU of both processes per GB, against gRPC", "", "s", cpu, x, g, again)
	}
	return nil
}

// compare adds a line.
func (b *bench) compare(what, goal, unit string, f func(result) float64, x, g, again []result) {
	of := func(rs []result) (xs []float64) {
		for _, r := range rs {
			xs = append(xs, f(r))
		}
		return xs
	}
	ratios := func(a, b []float64) (xs []float64) {
		for i := range a {
			xs = append(xs, a[i]/b[i])
		}
		return xs
	}
	b.Add(what, goal, "%s: %.2f %s against %.2f %s; A/A %s", kit.Spread("%.2f", "x", ratios(of(x), of(g))), kit.Median(of(x)), unit, kit.Median(of(g)), unit, kit.Spread("%.2f", "x", ratios(of(again), of(x))))
}

// trip is a small message there and back.
func trip(b *bench) error {
	p, err := b.pair("127.0.0.1", "127.0.0.1", nil, nil)
	if err != nil {
		return err
	}
	defer p.close()
	count := b.Few(5000, 100)
	x, g, again, err := b.rounds(p, task{Kind: "exchange", Size: 64, Count: count, Trip: true}, b.Few(5, 1))
	if err != nil {
		return err
	}
	const what = "64 bytes there and back, loopback: "
	b.compare(what+"median against gRPC", "", "us", func(r result) float64 { return float64(r.Median.Nanoseconds()) / 1e3 }, x, g, again)
	b.compare(what+"99th of 100", "", "us", func(r result) float64 { return float64(r.Tail.Nanoseconds()) / 1e3 }, x, g, again)
	b.compare(what+"CPU of both processes", "", "us", func(r result) float64 { return float64(r.both.Nanoseconds()) / 1e3 / float64(count) }, x, g, again)
	return nil
}
