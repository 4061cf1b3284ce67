package exchangetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// Harness describes a transport.
type Harness struct {
	// Open connects nodes with each other, at least one.
	Open func(nodes int) ([]shard.Exchange, error)
	// Close closes an exchange that Open made. It is called once for each, but for those that were killed.
	Close func(shard.Exchange) error
	// Kill ends an exchange like the death of its process. Nil: that is not tested.
	Kill func(shard.Exchange)
}

// Run runs the conformance suite. seed replays a failure; 0 means a random one.
func Run(t *testing.T, h Harness, seed uint64) {
	if seed == 0 {
		seed = rand.Uint64()
	}
	for _, c := range checks {
		t.Run(c.name, func(t *testing.T) {
			if err := h.check(c, seed); err != nil {
				t.Errorf("seed %d: %v", seed, err)
			}
		})
	}
}

// patience is how long anything may take.
var patience = 30 * time.Second

type check struct {
	name  string
	nodes int
	run   func(ctx context.Context, n *nodes) error
}

var checks = []check{
	{"messages", 3, messages}, {"close", 2, closes}, {"cancel", 2, cancels}, {"kill", 3, kills}, {"job", 3, job},
}

// nodes is what a check works with.
type nodes struct {
	Harness
	x      []shard.Exchange
	rng    *rand.Rand
	killed map[int]bool
	mu     sync.Mutex // of closed
	closed map[int]bool
	memory []*memory.CheckedAllocator // of what each node receives
}

func (h Harness) check(c check, seed uint64) (err error) {
	x, err := h.Open(c.nodes)
	if err != nil {
		return err
	}
	n := &nodes{Harness: h, x: x, rng: rand.New(rand.NewPCG(seed, 0)), killed: map[int]bool{}, closed: map[int]bool{}}
	for range x {
		n.memory = append(n.memory, memory.NewCheckedAllocator(memory.NewGoAllocator()))
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		for i := range x {
			if x[i].Node() != i || x[i].Nodes() != c.nodes {
				done <- fmt.Errorf("node %d of %d says that it is %d of %d", i, c.nodes, x[i].Node(), x[i].Nodes())
				return
			}
		}
		done <- c.run(ctx, n)
	}()
	select {
	case err = <-done:
	case <-time.After(patience + patience/6):
		return errors.New("a call does not return, though its context has ended")
	}
	for i := range x {
		err = errors.Join(err, n.close(i))
	}
	for i, m := range n.memory {
		if b := m.CurrentAlloc(); b != 0 && err == nil {
			err = fmt.Errorf("node %d still holds %d bytes of what it received", i, b)
		}
	}
	return err
}

func (n *nodes) close(i int) error {
	n.mu.Lock()
	done := n.closed[i] || n.killed[i]
	n.closed[i] = true
	n.mu.Unlock()
	if done {
		return nil
	}
	return n.Close(n.x[i])
}

// message is the i-th message from one node to another, the same whenever it is asked for; count is how often its rows were released.
func message(seed uint64, from, to, i int, alloc memory.Allocator, count *atomic.Int64) shard.Message {
	rng := rand.New(rand.NewPCG(seed, uint64(from)<<40|uint64(to)<<32|uint64(i)))
	fill := func(n int) []byte {
		b := make([]byte, n)
		for k := range b {
			b[k] = byte(rng.Uint32())
		}
		return b
	}
	m := shard.Message{Head: fill(1 + rng.IntN(50))}
	switch rng.IntN(4) {
	case 0:
		size := 1 + rng.IntN(5000)
		if rng.IntN(8) == 0 {
			size = 1 + rng.IntN(6<<20)
		}
		m.Packed, m.Free = fill(size), func() { count.Add(1) }
	case 1:
		m.Record = record(rng, alloc)
	case 2:
		m.Head = fill(1 + rng.IntN(100<<10))
	}
	return m
}

func record(rng *rand.Rand, alloc memory.Allocator) arrow.RecordBatch {
	b := array.NewRecordBuilder(alloc, arrow.NewSchema([]arrow.Field{
		{Name: "n", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "l", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32), Nullable: true},
		{Name: "b", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	}, nil))
	defer b.Release()
	for range 1 + rng.IntN(1+rng.IntN(3000)) {
		if rng.IntN(5) == 0 {
			for _, f := range b.Fields() {
				f.AppendNull()
			}
			continue
		}
		b.Field(0).(*array.Int64Builder).Append(rng.Int64())
		b.Field(1).(*array.StringBuilder).Append("xyzxyzxyz"[:rng.IntN(10)])
		l := b.Field(2).(*array.ListBuilder)
		l.Append(true)
		for range rng.IntN(4) {
			l.ValueBuilder().(*array.Float32Builder).Append(rng.Float32())
		}
		b.Field(3).(*array.BooleanBuilder).Append(rng.IntN(2) == 0)
	}
	rec := b.NewRecordBatch()
	if rec.NumRows() > 1 && rng.IntN(3) == 0 { // a part of larger buffers
		defer rec.Release()
		return rec.NewSlice(1, rec.NumRows())
	}
	return rec
}

// same compares what came with what was sent.
func same(got, want *shard.Message) error {
	switch {
	case !bytes.Equal(got.Head, want.Head):
		return fmt.Errorf("the head is %d bytes %.20x, want %d bytes %.20x", len(got.Head), got.Head, len(want.Head), want.Head)
	case !bytes.Equal(got.Packed, want.Packed):
		return fmt.Errorf("%d bytes of rows came, want %d, or they differ", len(got.Packed), len(want.Packed))
	case (got.Record == nil) != (want.Record == nil):
		return fmt.Errorf("a record came: %v, want %v", got.Record != nil, want.Record != nil)
	case want.Record != nil && !array.RecordEqual(got.Record, want.Record):
		return errors.New("the record is another one")
	}
	return nil
}

// messages arrive in order, unchanged, from all to all at once, though nobody waits for anybody; and memory comes back.
func messages(ctx context.Context, n *nodes) error {
	const each = 60
	seed := n.rng.Uint64()
	sent := memory.NewCheckedAllocator(memory.NewGoAllocator())
	var released, packed atomic.Int64
	var g sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	fail := func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, fmt.Errorf(format, args...))
	}
	for a := range n.x {
		for b := range n.x {
			if a == b {
				continue
			}
			g.Go(func() {
				for i := range each {
					m := message(seed, a, b, i, sent, &released)
					if m.Packed != nil {
						packed.Add(1)
					}
					if err := n.x[a].Send(ctx, b, m); err != nil {
						fail("message %d from node %d to %d cannot be sent: %w", i, a, b, err)
						return
					}
				}
			})
			g.Go(func() {
				var ignored atomic.Int64
				for i := range each {
					m, err := n.x[b].Receive(ctx, a, n.memory[b])
					if err != nil {
						fail("message %d from node %d to %d does not come: %w", i, a, b, err)
						return
					}
					want := message(seed, a, b, i, memory.DefaultAllocator, &ignored)
					if err := same(&m, &want); err != nil {
						fail("message %d from node %d to %d: %w", i, a, b, err)
					}
					want.Release()
					m.Release()
				}
			})
		}
	}
	g.Wait()
	for a := range n.x {
		if err := n.close(a); err != nil {
			fail("close: %w", err)
		}
	}
	if len(errs) == 0 && (released.Load() != packed.Load() || sent.CurrentAlloc() != 0) {
		fail("%d of %d messages with rows were released once, and %d bytes of records are held", released.Load(), packed.Load(), sent.CurrentAlloc())
	}
	return errors.Join(errs...)
}

// closes: what was sent before an exchange is closed arrives; then Receive fails, each time.
func closes(ctx context.Context, n *nodes) error {
	const each = 25
	seed := n.rng.Uint64()
	var ignored atomic.Int64
	sending := make(chan error, 1)
	go func() {
		for i := range each {
			if err := n.x[0].Send(ctx, 1, message(seed, 0, 1, i, memory.DefaultAllocator, &ignored)); err != nil {
				sending <- err
				return
			}
		}
		sending <- n.close(0)
	}()
	for i := range each {
		m, err := n.x[1].Receive(ctx, 0, n.memory[1])
		if err != nil {
			return fmt.Errorf("message %d of %d, sent before the exchange was closed: %w", i, each, err)
		}
		want := message(seed, 0, 1, i, memory.DefaultAllocator, &ignored)
		err = same(&m, &want)
		want.Release()
		m.Release()
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
	}
	if err := <-sending; err != nil {
		return err
	}
	for range 2 {
		if m, err := n.x[1].Receive(ctx, 0, n.memory[1]); err == nil {
			m.Release()
			return errors.New("something comes from an exchange that is closed")
		} else if ctx.Err() != nil {
			return errors.New("Receive does not notice that the other exchange is closed")
		}
	}
	return nil
}

// cancels: a call ends soon after its context.
func cancels(ctx context.Context, n *nodes) error {
	for range 2 {
		call, cancel := context.WithCancel(ctx)
		time.AfterFunc(20*time.Millisecond, cancel)
		begin := time.Now()
		if _, err := n.x[1].Receive(call, 0, n.memory[1]); err == nil || time.Since(begin) > patience/6 {
			return fmt.Errorf("Receive whose context ends returns %v after %v", err, time.Since(begin))
		}
	}
	// Nobody receives: at some time a Send waits, unless the transport holds all of it.
	call, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
	defer cancel()
	var released atomic.Int64
	n64 := int64(0)
	for call.Err() == nil && n64 < 200 {
		n64++
		if n.x[0].Send(call, 1, shard.Message{Head: []byte{1}, Packed: make([]byte, 1<<20), Free: func() { released.Add(1) }}) != nil {
			break
		}
	}
	if ctx.Err() != nil {
		return errors.New("Send goes on after its context has ended")
	}
	if err := n.close(0); err != nil {
		return err
	}
	if released.Load() != n64 {
		return fmt.Errorf("%d of %d messages were released", released.Load(), n64)
	}
	return nil
}

// kills: a node that dies is lost to the others, which still reach each other.
func kills(ctx context.Context, n *nodes) error {
	if n.Kill == nil {
		return nil
	}
	pass := func(from, to int, text string) error {
		sent := make(chan error, 1)
		go func() { sent <- n.x[from].Send(ctx, to, shard.Message{Head: []byte(text)}) }()
		m, err := n.x[to].Receive(ctx, from, n.memory[to])
		if err == nil && string(m.Head) != text {
			err = fmt.Errorf("node %d got %q", to, m.Head)
		}
		m.Release()
		return errors.Join(err, <-sent)
	}
	if err := pass(0, 1, "before"); err != nil {
		return err
	}
	lost := make(chan error, 1)
	go func() {
		_, err := n.x[1].Receive(ctx, 0, n.memory[1])
		lost <- err
	}()
	n.killed[0] = true
	n.Kill(n.x[0])
	if err := <-lost; err == nil || ctx.Err() != nil {
		return fmt.Errorf("Receive from a node that died returns %v", err)
	}
	for ctx.Err() == nil && n.x[1].Send(ctx, 0, shard.Message{Head: []byte("after")}) == nil {
		time.Sleep(time.Millisecond) // what is sent to it may be on its way for a while
	}
	if ctx.Err() != nil {
		return errors.New("Send to a node that died does not fail")
	}
	return pass(1, 2, "still")
}

// job runs a job over the nodes, the last of which has no ranks, in both forms of rows, and compares with one machine.
func job(ctx context.Context, n *nodes) error {
	ds := dataset.Range(3000).Filter("id % 7 != 3").WithColumns("x = id * 0.5")
	for _, tensors := range []bool{true, false} {
		options := func() *dataset.ShardOptions {
			o := &dataset.ShardOptions{}
			o.Seed, o.GlobalBatch, o.Epochs, o.Tail, o.Lineage = 7, 50, 1, shard.TailPad, true
			o.Shuffle, o.Form.Tensors = &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 6, WindowRows: 100}, tensors
			return o
		}
		var mu sync.Mutex
		read := func(its []*shard.Iterator, into map[string]string) error {
			if its[0].Rank() < 0 {
				return its[0].Feed(ctx)
			}
			for {
				for i, it := range its {
					b, err := it.Next(ctx)
					if err == io.EOF && i == len(its)-1 {
						return nil
					}
					if err == io.EOF {
						continue
					}
					if err != nil {
						return err
					}
					mu.Lock()
					into[fmt.Sprintf("rank %d, step %d", it.Rank(), b.Step())] = fmt.Sprintf("%x %v", b.Digest(), b.Lineage())
					mu.Unlock()
					b.Release()
				}
			}
		}
		one, many := map[string]string{}, map[string]string{}
		its, err := ds.Shards(ctx, 4, options())
		if err != nil {
			return err
		}
		err = read(its, one)
		for _, it := range its {
			err = errors.Join(err, it.Close())
		}
		if err != nil {
			return err
		}
		x := n.x
		if !tensors { // an exchange serves one job
			if x, err = n.Open(len(n.x)); err != nil {
				return err
			}
		}
		var g sync.WaitGroup
		errs := make([]error, len(x))
		for i := range x {
			g.Go(func() {
				o := options()
				o.Nodes = &shard.Nodes{Exchange: x[i], Ranks: []int{0, 1, 1, 0}, Lanes: []int{2, 0, 1}}
				its, err := ds.Shards(ctx, 4, o)
				if err != nil {
					errs[i] = err
					return
				}
				errs[i] = read(its, many)
				for _, it := range its {
					errs[i] = errors.Join(errs[i], it.Close())
				}
			})
		}
		g.Wait()
		if !tensors {
			for _, x := range x {
				errs = append(errs, n.Close(x))
			}
		}
		if err := errors.Join(errs...); err != nil {
			return err
		}
		if len(many) != len(one) {
			return fmt.Errorf("%d batches over nodes, %d on one machine", len(many), len(one))
		}
		for k, want := range one {
			if many[k] != want {
				return fmt.Errorf("%s differs from that of one machine", k)
			}
		}
	}
	return nil
}
