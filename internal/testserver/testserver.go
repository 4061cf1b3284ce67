// Package testserver starts real object stores for tests: versitygw (S3),
// fake-gcs-server (GCS) and Azurite (Azure), a small S3 service that holds any key, and a
// proxy that puts faults between them and a client.
//
// Servers listen on free ports of 127.0.0.1 and end with the test. Their programs
// are built from tools/go.mod into bin/tools at first use; where that is not
// possible the test is skipped, or fails if CI=true. The test imports the
// gocloud.dev drivers that it wants.
package testserver

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Server is a running object store.
type Server struct {
	t    testing.TB
	kind string // "s3", "gs" or "azblob"
	addr string // where clients connect: the server or a proxy before it
	own  string // of the server itself
	dir  string // s3: holds a folder per bucket
}

const (
	awsKey, awsSecret = "penstock", "penstock-secret"

	// The account that every Azure emulator has.
	azureAccount = "devstoreaccount1"
	azureKey     = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
)

// S3 starts versitygw and sets the AWS variables of the environment.
func S3(t testing.TB) *Server {
	t.Helper()
	bin := tool(t, "versitygw", "github.com/versity/versitygw/cmd/versitygw")
	dir := t.TempDir()
	awsEnvironment(t)
	addr := start(t, func(addr string) *exec.Cmd {
		c := exec.Command(bin, "--port", addr, "--keep-alive", "--quiet", "posix", dir)
		c.Env = append(os.Environ(), "ROOT_ACCESS_KEY="+awsKey, "ROOT_SECRET_KEY="+awsSecret)
		return c
	})
	return &Server{t: t, kind: "s3", addr: addr, own: addr, dir: dir}
}

// awsEnvironment sets the AWS variables.
func awsEnvironment(t testing.TB) {
	t.Helper()
	for k, v := range map[string]string{
		"AWS_ACCESS_KEY_ID": awsKey, "AWS_SECRET_ACCESS_KEY": awsSecret, "AWS_REGION": "us-east-1",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull,
		"AWS_SESSION_TOKEN": "", "AWS_PROFILE": "",
	} {
		t.Setenv(k, v)
	}
}

// GCS starts fake-gcs-server, which keeps objects in memory.
func GCS(t testing.TB) *Server {
	t.Helper()
	bin := tool(t, "fake-gcs-server", "github.com/fsouza/fake-gcs-server")
	addr := start(t, func(addr string) *exec.Cmd {
		host, port, _ := net.SplitHostPort(addr)
		return exec.Command(bin, "-scheme", "http", "-host", host, "-port", port, "-backend", "memory",
			"-public-host", addr, "-log-level", "error")
	})
	return &Server{t: t, kind: "gs", addr: addr, own: addr}
}

// Azure starts Azurite and sets the Azure variables of the environment. It is an
// npm package (npm install --prefix bin/tools azurite@3.37.0) and slow to start, so
// the test is skipped unless PENSTOCK_SOAK=1.
func Azure(t testing.TB) *Server {
	t.Helper()
	if os.Getenv("PENSTOCK_SOAK") != "1" {
		t.Skip("runs with PENSTOCK_SOAK=1")
	}
	js := filepath.Join(root(), "bin", "tools", "node_modules", "azurite", "dist", "src", "blob", "main.js")
	if _, err := os.Stat(js); err != nil {
		missing(t, fmt.Errorf("npm install --prefix bin/tools azurite@3.37.0: %w", err))
	}
	t.Setenv("AZURE_STORAGE_ACCOUNT", azureAccount)
	t.Setenv("AZURE_STORAGE_KEY", azureKey)
	dir := t.TempDir()
	addr := start(t, func(addr string) *exec.Cmd {
		host, port, _ := net.SplitHostPort(addr)
		c := exec.Command("node", js, "--blobHost", host, "--blobPort", port, "--inMemoryPersistence",
			"--skipApiVersionCheck", "--silent", "--disableTelemetry")
		c.Dir = dir
		return c
	})
	return &Server{t: t, kind: "azblob", addr: addr, own: addr}
}

// URL is what blobio.Open and gocloud.dev take. GCS is found by the environment:
// open the bucket before asking another GCS server, or the same behind another
// proxy, for its URL. Specs may name the server from then on: PENSTOCK_ENDPOINTS has it.
func (s *Server) URL(bucket string) string {
	if s.kind != "gs" {
		s.t.Setenv("PENSTOCK_ENDPOINTS", os.Getenv("PENSTOCK_ENDPOINTS")+",http://"+s.addr)
	}
	switch s.kind {
	case "s3":
		return "s3://" + bucket + "?endpoint=http://" + s.addr + "&use_path_style=true&region=us-east-1"
	case "gs":
		s.t.Setenv("STORAGE_EMULATOR_HOST", s.addr)
		return "gs://" + bucket + "?anonymous=true"
	}
	return "azblob://" + bucket + "?protocol=http&domain=" + s.addr + "&localemu=true"
}

// Addr is host:port of the server.
func (s *Server) Addr() string { return s.own }

// Dir holds the buckets of an S3 server as folders; "" for others.
func (s *Server) Dir() string { return s.dir }

// Via is the server as seen through p.
func (s *Server) Via(p *Proxy) *Server {
	c := *s
	c.addr = p.Addr()
	return &c
}

// CreateBucket makes an empty bucket.
func (s *Server) CreateBucket(t testing.TB, name string) {
	t.Helper()
	var req *http.Request
	switch s.kind {
	case "s3":
		if err := os.Mkdir(filepath.Join(s.dir, name), 0o777); err != nil {
			t.Fatal(err)
		}
		return
	case "gs":
		req, _ = http.NewRequest("POST", "http://"+s.own+"/storage/v1/b?project=test", strings.NewReader(`{"name":"`+name+`"}`))
		req.Header.Set("Content-Type", "application/json")
	default:
		req, _ = http.NewRequest("PUT", "http://"+s.own+"/"+azureAccount+"/"+name+"?restype=container", nil)
		date := time.Now().UTC().Format(http.TimeFormat)
		req.Header.Set("x-ms-date", date)
		req.Header.Set("x-ms-version", "2021-12-02")
		key, _ := base64.StdEncoding.DecodeString(azureKey)
		mac := hmac.New(sha256.New, key)
		io.WriteString(mac, "PUT\n\n\n\n\n\n\n\n\n\n\n\nx-ms-date:"+date+"\nx-ms-version:2021-12-02\n"+
			"/"+azureAccount+"/"+azureAccount+"/"+name+"\nrestype:container")
		req.Header.Set("Authorization", "SharedKey "+azureAccount+":"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode/100 != 2 {
		t.Fatalf("create bucket %s: %s: %s", name, resp.Status, body)
	}
}

// root is the repository.
func root() string {
	_, self, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(self), "..", "..")
}

func missing(t testing.TB, err error) {
	t.Helper()
	if os.Getenv("CI") == "true" {
		t.Fatalf("test server is missing: %v", err)
	}
	t.Skipf("test server is not there: %v", err)
}

// tool returns the path of a program of tools/go.mod, built if need be. Test
// processes that come at the same time wait for one of them.
func tool(t testing.TB, name, pkg string) string {
	t.Helper()
	dir := filepath.Join(root(), "bin", "tools")
	bin := filepath.Join(dir, name)
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		missing(t, err)
	}
	lock, err := os.OpenFile(filepath.Join(dir, ".lock"), os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		missing(t, err)
	}
	defer lock.Close()
	if err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX); err != nil {
		missing(t, err)
	}
	if _, err := os.Stat(bin); err == nil {
		return bin
	}
	// Built aside: a program half written must not be found.
	tmp := t.TempDir()
	c := exec.Command("go", "build", "-C", filepath.Join(root(), "tools"), "-o", tmp+string(filepath.Separator), pkg)
	c.Env = append(os.Environ(), "GOFLAGS=", "GOWORK=off")
	if out, err := c.CombinedOutput(); err != nil {
		missing(t, fmt.Errorf("%s: %w\n%s", strings.Join(c.Args, " "), err, out))
	}
	built := filepath.Join(tmp, name)
	if err := os.Rename(built, bin); errors.Is(err, syscall.EXDEV) { // another file system
		if err = exec.Command("cp", built, bin+".new").Run(); err == nil {
			err = os.Rename(bin+".new", bin)
		}
		if err != nil {
			missing(t, err)
		}
	} else if err != nil {
		missing(t, err)
	}
	return bin
}

// start runs what command gives for a free address until the test ends, and
// returns the address once something listens there.
func start(t testing.TB, command func(addr string) *exec.Cmd) string {
	t.Helper()
	var err error
	for range 3 { // the port may be taken before the server has it
		var addr string
		if addr, err = startOnce(t, command); err == nil {
			return addr
		}
	}
	t.Fatal(err)
	return ""
}

func startOnce(t testing.TB, command func(addr string) *exec.Cmd) (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	addr := l.Addr().String()
	l.Close()
	c := command(addr)
	var out tail
	c.Stdout, c.Stderr = &out, &out
	dieWithParent(c)
	started, exited := make(chan error, 1), make(chan error, 1)
	var wg sync.WaitGroup
	wg.Go(func() {
		// The kernel's "parent" is the thread that started the child: keep it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := c.Start()
		started <- err
		if err == nil {
			exited <- c.Wait()
		}
	})
	if err := <-started; err != nil {
		return "", err
	}
	stop := func() {
		c.Process.Kill()
		wg.Wait()
	}
	poll := time.NewTicker(5 * time.Millisecond)
	defer poll.Stop()
	limit := time.NewTimer(30 * time.Second)
	defer limit.Stop()
	for {
		if conn, err := net.Dial("tcp", addr); err == nil {
			conn.Close()
			t.Cleanup(stop)
			return addr, nil
		}
		select {
		case <-poll.C:
		case err := <-exited:
			wg.Wait()
			return "", fmt.Errorf("%s: %v\n%s", c.Path, err, out.String())
		case <-limit.C:
			stop()
			return "", fmt.Errorf("%s does not listen on %s\n%s", c.Path, addr, out.String())
		}
	}
}

// tail keeps the last output of a server.
type tail struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (w *tail) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.buf.Len() > 1<<16 {
		w.buf.Reset()
	}
	return w.buf.Write(p)
}

func (w *tail) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
