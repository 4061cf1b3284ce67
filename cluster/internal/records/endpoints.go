package records

import (
	"crypto/tls"
	"net"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
)

// Endpoints reads what says where an external etcd is, as --store does: etcd://host:port,host:port.
func Endpoints(store string) ([]string, error) {
	list, ok := strings.CutPrefix(store, "etcd://")
	switch {
	case !ok:
		return nil, fault.New(fault.Invalid, "store %q: write etcd://host:port,host:port", store)
	case strings.Contains(list, "@"):
		return nil, fault.New(fault.Invalid, "a store's address has no user and password, as all users of a machine see its command lines: give them apart, and write etcd://host:port,host:port")
	}
	endpoints := strings.Split(list, ",")
	for i, e := range endpoints {
		e = strings.TrimSpace(e)
		host, port, err := net.SplitHostPort(e)
		if err != nil || host == "" || port == "" || strings.ContainsAny(e, "/?# ") {
			return nil, fault.New(fault.Invalid, "store %q: %q is no host:port, such as 10.0.0.1:2379", store, e)
		}
		endpoints[i] = e
	}
	return endpoints, nil
}

// secure is the TLS configuration for endpoints: none, or one of TLS 1.3. Without, only sockets and this machine's own addresses are possible.
func secure(endpoints []string, cfg *tls.Config) (*tls.Config, error) {
	for _, e := range endpoints {
		rest, https := strings.CutPrefix(e, "https://")
		rest, http := strings.CutPrefix(rest, "http://")
		host, _, err := net.SplitHostPort(rest)
		switch ip := net.ParseIP(host); {
		case http && cfg != nil:
			return nil, fault.New(fault.Invalid, "endpoint %s of the store is without TLS, though TLS is configured: write https://", e)
		case https && cfg == nil:
			cfg = &tls.Config{}
		case https, cfg != nil, strings.HasPrefix(e, "unix://"), host == "localhost", ip != nil && ip.IsLoopback():
		case err != nil:
			return nil, fault.New(fault.Invalid, "endpoint %q of the store is no host:port, such as 10.0.0.1:2379", e)
		default:
			return nil, fault.New(fault.Invalid, "endpoint %s of the store is on another machine: have etcd serve TLS, and give its CA and a client certificate here", e)
		}
	}
	if cfg != nil {
		cfg = cfg.Clone()
		cfg.MinVersion = tls.VersionTLS13
	}
	return cfg, nil
}
