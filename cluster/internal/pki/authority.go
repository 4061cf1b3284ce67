package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	lifetimeCA = 10 * 365 * 24 * time.Hour
	// fileCA has the authority: its certificate and key, and the cluster's secret. While it
	// replaces another also the cross certificate and the other's. It changes as a whole, by a
	// rename.
	fileCA = "ca.pem"
	// fileGone is what fileCA was before the last Rotate, with a key that is to be destroyed.
	fileGone = fileCA + ".gone"
	// unfinished begins the names of files that are being written.
	unfinished = ".tmp-"
	// mostBefore authorities before it are named in the certificate of one.
	mostBefore = 16
	secretSize = 32
)

// authority is what fileCA has. It is not changed.
type authority struct {
	cert       *x509.Certificate
	key        *ecdsa.PrivateKey
	cross, old *x509.Certificate // nil: it replaces none
	secret     []byte
}

// chain is what comes with a certificate that it issues: see type chain.
func (a *authority) chain() [][]byte {
	if a.old == nil {
		return [][]byte{a.cert.Raw}
	}
	return [][]byte{a.cert.Raw, a.cross.Raw, a.old.Raw}
}

// roots believes what is believed.
func (a *authority) roots() *x509.CertPool { return pool((&chain{issuer: a.cert, old: a.old}).roots()) }

func pool(certs []*x509.Certificate) *x509.CertPool {
	p := x509.NewCertPool()
	for _, c := range certs {
		p.AddCert(c)
	}
	return p
}

// marshal is the file.
func (a *authority) marshal() ([]byte, error) {
	b, err := marshal(a.chain(), a.key)
	return append(b, pem.EncodeToMemory(&pem.Block{Type: typeSecret, Bytes: a.secret})...), err
}

// OpenCA loads the authority of a cluster from dir, and makes it where there is none: a folder of
// mode 0700, and in it one file of mode 0600 with the certificate and its key. Of several that make
// it at once one wins, and all have the same. A folder or file that others may read is refused, as
// is the authority of another cluster.
//
// now is the clock; nil is time.Now. The cluster's id has lower case letters, digits and hyphens,
// at most 63.
func OpenCA(dir, cluster string, now func() time.Time) (*CA, error) {
	if !name.MatchString(cluster) {
		return nil, fault.New(fault.Invalid, "%q is no id of a cluster: lower case letters, digits and hyphens, at most 63", cluster)
	}
	ca := &CA{cluster: cluster, dir: dir, now: orNow(now), step: func(string) error { return nil }}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, place(dir, err)
	}
	if err := Private(dir); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(ca.path()); errors.Is(err, fs.ErrNotExist) {
		a, err := ca.make(nil)
		if err != nil {
			return nil, err
		}
		b, err := a.marshal()
		if err != nil {
			return nil, err
		}
		if err := writeFile(ca.path(), b, os.Link); err != nil && !errors.Is(err, fs.ErrExist) {
			return nil, err
		}
	}
	if err := ca.load(); err != nil {
		return nil, err
	}
	return ca, nil
}

// LoadCA loads the authority of a cluster that has one, known by its pin, and never makes it: nodes
// and tokens are of that one only. It may have replaced the one of the pin. A folder without it, or
// with another, is an error that says what to do.
func LoadCA(dir, cluster string, pin Pin, now func() time.Time) (*CA, error) {
	path := filepath.Join(dir, fileCA)
	const bring = "bring the file from the head's earlier folder, or begin a new cluster with another store"
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.NotFound, "cluster %s has a certificate authority, and it is not here: %s", cluster, bring).At(fault.Place{File: path})
	}
	ca, err := OpenCA(dir, cluster, now)
	if err == nil && ca.Pin() != pin && !Replaces(ca.Certificate(), pin) {
		err = fault.New(fault.Invalid, "the certificate authority here is not the one that cluster %s has (two heads began it at once, or the folder is of before penstock ca rotate?): %s", cluster, bring).At(fault.Place{File: path})
	}
	if err != nil {
		return nil, err
	}
	return ca, nil
}

func (ca *CA) path() string { return filepath.Join(ca.dir, fileCA) }

// make returns a new authority, which takes the place of another where there is one.
func (ca *CA) make(before *authority) (*authority, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, err
	}
	a := &authority{key: key, secret: make([]byte, secretSize)}
	rand.Read(a.secret)
	now := ca.now()
	t := x509.Certificate{
		SerialNumber: serial(), Subject: subject(ca.cluster), NotBefore: now.Add(-Early), NotAfter: now.Add(lifetimeCA),
		IsCA: true, BasicConstraintsValid: true, MaxPathLen: 1, KeyUsage: x509.KeyUsageCertSign,
	}
	if before != nil {
		a.secret, a.old = before.secret, before.cert
		t.URIs = replaced(ca.cluster, before.cert)
	}
	der, err := x509.CreateCertificate(rand.Reader, &t, &x509.Certificate{Subject: t.Subject}, key.Public(), key)
	if err == nil {
		a.cert, err = x509.ParseCertificate(der)
	}
	if err != nil || before == nil {
		return a, err
	}
	t.SerialNumber, t.MaxPathLen, t.MaxPathLenZero, t.URIs = serial(), 0, true, nil
	if before.cert.NotAfter.Before(t.NotAfter) {
		t.NotAfter = before.cert.NotAfter
	}
	if der, err = x509.CreateCertificate(rand.Reader, &t, before.cert, key.Public(), before.key); err == nil {
		a.cross, err = x509.ParseCertificate(der)
	}
	return a, err
}

// after is the path of the URIs by which the certificate of an authority names those before it.
const after = "/after/"

// replaced are the URIs of an authority that comes after one.
func replaced(cluster string, c *x509.Certificate) []*url.URL {
	us := []*url.URL{{Scheme: "penstock", Host: cluster, Path: after + PinOf(c).String()}}
	return append(us, c.URIs[:min(len(c.URIs), mostBefore-1)]...)
}

// Replaces says that an authority's certificate names the one of pin as one that it came after.
// That is worth as much as the certificate is.
func Replaces(c *x509.Certificate, pin Pin) bool {
	for _, u := range c.URIs {
		var p Pin
		if s, ok := strings.CutPrefix(u.Path, after); ok && p.UnmarshalText([]byte(s)) == nil && p == pin {
			return true
		}
	}
	return false
}

// load reads the file.
func (ca *CA) load() error {
	path := ca.path()
	ders, key, secret, err := readFile(path)
	if err != nil {
		return err
	}
	damaged := func(why string) error {
		return fault.New(fault.Corrupt, "the cluster's certificate authority is damaged (%s): restore the file, or remove it to make another, and join all nodes again", why).At(fault.Place{File: path})
	}
	k, ok := key.(*ecdsa.PrivateKey)
	if !ok || len(ders) != 1 && len(ders) != 3 {
		return damaged("not an ECDSA key and one certificate, or three")
	}
	a := &authority{key: k, secret: secret}
	for i, to := range []**x509.Certificate{&a.cert, &a.cross, &a.old}[:len(ders)] {
		if *to, err = x509.ParseCertificate(ders[i]); err != nil {
			return damaged(err.Error())
		}
	}
	switch {
	case !k.PublicKey.Equal(a.cert.PublicKey):
		return damaged("the key is not the certificate's")
	case !isAuthority(a.cert) || a.old != nil && (!isAuthority(a.old) || crossed(a.cert, a.cross, a.old) != nil):
		return damaged("the certificate is not an authority's")
	case a.cert.Subject.CommonName != subject(ca.cluster).CommonName:
		return fault.New(fault.Invalid, "the certificate authority here is %q, of another cluster than %s, which the store is of: give the head the folder that belongs to its store",
			a.cert.Subject.CommonName, ca.cluster).At(fault.Place{File: path})
	case len(secret) != secretSize:
		return damaged("it has no secret")
	}
	ca.is.Store(a)
	return nil
}

// isAuthority says that a certificate is one that signs, and is signed by itself.
func isAuthority(c *x509.Certificate) bool {
	return c.IsCA && c.CheckSignature(c.SignatureAlgorithm, c.RawTBSCertificate, c.Signature) == nil
}

// Rotate makes another authority, which issues from now on; the one before is believed until
// [CA.Finish], and has vouched for it: who believes only that one believes both. Its key has no
// more use: call Destroy when it is known that the new one is. After a crash the folder has the one
// or the other, complete.
func (ca *CA) Rotate() error {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	was := ca.is.Load()
	if was.old != nil {
		return fault.New(fault.Exists, "the authority is being replaced already, since %s: end that with penstock ca finish", was.cert.NotBefore.Add(Early).UTC().Format(time.RFC3339))
	}
	a, err := ca.make(was)
	if err != nil {
		return err
	}
	if err := ca.destroy(); err != nil {
		return err
	}
	if err := os.Link(ca.path(), ca.gone()); err != nil {
		return place(ca.gone(), err)
	}
	if err := ca.step("linked"); err != nil {
		return err
	}
	return ca.put(a)
}

// Finish ends what Rotate began: the authority before is believed no more.
func (ca *CA) Finish() error {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	was := ca.is.Load()
	if was.old == nil {
		return fault.New(fault.Invalid, "the authority is not being replaced: penstock ca rotate begins that")
	}
	return ca.put(&authority{cert: was.cert, key: was.key, secret: was.secret})
}

// put replaces the file, and what it has.
func (ca *CA) put(a *authority) error {
	b, err := a.marshal()
	if err != nil {
		return err
	}
	return writeFile(ca.path(), b, func(from, to string) error {
		if err := ca.step("written"); err != nil {
			return err
		}
		if err := os.Rename(from, to); err != nil {
			return err
		}
		ca.is.Store(a) // whatever comes now: it is there
		return ca.step("renamed")
	})
}

func (ca *CA) gone() string { return filepath.Join(ca.dir, fileGone) }

// Destroy overwrites and removes the keys of authorities that are none any more, and of such that
// never were. The head that has the folder calls it, and again when it starts. (A file system that
// does not overwrite in place, and snapshots, keep what they keep.)
func (ca *CA) Destroy() error {
	ca.mu.Lock()
	defer ca.mu.Unlock()
	return ca.destroy()
}

func (ca *CA) destroy() error {
	in, err := os.ReadDir(ca.dir)
	if err != nil {
		return place(ca.dir, err)
	}
	for _, e := range in {
		if e.Name() != fileGone && !strings.HasPrefix(e.Name(), unfinished) || !e.Type().IsRegular() {
			continue
		}
		path := filepath.Join(ca.dir, e.Name())
		if err := ca.wipe(path); err != nil {
			return fault.New(fault.CodeOf(err), "a key that is to be destroyed is still there: remove it: %w", err).At(fault.Place{File: path})
		}
	}
	return place(ca.dir, syncDir(ca.dir))
}

// wipe overwrites a file, unless it is another name of the authority's, and removes it.
func (ca *CA) wipe(path string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if now, err := os.Lstat(ca.path()); err != nil || !os.SameFile(fi, now) {
		if err != nil {
			return err
		}
		if _, err := io.CopyN(f, zeros{}, fi.Size()); err != nil {
			return err
		}
		if err := f.Sync(); err != nil {
			return err
		}
	}
	if err := ca.step("overwritten"); err != nil {
		return err
	}
	return os.Remove(path)
}

// zeros are read without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }
