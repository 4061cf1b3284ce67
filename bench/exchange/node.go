package main

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/exchange"
)

// The first byte of a message says what it asks for.
const (
	sayData   = 0
	sayAnswer = 1
)

// node is one of the two processes, at its address of the gang; it does what its input says, until that ends.
func node(address string) error {
	l, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	g, err := gang.Open(os.Getenv(gang.EnvDir), l)
	if err != nil {
		return err
	}
	defer g.Close()
	self := g.Node()
	out := json.NewEncoder(os.Stdout)
	in := json.NewDecoder(bufio.NewReader(os.Stdin))
	hello := said{Address: g.Address()}
	if self == 1 {
		stop, err := serve(g.Host(self), &hello)
		if err != nil {
			return err
		}
		defer stop()
	}
	if err := out.Encode(hello); err != nil {
		return err
	}
	var s start
	if err := in.Decode(&s); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	x, err := exchange.Connect(ctx, g, "bench", s.Addresses)
	if err != nil {
		return err
	}
	defer x.Close()
	pool := mem.New(1 << 30)
	defer pool.Close()
	r, err := remote.New(g, nil)
	if err != nil {
		return err
	}
	defer r.Close()
	n := &sender{ctx: ctx, x: x, pool: pool, runner: r}
	if self == 1 {
		go n.echo()
	} else if err := n.dial(s); err != nil {
		return err
	}
	for {
		var t task
		if err := in.Decode(&t); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		var a answer
		if t.Kind != "cpu" {
			if a, err = n.run(t); err != nil {
				a.Error = err.Error()
			}
		}
		a.CPU = kit.CPU()
		if err := out.Encode(a); err != nil {
			return err
		}
	}
}

type sender struct {
	ctx    context.Context
	x      *exchange.Exchange
	pool   *mem.Pool
	runner *remote.Runner
	stream grpc.ClientStream
}

// echo answers what asks for it.
func (n *sender) echo() {
	for {
		m, err := n.x.Receive(n.ctx, 0, n.pool)
		if err != nil {
			return
		}
		ask := m.Head[0] == sayAnswer
		head := m.Head
		m.Release()
		if ask && n.x.Send(n.ctx, 0, shard.Message{Head: head}) != nil {
			return
		}
	}
}

func (n *sender) run(t task) (a answer, err error) {
	if t.Kind == "plan" {
		a.Wall, err = n.plan(t)
		return a, err
	}
	send := n.exchange(t)
	if t.Kind == "grpc" {
		send = n.grpc(t)
	}
	trips := make([]time.Duration, 0, t.Count)
	begin := time.Now()
	for i := range t.Count {
		at := time.Now()
		if err := send(t.Trip || i == t.Count-1); err != nil {
			return a, err
		}
		trips = append(trips, time.Since(at))
	}
	a.Wall = time.Since(begin)
	a.Median, a.Tail = kit.Median(trips), kit.Quantile(trips, 0.99)
	return a, nil
}

// exchange sends a message, and waits for the answer where one is asked for.
func (n *sender) exchange(t task) func(ask bool) error {
	rows := make([]byte, t.Size)
	rand.Read(rows)
	return func(ask bool) error {
		m := shard.Message{Head: []byte{sayData}, Packed: rows}
		if ask {
			m.Head[0] = sayAnswer
		}
		if t.Trip {
			m.Head, m.Packed = append(m.Head, rows...), nil
		}
		if err := n.x.Send(n.ctx, 1, m); err != nil || !ask {
			return err
		}
		back, err := n.x.Receive(n.ctx, 1, n.pool)
		back.Release()
		return err
	}
}

func (n *sender) grpc(t task) func(ask bool) error {
	rows := make([]byte, t.Size)
	rand.Read(rows)
	m := wrapperspb.Bytes(rows)
	return func(ask bool) error {
		rows[0] = sayData
		if ask {
			rows[0] = sayAnswer
		}
		if err := n.stream.SendMsg(m); err != nil || !ask {
			return err
		}
		return n.stream.RecvMsg(&wrapperspb.BytesValue{})
	}
}

const largest = 1 << 30

var streams = grpc.StreamDesc{StreamName: "Carry", ServerStreams: true, ClientStreams: true, Handler: func(_ any, s grpc.ServerStream) error {
	for {
		var m wrapperspb.BytesValue
		if err := s.RecvMsg(&m); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		if m.Value[0] == sayAnswer {
			if err := s.SendMsg(wrapperspb.Bytes(m.Value[:min(len(m.Value), 65)])); err != nil {
				return err
			}
		}
	}
}}

// serve starts a gRPC server, and says where.
func serve(host string, hello *said) (stop func(), err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{net.ParseIP(host)}}
	der, err := x509.CreateCertificate(rand.Reader, t, t, key.Public(), key)
	if err != nil {
		return nil, err
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, err
	}
	hello.GRPC, hello.CA = l.Addr().String(), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s := grpc.NewServer(grpc.Creds(credentials.NewTLS(cfg)), grpc.MaxRecvMsgSize(largest), grpc.MaxSendMsgSize(largest))
	s.RegisterService(&grpc.ServiceDesc{ServiceName: "bench", HandlerType: (*any)(nil), Streams: []grpc.StreamDesc{streams}}, nil)
	go s.Serve(l)
	return s.Stop, nil
}

// dial opens the stream.
func (n *sender) dial(s start) error {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(s.CA) {
		return fmt.Errorf("no certificate of the server")
	}
	c, err := grpc.NewClient("passthrough:///"+s.GRPC, grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{MinVersion: tls.VersionTLS13, RootCAs: pool})),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(largest), grpc.MaxCallSendMsgSize(largest)))
	if err != nil {
		return err
	}
	n.stream, err = c.NewStream(n.ctx, &streams, "/bench/Carry")
	return err
}
