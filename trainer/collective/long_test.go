package collective

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// A rank that fails with a long text is heard of all the same: its beginning goes round.
func TestLongCause(t *testing.T) {
	gs := join(t, 3)
	ctx, cancel := context.WithCancelCause(t.Context())
	failed := make(chan error)
	go func() { failed <- gs[0].Barrier(ctx) }()
	memtest.Poll(20*time.Second, func() bool { // it waits for the others
		gs[0].mu.Lock()
		defer gs[0].mu.Unlock()
		return gs[0].seq > gs[0].made
	})
	cancel(errors.New(strings.Repeat("é", 40<<10)))
	if <-failed == nil {
		t.Fatal("it went through")
	}
	late, stop := context.WithTimeout(t.Context(), 20*time.Second)
	defer stop()
	for _, g := range gs[1:] {
		err := g.Barrier(late)
		for err == nil { // rank 0 had come: that one may be through
			err = g.Barrier(late)
		}
		if fault.CodeOf(err) == fault.Unknown || late.Err() != nil || !strings.Contains(err.Error(), "ééé") || !strings.Contains(err.Error(), "...") || len(err.Error()) > 2*mostText {
			t.Errorf("rank %d: %d bytes: %.200v", g.Rank(), len(err.Error()), err)
		}
	}
}
