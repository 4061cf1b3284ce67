package pki

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	// Lifetime of a certificate, from when it is made.
	Lifetime = 24 * time.Hour
	// Early is how long before that it begins, for clocks that are behind.
	Early = 10 * time.Minute

	lifetimeCA = 10 * 365 * 24 * time.Hour
	fileCA     = "ca.pem"
)

// CA is the certificate authority of a cluster.
type CA struct {
	cluster string
	cert    *x509.Certificate
	key     *ecdsa.PrivateKey
	now     func() time.Time
}

// OpenCA loads the authority of a cluster from dir, and makes it where there is none: a folder of mode 0700, and in it one file of mode 0600 with the certificate and its key. Of
// several that make it at once one wins, and all have the same. A folder or file that others may read is refused, as is the authority of another cluster.
//
// now is the clock; nil is time.Now. The cluster's id has lower case letters, digits and hyphens, at most 63.
func OpenCA(dir, cluster string, now func() time.Time) (*CA, error) {
	if !name.MatchString(cluster) {
		return nil, fault.New(fault.Invalid, "%q is no id of a cluster: lower case letters, digits and hyphens, at most 63", cluster)
	}
	ca := &CA{cluster: cluster, now: orNow(now)}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, place(dir, err)
	}
	if err := Private(dir); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, fileCA)
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		b, err := ca.make()
		if err != nil {
			return nil, err
		}
		if err := writeFile(path, b, os.Link); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	if err := ca.load(path); err != nil {
		return nil, err
	}
	return ca, nil
}

// LoadCA loads the authority of a cluster that has one, known by its pin, and never makes it: nodes and tokens are of that one only. A folder without it, or with another, is an error that says what to do.
func LoadCA(dir, cluster string, pin Pin, now func() time.Time) (*CA, error) {
	path := filepath.Join(dir, fileCA)
	const bring = "bring the file from the head's earlier folder, or begin a new cluster with another store"
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "cluster %s has a certificate authority, and it is not here: %s", cluster, bring).At(fault.Place{File: path})
	}
	ca, err := OpenCA(dir, cluster, now)
	if err == nil && ca.Pin() != pin {
		err = fault.New(fault.Invalid, "the certificate authority here is not the one that cluster %s has (two heads began it at once?): %s", cluster, bring).At(fault.Place{File: path})
	}
	if err != nil {
		return nil, err
	}
	return ca, nil
}

// make returns the file of a new authority.
func (ca *CA) make() ([]byte, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	now := ca.now()
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial(), Subject: subject(ca.cluster), NotBefore: now.Add(-Early), NotAfter: now.Add(lifetimeCA),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true, KeyUsage: x509.KeyUsageCertSign,
	}, &x509.Certificate{Subject: subject(ca.cluster)}, key.Public(), key)
	if err != nil {
		return nil, err
	}
	return marshal([][]byte{der}, key)
}

func (ca *CA) load(path string) error {
	chain, key, err := readFile(path)
	if err != nil {
		return err
	}
	damaged := func(why string) error {
		return fault.New(fault.Corrupt, "the cluster's certificate authority is damaged (%s): restore the file, or remove it to make another, and join all nodes again", why).At(fault.Place{File: path})
	}
	k, ok := key.(*ecdsa.PrivateKey)
	if !ok || len(chain) != 1 {
		return damaged("not one certificate and an ECDSA key")
	}
	cert, err := x509.ParseCertificate(chain[0])
	switch {
	case err != nil:
		return damaged(err.Error())
	case !k.PublicKey.Equal(cert.PublicKey):
		return damaged("the key is not the certificate's")
	case !cert.IsCA || cert.CheckSignature(cert.SignatureAlgorithm, cert.RawTBSCertificate, cert.Signature) != nil:
		return damaged("the certificate is not an authority's")
	case cert.Subject.CommonName != subject(ca.cluster).CommonName:
		return fault.New(fault.Invalid, "the certificate authority here is %q, of another cluster than %s, which the store is of: give the head the folder that belongs to its store",
			cert.Subject.CommonName, ca.cluster).At(fault.Place{File: path})
	}
	ca.cert, ca.key = cert, k
	return nil
}

// Cluster is the id of the cluster.
func (ca *CA) Cluster() string { return ca.cluster }

// Certificate is the authority's own; it is not secret.
func (ca *CA) Certificate() *x509.Certificate { return ca.cert }

// Pin is what tokens say about the authority.
func (ca *CA) Pin() Pin { return PinOf(ca.cert) }

// Secret is one of the cluster, the same for the same purpose for as long as the authority is: who does not have its key cannot tell it from chance.
func (ca *CA) Secret(purpose string) ([]byte, error) {
	key, err := ca.key.Bytes()
	if err != nil {
		return nil, err
	}
	return hkdf.Key(sha256.New, key, nil, "penstock "+purpose, sha256.Size)
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
	der, err := ca.issue(t, Identity{Cluster: ca.cluster, Role: Head}, key.Public())
	if err != nil {
		return nil, fault.New(fault.Invalid, "a certificate for the head as %q: %w", names, err)
	}
	leaf, err := x509.ParseCertificate(der)
	return &tls.Certificate{Certificate: [][]byte{der, ca.cert.Raw}, PrivateKey: key, Leaf: leaf}, err
}

// IssueNode makes a certificate for the key of a request: DER, the node's first, then the authority's. Nothing else of the request counts.
func (ca *CA) IssueNode(csr []byte, node string, epoch uint64) (chain [][]byte, err error) {
	if !name.MatchString(node) {
		return nil, fault.New(fault.Invalid, "%q is no id of a node", node)
	}
	pub, err := checkCSR(csr)
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	der, err := ca.issue(t, Identity{Cluster: ca.cluster, Role: Node, Node: node, Epoch: epoch}, pub)
	if err != nil {
		return nil, fault.New(fault.Internal, "a certificate for node %s: %w", node, err)
	}
	return [][]byte{der, ca.cert.Raw}, nil
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
	der, err := ca.issue(t, Identity{Cluster: ca.cluster, Role: Member, Job: job, Attempt: attempt, Member: member}, pub)
	if err != nil {
		return nil, fault.New(fault.Internal, "a certificate for process %s/%d/%d: %w", job, attempt, member, err)
	}
	return [][]byte{der, ca.cert.Raw}, nil
}

func (ca *CA) issue(t *x509.Certificate, id Identity, pub crypto.PublicKey) ([]byte, error) {
	now := ca.now()
	if now.Before(ca.cert.NotBefore) || now.Add(Lifetime).After(ca.cert.NotAfter) {
		return nil, fault.New(fault.Invalid, "the cluster's certificate authority is good from %s to %s, and this machine's clock says %s",
			ca.cert.NotBefore.Format(time.RFC3339), ca.cert.NotAfter.Format(time.RFC3339), now.Format(time.RFC3339))
	}
	t.SerialNumber, t.NotBefore, t.NotAfter = serial(), now.Add(-Early), now.Add(Lifetime)
	t.KeyUsage, t.BasicConstraintsValid = x509.KeyUsageDigitalSignature, true
	t.URIs = append(t.URIs, id.uri())
	return x509.CreateCertificate(rand.Reader, t, ca.cert, pub, ca.key)
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

// Assemble makes of the answer to a request what TLS needs: it checks that the chain ends at the authority of pin and that the first certificate is one of role (Node or Member), and key's.
func Assemble(chain [][]byte, key crypto.Signer, pin Pin, role Role) (*tls.Certificate, error) {
	if len(chain) != 2 || len(chain[0]) > maxCSR || Pin(sha256.Sum256(chain[1])) != pin {
		return nil, fault.New(fault.Denied, "the head sent a certificate of another authority than the token names")
	}
	root, err := x509.ParseCertificate(chain[1])
	if err != nil {
		return nil, fault.New(fault.Corrupt, "the authority's certificate does not parse: %w", err)
	}
	leaf, err := x509.ParseCertificate(chain[0])
	if err != nil {
		return nil, fault.New(fault.Corrupt, "the certificate that the head sent does not parse: %w", err)
	}
	if err := leaf.CheckSignatureFrom(root); err != nil {
		return nil, fault.New(fault.Denied, "the certificate that the head sent is not signed by the cluster's authority: %w", err)
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil || !bytes.Equal(pub, leaf.RawSubjectPublicKeyInfo) {
		return nil, fault.New(fault.Denied, "the certificate that the head sent is for another key")
	}
	id, err := IdentityOf(leaf)
	if err != nil {
		return nil, err
	}
	if id.Role != role {
		return nil, fault.New(fault.Denied, "the certificate that the head sent is %s", id)
	}
	return &tls.Certificate{Certificate: chain, PrivateKey: key, Leaf: leaf}, nil
}

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
