package agent

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/cluster/internal/packs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/internal/fault"
)

// sender is a head that has one pack, and a test's word of what becomes of each fetch.
type sender struct {
	pb.NodeClient
	pack    []byte
	fetches chan *fetch
}

// fetch is one of them: it gives half of the pack, and the rest when end is closed, or fails with what comes there.
type fetch struct {
	grpc.ServerStreamingClient[pb.Chunk]
	ctx  context.Context
	left [][]byte
	end  chan error
}

func (s *sender) Pack(ctx context.Context, _ *pb.PackRequest, _ ...grpc.CallOption) (grpc.ServerStreamingClient[pb.Chunk], error) {
	n := len(s.pack) / 2
	f := &fetch{ctx: ctx, left: [][]byte{s.pack[:n], s.pack[n:]}, end: make(chan error, 1)}
	s.fetches <- f
	return f, nil
}

func (f *fetch) Recv() (*pb.Chunk, error) {
	if len(f.left) == 1 {
		select {
		case err := <-f.end:
			if err != nil {
				return nil, err
			}
		case <-f.ctx.Done():
			return nil, f.ctx.Err()
		}
	}
	if len(f.left) == 0 {
		return nil, io.EOF
	}
	c := &pb.Chunk{Data: f.left[0]}
	f.left = f.left[1:]
	return c, nil
}

// Jobs that begin at once on a node fetch their pack once. One that fails or is ended as it fetches is no harm to those that wait, and these end when they are told to.
func TestPackOnce(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "data"), bytes.Repeat([]byte("some data"), 1000), 0o600); err != nil {
		t.Fatal(err)
	}
	var pack bytes.Buffer
	info, err := packs.Create(t.Context(), dir, &pack, packs.Limits{})
	if err != nil {
		t.Fatal(err)
	}
	lost := fault.New(fault.Unavailable, "the head is gone")
	for name, first := range map[string]func(f *fetch, cancel context.CancelFunc){
		"well":     func(f *fetch, _ context.CancelFunc) { f.end <- nil },
		"fails":    func(f *fetch, _ context.CancelFunc) { f.end <- lost },
		"canceled": func(_ *fetch, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				s := &sender{pack: pack.Bytes(), fetches: make(chan *fetch, 10)}
				a := &agent{client: s, brings: map[packs.Hash]chan struct{}{}}
				var err error
				if a.packs, err = packs.OpenStore(filepath.Join(dir, "packs"), 0, packs.Limits{}); err != nil {
					t.Fatal(err)
				}
				prepares := func(work string) (chan error, context.CancelFunc) {
					ctx, cancel := context.WithCancel(t.Context())
					done := make(chan error, 1)
					p := &process{a: a, start: &pb.Start{Pack: string(info.Hash)}}
					go func() {
						done <- p.prepare(ctx, filepath.Join(dir, work), filepath.Join(dir, "tmp"))
						cancel()
					}()
					synctest.Wait()
					return done, cancel
				}
				one, cancel := prepares("one")
				var others []chan error
				for _, work := range []string{"a", "b", "c"} {
					done, _ := prepares(work)
					others = append(others, done)
				}
				late, end := prepares("late")
				end()
				if err := <-late; !errors.Is(err, context.Canceled) {
					t.Errorf("one that was ended as it waited: %v", err)
				}
				if n := len(s.fetches); n != 1 {
					t.Fatalf("%d fetch the pack at once", n)
				}
				first(<-s.fetches, cancel)
				err = <-one
				if (err == nil) != (name == "well") || name == "fails" && !errors.Is(err, lost) || name == "canceled" && !errors.Is(err, context.Canceled) {
					t.Errorf("the first one: %v", err)
				}
				synctest.Wait()
				if name != "well" { // another one does
					if n := len(s.fetches); n != 1 {
						t.Fatalf("%d fetch the pack at once after the first one has not", n)
					}
					(<-s.fetches).end <- nil
				}
				for _, done := range others {
					if err := <-done; err != nil {
						t.Error(err)
					}
				}
				if b, err := os.ReadFile(filepath.Join(dir, "c", "data")); err != nil || len(b) != 9000 {
					t.Errorf("%d bytes, %v", len(b), err)
				}
				if again, _ := prepares("again"); <-again != nil || len(s.fetches) > 0 || len(a.brings) > 0 {
					t.Errorf("%d more fetch it, %d seem to", len(s.fetches), len(a.brings))
				}
			})
		})
	}
}
