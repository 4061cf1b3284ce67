//go:build linux

package cluster

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"

	"go.etcd.io/etcd/server/v3/embed"
)

// playEtcd is an external store, as somebody else would run it.
func playEtcd(ctx context.Context, dir string) error {
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.LogLevel = "external", filepath.Join(dir, "data"), "error"
	client, peer := url.URL{Scheme: "unix", Path: filepath.Join(dir, "c")}, url.URL{Scheme: "unix", Host: "external"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case <-ctx.Done():
		return nil
	}
	fmt.Println("ready unix://" + client.Path)
	<-ctx.Done()
	return nil
}
