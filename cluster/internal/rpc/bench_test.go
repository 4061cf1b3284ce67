package rpc

import (
	"context"
	"testing"

	"github.com/penstock-data/penstock/cluster/internal/pb"
)

// BenchmarkCall is an empty call and its answer, one after the other, by each way in.
func BenchmarkCall(b *testing.B) {
	h := start(b)
	h.drain = func(context.Context, *pb.DrainRequest) (*pb.Empty, error) { return &pb.Empty{}, nil }
	h.renew = func(context.Context, *pb.RenewRequest) (*pb.RenewReply, error) { return &pb.RenewReply{}, nil }
	person := func(c Creds) func(b *testing.B) {
		return func(b *testing.B) {
			c := pb.NewControlClient(h.dial(c))
			b.ReportAllocs()
			for b.Loop() {
				must(c.Drain(b.Context(), &pb.DrainRequest{}))
			}
		}
	}
	b.Run("socket", person(AtSocket()))
	b.Run("token", person(AsPerson(h.token("t1", Admin))))
	b.Run("node", func(b *testing.B) {
		c := pb.NewNodeClient(h.dial(AsNode(node(b, h.ca, "n7", 1), h.ca.Pin)))
		b.ReportAllocs()
		for b.Loop() {
			must(c.Renew(b.Context(), &pb.RenewRequest{}))
		}
	})
}

// BenchmarkDial is a connection with both certificates, and its end.
func BenchmarkDial(b *testing.B) {
	h := start(b)
	holder := node(b, h.ca, "n7", 1)
	for b.Loop() {
		must(Dial(b.Context(), h.addr, AsNode(holder, h.ca.Pin))).Close()
	}
}
