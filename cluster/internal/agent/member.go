package agent

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"os"
	"sync"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
)

// member is what a process has that is one of several: a socket that listens, a folder with where the others are, and a certificate, which is renewed while it runs (docs/design/0006-nodes-of-a-job.md).
type member struct {
	p        *process
	dir      string
	address  string
	file     *os.File       // the socket, for the process; nil: it has it
	answered chan *pb.Peers // has room for one: the last
	renewing sync.WaitGroup
	end      context.CancelFunc

	mu     sync.Mutex
	csr    []byte      // that was not answered
	holder *pki.Holder // nil: it has no certificate yet
}

// meet listens for the process, and waits until the head has said where the others are: their nodes say that to it. Close the member when the process has ended.
func (p *process) meet(ctx context.Context, dir string) (*member, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(p.start.GetHost(), "0"))
	if err != nil {
		return nil, fault.New(fault.Unavailable, "this machine cannot listen at %s, where the head sees it: no other reaches it there: %w", p.start.GetHost(), err)
	}
	defer l.Close() // the file is another descriptor of it
	m := &member{p: p, dir: dir, address: l.Addr().String(), answered: make(chan *pb.Peers, 1), end: func() {}}
	if m.file, err = l.(*net.TCPListener).File(); err != nil {
		return nil, err
	}
	p.mu.Lock()
	p.member = m
	p.mu.Unlock()
	p.a.Log.Info(fmt.Sprintf("process %s waits for the other nodes of its job", p.id), "address", m.address)
	c, peers, err := m.ask(ctx)
	for err == nil && !p.a.current(c) { // the authority was replaced meanwhile
		c, peers, err = m.ask(ctx)
	}
	if err == nil {
		var id pki.Identity
		if id, err = pki.IdentityOf(c.Leaf); err == nil {
			err = gang.Write(dir, gang.Info{Cluster: id.Cluster, Job: id.Job, Attempt: id.Attempt, Node: id.Member, DataNodes: int(p.start.GetData()), Addresses: peers.GetAddresses()}, c)
		}
	}
	if err != nil {
		m.close()
		return nil, err
	}
	h := pki.NewHolder(c, nil)
	h.OnSet(p.a.certified)
	m.mu.Lock()
	m.holder = h
	m.mu.Unlock()
	p.a.look(h)
	p.a.certified()
	return m, nil
}

// ask gets a certificate for a new key, however long the head is away.
func (m *member) ask(ctx context.Context) (*tls.Certificate, *pb.Peers, error) {
	key, err := pki.NewKey()
	if err != nil {
		return nil, nil, err
	}
	csr, err := pki.NewCSR(key)
	if err != nil {
		return nil, nil, err
	}
	m.mu.Lock()
	m.csr = csr
	m.mu.Unlock()
	m.p.a.say(m.p.listening())
	for {
		select {
		case x := <-m.answered:
			if x.GetError() != "" {
				return nil, nil, fault.New(fault.Denied, "the head refuses it: %s", x.GetError())
			}
			if ofKey(x.GetChain(), key) { // else it is a second answer to an earlier request
				c, err := m.p.a.assemble(x.GetChain(), key)
				m.mu.Lock()
				m.csr = nil
				m.mu.Unlock()
				return c, x, err
			}
		case <-ctx.Done():
			return nil, nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
	}
}

// ofKey says that a chain is for a key.
func ofKey(chain [][]byte, key crypto.Signer) bool {
	if len(chain) == 0 {
		return false
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return false
	}
	pub, ok := leaf.PublicKey.(interface{ Equal(crypto.PublicKey) bool })
	return ok && pub.Equal(key.Public())
}

// listening is what the head is to know of a process; nil: nothing, it is alone.
func (p *process) listening() *pb.FromAgent {
	p.mu.Lock()
	m := p.member
	p.mu.Unlock()
	if m == nil {
		return nil
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return &pb.FromAgent{Say: &pb.FromAgent_Listening{Listening: &pb.Listening{Process: p.id, Address: m.address, Csr: m.csr}}}
}

// met is the head's answer for a process.
func (a *agent) met(x *pb.Peers) {
	a.mu.Lock()
	p := a.procs[x.GetProcess()]
	a.mu.Unlock()
	if p == nil {
		return
	}
	p.mu.Lock()
	m := p.member
	p.mu.Unlock()
	if m == nil {
		return
	}
	select { // what nobody has looked at yet is old
	case <-m.answered:
	default:
	}
	m.answered <- x // only the session's reader sends
}

// env is what the process finds its gang by.
func (m *member) env() []string {
	return []string{gang.EnvDir + "=" + m.dir, fmt.Sprintf("%s=%d", gang.EnvFD, 3)}
}

// files are what the process gets from descriptor 3 on; none: it is alone.
func (m *member) files() []*os.File {
	if m == nil {
		return nil
	}
	return []*os.File{m.file}
}

// begun: the process runs, and has its socket. From now on its certificate is renewed.
func (m *member) begun() {
	if m == nil {
		return
	}
	m.file.Close()
	m.file = nil
	ctx, cancel := context.WithCancel(m.p.a.ctx)
	m.end = cancel
	m.renewing.Go(func() { m.holder.Keep(ctx, m.renew, m.p.a.Log) })
}

func (m *member) renew(ctx context.Context) (*tls.Certificate, error) {
	c, _, err := m.ask(ctx)
	if err == nil {
		err = m.p.a.Jobs.as(func() error { return gang.WriteCertificate(m.dir, c) })
	}
	if err != nil { // the process has the one before
		return nil, err
	}
	return c, nil
}

// close ends the renewal; the socket of a process that did not begin is closed.
func (m *member) close() {
	m.p.mu.Lock()
	m.p.member = nil
	m.p.mu.Unlock()
	m.end()
	m.renewing.Wait()
	if m.file != nil {
		m.file.Close()
	}
}
