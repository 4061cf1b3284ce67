package pki

import (
	"bytes"
	"crypto"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	// Lifetime of a certificate, from when it is made.
	Lifetime = 24 * time.Hour
	// Early is how long before that it begins, for clocks that are behind.
	Early = 10 * time.Minute
)

// CA is the certificate authority of a cluster: one that issues and, while it is being replaced
// ([CA.Rotate], [CA.Finish]), the one before, which is believed and issues nothing.
type CA struct {
	cluster string
	dir     string
	now     func() time.Time
	is      atomic.Pointer[authority]

	mu   sync.Mutex               // of replacing
	step func(point string) error // nil; in tests the end of the process at a point
}

// Cluster is the id of the cluster.
func (ca *CA) Cluster() string { return ca.cluster }

// Certificate is that of the authority that issues; it is not secret.
func (ca *CA) Certificate() *x509.Certificate { return ca.is.Load().cert }

// Pin is what new tokens say about the authority: it is that of the one that issues.
func (ca *CA) Pin() Pin { return PinOf(ca.Certificate()) }

// Believed are the certificates of the authorities that are believed, the one that issues first.
func (ca *CA) Believed() []*x509.Certificate {
	is := ca.is.Load()
	if is.old == nil {
		return []*x509.Certificate{is.cert}
	}
	return []*x509.Certificate{is.cert, is.old}
}

// Pins are those of Believed.
func (ca *CA) Pins() (pins []Pin) {
	for _, c := range ca.Believed() {
		pins = append(pins, PinOf(c))
	}
	return pins
}

// IssuerOf says which authority that is believed has issued a certificate; false: none.
func (ca *CA) IssuerOf(leaf *x509.Certificate) (Pin, bool) {
	for _, c := range ca.Believed() {
		if leaf.CheckSignatureFrom(c) == nil {
			return PinOf(c), true
		}
	}
	return Pin{}, false
}

// Secret is one of the cluster, the same for the same purpose whichever authority it has: who does
// not have its folder cannot tell it from chance.
func (ca *CA) Secret(purpose string) ([]byte, error) {
	return hkdf.Key(sha256.New, ca.is.Load().secret, nil, "penstock "+purpose, sha256.Size)
}

// IssueHead makes a certificate for the head, with a new key. The names are hosts or addresses, with a port or without, that the head listens on and is known by; addresses that stand for all
// (0.0.0.0, ::) and empty ones are left out. Clients of a cluster recognise its head by its role, other programs by these.
func (ca *CA) IssueHead(names ...string) (*tls.Certificate, error) {
	key, err := NewKey()
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}
	for _, n := range names {
		if host, _, err := net.SplitHostPort(n); err == nil {
			n = host
		}
		if ip := net.ParseIP(n); ip == nil && n != "" {
			t.DNSNames = append(t.DNSNames, n)
		} else if ip != nil && !ip.IsUnspecified() {
			t.IPAddresses = append(t.IPAddresses, ip)
		}
	}
	chain, err := ca.issue(t, Identity{Cluster: ca.cluster, Role: Head}, key.Public())
	if err != nil {
		return nil, fault.New(fault.Invalid, "a certificate for the head as %q: %w", names, err)
	}
	leaf, err := x509.ParseCertificate(chain[0])
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}, err
}

// IssueNode makes a certificate for the key of a request: DER, the node's first, then the
// authority's and, while that replaces another, those by which who believes the other believes it
// ([Assemble]). Nothing else of the request counts.
func (ca *CA) IssueNode(csr []byte, node string, epoch uint64) (chain [][]byte, err error) {
	if !name.MatchString(node) {
		return nil, fault.New(fault.Invalid, "%q is no id of a node", node)
	}
	pub, err := checkCSR(csr)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	chain, err = ca.issue(t, Identity{Cluster: ca.cluster, Role: Node, Node: node, Epoch: epoch}, pub)
	if err != nil {
		return nil, fault.New(fault.Internal, "a certificate for node %s: %w", node, err)
	}
	return chain, nil
}

// IssueMember makes a certificate for the key of a request of a node's, for a process of a job that runs there: as IssueNode. The holder may serve and call.
func (ca *CA) IssueMember(csr []byte, job string, attempt int64, member int) (chain [][]byte, err error) {
	if !name.MatchString(job) || attempt < 0 || member < 0 {
		return nil, fault.New(fault.Invalid, "%s/%d/%d is no process of a job", job, attempt, member)
	}
	pub, err := checkCSR(csr)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	chain, err = ca.issue(t, Identity{Cluster: ca.cluster, Role: Member, Job: job, Attempt: attempt, Member: member}, pub)
	if err != nil {
		return nil, fault.New(fault.Internal, "a certificate for process %s/%d/%d: %w", job, attempt, member, err)
	}
	return chain, nil
}

// issue makes a certificate, and the chain that comes with it.
func (ca *CA) issue(t *x509.Certificate, id Identity, pub crypto.PublicKey) (chain [][]byte, err error) {
	is, now := ca.is.Load(), ca.now()
	if now.Before(is.cert.NotBefore) || now.Add(Lifetime).After(is.cert.NotAfter) {
		return nil, fault.New(fault.Invalid, "the cluster's certificate authority is good from %s to %s, and this machine's clock says %s: penstock ca rotate makes another one",
			is.cert.NotBefore.Format(time.RFC3339), is.cert.NotAfter.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	t.SerialNumber, t.NotBefore, t.NotAfter = serial(), now.Add(-Early), now.Add(Lifetime)
	t.KeyUsage, t.BasicConstraintsValid = x509.KeyUsageDigitalSignature, true
	t.URIs = append(t.URIs, id.uri())
	der, err := x509.CreateCertificate(rand.Reader, t, is.cert, pub, is.key)
	if err != nil {
		return nil, err
	}
	return append([][]byte{der}, is.chain()...), nil
}

func subject(cluster string) pkix.Name { return pkix.Name{CommonName: "penstock " + cluster} }

// serial is 127 random bits.
func serial() *big.Int {
	var b [16]byte
	rand.Read(b[:])
	b[0] = b[0]&0x7f | 0x40
	return new(big.Int).SetBytes(b[:])
}

// Pin is the SHA-256 of the authority's certificate.
type Pin [sha256.Size]byte

// PinOf returns the pin of an authority's certificate.
func PinOf(c *x509.Certificate) Pin { return PinOfDER(c.Raw) }

// PinOfDER is PinOf of a certificate that is not parsed.
func PinOfDER(der []byte) Pin { return sha256.Sum256(der) }

// marshal writes certificates and the key as PEM.
func marshal(chain [][]byte, key crypto.Signer) ([]byte, error) {
	k, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	for _, der := range chain {
		pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: der})
	}
	pem.Encode(&b, &pem.Block{Type: "PRIVATE KEY", Bytes: k})
	return b.Bytes(), nil
}

func orNow(now func() time.Time) func() time.Time {
	if now == nil {
		return time.Now
	}
	return now
}
