package exchangetest

import (
	"context"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/shard"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func harness(room int) Harness {
	return Harness{
		Open: func(n int) (x []shard.Exchange, err error) {
			t := New(n, room)
			for i := range n {
				x = append(x, t.Node(i))
			}
			return x, nil
		},
		Close: func(x shard.Exchange) error { return x.(*Port).Close() },
		Kill:  func(x shard.Exchange) { x.(*Port).net.Kill(x.Node()) },
	}
}

// With any room between nodes, the exchange within a process passes the suite.
func TestNet(t *testing.T) {
	for _, room := range []int{0, 1, 100} {
		Run(t, harness(room), 0)
	}
}

// flawed breaks a promise.
type flawed struct {
	*Port
	mu   sync.Mutex
	flaw string
	sent int
}

func (f *flawed) Send(ctx context.Context, to int, m shard.Message) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sent++
	switch {
	case f.flaw == "loses a message" && f.sent == 5:
		m.Release()
		return nil
	case f.flaw == "sends twice" && f.sent == 5:
		if err := f.Port.Send(ctx, to, shard.Message{Head: m.Head}); err != nil {
			return err
		}
	case f.flaw == "changes a byte" && f.sent%3 == 0:
		m.Head[len(m.Head)-1]++
	case f.flaw == "keeps memory" && m.Packed != nil:
		m.Free = nil
	}
	return f.Port.Send(ctx, to, m)
}

func (f *flawed) Receive(ctx context.Context, from int, alloc memory.Allocator) (shard.Message, error) {
	if f.flaw == "forgets its memory" {
		m, err := f.Port.Receive(ctx, from, alloc)
		m.Free = nil
		return m, err
	}
	return f.Port.Receive(ctx, from, alloc)
}

func (f *flawed) Nodes() int {
	if f.flaw == "counts wrongly" {
		return f.Port.Nodes() + 1
	}
	return f.Port.Nodes()
}

// The suite notices what it is there for.
func TestFlaws(t *testing.T) {
	was := patience
	defer func() { patience = was }()
	patience = 2 * time.Second
	for flaw, where := range map[string]string{
		"sends twice": "messages", "loses a message": "messages", "changes a byte": "messages", "keeps memory": "messages", "forgets its memory": "messages", "counts wrongly": "close",
	} {
		h := harness(4)
		open := h.Open
		h.Open = func(n int) ([]shard.Exchange, error) {
			x, err := open(n)
			for i := range x {
				x[i] = &flawed{Port: x[i].(*Port), flaw: flaw}
			}
			return x, err
		}
		h.Close = func(x shard.Exchange) error { return x.(*flawed).Port.Close() }
		for _, c := range checks {
			if c.name != where {
				continue
			}
			if err := h.check(c, 1); err == nil {
				t.Errorf("an exchange that %s passes", flaw)
			} else if strings.Contains(err.Error(), "does not return") {
				t.Errorf("an exchange that %s: %v", flaw, err)
			}
		}
	}
}
