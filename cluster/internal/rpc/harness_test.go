package rpc

import (
	"bytes"
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/faulttest"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

var wants = faulttest.Wants

// store is a Tokens in memory.
type store struct {
	mu   sync.Mutex
	m    map[string]Record
	err  error
	asks int
}

func (s *store) Lookup(_ context.Context, id string) (Record, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asks++
	if s.err != nil {
		return Record{}, s.err
	}
	r, ok := s.m[id]
	if !ok {
		return Record{}, fault.New(fault.NotFound, "no token %s", id)
	}
	return r, nil
}

func (s *store) set(id string, change func(*Record)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	r := s.m[id]
	change(&r)
	s.m[id] = r
}

// lockedBuffer is the server's log.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}
func (l *lockedBuffer) String() string { l.mu.Lock(); defer l.mu.Unlock(); return l.b.String() }

// head is a server with handlers that say that they were called.
type head struct {
	pb.NodeServer    // nil: what no test
	pb.ControlServer // calls is not there
	t                testing.TB
	ca               *pki.CA
	holder           *pki.Holder
	store            *store
	log              *lockedBuffer
	srv              *Server
	addr             string
	sock             string

	renew  func(context.Context, *pb.RenewRequest) (*pb.RenewReply, error)
	join   func(context.Context, *pb.JoinRequest) (*pb.JoinReply, error)
	watch  func(grpc.ServerStreamingServer[pb.Cluster]) error
	attach func(grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead]) error
	put    func(grpc.ClientStreamingServer[pb.Chunk, pb.Empty]) error
	drain  func(context.Context, *pb.DrainRequest) (*pb.Empty, error)
}

func (h *head) Renew(ctx context.Context, r *pb.RenewRequest) (*pb.RenewReply, error) {
	return h.renew(ctx, r)
}
func (h *head) Join(ctx context.Context, r *pb.JoinRequest) (*pb.JoinReply, error) {
	return h.join(ctx, r)
}
func (h *head) Watch(_ *pb.WatchRequest, s grpc.ServerStreamingServer[pb.Cluster]) error {
	return h.watch(s)
}
func (h *head) Attach(s grpc.BidiStreamingServer[pb.FromAgent, pb.FromHead]) error {
	return h.attach(s)
}
func (h *head) PutPack(s grpc.ClientStreamingServer[pb.Chunk, pb.Empty]) error { return h.put(s) }
func (h *head) Drain(ctx context.Context, r *pb.DrainRequest) (*pb.Empty, error) {
	return h.drain(ctx, r)
}

func (h *head) register(r grpc.ServiceRegistrar) {
	pb.RegisterJoinServer(r, h)
	pb.RegisterNodeServer(r, h)
	pb.RegisterControlServer(r, h)
}

func newCA(t testing.TB, now func() time.Time) *pki.CA {
	return must(pki.OpenCA(filepath.Join(t.TempDir(), "ca"), "c1", now))
}

// start makes a head on a port and a socket, with tokens read, submit, admin, ended and revoked.
func start(t testing.TB, change ...func(*ServerConfig)) *head {
	t.Helper()
	h := &head{t: t, ca: newCA(t, nil), store: &store{m: map[string]Record{}}, log: &lockedBuffer{}}
	h.holder = pki.NewHolder(must(h.ca.IssueHead("127.0.0.1")), nil)
	cfg := ServerConfig{CA: h.ca, Holder: h.holder, Tokens: h.store, Log: slog.New(slog.NewTextHandler(h.log, nil))}
	for _, c := range change {
		c(&cfg)
	}
	h.srv = must(NewServer(cfg, h.register))
	t.Cleanup(func() { ctx, cancel := context.WithCancel(context.Background()); cancel(); h.srv.Stop(ctx) })
	h.addr = must(h.srv.ListenTLS("127.0.0.1:0")).String()
	dir := must(os.MkdirTemp("", "rpc")) // short
	t.Cleanup(func() { os.RemoveAll(dir) })
	h.sock = filepath.Join(dir, "head.sock")
	if err := h.srv.ListenUnix(h.sock); err != nil {
		t.Fatal(err)
	}
	return h
}

// token makes an access token that the head knows.
func (h *head) token(id string, scope Scope) pki.Token {
	tok := must(pki.NewToken(pki.Access, id, h.ca.Pin()))
	h.store.set(id, func(r *Record) { *r = Record{Hash: tok.Hash(), Scope: scope} })
	return tok
}

func node(t testing.TB, ca *pki.CA, id string, epoch uint64) *pki.Holder {
	key := must(pki.NewKey())
	return pki.NewHolder(must(pki.Assemble(must(ca.IssueNode(must(pki.NewCSR(key)), id, epoch)), key, ca.Pin(), pki.Node)), nil)
}

func (h *head) dial(c Creds) *Conn {
	h.t.Helper()
	addr := h.addr
	if c.socket {
		addr = "unix:" + h.sock
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	conn, err := Dial(ctx, addr, c)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { conn.Close() })
	return conn
}

// foreign is a self-made head: any certificate, at a port.
func foreign(t testing.TB, c *tls.Config) string {
	l := must(net.Listen("tcp", "127.0.0.1:0"))
	t.Cleanup(func() { l.Close() })
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { l.Close() })
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer conn.Close()
				if c == nil {
					io.WriteString(conn, "SSH-2.0-nobody\r\n")
					return
				}
				s := tls.Server(conn, c)
				s.Handshake()
				io.Copy(io.Discard, s)
			})
		}
	})
	return l.Addr().String()
}
