package agent

import (
	"context"
	"io"
	"sync"

	"github.com/penstock-data/penstock/cluster/internal/packs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/internal/fault"
)

// bring has a pack in the node's store, from the head where it is not there yet. Of those that want the same one at once, one fetches it and the others wait for that; where it fails, or is given up, the next one tries. Who waits
// does so until its own ctx ends.
func (a *agent) bring(ctx context.Context, h packs.Hash) error {
	for {
		a.mu.Lock()
		other := a.brings[h]
		if other == nil {
			break
		}
		a.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	over := make(chan struct{})
	a.brings[h] = over
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.brings, h)
		a.mu.Unlock()
		close(over)
	}()
	if a.packs.Has(h) {
		return nil
	}
	return a.fetch(ctx, h)
}

// fetch gets a pack from the head.
func (a *agent) fetch(ctx context.Context, h packs.Hash) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := a.client.Pack(ctx, &pb.PackRequest{Sha256: string(h)})
	if err != nil {
		return err
	}
	r, w := io.Pipe()
	var copying sync.WaitGroup
	copying.Go(func() {
		for {
			c, err := stream.Recv()
			if err == nil {
				_, err = w.Write(c.GetData())
			}
			if err != nil {
				w.CloseWithError(err) // io.EOF is the end
				return
			}
		}
	})
	err = a.packs.Put(ctx, h, r)
	r.CloseWithError(fault.New(fault.Canceled, "the pack is not wanted any more"))
	cancel() // it may wait for more of a pack that could not be stored
	copying.Wait()
	return err
}
