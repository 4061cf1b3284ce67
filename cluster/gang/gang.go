// Package gang connects the processes of one attempt of a job that run on several machines, called nodes of the job and numbered from 0: one process each, its member. A member reaches a service of
// another by the other's number; both prove by certificates of the cluster that they are of the same attempt, and what they say is encrypted (TLS 1.3).
//
// The agent that starts a member gives it a folder with what it needs to know, and a socket that listens already, so that nobody has to find a port or ask anybody: a gang whose head is away goes on.
package gang

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"crypto/tls"

	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
)

const (
	// EnvDir names the folder of a member's gang, which is private (0700): FileName and CertName. The processes that a member starts inherit it, and may use it as an aide.
	EnvDir = "PENSTOCK_GANG"
	// EnvFD is the number of the descriptor that listens at the member's address. Only the member itself has it.
	EnvFD = "PENSTOCK_GANG_FD"

	// FileName is the file with Info, as JSON. CertName is the member's certificate and key, as package pki writes them; it is replaced before it ends.
	FileName, CertName = "gang.json", "cert.pem"
)

// Info is what a member is told.
type Info struct {
	Cluster string `json:"cluster"`
	Job     string `json:"job"`
	Attempt int64  `json:"attempt"`
	Node    int    `json:"node"`
	// Addresses of all members, host:port.
	Addresses []string `json:"addresses"`
	// DataNodes of the members, the last ones, are on data nodes.
	DataNodes int `json:"data_nodes,omitempty"`
}

// Gang is this process's place among the others. Safe for concurrent use. Close it.
type Gang struct {
	info   Info
	dir    string
	listen net.Listener
	work   sync.WaitGroup
	ctx    context.Context
	cancel context.CancelFunc
	alone  time.Duration // how long Dial tries where nobody answers

	mu       sync.Mutex
	services map[string]*Listener
	pending  map[net.Conn]bool    // that no service has yet
	unproven int                  // of pending: the handshake goes on
	from     map[netip.Prefix]int // of unproven
	unnamed  map[int]int          // of pending: members that have not said which service, by their number
	holder   *pki.Holder
	stamp    time.Time // of the file that holder is of
}

// Join takes this process's place as the environment says: it listens at its address. Nil without an error: this process is no member.
func Join() (*Gang, error) {
	dir := os.Getenv(EnvDir)
	if dir == "" {
		return nil, nil
	}
	n, err := strconv.Atoi(os.Getenv(EnvFD))
	if err != nil || n < 3 {
		return nil, fault.New(fault.Invalid, "%s names a gang, and %s no socket to listen on: only the process that an agent started is a member, and takes its place once; start other programs without %[1]s in their environment", EnvDir, EnvFD)
	}
	os.Unsetenv(EnvFD) // what this process starts is an aide
	f := os.NewFile(uintptr(n), "gang")
	l, err := net.FileListener(f) // a copy, which children do not inherit
	f.Close()
	if err != nil {
		return nil, fault.New(fault.Invalid, "descriptor %d (%s) does not listen: %w", n, EnvFD, err)
	}
	return open(dir, l)
}

// Aide is for a process that a member has started: it acts as that member at an address of its own, a free port of the same host. Nil without an error: the process is no aide.
func Aide() (*Gang, error) {
	dir := os.Getenv(EnvDir)
	if dir == "" {
		return nil, nil
	}
	return AideOf(dir)
}

// AideOf is Aide of the member with this folder (Dir), for a process that is told so otherwise.
func AideOf(dir string) (*Gang, error) {
	info, err := read(dir)
	if err != nil {
		return nil, err
	}
	host, _, err := net.SplitHostPort(info.Addresses[info.Node])
	if err != nil {
		return nil, fault.New(fault.Corrupt, "%w", err).At(fault.Place{File: filepath.Join(dir, FileName)})
	}
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		return nil, fault.New(fault.Unavailable, "this machine cannot listen at %s, by which the cluster knows it: %w", host, err)
	}
	return open(dir, l)
}

// Open is a member that listens on l, which it closes; what it needs to know is in dir.
func Open(dir string, l net.Listener) (*Gang, error) { return open(dir, l) }

func open(dir string, l net.Listener) (*Gang, error) {
	g := &Gang{dir: dir, listen: l, services: map[string]*Listener{}, pending: map[net.Conn]bool{}, from: map[netip.Prefix]int{}, unnamed: map[int]int{}, alone: aloneMost}
	err := g.load()
	if err != nil {
		l.Close()
		return nil, err
	}
	g.ctx, g.cancel = context.WithCancel(context.Background())
	g.work.Go(g.accept)
	return g, nil
}

func (g *Gang) load() (err error) {
	if g.info, err = read(g.dir); err != nil {
		return err
	}
	h, err := g.certificate()
	if err != nil {
		return err
	}
	id, err := pki.IdentityOf(h.Certificate().Leaf)
	if want := (pki.Identity{Cluster: g.info.Cluster, Role: pki.Member, Job: g.info.Job, Attempt: g.info.Attempt, Member: g.info.Node, Ends: id.Ends}); err == nil && id != want {
		err = fault.New(fault.Denied, "the certificate is of %s, the folder of %s", id, want).At(fault.Place{File: g.dir})
	}
	return err
}

const maxInfo = 4 << 20 // bytes

func read(dir string) (info Info, err error) {
	if err := pki.Private(dir); err != nil {
		return info, err
	}
	file := filepath.Join(dir, FileName)
	f, err := os.Open(file)
	if err != nil {
		return info, fault.Wrap(err, fault.Place{File: file})
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxInfo+1))
	if err != nil {
		return info, fault.Wrap(err, fault.Place{File: file})
	}
	if len(b) > maxInfo || json.Unmarshal(b, &info) != nil || info.Node < 0 || info.Node >= len(info.Addresses) || info.DataNodes < 0 || info.DataNodes >= len(info.Addresses) {
		return info, fault.New(fault.Corrupt, "does not say where the members of the gang are").At(fault.Place{File: file})
	}
	return info, nil
}

// certificate is the one in the folder: the agent replaces it while this process runs.
func (g *Gang) certificate() (*pki.Holder, error) {
	file := filepath.Join(g.dir, CertName)
	st, err := os.Stat(file)
	if err != nil {
		return nil, fault.Wrap(err, fault.Place{File: file})
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.holder == nil || !st.ModTime().Equal(g.stamp) {
		c, err := pki.Load(file, pki.Member)
		if err != nil {
			return nil, err
		}
		if g.holder == nil {
			g.holder = pki.NewHolder(c, nil)
		} else {
			g.holder.Set(c)
		}
		g.stamp = st.ModTime()
	}
	return g.holder, nil
}

// Node is the number of this process's member, and Nodes how many there are.
func (g *Gang) Node() int  { return g.info.Node }
func (g *Gang) Nodes() int { return len(g.info.Addresses) }

// DataNodes is how many of the nodes, the last ones, only read and compute for the others: training runs have no workers there.
func (g *Gang) DataNodes() int { return g.info.DataNodes }

// OnDataNode says that this process is on one of those.
func (g *Gang) OnDataNode() bool { return g != nil && g.Node() >= g.Nodes()-g.DataNodes() }

// Job and Attempt say what the gang is of.
func (g *Gang) Job() string    { return g.info.Job }
func (g *Gang) Attempt() int64 { return g.info.Attempt }

// Dir is the folder with what this process's member knows: what an aide needs.
func (g *Gang) Dir() string { return g.dir }

// Host is the host, or address without a port, by which the others reach a node.
func (g *Gang) Host(node int) string {
	host, _, _ := net.SplitHostPort(g.info.Addresses[node])
	return host
}

// Address is where this process itself listens: that of its member, or an aide's own, for DialAt.
func (g *Gang) Address() string { return g.listen.Addr().String() }

// Dial connects to a service of a node's member. Where that is not served yet it tries again until ctx ends, and for half a minute where the machine is not reached: members listen before any of them begins. Errors: Unavailable;
// Denied: one of both is not of this attempt.
func (g *Gang) Dial(ctx context.Context, node int, service string) (net.Conn, error) {
	if node < 0 || node >= g.Nodes() {
		return nil, fault.New(fault.Invalid, "there is no node %d of %d", node, g.Nodes())
	}
	return g.DialAt(ctx, node, g.info.Addresses[node], service)
}

// DialAt connects to a service at an address that an aide of a node's member said, as Dial does.
func (g *Gang) DialAt(ctx context.Context, node int, address, service string) (net.Conn, error) {
	if len(service) == 0 || len(service) > maxService {
		return nil, fault.New(fault.Invalid, "a service has a name of 1 to %d bytes, not %q", maxService, service)
	}
	var alone time.Time // since when nobody answers there at all
	for wait := firstWait; ; wait = min(2*wait, mostWait) {
		began := time.Now()
		c, err := g.dial(ctx, node, address, service)
		if err == nil {
			return c, nil
		}
		why, again := errors.AsType[*notYet](err)
		if !again {
			return nil, err
		}
		if !why.alone {
			alone = time.Time{}
		} else if alone.IsZero() {
			alone = began
		} else if d := time.Since(alone); d > g.alone && ctx.Err() == nil {
			return nil, fault.New(fault.Unavailable, "node %d of the job (%s) is not reached for %v: its process is gone, or the network between the nodes is cut: %w", node, address, d.Round(time.Second), err)
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fault.New(fault.Unavailable, "node %d of the job (%s) is not reached for %q: %w", node, address, service, err)
		case <-g.ctx.Done():
			return nil, errClosed
		}
	}
}

const (
	maxService = 255
	firstWait  = 10 * time.Millisecond
	mostWait   = time.Second
	// handshakeTime is the most that a TLS handshake and the name of the service may take.
	handshakeTime = 10 * time.Second
	aloneMost     = 30 * time.Second
	// maxUnproven is how many connections may be in a handshake at a time, maxFrom those of one address, and maxNetwork those of a network of 64 bits of IPv6, so that one machine, or one that takes many addresses there, does
	// not keep others out: what comes beyond is closed, and tries again.
	maxUnproven, maxFrom, maxNetwork = 256, 32, 128
	// maxUnnamed is how many connections of a member may be without the name of a service at a
	// time.
	maxUnnamed = 64
)

var errClosed = fault.New(fault.Canceled, "the connection to the other nodes of the job is closed")

// notYet is a reason to try again.
type notYet struct {
	error
	alone bool // nobody answers at the address
}

func (e *notYet) Unwrap() error { return e.error }

// The answers of a listener to a service's name, one byte each.
const (
	answerYes  = 1
	answerNone = 2 // nobody serves it, yet
)

func (g *Gang) dial(ctx context.Context, node int, address, service string) (_ net.Conn, err error) {
	h, err := g.certificate()
	if err != nil {
		return nil, err
	}
	cfg, err := pki.MemberTLS(h, node)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, handshakeTime)
	defer cancel()
	raw, err := (&net.Dialer{}).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, &notYet{err, true}
	}
	c := client(raw, cfg)
	stop := context.AfterFunc(ctx, func() { raw.SetDeadline(time.Unix(1, 0)) })
	defer func() {
		if !stop() && err == nil { // ctx ended: the deadline is set, or will be
			err = &notYet{error: context.Cause(ctx)}
		}
		if err != nil {
			raw.Close()
		}
	}()
	if err := c.HandshakeContext(ctx); err != nil {
		if fault.CodeOf(err) == fault.Denied {
			return nil, err
		}
		return nil, &notYet{error: err}
	}
	if _, err := c.Write(append([]byte{byte(len(service))}, service...)); err != nil {
		return nil, &notYet{error: err}
	}
	var answer [1]byte
	if _, err := io.ReadFull(c, answer[:]); err != nil {
		if alert, ok := errors.AsType[tls.AlertError](err); ok { // it does not believe us
			return nil, fault.New(fault.Denied, "node %d of the job refuses this process: %w", node, alert)
		}
		return nil, &notYet{error: err}
	}
	if answer[0] != answerYes {
		return nil, &notYet{error: fault.New(fault.Unavailable, "nobody serves %q there", service)}
	}
	return c, nil
}

// Listener gets the connections of a service.
type Listener struct {
	g       *Gang
	service string
	conns   chan accepted
	due     int // places in conns of connections that are being answered; under Gang.mu
	done    chan struct{}
	once    sync.Once
}

type accepted struct {
	c    net.Conn
	node int
}

// Listen begins to serve: what others dial waits for Accept, at most 64 connections, others try again. One listener per service at a time: Exists. Close it.
func (g *Gang) Listen(service string) (*Listener, error) {
	if len(service) == 0 || len(service) > maxService {
		return nil, fault.New(fault.Invalid, "a service has a name of 1 to %d bytes, not %q", maxService, service)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.ctx.Err() != nil {
		return nil, errClosed
	}
	if g.services[service] != nil {
		return nil, fault.New(fault.Exists, "%q is served already", service)
	}
	l := &Listener{g: g, service: service, conns: make(chan accepted, 64), done: make(chan struct{})}
	g.services[service] = l
	return l, nil
}

// Accept waits for a connection, and says from which node. The caller closes it.
func (l *Listener) Accept(ctx context.Context) (c net.Conn, node int, err error) {
	select {
	case a := <-l.conns:
		return a.c, a.node, nil
	case <-l.done:
		return nil, 0, errClosed
	case <-ctx.Done():
		return nil, 0, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
}

// Close ends the service; connections that nobody has accepted are closed. Idempotent.
func (l *Listener) Close() error {
	l.once.Do(func() {
		l.g.mu.Lock()
		delete(l.g.services, l.service)
		close(l.done)
		l.g.mu.Unlock()
		for {
			select {
			case a := <-l.conns:
				a.c.Close()
				continue
			default:
			}
			return
		}
	})
	return nil
}

func (g *Gang) accept() {
	for {
		c, err := g.listen.Accept()
		if err != nil {
			select {
			case <-g.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond): // out of descriptors
				continue
			}
		}
		from := bounds(c.RemoteAddr())
		g.mu.Lock()
		if g.unproven >= maxUnproven || slices.ContainsFunc(from, func(b bound) bool { return g.from[b.of] >= b.most }) || g.ctx.Err() != nil {
			c.Close()
		} else {
			g.pending[c] = true
			g.unproven++
			for _, b := range from {
				g.from[b.of]++
			}
			g.work.Go(func() { g.take(c, from) })
		}
		g.mu.Unlock()
	}
}

// bound is the most connections in a handshake from somewhere.
type bound struct {
	of   netip.Prefix
	most int
}

// bounds are those that count for an address: its own, and of IPv6 the network's, from which one machine can take any.
func bounds(a net.Addr) []bound {
	t, _ := a.(*net.TCPAddr)
	ip := t.AddrPort().Addr().Unmap().WithZone("")
	all := []bound{{netip.PrefixFrom(ip, ip.BitLen()), maxFrom}}
	if ip.Is6() {
		network, _ := ip.Prefix(64)
		all = append(all, bound{network, maxNetwork})
	}
	return all
}

// take is a connection until its service has it.
func (g *Gang) take(raw net.Conn, from []bound) {
	ok := false
	proven := sync.OnceFunc(func() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.unproven--
		for _, b := range from {
			if g.from[b.of]--; g.from[b.of] == 0 {
				delete(g.from, b.of)
			}
		}
	})
	defer func() {
		proven()
		g.mu.Lock()
		delete(g.pending, raw)
		g.mu.Unlock()
		if !ok {
			raw.Close()
		}
	}()
	raw.SetDeadline(time.Now().Add(handshakeTime))
	h, err := g.certificate()
	if err != nil {
		return
	}
	cfg, err := pki.MemberTLS(h, -1)
	if err != nil {
		return
	}
	c := server(raw, cfg)
	var name [1 + maxService]byte
	if c.HandshakeContext(g.ctx) != nil {
		return
	}
	id, err := pki.IdentityOf(c.ConnectionState().PeerCertificates[0])
	if err != nil || id.Member >= g.Nodes() || !g.names(id.Member) {
		return
	}
	proven()
	if _, err = io.ReadFull(c, name[:1]); err == nil {
		_, err = io.ReadFull(c, name[1:1+int(name[0])])
	}
	g.named(id.Member)
	if err != nil {
		return
	}
	service := name[1 : 1+int(name[0])]
	// The answer goes first: a connection is the service's only once the other side knows. Its place is kept meanwhile.
	g.mu.Lock()
	l := g.services[string(service)]
	room := l != nil && len(l.conns)+l.due < cap(l.conns)
	answer := byte(answerNone)
	if room {
		answer = answerYes
		l.due++
	}
	g.mu.Unlock()
	_, err = c.Write([]byte{answer})
	if !room {
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	l.due--
	select {
	case <-l.done:
		return
	default:
	}
	if err == nil {
		raw.SetDeadline(time.Time{})
		l.conns <- accepted{c, id.Member}
		ok = true
	}
}

// names takes up a connection of a member that is to name its service, unless too many are: one
// member does not have all of this one's.
func (g *Gang) names(member int) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.unnamed[member] >= maxUnnamed {
		return false
	}
	g.unnamed[member]++
	return true
}

func (g *Gang) named(member int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.unnamed[member]--
}

// Close ends the listening and what waits to be accepted. Connections that were accepted or dialled are their owners'. Idempotent.
func (g *Gang) Close() error {
	g.mu.Lock()
	g.cancel()
	for c := range g.pending {
		c.Close()
	}
	var all []*Listener
	for _, l := range g.services {
		all = append(all, l)
	}
	g.mu.Unlock()
	g.listen.Close()
	for _, l := range all {
		l.Close()
	}
	g.work.Wait()
	return nil
}

// String names the process for people.
func (g *Gang) String() string {
	return fmt.Sprintf("node %d of %d of job %s", g.info.Node, len(g.info.Addresses), g.info.Job)
}

// Write makes the folder of a member, for Join: what an agent does. The certificate is written last, and can be replaced by WriteCertificate while the member runs.
func Write(dir string, info Info, c *tls.Certificate) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fault.Wrap(err, fault.Place{File: dir})
	}
	b, err := json.Marshal(info)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, FileName), b, 0o600); err != nil {
		return fault.Wrap(err, fault.Place{File: dir})
	}
	return WriteCertificate(dir, c)
}

// WriteCertificate replaces the certificate in a member's folder.
func WriteCertificate(dir string, c *tls.Certificate) error {
	return pki.Save(filepath.Join(dir, CertName), c)
}
