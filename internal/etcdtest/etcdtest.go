// Package etcdtest is an external store of a cluster, as somebody else would run it.
package etcdtest

import (
	"context"
	"net/url"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
)

// Start starts one in this process, which is ready when Start returns, with its records in the folder dir. It is for clients at a socket, or, where that is "", at a port of 127.0.0.1, which its Clients[0] says. With
// certs, a folder with cert.pem, which is its CA too, and key.pem, it is at a port by TLS, for clients with a certificate. Close it.
func Start(ctx context.Context, dir, socket, certs string) (*embed.Etcd, error) {
	cfg, client := embed.NewConfig(), url.URL{Scheme: "http", Host: "127.0.0.1:0"}
	switch {
	case certs != "":
		client.Scheme = "https"
		cfg.ClientTLSInfo.CertFile, cfg.ClientTLSInfo.KeyFile = filepath.Join(certs, "cert.pem"), filepath.Join(certs, "key.pem")
		cfg.ClientTLSInfo.TrustedCAFile, cfg.ClientTLSInfo.ClientCertAuth = filepath.Join(certs, "cert.pem"), true
	case socket != "":
		client = url.URL{Scheme: "unix", Path: socket}
	}
	cfg.Name, cfg.Dir, cfg.LogLevel, cfg.BcryptCost = "external", dir, "error", 4
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{{Scheme: "unix", Host: "external"}}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return nil, err
	}
	select {
	case <-e.Server.ReadyNotify():
		return e, nil
	case <-ctx.Done():
		e.Close()
		return nil, ctx.Err()
	}
}
