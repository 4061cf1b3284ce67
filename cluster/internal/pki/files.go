package pki

import (
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"

	"github.com/penstock-data/penstock/internal/fault"
)

// Save writes the certificate of a node or a member and key to a file of mode 0600, in place of what is there: after a crash it holds the old or the new, complete. Its folder must be private (0700).
func Save(path string, c *tls.Certificate) error {
	key, ok := c.PrivateKey.(crypto.Signer)
	if !ok {
		return fault.New(fault.Invalid, "the key of the certificate cannot be written").At(fault.Place{File: path})
	}
	if err := Private(filepath.Dir(path)); err != nil {
		return err
	}
	b, err := marshal(c.Certificate, key)
	if err != nil {
		return place(path, err)
	}
	return writeFile(path, b, os.Rename)
}

// Load reads what Save wrote, of role. Whether the certificate has ended is for the caller to see.
func Load(path string, role Role) (*tls.Certificate, error) {
	if err := Private(filepath.Dir(path)); err != nil {
		return nil, err
	}
	chain, key, secret, err := readFile(path)
	if err != nil {
		return nil, err
	}
	bad := func(why string) error {
		return fault.New(fault.Corrupt, "the node's certificate and key do not belong together (%s): join again", why).At(fault.Place{File: path})
	}
	if len(chain) < 2 || secret != nil {
		return nil, bad("it is another file")
	}
	c, err := Assemble(chain, key, PinOfDER(chain[1]), role)
	if err != nil {
		return nil, bad(err.Error())
	}
	return c, nil
}

// typeSecret is the PEM type of the cluster's secret.
const typeSecret = "PENSTOCK SECRET"

func readFile(path string) (chain [][]byte, key crypto.Signer, secret []byte, err error) {
	if err := Private(path); err != nil {
		return nil, nil, nil, err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, nil, nil, place(path, err)
	}
	bad := fault.New(fault.Corrupt, "does not hold certificates and a private key (PEM)").At(fault.Place{File: path})
	for {
		var p *pem.Block
		if p, b = pem.Decode(b); p == nil {
			break
		}
		switch p.Type {
		case "CERTIFICATE":
			chain = append(chain, p.Bytes)
		case "PRIVATE KEY":
			k, err := x509.ParsePKCS8PrivateKey(p.Bytes)
			if err != nil || key != nil {
				return nil, nil, nil, bad
			}
			if key, _ = k.(crypto.Signer); key == nil {
				return nil, nil, nil, bad
			}
		case typeSecret:
			if secret != nil {
				return nil, nil, nil, bad
			}
			secret = p.Bytes
		default:
			return nil, nil, nil, bad
		}
	}
	if len(chain) == 0 || key == nil {
		return nil, nil, nil, bad
	}
	return chain, key, secret, nil
}

// writeFile writes a file of mode 0600 beside path, and then puts it there: by os.Link where nothing may be there yet, else by os.Rename.
func writeFile(path string, b []byte, put func(from, to string) error) error {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, unfinished+"*") // 0600
	if err != nil {
		return place(path, err)
	}
	defer os.Remove(f.Name()) // after a rename there is none
	_, err = f.Write(b)
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err == nil {
		err = put(f.Name(), path)
	}
	if err == nil {
		err = syncDir(dir)
	}
	return place(path, err)
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}

// Private refuses what others than the owner may read or write, and what is not ours.
func Private(path string) error {
	fi, err := os.Lstat(path)
	if err != nil {
		return place(path, err)
	}
	kind, mode := "file", "600"
	if fi.IsDir() {
		kind, mode = "folder", "700"
	} else if !fi.Mode().IsRegular() {
		return fault.New(fault.Denied, "is not a regular file").At(fault.Place{File: path})
	}
	if fi.Mode().Perm()&0o077 != 0 {
		return fault.New(fault.Denied, "the %s holds private keys and others may use it (mode %04o): chmod %s it", kind, fi.Mode().Perm(), mode).At(fault.Place{File: path})
	}
	if !owned(fi) {
		return fault.New(fault.Denied, "the %s holds private keys and belongs to another user: start penstock as that user, or take another folder", kind).At(fault.Place{File: path})
	}
	return nil
}

func place(path string, err error) error { return fault.Wrap(err, fault.Place{File: path}) }
