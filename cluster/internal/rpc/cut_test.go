package rpc

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"google.golang.org/grpc"
)

// Somebody who came with a certificate of the authority before, and stays connected, is thrown out
// when that is believed no more, and does not come back, nor by a token that names it. Others stay.
func TestCut(t *testing.T) {
	h := start(t)
	h.attach = func(s grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead]) error {
		if err := s.Send(&pb.FromHead{}); err != nil {
			return err
		}
		<-s.Context().Done()
		return context.Cause(s.Context())
	}
	attach := func(holder *pki.Holder) (*Conn, grpc.BidiStreamingClient[pb.FromAgent, pb.FromHead]) {
		t.Helper()
		conn := h.dial(AsNode(holder, h.ca.Pin))
		s := must(pb.NewNodeClient(conn).Attach(t.Context()))
		must(s.Recv())
		return conn, s
	}
	thief := node(t, h.ca, "n7", 1)
	token := h.token("t1", Admin)
	old, oldStream := attach(thief)
	if err := h.ca.Rotate(); err != nil {
		t.Fatal(err)
	}
	h.holder.Set(must(h.ca.IssueHead("127.0.0.1")))
	h.srv.Cut() // nobody: both are believed
	_, stream := attach(node(t, h.ca, "n8", 1))
	person := h.dial(AsPerson(token))
	if _, err := pb.NewControlClient(person).Drain(t.Context(), &pb.DrainRequest{}); fault.CodeOf(err) == fault.Denied {
		t.Error(err)
	}
	if err := h.ca.Finish(); err != nil {
		t.Fatal(err)
	}
	h.holder.Set(must(h.ca.IssueHead("127.0.0.1")))
	h.store.set("t1", func(r *Record) { r.Replaced = true })
	h.srv.Cut()
	if _, err := oldStream.Recv(); err == nil {
		t.Error("it goes on")
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		_, err := pb.NewNodeClient(old).Renew(ctx, &pb.RenewRequest{})
		if fault.CodeOf(err) == fault.Denied {
			break // its connection is not made again
		}
		if fault.CodeOf(err) != fault.Unavailable || ctx.Err() != nil {
			t.Fatalf("it calls: %v", err)
		}
	}
	_, err := Dial(ctx, h.addr, AsNode(thief, h.ca.Pin))
	wants(t, err, fault.Denied, "refuses this machine's certificate")
	_, err = Dial(ctx, h.addr, AsPerson(token))
	if !errors.Is(err, pki.ErrReplaced) {
		t.Errorf("%v", err)
	}
	_, err = pb.NewControlClient(person).Drain(t.Context(), &pb.DrainRequest{})
	wants(t, err, fault.Denied, "of an authority that the cluster has replaced")
	select {
	case <-stream.Context().Done():
		t.Error("a node with a new certificate is thrown out")
	default:
	}
}
