// Package cluster makes one machine of several: a head that decides, nodes that run what it says, and clients that ask (docs/cluster.md; docs/design/0005-cluster.md says how it works).
//
//	head, err := cluster.StartHead(ctx, cluster.HeadConfig{Dir: dir, Listen: ":7071"})
//	node, err := cluster.Join(ctx, "head:7071", token, cluster.NodeConfig{Dir: dir})
//	client, err := cluster.Dial(ctx, "head:7071", token)
//
// Errors carry codes of the project's faults and say what to do.
package cluster

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/bits"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/agent"
	"github.com/penstock-data/penstock/cluster/internal/head"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/device"
)

// Resources of a node, or of a job.
type Resources struct {
	CPUs   float64 // to a thousandth
	GPUs   int     // whole ones
	Memory int64   // bytes
	Named  map[string]int64
}

func (r Resources) wire() *pb.Resources {
	return &pb.Resources{MilliCpus: int64(r.CPUs*1000 + 0.5), Gpus: int64(r.GPUs), Memory: r.Memory, Named: r.Named}
}

func resourcesOf(r *pb.Resources) Resources {
	return Resources{CPUs: float64(r.GetMilliCpus()) / 1000, GPUs: int(r.GetGpus()), Memory: r.GetMemory(), Named: r.GetNamed()}
}

// NodeConfig says what a node offers.
type NodeConfig struct {
	Dir     string            // the node's folder, which it makes (mode 0700): certificate, packs, logs. One node at a time has it
	Name    string            // "": that which the node of Dir had last, else the host's
	Labels  map[string]string // that jobs can ask for
	CPUs    float64           // 0: as many as this process may use
	GPUs    int               // < 0: none; 0: all that are found
	Memory  int64             // bytes; 0: what is available now, less a tenth, in whole steps of which it is 64 to 127
	Named   map[string]int64  // other resources
	Jobs    Confinement       // how jobs are kept from what is the node's
	Version string            // of the binary
	Grace   time.Duration     // that processes get when the node ends; 0: 10 s
	Log     *slog.Logger      // nil: none

	rotate int64 // agent.Config.Rotate, of tests
}

// Confinement says how jobs are kept from what is their node's: its memory, key, logs and packs,
// and the head's where that is on the same machine. In any case they get no new privileges.
type Confinement struct {
	// User runs jobs, in place of the node's, which is root then; "": the node's.
	User string
	// Dir is where the working directories of jobs of User are, who can reach it; "":
	// /var/lib/penstock/jobs.
	Dir string
	// Isolate, with User, gives each process of a job a /tmp for itself, and a /proc without
	// others' processes: "auto" where the kernel allows it, "require" or the node does not start,
	// "off"; "": auto.
	Isolate string
}

// HeadConfig says how a head runs.
type HeadConfig struct {
	Dir      string        // the head's folder, which it makes (mode 0700): authority, store, packs, secrets. One head at a time has it
	Listen   string        // host:port for nodes and people; "": only the unix socket in Dir
	Names    []string      // by which others know this machine, besides Listen's
	Store    StoreConfig   // an external etcd; none: one is embedded, in Dir
	Lease    time.Duration // after which a silent node is lost; 0: 15 s
	KeepJobs int           // that are over, and have been for ten minutes; 0: 100
	Node     *NodeConfig   // of this machine's node, which runs in this process; nil: none
	Version  string
	Log      *slog.Logger // nil: none
}

// Head is a head that runs. Close it.
type Head struct {
	h    *head.Head
	node *Node
}

// StartHead starts a head, and its machine's node. It is ready when it returns; ctx is for the start.
func StartHead(ctx context.Context, cfg HeadConfig) (*Head, error) {
	store, err := cfg.Store.options()
	if err != nil {
		return nil, err
	}
	h, err := head.Start(ctx, head.Config{Dir: cfg.Dir, Listen: cfg.Listen, Names: cfg.Names, Store: store, Lease: cfg.Lease, KeepJobs: cfg.KeepJobs, Version: cfg.Version, Log: cfg.Log})
	if err != nil {
		return nil, err
	}
	out := &Head{h: h}
	if cfg.Node == nil {
		return out, nil
	}
	n, err := newNode(ctx, *cfg.Node)
	if err == nil {
		var conn *rpc.Conn
		if conn, n.id, err = h.Local(ctx, n.inventory); err == nil {
			n.run(conn, h.ID(), nil)
			if err = n.arrived(ctx); err == nil {
				out.node = n
				return out, nil
			}
			_ = n.stop() // which says the same
		}
		n.free(false)
	}
	h.Stop(0)
	return nil, err
}

// ID of the cluster.
func (h *Head) ID() string { return h.h.ID() }

// Node is this machine's; nil: none.
func (h *Head) Node() *Node { return h.node }

// SocketIn is the socket of the head of a folder; it is there while a head runs, and may be left by one that was killed.
func SocketIn(dir string) string { return head.SocketIn(dir) }

// Addr is where nodes and people find it; nil: on the socket only.
func (h *Head) Addr() net.Addr { return h.h.Addr() }

// JoinToken makes a token with which one machine can join, within an hour. It is a secret.
func (h *Head) JoinToken(ctx context.Context) (string, error) {
	t, err := h.h.JoinToken(ctx)
	if err != nil {
		return "", err
	}
	return t.Reveal(), nil
}

// Done is closed when the head has ended by itself: somebody stopped the cluster, or Err says why.
func (h *Head) Done() <-chan struct{} { return h.h.Done() }

// Err is why Done is closed; nil where somebody stopped the cluster, and while it runs.
func (h *Head) Err() error { return h.h.Err() }

// Close ends this machine's node with what it runs, then the head. Other nodes go on with what they run, and wait for a head.
func (h *Head) Close() error {
	var err error
	if h.node != nil {
		err = h.node.Close()
	}
	h.h.Stop(5 * time.Second)
	return errors.Join(err, h.h.Err())
}

// Node is a node that runs. Close it.
type Node struct {
	cfg       NodeConfig
	id        string
	inventory *pb.Inventory
	binary    string // this program
	jobs      agent.Confined
	visible   []string
	lease     *device.Lease
	unlock    func(keep bool) // of the folder
	end       context.CancelFunc
	attached  chan struct{} // closed at the first welcome
	done      chan struct{}
	err       error
	conn      *rpc.Conn
	keep      sync.WaitGroup
}

// newNode finds what there is to offer.
func newNode(ctx context.Context, cfg NodeConfig) (*Node, error) {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Dir == "" {
		return nil, fault.New(fault.Invalid, "a node has a folder")
	}
	if cfg.Name == "" {
		cfg.Name = agent.NameIn(cfg.Dir)
	}
	if err := cfg.plain(); err != nil {
		return nil, err
	}
	n := &Node{cfg: cfg, attached: make(chan struct{}), done: make(chan struct{})}
	inv := &pb.Inventory{Name: cfg.Name, Labels: cfg.Labels, Version: cfg.Version}
	var err error
	if inv.Name == "" {
		if inv.Name, err = os.Hostname(); err != nil {
			return nil, fault.New(fault.Invalid, "this machine has no name: give one: %w", err)
		}
	}
	r := Resources{CPUs: cfg.CPUs, Memory: cfg.Memory, Named: maps.Clone(cfg.Named)}
	if r.CPUs == 0 {
		r.CPUs = float64(runtime.GOMAXPROCS(0))
	}
	if r.CPUs < 0 || r.Memory < 0 {
		return nil, fault.New(fault.Invalid, "a node cannot offer less than nothing")
	}
	if r.Memory == 0 {
		r.Memory = even(exec.AvailableMemory() / 10 * 9)
	}
	if n.binary, err = os.Executable(); err != nil {
		return nil, err
	}
	if n.unlock, err = agent.Lock(cfg.Dir); err != nil {
		return nil, err
	}
	if n.jobs, err = agent.Confine(agent.Confinement(cfg.Jobs), cfg.Dir, n.binary, cfg.Log); err != nil {
		n.free(false)
		return nil, err
	}
	if cfg.GPUs >= 0 {
		if err := n.devices(ctx, inv, cfg.GPUs); err != nil {
			n.free(false)
			return nil, err
		}
		r.GPUs = len(inv.Devices)
	}
	inv.Capacity = r.wire()
	n.inventory = inv
	return n, nil
}

// even rounds bytes down to six bits after the first, so that machines that are alike offer the same.
func even(bytes int64) int64 {
	unit := int64(1) << max(bits.Len64(uint64(bytes))-7, 0)
	return bytes / unit * unit
}

// devices leases the GPUs for as long as the node runs; want 0: all.
func (n *Node) devices(ctx context.Context, inv *pb.Inventory, want int) error {
	found, err := device.Discover(ctx, nil)
	if err != nil {
		return err
	}
	have := len(found.Devices)
	switch {
	case want > have:
		return fault.New(fault.Invalid, "%d GPUs are offered, and %d are here: %v", want, have, found.Problem)
	case have == 0:
		return nil
	case want == 0:
		want = have
	}
	n.lease, err = found.Lease(ctx, "node "+inv.Name, want, 1, func(why string) { n.cfg.Log.Info("the node waits for GPUs", "why", why) })
	if err != nil {
		return err
	}
	for _, d := range n.lease.Devices(0) {
		inv.Devices = append(inv.Devices, d.UUID)
		n.visible = append(n.visible, d.Visible)
	}
	return nil
}

// Join makes this machine a node of the cluster whose head is at addr, for the first time with a join token; later the certificate in Dir is enough, and token is looked at only where it is of another cluster, or this
// node is not of the cluster any more. The first time it returns when the head has welcomed the node: what is submitted next can run there. A node that was of the cluster before waits for no welcome, as the head may be away.
func Join(ctx context.Context, addr, token string, cfg NodeConfig) (*Node, error) {
	n, err := newNode(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if err := n.joinAt(ctx, addr, token); err != nil {
		n.free(false)
		return nil, err
	}
	return n, nil
}

// free gives back what the node has of this machine; without keep also a folder that it has made, and in which is nothing yet.
func (n *Node) free(keep bool) {
	if n.lease != nil {
		n.lease.Release()
	}
	n.unlock(keep)
}

func (n *Node) joinAt(ctx context.Context, addr, token string) error {
	path := filepath.Join(n.cfg.Dir, "node.pem")
	cert, err := pki.Load(path, pki.Node)
	switch {
	case errors.Is(err, os.ErrNotExist) || fault.CodeOf(err) == fault.NotFound || err == nil && (time.Now().After(cert.Leaf.NotAfter) || ofAnother(cert, token)):
		cert = nil
		if token == "" {
			return fault.New(fault.Invalid, "this machine is no node of a cluster yet: join with --token (penstock token create makes one)")
		}
	case err != nil:
		return err
	}
	for {
		loaded := cert != nil
		if !loaded {
			if cert, err = n.join(ctx, addr, token, path); err != nil {
				return err
			}
		}
		id, err := pki.IdentityOf(cert.Leaf)
		if err != nil {
			return err
		}
		n.id = id.Node
		holder := pki.NewHolder(cert, nil)
		conn, err := rpc.Dial(ctx, addr, rpc.AsNode(holder, holder.Issuer))
		if err != nil {
			return err
		}
		renew := n.renew(conn, holder, path)
		if token != "" && loaded { // is it of the cluster still?
			if err := holder.Renew(ctx, renew); fault.CodeOf(err) == fault.Denied {
				conn.Close()
				cert = nil
				continue
			}
		}
		keep, cancel := context.WithCancel(context.Background())
		n.keep.Go(func() { holder.Keep(keep, renew, n.cfg.Log) })
		n.run(conn, id.Cluster, holder)
		end := n.end
		n.end = func() { cancel(); end() }
		if loaded {
			return nil
		}
		if err := n.arrived(ctx); err != nil {
			_ = n.stop() // which says the same
			return err
		}
		return nil
	}
}

// arrived waits until the head has welcomed the node.
func (n *Node) arrived(ctx context.Context) error {
	select {
	case <-n.attached:
		return nil
	case <-n.done:
		if n.err != nil {
			return n.err
		}
		return fault.New(fault.Canceled, "somebody stopped node %s as it came", n.id)
	case <-ctx.Done():
		return fault.New(fault.Unavailable, "node %s joined, and the head does not welcome it (the log says why); it can join again without a token: %w", n.id, context.Cause(ctx))
	}
}

// ofAnother says that a token is of another cluster than a certificate, or names an authority that
// came after the certificate's.
func ofAnother(c *tls.Certificate, token string) bool {
	t, err := pki.ParseToken(token)
	if err != nil || t.Pin == pki.Issuer(c) {
		return false
	}
	issuer, err := x509.ParseCertificate(c.Certificate[1])
	return err != nil || !pki.Replaces(issuer, t.Pin)
}

// join gets the node its first certificate.
func (n *Node) join(ctx context.Context, addr, token, path string) (c *tls.Certificate, err error) {
	t, err := pki.ParseToken(token)
	if err != nil {
		return nil, err
	}
	if t.Kind != pki.Join {
		return nil, fault.New(fault.Invalid, "the token is one for access: penstock token create makes one for joining")
	}
	if err := os.MkdirAll(n.cfg.Dir, 0o700); err != nil {
		return nil, fault.New(fault.Denied, "the node's folder: %w", err)
	}
	conn, err := rpc.Dial(ctx, addr, rpc.AsNewcomer(t.Pin))
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	key, err := pki.NewKey()
	if err != nil {
		return nil, err
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		return nil, err
	}
	for wait := 200 * time.Millisecond; ; wait = min(2*wait, 5*time.Second) { // with the same key: what was done by a try whose answer was lost is found again
		now := time.Now()
		reply, err := pb.NewJoinClient(conn).Join(ctx, &pb.JoinRequest{Token: t.Bearer(), Csr: csr, Inventory: n.inventory, UnixNanos: now.UnixNano()})
		if err == nil {
			if err := pki.CheckClock(time.Now(), time.Unix(0, reply.GetUnixNanos()), "the head's"); err != nil {
				return nil, err
			}
			if c, err = pki.Assemble(reply.GetChain(), key, t.Pin, pki.Node); err != nil {
				return nil, err
			}
			return c, pki.Save(path, c)
		}
		if fault.CodeOf(err) != fault.Unavailable || ctx.Err() != nil {
			return nil, err
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, err
		}
	}
}

// renew asks for another certificate over the node's own connection. One that cannot be stored comes with an error.
func (n *Node) renew(conn *rpc.Conn, h *pki.Holder, path string) func(context.Context) (*tls.Certificate, error) {
	return func(ctx context.Context) (*tls.Certificate, error) {
		key, err := pki.NewKey()
		if err != nil {
			return nil, err
		}
		csr, err := pki.NewCSR(key)
		if err != nil {
			return nil, err
		}
		reply, err := pb.NewNodeClient(conn).Renew(ctx, &pb.RenewRequest{Csr: csr})
		if err != nil {
			return nil, err
		}
		c, err := pki.Assemble(reply.GetChain(), key, h.Issuer(), pki.Node)
		if err != nil {
			return nil, err
		}
		return c, pki.Save(path, c)
	}
}

// run begins the agent. h has the node's certificate; nil: it is the head's own node.
func (n *Node) run(conn *rpc.Conn, cluster string, h *pki.Holder) {
	ctx, cancel := context.WithCancel(context.Background())
	n.end, n.conn = cancel, conn
	first := sync.OnceFunc(func() { close(n.attached) })
	go func() {
		defer close(n.done)
		n.err = agent.Run(ctx, agent.Config{Dir: n.cfg.Dir, Node: n.id, Inventory: n.inventory, Visible: n.visible, Cluster: cluster, Holder: h, Conn: conn, Binary: n.binary, Jobs: n.jobs, Grace: n.cfg.Grace, Rotate: n.cfg.rotate, Log: n.cfg.Log, Attached: first})
	}()
}

// ID of the node.
func (n *Node) ID() string { return n.id }

// Done is closed when the node has ended by itself: somebody stopped it, or Err says why it is not of the cluster any more.
func (n *Node) Done() <-chan struct{} { return n.done }

// Err is why Done is closed; nil where somebody stopped the node.
func (n *Node) Err() error {
	select {
	case <-n.done:
		return n.err
	default:
		return nil
	}
}

// Close ends what the node runs, and the node. The cluster takes it for lost when its lease has ended; it can attach again with Join.
func (n *Node) Close() error {
	err := n.stop()
	n.free(true)
	return err
}

func (n *Node) stop() error {
	n.end()
	<-n.done
	n.keep.Wait()
	return errors.Join(n.err, n.conn.Close())
}

// String is for people: what a node offers.
func (n *Node) String() string {
	r := resourcesOf(n.inventory.GetCapacity())
	parts := []string{counted(r.CPUs, "CPU")}
	if r.GPUs > 0 {
		parts = append(parts, counted(float64(r.GPUs), "GPU"))
	}
	parts = append(parts, fmt.Sprintf("%.1f GiB", float64(r.Memory)/(1<<30)))
	return fmt.Sprintf("%s (%s): %s", n.id, n.inventory.GetName(), strings.Join(parts, ", "))
}

func counted(n float64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%g %s", n, what)
}
