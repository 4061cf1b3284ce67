package testserver

import (
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// Memory is an S3 service in this process that holds objects of any key: versitygw keeps them in
// folders, which hold no empty names, no "." and no "..". It answers what blobio asks about
// small objects (whole uploads, ranged reads, listings, copies), and checks no signatures.
type Memory struct {
	addr string

	mu      sync.Mutex
	objects map[string]object // by bucket/key
}

type object struct {
	data []byte
	etag string
	at   time.Time
}

// S3Memory starts a Memory with one bucket, and returns its URL.
func S3Memory(t testing.TB, bucket string) (m *Memory, bucketURL string) {
	t.Helper()
	m = &Memory{objects: map[string]object{}}
	srv := httptest.NewServer(m)
	t.Cleanup(srv.Close)
	m.addr = strings.TrimPrefix(srv.URL, "http://")
	awsEnvironment(t)
	return m, (&Server{t: t, kind: "s3", addr: m.addr, own: m.addr}).URL(bucket)
}

// Put stores an object as any other program could.
func (m *Memory) Put(bucket, key string, data []byte) {
	sum := md5.Sum(data)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.objects[bucket+"/"+key] = object{data, `"` + hex.EncodeToString(sum[:]) + `"`, time.Now()}
}

// Keys are those of a bucket, sorted.
func (m *Memory) Keys(bucket string) []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	var keys []string
	for k := range m.objects {
		if k, ok := strings.CutPrefix(k, bucket+"/"); ok {
			keys = append(keys, k)
		}
	}
	slices.Sort(keys)
	return keys
}

func (m *Memory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	fail := func(status int, code string) {
		w.WriteHeader(status)
		fmt.Fprintf(w, "<Error><Code>%s</Code><Message>%s</Message></Error>", code, code)
	}
	m.mu.Lock()
	o, exists := m.objects[bucket+"/"+key]
	m.mu.Unlock()
	switch {
	case key == "" && r.Method == http.MethodGet:
		m.list(w, bucket, r.URL.Query())
	case r.Method == http.MethodPut && r.Header.Get("If-None-Match") == "*" && exists:
		fail(http.StatusPreconditionFailed, "PreconditionFailed")
	case r.Method == http.MethodPut && r.Header.Get("X-Amz-Copy-Source") != "":
		from, err := url.QueryUnescape(r.Header.Get("X-Amz-Copy-Source"))
		m.mu.Lock()
		src, ok := m.objects[from]
		m.mu.Unlock()
		if err != nil || !ok {
			fail(http.StatusNotFound, "NoSuchKey")
			return
		}
		m.Put(bucket, key, src.data)
		fmt.Fprint(w, "<CopyObjectResult></CopyObjectResult>")
	case r.Method == http.MethodPut && r.URL.RawQuery == "x-id=PutObject":
		data, err := io.ReadAll(r.Body)
		if err != nil {
			fail(http.StatusBadRequest, "IncompleteBody")
			return
		}
		m.Put(bucket, key, data)
	case r.Method == http.MethodDelete:
		m.mu.Lock()
		delete(m.objects, bucket+"/"+key)
		m.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
	case (r.Method == http.MethodGet || r.Method == http.MethodHead) && exists:
		w.Header().Set("ETag", o.etag)
		w.Header().Set("Content-Type", "application/octet-stream")
		http.ServeContent(w, r, "", o.at, bytes.NewReader(o.data))
	case r.Method == http.MethodGet || r.Method == http.MethodHead:
		fail(http.StatusNotFound, "NoSuchKey")
	default:
		fail(http.StatusNotImplemented, "NotImplemented")
	}
}

// list answers ListObjectsV2.
func (m *Memory) list(w http.ResponseWriter, bucket string, q url.Values) {
	prefix, delimiter, after := q.Get("prefix"), q.Get("delimiter"), q.Get("continuation-token")
	most, err := strconv.Atoi(q.Get("max-keys"))
	if err != nil {
		most = 1000
	}
	text := xmlText
	if q.Get("encoding-type") == "url" {
		text = func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), "%2F", "/") }
	}
	var b strings.Builder
	b.WriteString(xml.Header + "<ListBucketResult>")
	n, last := 0, ""
	for _, key := range m.Keys(bucket) {
		name, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		shown, folder := key, false
		if i := strings.Index(name, delimiter); delimiter != "" && i >= 0 {
			shown, folder = prefix+name[:i+len(delimiter)], true
		}
		if shown == last && folder || after != "" && shown <= after {
			continue
		}
		if n == most {
			fmt.Fprintf(&b, "<IsTruncated>true</IsTruncated><NextContinuationToken>%s</NextContinuationToken>", xmlText(last))
			break
		}
		n, last = n+1, shown
		if folder {
			fmt.Fprintf(&b, "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>", text(shown))
			continue
		}
		m.mu.Lock()
		o := m.objects[bucket+"/"+key]
		m.mu.Unlock()
		fmt.Fprintf(&b, "<Contents><Key>%s</Key><LastModified>%s</LastModified><ETag>%s</ETag><Size>%d</Size></Contents>",
			text(shown), o.at.UTC().Format("2006-01-02T15:04:05.000Z"), xmlText(o.etag), len(o.data))
	}
	b.WriteString("</ListBucketResult>")
	w.Header().Set("Content-Type", "application/xml")
	_, _ = io.WriteString(w, b.String())
}

// xmlText is s in XML, control characters as references, as S3 has them.
func xmlText(s string) string {
	var b strings.Builder
	for _, r := range s {
		if r < ' ' || strings.ContainsRune(`<>&"`, r) {
			fmt.Fprintf(&b, "&#x%X;", r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}
