package blobio

import (
	"io"
	"net/http"
	"net/url"
	"reflect"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/penstock-data/penstock/internal/fault"
	"gocloud.dev/blob"
)

// keepToServer has the SDK of a bucket that was just opened send requests to one server only: that of
// the first one. What an answer says (a redirect, the place of an upload) leads to no other, with or
// without credentials. Schemes of other drivers are left as they are; gRPC follows no redirects.
func keepToServer(scheme string, b *blob.Bucket) error {
	ok := true
	switch scheme {
	case "s3":
		ok = keepS3(b)
	case "gs":
		ok = keepGCS(b)
	case "azblob":
		ok = keepAzure(b)
	}
	if !ok {
		return fault.New(fault.Unsupported, "the driver of %s:// is of a release whose redirects cannot be refused: build with the one that go.mod of Penstock names", scheme)
	}
	return nil
}

func keepS3(b *blob.Bucket) bool {
	client, ok := fieldAt(b, "b", "client", "options", "HTTPClient")
	if !ok || client.IsNil() {
		return false
	}
	var c *http.Client
	if freeze := client.Elem().MethodByName("Freeze"); freeze.IsValid() { // a client of the SDK's, not built yet
		c, ok = freeze.Call(nil)[0].Interface().(*http.Client)
	} else {
		c, ok = client.Interface().(*http.Client)
	}
	if !ok {
		return false
	}
	client.Set(reflect.ValueOf(oneServer(c)))
	return true
}

func keepGCS(b *blob.Bucket) bool {
	transport, ok := fieldAt(b, "b", "client", "tc")
	if !ok || transport.IsNil() {
		return false
	}
	if inner, ok := fieldAt(transport.Interface(), "storageClient"); ok { // measures what the one inside does
		transport = inner
	}
	client, ok := fieldAt(transport.Interface(), "hc")
	if !ok { // gRPC
		_, ok = fieldAt(transport.Interface(), "raw")
		return ok
	}
	c, ok := client.Interface().(*http.Client)
	if !ok || c == nil {
		return false
	}
	*c = *oneServer(c) // it is this bucket's own; the services that were made from it keep the pointer
	return true
}

func keepAzure(b *blob.Bucket) bool {
	policies, ok := fieldAt(b, "b", "client", "inner", "internal", "pl", "policies")
	if !ok || policies.Kind() != reflect.Slice || policies.Len() == 0 {
		return false
	}
	last := policies.Index(policies.Len() - 1)
	own := reflect.New(last.Elem().Type())
	own.Elem().Set(last.Elem())
	client, ok := fieldAt(own.Interface(), "trans")
	if !ok {
		return false
	}
	c, ok := client.Interface().(*http.Client)
	if !ok { // the process's, which others use
		return false
	}
	client.Set(reflect.ValueOf(oneServer(c)))
	last.Set(own.Elem())
	return true
}

// oneServer is a client like c that sends to one server.
func oneServer(c *http.Client) *http.Client {
	own := *c
	base := own.Transport
	if base == nil {
		base = http.DefaultTransport
	}
	own.Transport = &onlyFirst{base: base}
	return &own
}

// onlyFirst refuses requests to another server than that of the first, before anything is sent.
type onlyFirst struct {
	base  http.RoundTripper
	first atomic.Pointer[url.URL]
}

func (t *onlyFirst) RoundTrip(r *http.Request) (*http.Response, error) {
	t.first.CompareAndSwap(nil, &url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host})
	if first := t.first.Load(); !sameServer(first, r.URL) {
		if r.Body != nil {
			_ = r.Body.Close() // a RoundTripper's duty; nothing was read
		}
		return nil, elsewhere{fault.New(fault.Denied, "%s://%s sends on to %s://%s: a server may not pass requests to another; if that one is right, name it as the endpoint",
			first.Scheme, first.Host, r.URL.Scheme, r.URL.Host)}
	}
	if r.Body == nil || r.Body == http.NoBody {
		return t.base.RoundTrip(r)
	}
	body := &sent{ReadCloser: r.Body, closed: make(chan struct{})}
	q := *r
	q.Body = body
	resp, err := t.base.RoundTrip(&q)
	if err != nil {
		<-body.closed
		return nil, err
	}
	resp.Body = &answered{resp.Body, body}
	return resp, nil
}

// sent is the body of a request. A transport may read it for a while after the answer, or the error, is there; SDKs free
// the memory behind it by then. So an error, and the end of an answer, wait until it is closed: what cannot be sent any
// more ends with the connection.
type sent struct {
	io.ReadCloser
	once   sync.Once
	closed chan struct{}
}

func (b *sent) Close() error {
	err := b.ReadCloser.Close()
	b.once.Do(func() { close(b.closed) })
	return err
}

type answered struct {
	io.ReadCloser
	to *sent
}

func (a *answered) Close() error {
	err := a.ReadCloser.Close()
	<-a.to.closed
	return err
}

// CloseIdleConnections is for http.Client's.
func (t *onlyFirst) CloseIdleConnections() {
	(&http.Client{Transport: t.base}).CloseIdleConnections()
}

// elsewhere is an error that no SDK tries again.
type elsewhere struct{ error }

func (e elsewhere) Unwrap() error { return e.error }

// NonRetriable is for Azure's.
func (elsewhere) NonRetriable() {}

// CanceledError is for AWS's, which would take it for a broken connection.
func (elsewhere) CanceledError() bool { return true }

// clouds are servers of one cloud's that pass requests to each other: of S3 to those of a bucket's region.
var clouds = []*regexp.Regexp{
	regexp.MustCompile(`(^|\.)s3(-[a-z0-9-]+)?(\.dualstack)?(\.[a-z0-9-]+)?\.amazonaws\.com(\.cn)?$`),
	regexp.MustCompile(`(^|\.)googleapis\.com$`),
}

// sameServer reports whether requests to a may go to b.
func sameServer(a, b *url.URL) bool {
	if a.Scheme == b.Scheme && strings.EqualFold(a.Hostname(), b.Hostname()) && port(a) == port(b) {
		return true
	}
	if a.Scheme != "https" || b.Scheme != "https" || port(a) != "443" || port(b) != "443" {
		return false
	}
	for _, c := range clouds {
		if c.MatchString(strings.ToLower(a.Hostname())) && c.MatchString(strings.ToLower(b.Hostname())) {
			return true
		}
	}
	return false
}

func port(u *url.URL) string {
	if p := u.Port(); p != "" {
		return p
	}
	return map[string]string{"http": "80", "https": "443"}[u.Scheme]
}
