package main

import (
	"os"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/cluster"
)

const (
	envStoreUser     = "PENSTOCK_STORE_USER"
	envStorePassword = "PENSTOCK_STORE_PASSWORD"
)

// storeFlags say where a head keeps its records.
type storeFlags struct {
	cluster.StoreConfig
	login string
}

func (s *storeFlags) flags(c *cobra.Command) {
	f := c.Flags()
	f.StringVar(&s.Address, "store", "", "an etcd to keep records in: etcds://`host:port`,... by TLS, or etcd://... on this machine; default: one in this process")
	f.StringVar(&s.CA, "store-ca", "", "`file` of the CA that signed the certificate of --store; default: what the system trusts")
	f.StringVar(&s.Cert, "store-cert", "", "`file` of a client certificate for --store")
	f.StringVar(&s.Key, "store-key", "", "`file` of its key, which others cannot read")
	f.StringVar(&s.login, "store-login-file", "", "`file` with USER:PASSWORD for --store, which others cannot read; default: $"+envStoreUser+" and $"+envStorePassword)
	f.StringVar(&s.Prefix, "store-prefix", "", "of all keys in --store, such as /team-a/: clusters that share an etcd have different ones; default: /penstock/v1/")
	f.BoolVar(&s.Insecure, "store-insecure", false, "an etcd on another machine may be spoken to without TLS: whoever is on the way reads and changes records")
}

// read gives the store.
func (s *storeFlags) read() (cluster.StoreConfig, error) {
	cfg := s.StoreConfig
	user, password := os.Getenv(envStoreUser), os.Getenv(envStorePassword)
	if cfg.Address != "" {
		cfg.User, cfg.Password = user, password
	}
	if s.login == "" {
		return cfg, nil
	}
	if user != "" || password != "" {
		return cfg, usage("start: user and password of the store are in the environment and in --store-login-file: give them once")
	}
	var err error
	cfg.User, cfg.Password, err = cluster.StoreLogin(s.login)
	return cfg, err
}
