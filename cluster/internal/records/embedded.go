package records

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/internal/fault"
)

// embedded is the etcd of a head: one member, no peers, one unix socket.
type embedded struct {
	dir    string
	socket string
	short  string // folder made for the socket, as dir is too long for one; empty: none
	lock   *os.File
	fresh  bool // it was never opened before

	onFail func(error)
	failed chan struct{} // closed with cause set, once

	stopping  atomic.Bool
	monitored chan struct{}

	mu    sync.Mutex
	etcd  *embed.Etcd // nil: it has not started yet
	rpc   *grpc.Server
	cause error
}

func init() { wal.SegmentSizeBytes = 8 << 20 } // of the log; two or three of them are allocated

// maxSocket is the room for a socket's address.
const maxSocket = 100

// startEmbedded returns when etcd serves. onFail is called when it stops by itself later.
func startEmbedded(ctx context.Context, opts Options, onFail func(error)) (*embedded, error) {
	dir, err := filepath.Abs(opts.Dir)
	if err != nil {
		return nil, fault.WithCode(fault.Invalid, err)
	}
	e := &embedded{dir: dir, onFail: onFail, failed: make(chan struct{}), monitored: make(chan struct{})}
	if err := e.prepare(); err != nil {
		e.release()
		return nil, err
	}
	cfg := e.config(opts)
	cfg.ZapLoggerBuilder = embed.NewZapLoggerBuilder(newZap(opts.Log, &e.stopping, e.fatal))

	// etcd panics, or ends the goroutine in which it meets damage (see fatal).
	type result struct {
		etcd *embed.Etcd
		err  error
	}
	started := make(chan result, 1)
	go func() {
		r := result{err: errEnded}
		defer func() {
			if p := recover(); p != nil {
				r.err = fmt.Errorf("%v", p)
			}
			started <- r
		}()
		r.etcd, r.err = embed.StartEtcd(cfg)
	}()
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, errSlow)
	defer cancel()
	select {
	case r := <-started:
		if r.err != nil {
			e.release()
			return nil, e.startError(r.err)
		}
		e.started(r.etcd)
	case <-e.failed:
		e.release()
		return nil, e.startError(e.err())
	case <-ctx.Done():
		go func() { // it takes as long as it takes, then it goes
			if r := <-started; r.etcd != nil {
				e.started(r.etcd)
				e.stop()
			} else {
				e.release()
			}
		}()
		return nil, e.startError(context.Cause(ctx))
	}
	select {
	case <-e.etcd.Server.ReadyNotify():
		if e.fresh {
			if err := os.WriteFile(e.marker(), nil, 0o600); err != nil {
				e.stop()
				return nil, e.startError(err)
			}
		}
		return e, nil
	case <-e.failed:
		return nil, e.startError(e.err())
	case <-ctx.Done():
		e.stop()
		return nil, e.startError(context.Cause(ctx))
	}
}

// startTimeout is far above what a start takes; giving free pages back, up to seconds per GiB, is a part of it.
const startTimeout = 2 * time.Minute

var errSlow = fmt.Errorf("etcd was not ready in %v", startTimeout)

// errEnded is what StartEtcd gives where fatal ended its goroutine: the reason is in err.
var errEnded = errors.New("etcd has stopped")

func (e *embedded) startError(err error) error {
	if err == errEnded && e.err() != nil {
		err = e.err()
	}
	switch {
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return fault.New(fault.Canceled, "starting the store in %s: %w", e.dir, err)
	case err == errSlow:
		return fault.New(fault.Unavailable, "starting the store in %s: see the log at level debug, and start again: %w", e.dir, err)
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return fault.New(fault.Exhausted, "starting the store in %s: the disk is full: free some space there, and start again: %w", e.dir, err)
	case errors.Is(err, os.ErrPermission):
		return fault.New(fault.Denied, "starting the store in %s: give this user the files there: %w", e.dir, err)
	case e.fresh:
		return fault.New(fault.Unavailable, "starting a new store in %s: %w", e.dir, err)
	}
	return fault.New(fault.Corrupt, "the store in %s cannot be opened: if its disk is sound, its files are damaged: put a copy of %s back, or move that folder away to begin a new cluster, which nodes and people must join again: %w",
		e.dir, filepath.Join(e.dir, "etcd"), err)
}

// prepare makes the folder, takes its lock, and finds a place for the socket.
func (e *embedded) prepare() error {
	var err error
	if e.lock, err = lockFolder(e.dir); err != nil {
		return err
	}
	// A first start that was killed leaves a database without a log, and the next one goes on there. Where a start has been done, etcd would wait forever for what the log had.
	_, err = os.Stat(e.marker())
	e.fresh = os.IsNotExist(err)
	if !e.fresh && !wal.Exist(filepath.Join(e.dir, "etcd", "member", "wal")) {
		return e.startError(errors.New("the log (member/wal) is not there"))
	}
	e.socket = filepath.Join(e.dir, "etcd.sock")
	if len(e.socket) <= maxSocket {
		return nil
	}
	for _, parent := range []string{os.TempDir(), "/tmp"} {
		if e.short, err = os.MkdirTemp(parent, "penstock-"); err != nil { // mode 0700
			continue
		}
		if e.socket = filepath.Join(e.short, "etcd.sock"); len(e.socket) <= maxSocket {
			return nil
		}
		os.Remove(e.short)
		e.short = ""
	}
	return fault.New(fault.Invalid, "the path of the store, %s, is too long for a socket, and so are those of temporary files (%v): choose a shorter one", e.dir, err)
}

// marker is a file that is there once a store has been opened.
func (e *embedded) marker() string { return filepath.Join(e.dir, "etcd", "opened") }

// config is etcd's. A single member is its own leader and needs nobody's heartbeats, so the short election time only makes it start fast; where the process gets no CPU for longer than that, nothing
// happens. The log between snapshots is in memory too, up to 64 KiB an entry: that is why there are few.
func (e *embedded) config(opts Options) *embed.Config {
	cfg := embed.NewConfig()
	cfg.Name = "penstock"
	cfg.Dir = filepath.Join(e.dir, "etcd")
	cfg.ListenClientUrls = []url.URL{{Scheme: "unix", Path: e.socket}}
	cfg.AdvertiseClientUrls = []url.URL{{Scheme: "unix", Host: "penstock"}} // nobody reads it
	cfg.ListenPeerUrls = nil
	cfg.AdvertisePeerUrls = []url.URL{{Scheme: "unix", Host: "penstock"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	cfg.TickMs, cfg.ElectionMs = 50, 250
	cfg.SnapshotCount, cfg.SnapshotCatchUpEntries = 1000, 10
	cfg.MaxWalFiles, cfg.MaxSnapFiles = 2, 2
	cfg.QuotaBackendBytes = opts.Quota
	cfg.AutoCompactionMode, cfg.AutoCompactionRetention = embed.CompactorModePeriodic, "1h"
	cfg.EnableGRPCGateway = false
	cfg.ServiceRegister = func(s *grpc.Server) {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.rpc = s
	}
	cfg.BootstrapDefragThresholdMegabytes = 64
	return cfg
}

// fatal is called by etcd where it would end the process. What it has on disk is whole. While it starts, the goroutine that starts it ends; later that goroutine stays where it is, as code after this
// point, deferred functions among it, may not run. The failure is kept: see Store.Failed.
func (e *embedded) fatal(message string, err error) {
	if err != nil {
		err = fmt.Errorf("%s: %w", message, err)
	} else {
		err = errors.New(message)
	}
	if running := e.fail(err); !running {
		runtime.Goexit()
	}
	select {}
}

// monitor waits for the end of the server, by stop or by itself.
func (e *embedded) monitor(etcd *embed.Etcd) {
	defer close(e.monitored)
	for {
		select {
		case err, open := <-etcd.Err():
			if open && err != nil && !e.stopping.Load() {
				e.fail(err)
			}
			if !open {
				return
			}
		case <-etcd.Server.StopNotify():
			if !e.stopping.Load() {
				e.fail(errors.New("the server has ended"))
			}
			return
		}
	}
}

// fail keeps the first cause, tells everybody, and reports whether etcd was running.
func (e *embedded) fail(err error) (running bool) {
	e.mu.Lock()
	running = e.etcd != nil
	if e.cause != nil {
		e.mu.Unlock()
		return running
	}
	cause := err
	if running {
		code, fix := fault.Unavailable, "see the log, and start again"
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			code, fix = fault.Exhausted, "its disk is full: free some space, and start again"
		}
		cause = fault.New(code, "the store in %s has stopped; nothing that was acknowledged is lost: %s: %w", e.dir, fix, err)
	}
	e.cause = cause
	e.mu.Unlock()
	e.onFail(cause)
	close(e.failed)
	return running
}

func (e *embedded) started(etcd *embed.Etcd) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.etcd = etcd
	go e.monitor(etcd)
}

func (e *embedded) err() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.cause
}

func (e *embedded) dial(ctx context.Context) (net.Conn, error) {
	var d net.Dialer
	return d.DialContext(ctx, "unix", e.socket)
}

// stop ends etcd, and gives the folder back. After a failure etcd cannot be ended: the process must.
func (e *embedded) stop() {
	if e.err() != nil {
		return
	}
	e.stopping.Store(true)
	e.mu.Lock()
	rpc := e.rpc
	e.mu.Unlock()
	if rpc != nil {
		rpc.Stop() // watches of others: etcd may wait seconds for them to end by themselves
	}
	e.etcd.Close()
	<-e.monitored
	e.release()
}

// release gives back what prepare took.
func (e *embedded) release() {
	if e.short != "" {
		os.RemoveAll(e.short)
	}
	if e.lock != nil {
		unlock(e.lock)
	}
}
