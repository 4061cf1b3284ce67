package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/store"
)

// ledgerFeeder is a feeder that keeps what it was to start from, and gives ledgers as it is told to.
type ledgerFeeder struct {
	feeder.Feeder
	at     map[string]feeder.At
	ledger func(ctx context.Context, name string) ([]byte, error)
}

func (f *ledgerFeeder) Start(_ context.Context, s feeder.Start) (map[string]string, <-chan error, error) {
	f.at = s.At
	return nil, make(chan error), nil
}

func (f *ledgerFeeder) Ledger(ctx context.Context, name string) ([]byte, error) {
	return f.ledger(ctx, name)
}

func ledgerController(ctx context.Context, f *ledgerFeeder) (c *controller, log *bytes.Buffer) {
	log = &bytes.Buffer{}
	cfg := Config{Name: "long", Workers: 1, Data: map[string]Data{"a": {}, "b": {}}, Log: slog.New(slog.NewTextHandler(log, nil))}
	return &controller{site: site{cfg: cfg}, ctx: ctx, feeder: feeder.Over([]feeder.Feeder{f}, nil, nil)}, log
}

// A run goes on from a checkpoint whose ledgers are too long for the feeder, without the longest.
func TestLongLedgers(t *testing.T) {
	f := &ledgerFeeder{}
	c, log := ledgerController(t.Context(), f)
	state, err := json.Marshal(shard.State{Version: 1, Step: 3})
	if err != nil {
		t.Fatal(err)
	}
	at := &attempt{states: map[string]store.Data{"a": {State: state, Ledger: make([]byte, 30<<20)}, "b": {State: state, Ledger: make([]byte, 31<<20)}}}
	if _, err := c.feed(at); err != nil {
		t.Fatal(err)
	}
	if len(f.at) != 2 || len(f.at["a"].Ledger) != 30<<20 || f.at["b"].Ledger != nil || f.at["b"].State.Step != 3 || !strings.Contains(log.String(), "run=long data=b") || !strings.Contains(log.String(), "31 MiB") {
		t.Errorf("%d sets, ledgers of %d and %d bytes\n%s", len(f.at), len(f.at["a"].Ledger), len(f.at["b"].Ledger), log)
	}
}

// A checkpoint without a ledger is one; the end of the run is not.
func TestNoLedger(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	long := fault.New(fault.Invalid, "a line of 80000000 bytes")
	for _, c := range []struct {
		is      error
		warns   bool
		stopped bool
	}{{long, true, false}, {fmt.Errorf("%w: killed", feeder.ErrDied), false, false}, {nil, false, false}, {errors.New("stopped"), false, true}} {
		k, log := ledgerController(ctx, &ledgerFeeder{ledger: func(_ context.Context, name string) ([]byte, error) {
			if c.stopped {
				cancel(c.is)
			}
			if name == "a" || c.stopped {
				return nil, c.is
			}
			return []byte(name), nil
		}})
		data := map[string]store.Data{"a": {State: []byte("1"), Ledger: []byte("before")}, "b": {State: []byte("2")}}
		err := k.ledgers(data)
		if c.stopped != (err != nil) || strings.Contains(log.String(), "is not in the checkpoint") != c.warns {
			t.Errorf("%v: %v\n%s", c.is, err, log)
		}
		if err == nil && (string(data["a"].State) != "1" || data["a"].Ledger != nil || string(data["b"].Ledger) != "b") {
			t.Errorf("%v: %+v", c.is, data)
		}
	}
}
