package records

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

const wantAddress = "etcd://host:port,host:port, or etcds://host:port,host:port by TLS"

// Address reads what says where an external etcd is, as --store does: etcd://host:port,host:port, or by TLS etcds://host:port,host:port.
func Address(store string) (endpoints []string, byTLS bool, err error) {
	scheme, list, ok := strings.Cut(store, "://")
	switch {
	case strings.Contains(list, "@"):
		return nil, false, fault.New(fault.Invalid, "a store's address has no user and password, as all users of a machine see its command lines: give them by the environment or a file, and write %s", wantAddress)
	case !ok, scheme != "etcd" && scheme != "etcds":
		return nil, false, fault.New(fault.Invalid, "store %q: write %s", store, wantAddress)
	}
	endpoints = strings.Split(list, ",")
	for i, e := range endpoints {
		e = strings.TrimSpace(e)
		host, port, err := net.SplitHostPort(e)
		if err != nil || host == "" || port == "" || strings.ContainsAny(e, "/?# ") {
			return nil, false, fault.New(fault.Invalid, "store %q: %q is no host:port, such as 10.0.0.1:2379; write %s", store, e, wantAddress)
		}
		endpoints[i] = e
	}
	return endpoints, scheme == "etcds", nil
}

// TLSFiles is the TLS configuration for an external etcd, of files in PEM: ca is what its certificate must be signed by ("": what the system trusts), cert and key are a client certificate ("": none). These two are read
// again for each connection: a certificate that was replaced needs no restart. Others must not be able to read key.
func TLSFiles(ca, cert, key string) (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if ca != "" {
		b, err := os.ReadFile(ca)
		if err != nil {
			return nil, fault.New(fault.Invalid, "the CA of the store: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(b) {
			return nil, fault.New(fault.Invalid, "the CA of the store: there is no certificate (PEM) in %s", ca)
		}
	}
	if (cert == "") != (key == "") {
		return nil, fault.New(fault.Invalid, "the client certificate for the store and its key go together: give both files, or none")
	}
	if cert == "" {
		return cfg, nil
	}
	if err := Hidden(key); err != nil {
		return nil, err
	}
	load := func() (*tls.Certificate, error) {
		c, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			return nil, fault.New(fault.Invalid, "the client certificate for the store, %s with the key %s: %w", cert, key, err)
		}
		return &c, nil
	}
	if _, err := load(); err != nil {
		return nil, err
	}
	cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return load() }
	return cfg, nil
}

// Hidden refuses a file with a secret that every user of this machine can read or write.
func Hidden(path string) error {
	fi, err := os.Stat(path)
	if err != nil {
		return fault.New(fault.Invalid, "a secret of the store: %w", err)
	}
	if fi.Mode().Perm()&0o007 != 0 {
		return fault.New(fault.Denied, "%s holds a secret of the store, and every user here may use it (mode %04o): chmod o= it", path, fi.Mode().Perm())
	}
	return nil
}

// secure is the TLS configuration for endpoints: none, or one of TLS 1.2 or later. Without, only sockets and this machine's own addresses are possible, unless plain says that others are meant.
func secure(endpoints []string, cfg *tls.Config, plain bool) (*tls.Config, error) {
	for _, e := range endpoints {
		host, _, err := net.SplitHostPort(e)
		switch ip := net.ParseIP(host); {
		case strings.HasPrefix(e, "unix://"):
		case err != nil || strings.Contains(e, "//"):
			return nil, fault.New(fault.Invalid, "endpoint %q of the store is no host:port, such as 10.0.0.1:2379", e)
		case cfg != nil, plain, host == "localhost", ip != nil && ip.IsLoopback():
		default:
			return nil, fault.New(fault.Invalid, "the store at %s is on another machine, and without TLS whoever is on the way reads the cluster's records and changes them: have etcd serve TLS, and write etcds:// (with --store-ca FILE); --store-insecure says that it is meant", e)
		}
	}
	if cfg != nil {
		cfg = cfg.Clone()
		cfg.MinVersion = max(cfg.MinVersion, tls.VersionTLS12)
	}
	return cfg, nil
}

// probeTime is how long asking an endpoint by hand may take; listenTime how long it then gets to refuse us.
const (
	probeTime  = 2 * time.Second
	listenTime = 300 * time.Millisecond
)

// probe adds to err, of a store that cannot be reached, what is wrong with the connections, as far as making them by hand tells: gRPC says it in words only, if at all.
func (s *Store) probe(ctx context.Context, err error) error {
	if s.server != nil || s.opts.dial != nil || fault.CodeOf(err) != fault.Unavailable || ctx.Err() != nil {
		return err
	}
	whys := make([]string, len(s.opts.Endpoints))
	var all sync.WaitGroup
	for i, e := range s.opts.Endpoints {
		all.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, probeTime)
			defer cancel()
			if why := probe(ctx, e, s.opts.TLS); why != "" {
				whys[i] = e + " " + why
			}
		})
	}
	all.Wait()
	var said []string
	for _, why := range whys {
		if why != "" {
			said = append(said, why)
		}
	}
	if len(said) == 0 {
		return err
	}
	return fault.New(fault.Unavailable, "%s (%w)", strings.Join(said, "; "), err)
}

// probe says why there is no connection to an endpoint; "": nothing seems wrong.
func probe(ctx context.Context, endpoint string, cfg *tls.Config) string {
	if strings.HasPrefix(endpoint, "unix://") {
		return ""
	}
	conn, err := (&net.Dialer{}).DialContext(ctx, "tcp", endpoint)
	if err != nil {
		return "is not there: check the address, and that etcd runs: " + err.Error()
	}
	defer conn.Close()
	host, _, _ := net.SplitHostPort(endpoint)
	plain := cfg == nil
	if plain {
		cfg = &tls.Config{RootCAs: x509.NewCertPool()} // a server of TLS shows itself by a certificate
	}
	cfg = cfg.Clone()
	cfg.ServerName, cfg.NextProtos = host, []string{"h2"}
	c := tls.Client(conn, cfg)
	err = c.HandshakeContext(ctx)
	untrusted, _ := errors.AsType[*tls.CertificateVerificationError](err)
	switch {
	case plain && (untrusted != nil || refused(err)):
		return "speaks TLS: write etcds://, and give the CA of its certificate with --store-ca"
	case plain:
		return ""
	case untrusted != nil:
		if _, ok := errors.AsType[x509.UnknownAuthorityError](err); ok {
			return "has a certificate of another CA than is expected here: give the one that signed it with --store-ca: " + err.Error()
		}
		if _, ok := errors.AsType[x509.HostnameError](err); ok {
			return "has a certificate for another name: call it by one that is in its certificate: " + err.Error()
		}
		return "has a certificate that is not accepted: " + err.Error()
	case err == nil: // in TLS 1.3 the client's certificate is judged later
		_ = c.SetReadDeadline(time.Now().Add(listenTime))
		if _, err = c.Read(make([]byte, 1)); !refused(err) {
			return ""
		}
		fallthrough
	case refused(err):
		return "refuses the connection: check the client certificate (--store-cert, --store-key), and that it knows its CA: " + err.Error()
	case errors.Is(err, io.EOF), errors.Is(err, syscall.ECONNRESET), isRecord(err):
		return "does not speak TLS: have etcd serve it, or write etcd://: " + err.Error()
	}
	return "does not agree on TLS: " + err.Error()
}

// refused says that the other side said no in the words of TLS.
func refused(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "remote error"
}

// isRecord says that what came is not TLS at all.
func isRecord(err error) bool {
	_, ok := errors.AsType[tls.RecordHeaderError](err)
	return ok
}
