package cluster

import (
	"os"
	"strings"

	"github.com/penstock-data/penstock/cluster/internal/records"
	"github.com/penstock-data/penstock/internal/fault"
)

// StoreConfig says which external etcd keeps the records of a cluster. The zero value says none: one is embedded.
type StoreConfig struct {
	Address   string // etcd://host:port,host:port, on this machine; or by TLS etcds://host:port,host:port. "": none
	CA        string // file (PEM) of what etcd's certificate is signed by; "": what the system trusts. With TLS
	Cert, Key string // files (PEM) of a client certificate, read again for each connection; "": none. With TLS
	User      string // of etcd's own authentication; "": none
	Password  string
	Prefix    string // of all keys, with a slash at its end: clusters that share an etcd have different ones; "": /penstock/v1/
	Insecure  bool   // etcd://, without TLS, may be on another machine
}

// StoreLogin reads a file of one line, USER:PASSWORD, that others cannot read.
func StoreLogin(path string) (user, password string, err error) {
	if err := records.Hidden(path); err != nil {
		return "", "", err
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return "", "", fault.New(fault.Denied, "user and password of the store: %w", err)
	}
	user, password, ok := strings.Cut(strings.TrimRight(string(b), "\r\n"), ":")
	if !ok || user == "" || strings.ContainsAny(password, "\r\n") {
		return "", "", fault.New(fault.Invalid, "%s is to hold user and password of the store in a line, USER:PASSWORD", path)
	}
	return user, password, nil
}

func (c StoreConfig) options() (records.Options, error) {
	o := records.Options{Username: c.User, Password: c.Password, Prefix: c.Prefix, Plain: c.Insecure}
	if c.Address == "" {
		if c != (StoreConfig{}) {
			return o, fault.New(fault.Invalid, "a CA, certificate, user, password or prefix is for an external store, and there is none: give its address (--store etcds://host:port)")
		}
		return o, nil
	}
	var byTLS bool
	var err error
	if o.Endpoints, byTLS, err = records.Address(c.Address); err != nil {
		return o, err
	}
	switch {
	case byTLS && c.Insecure:
		return o, fault.New(fault.Invalid, "the store is spoken to by TLS (etcds://) or insecurely (--store-insecure), not both")
	case byTLS:
		o.TLS, err = records.TLSFiles(c.CA, c.Cert, c.Key)
	case c.CA != "" || c.Cert != "" || c.Key != "":
		err = fault.New(fault.Invalid, "CA and certificate of the store go with TLS: write %s", "etcds"+strings.TrimPrefix(c.Address, "etcd"))
	}
	return o, err
}
