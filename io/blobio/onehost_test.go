package blobio

import (
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
	"golang.org/x/sync/semaphore"
)

// A server that sends the caller on to another one, by any redirect or as the place of an upload,
// is not followed: the other gets no request, so no credentials either.
func TestServersSendNobodyElsewhere(t *testing.T) {
	awsEnv(t)
	t.Setenv("AWS_SESSION_TOKEN", "session")
	for _, name := range servers["azblob"].env {
		t.Setenv(name, "")
	}
	for _, status := range []int{301, 302, 303, 307, 308} {
		var asked atomic.Int64
		var heard sync.Map
		second := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			heard.Store(r.Method+" "+r.URL.String(), r.Header)
			w.WriteHeader(http.StatusForbidden)
		}))
		t.Cleanup(second.Close)
		first := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked.Add(1)
			w.Header().Set("Location", second.URL+r.URL.String())
			if r.URL.Query().Get("uploadType") == "resumable" { // GCS: where the bytes are to go
				w.WriteHeader(http.StatusOK)
				return
			}
			w.WriteHeader(status)
		}))
		t.Cleanup(first.Close)
		t.Setenv("STORAGE_EMULATOR_HOST", strings.TrimPrefix(first.URL, "http://"))
		for scheme, open := range map[string]func() (*blob.Bucket, error){
			"s3": nil,
			"gs": nil,
			"azblob": func() (*blob.Bucket, error) {
				// Not by URL: the driver reads the environment once for all of a process.
				u, err := azureblob.NewServiceURL(&azureblob.ServiceURLOptions{AccountName: "one", StorageDomain: strings.TrimPrefix(first.URL, "http://"), Protocol: "http", SASToken: "sig=secret"})
				if err != nil {
					return nil, err
				}
				t.Setenv("AZURE_STORAGE_SAS_TOKEN", "sig=secret")
				client, err := azureblob.NewDefaultClient(u, "b")
				if err != nil {
					return nil, err
				}
				return azureblob.OpenBucket(t.Context(), client, nil)
			},
		} {
			asked.Store(0)
			var b *Bucket
			var err error
			if open == nil {
				b, err = Open(t.Context(), map[string]string{"s3": "s3://b?use_path_style=true&endpoint=" + first.URL, "gs": "gs://b?anonymous=true"}[scheme], &Options{Retries: -1})
			} else if remote, e := open(); e != nil {
				err = e
			} else {
				b = &Bucket{scheme: scheme, base: scheme + "://b/", o: (&Options{Retries: -1}).withDefaults(false), remote: remote}
				b.slots = semaphore.NewWeighted(64)
				err = keepToServer(scheme, remote)
			}
			if err != nil {
				t.Fatal(scheme, err)
			}
			ops := map[string]func() error{
				"stat": func() error { _, err := b.Stat(t.Context(), "k"); return err },
				"read": func() error {
					_, err := b.Object(Info{Key: "k", Size: 3}, nil).ReadAt(t.Context(), make([]byte, 3), 0)
					return err
				},
				"delete": func() error { return b.Delete(t.Context(), "k") },
				"write":  func() error { return b.Put(t.Context(), "k", []byte("abc"), nil) },
				"large":  func() error { return b.Put(t.Context(), "k", bytes.Repeat([]byte("abc"), 7<<20), nil) },
				"list": func() error {
					for _, err := range b.List(t.Context(), "") {
						return err
					}
					return nil
				},
			}
			refused := 0
			for name, op := range ops {
				if err := op(); err == nil {
					t.Errorf("%d %s: %s succeeds", status, scheme, name)
				} else if fault.CodeOf(err).Retryable() {
					t.Errorf("%d %s: %s is tried again: %v", status, scheme, name, err)
				} else if strings.Contains(err.Error(), "sends on to "+second.URL) {
					refused++
				}
			}
			if status >= 307 && refused < len(ops)-1 { // the S3 SDK follows none with a stream that it cannot read again
				t.Errorf("%d %s: %d of %d say why", status, scheme, refused, len(ops))
			}
			if asked.Load() < int64(len(ops)) {
				t.Errorf("%d %s: the first server got %d requests", status, scheme, asked.Load())
			}
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
		heard.Range(func(what, header any) bool {
			t.Errorf("%d: the second server got %s with %v", status, what, header)
			return true
		})
	}
}

type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// Servers of one cloud pass requests to each other, and nobody else does.
func TestSameServer(t *testing.T) {
	for _, c := range []struct {
		from, to string
		want     bool
	}{
		{"https://b.s3.amazonaws.com/k", "https://b.s3.eu-west-1.amazonaws.com/k", true},
		{"https://s3.amazonaws.com/b/k", "https://s3-eu-west-1.amazonaws.com/b/k", true},
		{"https://s3.dualstack.us-east-1.amazonaws.com/b", "https://s3.cn-north-1.amazonaws.com.cn/b", true},
		{"https://storage.googleapis.com/x", "https://www.googleapis.com/y", true},
		{"http://minio:9000/a", "http://MINIO:9000/b", true},
		{"https://minio/a", "https://minio:443/b", true},
		{"http://minio:9000/a", "http://minio:9001/a", false},
		{"http://minio/a", "https://minio/a", false},
		{"https://minio/a", "http://minio/a", false},
		{"https://minio/a", "https://x.minio/a", false},
		{"https://minio/a", "https://s3.amazonaws.com/b", false},
		{"https://s3.amazonaws.com/b", "http://b.s3.amazonaws.com/b", false},
		{"https://s3.amazonaws.com/b", "https://s3.amazonaws.com:8443/b", false},
		{"https://s3.amazonaws.com/b", "https://x.execute-api.us-east-1.amazonaws.com/b", false},
		{"https://s3.amazonaws.com/b", "https://ec2-1-2-3-4.compute-1.amazonaws.com/b", false},
		{"https://s3.amazonaws.com/b", "https://s3.amazonaws.com.evil.example/b", false},
		{"https://s3.amazonaws.com/b", "https://storage.googleapis.com/b", false},
		{"https://storage.googleapis.com/b", "https://evilgoogleapis.com/b", false},
		{"http://127.0.0.1/", "http://169.254.169.254/", false},
	} {
		sent := 0
		client := oneServer(&http.Client{Transport: answers(func(r *http.Request) (*http.Response, error) {
			if sent++; sent > 1 {
				return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
			}
			return &http.Response{StatusCode: 307, Header: http.Header{"Location": {c.to}}, Body: io.NopCloser(strings.NewReader("")), Request: r}, nil
		})})
		_, err := client.Get(c.from)
		if (err == nil) != c.want || (sent == 2) != c.want {
			t.Errorf("%s to %s: %d requests, %v", c.from, c.to, sent, err)
		}
		if _, ok := errors.AsType[elsewhere](err); err != nil && !ok {
			t.Error(err)
		}
	}
}

// A server that sends on is asked once: what refuses that will not do otherwise at another try.
// That is so through a proxy, too, which answers as the server does and gets no request for
// another.
func TestSentOnIsNotTriedAgain(t *testing.T) {
	awsEnv(t)
	var asked sync.Map
	var n atomic.Int64
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n.Add(1)
		asked.Store(r.Host, true)
		w.Header().Set("Location", "http://other.example:81/k")
		w.WriteHeader(http.StatusTemporaryRedirect)
	}))
	t.Cleanup(s.Close)
	for _, proxy := range []bool{false, true} {
		n.Store(0)
		asked.Clear()
		b, err := Open(t.Context(), "s3://b?use_path_style=true&endpoint="+s.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		if proxy { // as HTTP_PROXY would have it, which a process reads once
			client, ok := fieldAt(b.remote, "b", "client", "options", "HTTPClient")
			if !ok {
				t.Fatal("no client")
			}
			u, err := url.Parse(s.URL)
			if err != nil {
				t.Fatal(err)
			}
			transport := &http.Transport{Proxy: http.ProxyURL(u)}
			t.Cleanup(transport.CloseIdleConnections)
			client.Set(reflect.ValueOf(oneServer(&http.Client{Transport: transport})))
		}
		_, err = b.Stat(t.Context(), "k")
		if fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), "sends on to http://other.example:81") || strings.Contains(err.Error(), "tries") || n.Load() != 1 {
			t.Errorf("proxy %v: %d requests, %v", proxy, n.Load(), err)
		}
		asked.Range(func(host, _ any) bool {
			if host != strings.TrimPrefix(s.URL, "http://") {
				t.Errorf("proxy %v: asked for %v", proxy, host)
			}
			return true
		})
		if err := b.Close(); err != nil {
			t.Error(err)
		}
	}
}
