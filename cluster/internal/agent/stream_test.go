package agent

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/internal/fault"
)

// broken is a stream that has ended: who writes hears that first, and who receives, why, a little later. Two that receive at once may both wait for ever.
type broken struct {
	grpc.BidiStreamingClient[pb.FromAgent, pb.FromHead]
	t         *testing.T
	why       error
	receiving atomic.Int32
}

func (b *broken) Send(*pb.FromAgent) error { return io.EOF }

func (b *broken) Recv() (*pb.FromHead, error) {
	if b.receiving.Add(1) > 1 {
		b.t.Error("two receive at once")
	}
	defer b.receiving.Add(-1)
	time.Sleep(time.Second) // of the bubble
	return nil, b.why
}

// An agent that finds out as it writes that its stream has ended says why it did, and does not wait for that beside the one who receives.
func TestStreamEnded(t *testing.T) {
	for _, queued := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			a := &agent{more: make(chan struct{}, 1)}
			if queued {
				a.queue = []*pb.FromAgent{{}}
			}
			s := &broken{t: t, why: fault.New(fault.Unavailable, "the head is gone")}
			ctx, cancel := context.WithCancelCause(t.Context())
			go func() { cancel(a.hear(ctx, s, make(chan struct{}, 1))) }()
			if err := a.speak(ctx, s, time.Second, nil); err != s.why {
				t.Errorf("queued %v: %v", queued, err)
			}
		})
	}
}
