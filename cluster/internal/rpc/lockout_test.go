package rpc

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"google.golang.org/grpc"
)

// until waits for what is so.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	if !memtest.Poll(20*time.Second, is) {
		t.Fatalf("it does not come to this: %s", what)
	}
}

// open begins a call, of which no message comes.
func open(t *testing.T, c *Conn, method string) grpc.ClientStream {
	t.Helper()
	return must(c.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true}, method))
}

func (l *lobby) waiting() (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, g := range l.here {
		if !g.came {
			n++
		}
	}
	return n
}

// Joins whose message does not come, however many, over however many connections, keep nobody out,
// from the same address either.
func TestJoinsWithoutMessage(t *testing.T) {
	h := start(t)
	h.join = func(context.Context, *pb.JoinRequest) (*pb.JoinReply, error) { return &pb.JoinReply{}, nil }
	join := func(c *Conn) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		_, err := pb.NewJoinClient(c).Join(ctx, &pb.JoinRequest{})
		return err
	}
	honest := h.dial(AsNewcomer(h.ca.Pin()))
	l := h.srv.gate.newcomers
	var streams []grpc.ClientStream
	for range 12 {
		c := h.dial(AsNewcomer(h.ca.Pin()))
		for range 32 {
			streams = append(streams, open(t, c, pb.Join_Join_FullMethodName))
		}
		until(t, "the calls wait", func() bool { return l.waiting() > 0 })
		if n := l.waiting(); n > l.max/4 {
			t.Fatalf("%d calls from one address wait: %d may", n, l.max/4)
		}
		for range 10 {
			if err := join(honest); err != nil {
				t.Fatalf("beside %d calls without a message: %v", len(streams), err)
			}
		}
	}
	err := streams[0].RecvMsg(&pb.JoinReply{})
	wants(t, err, fault.Unavailable)
	// From other networks neither: who has waited longest where most wait goes.
	many := &lobby{max: 32}
	gone := map[string]int{}
	for i := range 1000 {
		network := fmt.Sprintf("fd00:0:0:%x::/64", i%40)
		if _, err := many.enter(network, &tcpConn{}, func() { gone[network]++ }); err != nil {
			t.Fatal(err)
		}
		g, err := many.enter("10.0.0.1", &tcpConn{}, func() { t.Error("the honest one has to go") })
		if err != nil || !many.answers(g) {
			t.Fatal(err)
		}
		many.done(g)
	}
	if len(many.here) > 32 || len(gone) < 39 {
		t.Errorf("%d are there, of %d networks some have gone", len(many.here), len(gone))
	}
}

// Those whose message has come keep their places: one more waits.
func TestFullLobby(t *testing.T) {
	h := start(t, func(c *ServerConfig) { c.Limits = Limits{Newcomers: 3} })
	entered, leave := make(chan struct{}, 8), make(chan struct{})
	h.join = func(context.Context, *pb.JoinRequest) (*pb.JoinReply, error) {
		entered <- struct{}{}
		<-leave
		return &pb.JoinReply{}, nil
	}
	done := make(chan error, 3)
	for range 3 {
		c := pb.NewJoinClient(h.dial(AsNewcomer(h.ca.Pin())))
		go func() { _, err := c.Join(t.Context(), &pb.JoinRequest{}); done <- err }()
		<-entered
	}
	c := pb.NewJoinClient(h.dial(AsNewcomer(h.ca.Pin())))
	_, err := c.Join(t.Context(), &pb.JoinRequest{})
	wants(t, err, fault.Unavailable, "3 machines are joining already")
	close(leave)
	for range 3 {
		if err := <-done; err != nil {
			t.Error(err)
		}
	}
	until(t, "the places are free", func() bool { l := h.srv.gate.newcomers; l.mu.Lock(); defer l.mu.Unlock(); return len(l.here) == 0 })
	if _, err := c.Join(t.Context(), &pb.JoinRequest{}); err != nil {
		t.Error(err)
	}
}

// A message, and each part of an upload, has its time: what does not come ends the call, whoever
// calls. Whose message has come has all the time that it needs.
func TestSlowMessages(t *testing.T) {
	const body = 500 * time.Millisecond
	h := start(t, func(c *ServerConfig) { c.Limits = Limits{Body: body} })
	h.put = func(s grpc.ClientStreamingServer[pb.Chunk, pb.Empty]) error {
		for {
			if _, err := s.Recv(); err == io.EOF {
				return s.SendAndClose(&pb.Empty{})
			} else if err != nil {
				return err
			}
		}
	}
	h.watch = func(s grpc.ServerStreamingServer[pb.Cluster]) error {
		<-time.After(2 * body)
		return s.Send(&pb.Cluster{})
	}
	h.attach = func(s grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead]) error {
		if _, err := s.Recv(); err != nil {
			return err
		}
		if _, err := s.Recv(); err != io.EOF {
			return err
		}
		return s.Send(&pb.FromHead{})
	}
	person, agent, newcomer := h.dial(AsPerson(h.token("t1", Admin))), h.dial(AsNode(node(t, h.ca, "n7", 1), h.ca.Pin)), h.dial(AsNewcomer(h.ca.Pin()))
	for method, c := range map[string]*Conn{
		pb.Control_Drain_FullMethodName: person, pb.Control_Watch_FullMethodName: person, pb.Control_PutPack_FullMethodName: person, pb.Node_Renew_FullMethodName: agent,
		pb.Node_Attach_FullMethodName: agent, pb.Join_Join_FullMethodName: newcomer,
	} {
		t.Run(method, func(t *testing.T) {
			t.Parallel()
			wants(t, open(t, c, method).RecvMsg(&pb.Empty{}), fault.Unavailable, "did not come in time")
		})
	}
	for name, f := range map[string]func(t *testing.T){
		"an upload that stops": func(t *testing.T) {
			s := must(pb.NewControlClient(person).PutPack(t.Context()))
			s.Send(&pb.Chunk{Data: []byte("a")})
			wants(t, s.RecvMsg(&pb.Empty{}), fault.Unavailable, "did not come in time")
		},
		"an upload that goes on": func(t *testing.T) {
			s := must(pb.NewControlClient(person).PutPack(t.Context()))
			for range 6 {
				s.Send(&pb.Chunk{Data: []byte("a")})
				<-time.After(body / 4)
			}
			if _, err := s.CloseAndRecv(); err != nil {
				t.Error(err)
			}
		},
		"an answer that takes long": func(t *testing.T) {
			if _, err := must(pb.NewControlClient(person).Watch(t.Context(), &pb.WatchRequest{})).Recv(); err != nil {
				t.Error(err)
			}
		},
		"a session in which little is said": func(t *testing.T) {
			s := must(pb.NewNodeClient(agent).Attach(t.Context()))
			s.Send(&pb.FromAgent{})
			<-time.After(2 * body)
			s.CloseSend()
			if _, err := s.Recv(); err != nil {
				t.Error(err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); f(t) })
	}
}

// Wrong tokens, as many as there may be, keep no good one out that comes from the same address:
// neither an access token nor one for joining.
func TestWrongTokensBeside(t *testing.T) {
	h := start(t)
	h.drain = func(context.Context, *pb.DrainRequest) (*pb.Empty, error) { return &pb.Empty{}, nil }
	h.join = func(_ context.Context, q *pb.JoinRequest) (*pb.JoinReply, error) {
		if q.Token != "good" {
			return nil, fault.New(fault.Denied, "no such join token")
		}
		return &pb.JoinReply{}, nil
	}
	wrong := pb.NewControlClient(h.dial(AsPerson(must(pki.NewToken(pki.Access, "t1", h.ca.Pin())))))
	good, newcomer := pb.NewControlClient(h.dial(AsPerson(h.token("t2", Admin)))), pb.NewJoinClient(h.dial(AsNewcomer(h.ca.Pin())))
	told := map[fault.Code]int{}
	for range 10 * failures {
		_, err := wrong.Drain(t.Context(), &pb.DrainRequest{})
		told[fault.CodeOf(err)]++
		_, err = newcomer.Join(t.Context(), &pb.JoinRequest{Token: "wrong"})
		told[fault.CodeOf(err)]++
		if _, err := good.Drain(t.Context(), &pb.DrainRequest{}); err != nil {
			t.Fatalf("a good access token: %v", err)
		}
		if _, err := newcomer.Join(t.Context(), &pb.JoinRequest{Token: "good"}); err != nil {
			t.Fatalf("a good join token: %v", err)
		}
	}
	if told[fault.Denied] < failures || told[fault.Denied] > 2*failures || told[fault.Denied]+told[fault.Unavailable] != 20*failures {
		t.Errorf("%v", told)
	}
	if n := strings.Count(h.log.String(), "\n"); n > logLines+20 {
		t.Errorf("%d lines of log", n)
	}
}

// Connections over which nobody is known take no more than their share, and give way; those of
// nodes and people do not count in it, and have shares of their own.
func TestConnectionsOfStrangers(t *testing.T) {
	for _, x := range []struct{ most, strangers int }{{40, 5}, {5, 100}} { // the share of an address, and all that there are
		var late atomic.Int64
		h := start(t, func(c *ServerConfig) {
			c.Limits = Limits{Connections: x.most, Strangers: x.strangers, Handshake: time.Minute, Unproved: time.Minute}
			c.Now = func() time.Time { return time.Now().Add(time.Duration(late.Load())) }
		})
		h.renew = func(context.Context, *pb.RenewRequest) (*pb.RenewReply, error) { return &pb.RenewReply{}, nil }
		h.drain = func(context.Context, *pb.DrainRequest) (*pb.Empty, error) { return &pb.Empty{}, nil }
		all := h.srv.conns
		count := func() (n, strangers int) {
			all.mu.Lock()
			defer all.mu.Unlock()
			return len(all.open), all.strangers.Len()
		}
		crowd := func() {
			for range 20 {
				c := must(net.Dial("tcp", h.addr)) // and says nothing
				t.Cleanup(func() { c.Close() })
			}
			until(t, "strangers have what they may", func() bool { _, n := count(); return n >= 4 })
		}
		crowd()
		if _, n := count(); n > 5 {
			t.Fatalf("%d connections of strangers", n)
		}
		for i := range 3 { // nodes come in, from the same address
			late.Add(int64(2 * grace))
			c := h.dial(AsNode(node(t, h.ca, fmt.Sprint("n", i), 1), h.ca.Pin))
			if _, err := pb.NewNodeClient(c).Renew(t.Context(), &pb.RenewRequest{}); err != nil {
				t.Fatal(err)
			}
		}
		late.Add(int64(2 * grace))
		if _, err := pb.NewControlClient(h.dial(AsPerson(h.token("t1", Admin)))).Drain(t.Context(), &pb.DrainRequest{}); err != nil {
			t.Fatal(err)
		}
		if x.most == 5 {
			continue
		}
		crowd()
		if n, strangers := count(); strangers > 5 || n-strangers < 4 {
			t.Errorf("%d connections, %d of strangers", n, strangers)
		}
		// A node, and a token, has a share too.
		refused := 0
		one := node(t, h.ca, "n9", 1)
		for range perNode + 4 {
			late.Add(int64(2 * grace))
			ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
			c, err := Dial(ctx, h.addr, AsNode(one, h.ca.Pin))
			if err == nil {
				_, err = pb.NewNodeClient(c).Renew(ctx, &pb.RenewRequest{})
				t.Cleanup(func() { c.Close() })
			}
			cancel()
			if err != nil {
				refused++
			}
		}
		if refused < 4 {
			t.Errorf("%d of %d connections of a node were refused", refused, perNode+4)
		}
		until(t, "a node has its share", func() bool { all.mu.Lock(); defer all.mu.Unlock(); return all.known["node n9"] <= perNode })
		tok := h.token("t2", Admin)
		var err error
		for range leastPerToken + 1 {
			late.Add(int64(2 * grace))
			_, err = pb.NewControlClient(h.dial(AsPerson(tok))).Drain(t.Context(), &pb.DrainRequest{})
		}
		wants(t, err, fault.Exhausted, "access token t2 has 8 connections open")
	}
}
