// Package records keeps what is durable of a cluster, in etcd: an embedded one in the head's folder, or an external one. It is the only package that imports etcd.
//
//	store, err := records.Open(ctx, records.Options{Dir: dir})
//	nodes := records.In[Node](store, "nodes")
//	node, err := nodes.Get(ctx, "n7")       // fault.NotFound
//	node.Value.State = "draining"
//	node, err = nodes.Put(ctx, node)        // *Conflict, fault.Exists: another writer was first
//
// A record is a JSON value below a table and an id, at most [MaxRecord] bytes. Every write is a compare-and-swap on the record's revision; there is no other. A [Store.Txn] writes several
// records of any tables, all or none of them.
//
// # Lost answers
//
// A write whose answer was lost may have happened. Inside a call that is no matter: every write carries an id that is stored with the record, the call repeats it until its time is over, and knows its
// own write again, so that it is done once and is said to be done. When the time is over first, the call fails with fault.Unavailable (or fault.Canceled, if it was the caller's), and the write has
// happened, has not, or will within seconds; never twice, and never over a later one, as its revision does not match any more. Read the record again and decide anew: all calls are safe to
// repeat in that way. What each of them does when it is repeated as it was, is said with it.
//
// # Time
//
// Every call returns within a second of the end of its context, whatever etcd does, and after Options.Timeout in any case. After [Store.Close], calls fail at once.
//
// All types are safe for concurrent use.
package records

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/penstock-data/penstock/internal/fault"
)

// Limits. A transaction has room for several records of full size; etcd's own limit is 1.5 MiB a request.
const (
	MaxRecord = 64 << 10 // bytes of a value as JSON
	MaxOps    = 64       // operations of a transaction
	maxTxn    = 1 << 20  // bytes of a transaction
	maxID     = 512      // bytes of an id
)

// Defaults.
const (
	DefaultTimeout = 5 * time.Second
	DefaultQuota   = 2 << 30
	DefaultPrefix  = "/penstock/v1/"
)

// Options of a store.
type Options struct {
	// Dir is the head's folder: the embedded etcd has its data in Dir/etcd and listens on Dir/etcd.sock and nowhere else. It is made with mode 0700 where it is not there; its mode is set to that
	// where it is. One process at a time has it. Without Endpoints only, and then needed.
	Dir string

	// Endpoints of an external etcd: host:port or unix:///path (see Address). Those of other machines are spoken to by TLS only, unless Plain says that they are not.
	Endpoints []string
	TLS       *tls.Config // see TLSFiles; nil: without TLS. It is copied
	Plain     bool        // records, user and password may go over the network as they are
	Username  string      // of etcd's own authentication; empty: none
	Password  string

	Prefix  string        // of all keys; ends with a slash. Empty: DefaultPrefix. Clusters that share an external etcd have different ones
	Timeout time.Duration // of a call that has no earlier deadline. 0: DefaultTimeout
	Quota   int64         // bytes that the embedded etcd may have on disk, history included (an hour of it is kept). 0: DefaultQuota
	Log     *slog.Logger  // nil: none. What etcd calls information is logged at level debug, its warnings as information, its errors as warnings

	dial func(context.Context) (net.Conn, error) // tests: in place of the socket
}

// Store is an open store. Close it.
type Store struct {
	opts   Options
	client *clientv3.Client
	leases pb.LeaseClient
	server *embedded // nil: external

	writer string        // prefix of the ids of writes: no other store has it
	writes atomic.Uint64 // number of the last one

	ctx    context.Context // ends when the store is closed or has failed
	cancel context.CancelCauseFunc
	close  sync.Once

	claim  atomic.Pointer[claim] // nil: whoever writes, may
	lost   chan struct{}         // closed, with lostTo set, when another has the claim
	losing sync.Once
	lostTo error
}

// Open starts the embedded etcd, or connects to an external one, and returns when it answers; ctx is for this only. It takes about half a second where nothing is damaged.
//
// Errors: Exists: another process has Dir. Corrupt: the data in Dir is damaged; the text says what to do, and the process should end, as etcd keeps hold of some of it. Invalid: options.
// Denied: user, password or what they may do. Unavailable: it does not answer, or not to this certificate; the text says which, and what to do.
func Open(ctx context.Context, opts Options) (*Store, error) {
	if opts.Prefix == "" {
		opts.Prefix = DefaultPrefix
	}
	if opts.Timeout == 0 {
		opts.Timeout = DefaultTimeout
	}
	if opts.Quota == 0 {
		opts.Quota = DefaultQuota
	}
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case (opts.Dir == "") == (len(opts.Endpoints) == 0):
		return nil, fault.New(fault.Invalid, "a store needs either a folder, for the embedded etcd, or the endpoints of an external one")
	case !strings.HasSuffix(opts.Prefix, "/"):
		return nil, fault.New(fault.Invalid, "prefix %q of the store does not end with a slash", opts.Prefix)
	case opts.Timeout < 0 || opts.Quota < 0:
		return nil, fault.New(fault.Invalid, "timeout %v or quota %d of the store is negative", opts.Timeout, opts.Quota)
	case opts.Password != "" && opts.Username == "":
		return nil, fault.New(fault.Invalid, "the store has a password and no user: set both, or none")
	}
	if opts.dial == nil {
		var err error
		if opts.TLS, err = secure(opts.Endpoints, opts.TLS, opts.Plain); err != nil {
			return nil, err
		}
	}
	s := &Store{opts: opts, writer: randomHex(), lost: make(chan struct{})}
	s.ctx, s.cancel = context.WithCancelCause(context.Background())
	if opts.Dir != "" {
		server, err := startEmbedded(ctx, opts, s.cancel)
		if err != nil {
			s.cancel(err)
			return nil, err
		}
		s.server = server
		if s.opts.dial == nil {
			s.opts.dial = server.dial
		}
	}
	if err := s.connect(ctx); err != nil {
		err = s.probe(ctx, err)
		s.Close()
		return nil, err
	}
	if s.server != nil {
		full, err := s.full(ctx)
		if err == nil && full {
			if err = s.Reclaim(ctx); fault.CodeOf(err) == fault.Exhausted {
				opts.Log.Error("the store is full: what is in it can be read and deleted, and nothing can be written", "error", err)
				err = nil
			}
		}
		if err != nil {
			s.Close()
			return nil, err
		}
	}
	return s, nil
}

// connect makes the client, and asks etcd something.
func (s *Store) connect(ctx context.Context) error {
	cfg := clientv3.Config{
		Endpoints: s.opts.Endpoints, TLS: s.opts.TLS, Username: s.opts.Username, Password: s.opts.Password,
		DialTimeout:       s.opts.Timeout,
		DialKeepAliveTime: 10 * time.Second, DialKeepAliveTimeout: 5 * time.Second,
		MaxUnaryRetries: 1, // this package repeats: see Txn
		Logger:          zap.NewNop(),
		DialOptions: []grpc.DialOption{grpc.WithConnectParams(grpc.ConnectParams{
			Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
			MinConnectTimeout: 3 * time.Second,
		})},
	}
	if s.opts.dial != nil {
		if len(cfg.Endpoints) == 0 {
			cfg.Endpoints = []string{"embedded"}
		}
		cfg.DialOptions = append(cfg.DialOptions, grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return s.opts.dial(ctx) }))
	}
	// The client may ask for a token in New, with the context that it has for as long as it lives.
	life, end := context.WithCancel(s.ctx)
	cfg.Context = life
	stop := context.AfterFunc(ctx, end)
	client, err := clientv3.New(cfg)
	stop()
	if err != nil {
		end()
		return s.fault(ctx, err, "connecting")
	}
	s.client, s.leases = client, pb.NewLeaseClient(client.ActiveConnection())
	what := "connecting"
	if s.server == nil {
		what = "connecting to etcd"
	}
	kv := pb.NewKVClient(client.ActiveConnection()) // unlike client's, it says why there is no connection
	return s.read(ctx, what, func(ctx context.Context) error {
		_, err := kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.opts.Prefix + "cluster"), KeysOnly: true})
		return rpctypes.Error(err)
	})
}

// Failed is closed when the store can do nothing any more. Err says why, all calls fail, and the process must end: what was acknowledged is in the store. Of the embedded etcd, as when its disk is full: it is there again
// after the next start. Of an external one: another head has the claim (see Claim).
func (s *Store) Failed() <-chan struct{} {
	if s.server == nil {
		return s.lost
	}
	return s.server.failed
}

// Err is why Failed is closed; nil as long as it is not.
func (s *Store) Err() error {
	if s.server != nil {
		return s.server.err()
	}
	select {
	case <-s.lost:
		return s.lostTo
	default:
		return nil
	}
}

// Close ends calls that are under way, and the embedded etcd; leases go on to run in an external one, and stand still in an embedded one until it is opened again. A claim is given back. It may be called again.
func (s *Store) Close() {
	s.close.Do(func() {
		s.yield()
		s.cancel(errClosed)
		if s.client != nil {
			s.client.Close()
		}
		if s.server != nil {
			s.server.stop()
		}
	})
}

// name is how errors call the store.
func (s *Store) name() string {
	if s.server != nil {
		return "the store in " + s.opts.Dir
	}
	return "the store at " + strings.Join(s.opts.Endpoints, ",")
}

// key of a record.
func (s *Store) key(table, id string) string { return s.opts.Prefix + table + "/" + id }

// write makes the id of a write.
func (s *Store) write() string { return s.writer + strconv.FormatUint(s.writes.Add(1), 36) }

func randomHex() string {
	var b [8]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}
