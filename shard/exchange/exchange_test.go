package exchange

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/exchangetest"
)

func TestMain(m *testing.M) {
	if os.Getenv(roleEnv) != "" {
		if err := member(); err != nil {
			fmt.Println("failed", err)
		}
		return
	}
	goleak.VerifyTestMain(m)
}

// connect connects the members of gangs.
func connect(ctx context.Context, gs []*gang.Gang, service string) ([]shard.Exchange, error) {
	type made struct {
		k   int
		x   *Exchange
		err error
	}
	done := make(chan made)
	for k, g := range gs {
		go func() {
			x, err := Connect(ctx, g, service, nil)
			done <- made{k, x, err}
		}()
	}
	all := make([]shard.Exchange, len(gs))
	var err error
	for range gs {
		m := <-done
		if all[m.k] = m.x; m.err != nil {
			err = m.err
		}
	}
	return all, err
}

// kill ends an exchange as the death of its process does.
func (x *Exchange) kill() {
	for _, p := range x.peers {
		if p != nil {
			p.abort()
		}
	}
	x.work.Wait()
}

// The suite passes between members of gangs.
func TestConformance(t *testing.T) {
	exchangetest.Run(t, exchangetest.Harness{
		Open:  func(n int) ([]shard.Exchange, error) { return connect(t.Context(), gangtest.New(t, n), "x") },
		Close: func(x shard.Exchange) error { return x.(*Exchange).Close() },
		Kill:  func(x shard.Exchange) { x.(*Exchange).kill() },
	}, 0)
}
