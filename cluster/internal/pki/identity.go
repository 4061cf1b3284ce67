// Package pki is the cluster's own public key infrastructure: one certificate authority, certificates that say which part of the cluster holds them, TLS
// configurations in which nothing but this authority is believed, and the tokens of those who have no certificate.
//
// The authority lies in the head's folder ([OpenCA]). Nodes make their keys themselves and ask for certificates ([NewCSR], [CA.IssueNode]); what a request says about names is ignored.
// Everybody else knows the authority by its [Pin], which tokens carry: there is no moment in which a peer is believed unseen.
//
// Nothing here talks to the network. Values are safe for concurrent use.
package pki

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Role is what a certificate makes of its holder.
type Role uint8

const (
	Nobody Role = iota
	Head        // may serve
	Node        // may call as one node
	Member      // is one process of an attempt of a job, and may talk to the others
)

// Identity is what a certificate of the cluster says.
type Identity struct {
	Cluster string
	Role    Role
	Node    string    // id, of a node
	Epoch   uint64    // of a node: its session when the certificate was made
	Job     string    // of a member
	Attempt int64     // of a member's job
	Member  int       // of a member: its number in its attempt
	Ends    time.Time // of the certificate
}

var name = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// String is the URI of the certificate: penstock://CLUSTER/node/ID/EPOCH, penstock://CLUSTER/job/JOB/ATTEMPT/MEMBER, or penstock://CLUSTER/head.
func (id Identity) String() string {
	switch id.Role {
	case Head:
		return "penstock://" + id.Cluster + "/head"
	case Member:
		return "penstock://" + id.Cluster + "/job/" + id.Job + "/" + strconv.FormatInt(id.Attempt, 10) + "/" + strconv.Itoa(id.Member)
	}
	return "penstock://" + id.Cluster + "/node/" + id.Node + "/" + strconv.FormatUint(id.Epoch, 10)
}

func (id Identity) uri() *url.URL {
	u, err := url.Parse(id.String())
	if err != nil {
		panic(err) // names were checked
	}
	return u
}

// IdentityOf reads the URI of a certificate, whose chain the caller has verified. Certificates of the cluster have exactly one, in exactly the form in which it was written.
func IdentityOf(c *x509.Certificate) (Identity, error) {
	bad := fault.New(fault.Denied, "the certificate is not of a penstock cluster: it names nobody")
	if len(c.URIs) != 1 {
		return Identity{}, bad
	}
	u := c.URIs[0]
	id := Identity{Cluster: u.Host, Ends: c.NotAfter}
	switch part := strings.Split(strings.TrimPrefix(u.Path, "/"), "/"); {
	case len(part) == 1 && part[0] == "head":
		id.Role = Head
	case len(part) == 3 && part[0] == "node" && name.MatchString(part[1]):
		epoch, err := strconv.ParseUint(part[2], 10, 64)
		if err != nil {
			return Identity{}, bad
		}
		id.Role, id.Node, id.Epoch = Node, part[1], epoch
	case len(part) == 4 && part[0] == "job" && name.MatchString(part[1]):
		attempt, err := strconv.ParseInt(part[2], 10, 64)
		member, err2 := strconv.Atoi(part[3])
		if err != nil || err2 != nil || attempt < 0 || member < 0 {
			return Identity{}, bad
		}
		id.Role, id.Job, id.Attempt, id.Member = Member, part[1], attempt, member
	default:
		return Identity{}, bad
	}
	if !name.MatchString(id.Cluster) || id.String() != u.String() {
		return Identity{}, bad
	}
	return id, nil
}

// NewKey makes a private key, ECDSA P-256.
func NewKey() (crypto.Signer, error) { return ecdsa.GenerateKey(elliptic.P256(), rand.Reader) }

// NewCSR is a request for a certificate of key (PKCS #10, DER). It names nobody: the head knows who asks.
func NewCSR(key crypto.Signer) ([]byte, error) {
	return x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
}

// KeyOf returns the public key of a request, in the form that is hashed to recognise it (PKIX, DER), after checking that the request was signed with it.
func KeyOf(csr []byte) (pkix []byte, err error) {
	pub, err := checkCSR(csr)
	if err != nil {
		return nil, err
	}
	return x509.MarshalPKIXPublicKey(pub)
}

// maxCSR is the most bytes of a request that are looked at.
const maxCSR = 16 << 10

func checkCSR(der []byte) (crypto.PublicKey, error) {
	if len(der) > maxCSR {
		return nil, fault.New(fault.Invalid, "the certificate request has %d bytes: at most %d are taken", len(der), maxCSR)
	}
	csr, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fault.New(fault.Invalid, "the certificate request does not parse: %w", err)
	}
	if err := checkKey(csr.PublicKey); err != nil {
		return nil, err
	}
	if err := csr.CheckSignature(); err != nil {
		return nil, fault.New(fault.Invalid, "the certificate request is not signed by its own key: %w", err)
	}
	return csr.PublicKey, nil
}

func checkKey(pub crypto.PublicKey) error {
	switch k := pub.(type) {
	case ed25519.PublicKey:
		return nil
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() {
			return nil
		}
	}
	return fault.New(fault.Invalid, "keys are ECDSA P-256, P-384 or Ed25519; this one is none of them")
}
