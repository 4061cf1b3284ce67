package pki

import (
	"bytes"
	"crypto"
	"crypto/tls"
	"crypto/x509"

	"github.com/penstock-data/penstock/internal/fault"
)

// A chain of the cluster is what the holder of a certificate shows, and whom it believes, in DER:
//
//	its own certificate, the authority that issued it
//	its own certificate, the authority that issued it, its cross certificate, the authority before
//
// The second form is for as long as both authorities are believed: the cross certificate is of the
// key of the newer one and is signed by the older one, so who believes only that believes both.
type chain struct {
	leaf, issuer *x509.Certificate
	cross, old   *x509.Certificate // nil: the first form
}

// maxCert is the most bytes of a certificate that are looked at.
const maxCert = 16 << 10

// parseChain reads a chain, and checks that its parts belong together. Whom to believe is the
// caller's.
func parseChain(ders [][]byte) (c chain, err error) {
	if len(ders) != 2 && len(ders) != 4 {
		return c, fault.New(fault.Corrupt, "there are %d certificates where two are, or four", len(ders))
	}
	for i, to := range []**x509.Certificate{&c.leaf, &c.issuer, &c.cross, &c.old}[:len(ders)] {
		if len(ders[i]) > maxCert {
			return c, fault.New(fault.Corrupt, "a certificate has %d bytes: at most %d are taken", len(ders[i]), maxCert)
		}
		if *to, err = x509.ParseCertificate(ders[i]); err != nil {
			return c, fault.New(fault.Corrupt, "a certificate does not parse: %w", err)
		}
	}
	if err := c.leaf.CheckSignatureFrom(c.issuer); err != nil {
		return c, fault.New(fault.Denied, "the certificate is not signed by the cluster's authority: %w", err)
	}
	if c.cross != nil {
		err = crossed(c.issuer, c.cross, c.old)
	}
	return c, err
}

// crossed checks that cross is the certificate by which old vouches for issuer.
func crossed(issuer, cross, old *x509.Certificate) error {
	if !cross.IsCA || !bytes.Equal(cross.RawSubjectPublicKeyInfo, issuer.RawSubjectPublicKeyInfo) || cross.CheckSignatureFrom(old) != nil {
		return fault.New(fault.Denied, "the authority before has not signed the one that comes after it")
	}
	return nil
}

// roots are the authorities that the holder of a chain believes, the one that issued it first.
func (c *chain) roots() []*x509.Certificate {
	if c.old == nil {
		return []*x509.Certificate{c.issuer}
	}
	return []*x509.Certificate{c.issuer, c.old}
}

// Issuer is the pin of the authority that issued a certificate of this cluster, by its chain.
func Issuer(c *tls.Certificate) Pin { return PinOfDER(c.Certificate[1]) }

// Believed are the pins of the authorities that the holder of a certificate of this cluster
// believes.
func Believed(c *tls.Certificate) []Pin {
	if len(c.Certificate) < 4 {
		return []Pin{Issuer(c)}
	}
	return []Pin{Issuer(c), PinOfDER(c.Certificate[3])}
}

// Assemble makes of the answer to a request what TLS needs: it checks that the authority that
// issued it is that of pin, or one that the authority of pin vouches for, and that the first
// certificate is one of role (Node or Member), and key's.
func Assemble(ders [][]byte, key crypto.Signer, pin Pin, role Role) (*tls.Certificate, error) {
	c, err := parseChain(ders)
	if err != nil {
		return nil, fault.New(fault.CodeOf(err), "what the head sent is no certificate: %w", err)
	}
	if PinOf(c.issuer) != pin && (c.old == nil || PinOf(c.old) != pin) {
		return nil, fault.New(fault.Denied, "the head sent a certificate of another authority than the token names")
	}
	pub, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil || !bytes.Equal(pub, c.leaf.RawSubjectPublicKeyInfo) {
		return nil, fault.New(fault.Denied, "the certificate that the head sent is for another key")
	}
	id, err := IdentityOf(c.leaf)
	if err != nil {
		return nil, err
	}
	if id.Role != role {
		return nil, fault.New(fault.Denied, "the certificate that the head sent is %s", id)
	}
	return &tls.Certificate{Certificate: ders, PrivateKey: key, Leaf: c.leaf}, nil
}
