package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
)

// listener is a server that remembers what it was asked.
type listener struct {
	*httptest.Server
	mu    sync.Mutex
	asked []string
}

func overhear(t *testing.T) *listener {
	t.Helper()
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": "AKIAKNOWN", "AWS_SECRET_ACCESS_KEY": "shhh", "AWS_SESSION_TOKEN": "tokentoken", "AWS_REGION": "us-east-1",
		"AWS_EC2_METADATA_DISABLED": "true", "AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull, "AWS_PROFILE": "", "AWS_ENDPOINT_URL": "", "AWS_ENDPOINT_URL_S3": "",
		"PENSTOCK_ENDPOINTS": "", "DB_PASSWORD": "hunter2hunter2"} {
		t.Setenv(k, v)
	}
	l := &listener{}
	l.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.asked = append(l.asked, r.Method+" "+r.URL.String()+" "+fmt.Sprint(r.Header))
		http.Error(w, "no", http.StatusForbidden)
	}))
	t.Cleanup(l.Close)
	return l
}

// heard is what was asked since the last time.
func (l *listener) heard() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := l.asked
	l.asked = nil
	return all
}

// looks and runs are commands that take a spec.
var (
	looks = [][]string{{"validate"}, {"explain"}, {"schema"}}
	runs  = [][]string{{"run"}, {"show"}, {"count"}, {"batches"}, {"replay", "--step", "0"}, {"explain", "--analyze"}, {"explain", "--label", "text"}, {"data", "--socket", "x/s"}, {"train"}}
)

const ofShards = "shards: {global_batch: 2}\nsink: {count: {}}\ntrain: {command: ['true']}\n"

// A server that a spec names gets no request, and no value of a reference, unless the person allows
// it.
func TestEndpointsNeedPermission(t *testing.T) {
	l := overhear(t)
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("from-a-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	at := "?endpoint=" + l.URL + "&use_path_style=true"
	spec := func(url string) string {
		return writeSpec(t, "version: 1\nsource: {text: {paths: ['"+url+"']}}\n"+ofShards)
	}
	references := spec("s3://b/${env:DB_PASSWORD}-${file:" + secret + "}" + at)
	plain := spec("s3://latest/meta-data" + at)
	quiet := func(r result, args ...string) {
		t.Helper()
		if heard := l.heard(); heard != nil {
			t.Errorf("%q: the server was asked %q", args, heard)
		}
		for _, leak := range []string{"hunter2", "from-a-file"} {
			if strings.Contains(r.out+r.err, leak) {
				t.Errorf("%q shows a secret: %+v", args, r)
			}
		}
	}
	for _, file := range []string{references, plain} {
		for _, c := range append(looks, runs...) {
			args := append(c[:len(c):len(c)], file)
			r := penstock(t, args...)
			quiet(r, args...)
			if wrong := r.code != exitUsage; wrong != (c[0] == "validate") {
				t.Errorf("%q: %+v", args, r)
			}
			if !strings.Contains(r.out+r.err, "--endpoint "+l.URL) && !strings.Contains(r.out+r.err, "--trust") {
				t.Errorf("%q does not say what to do: %+v", args, r)
			}
		}
	}
	if r := penstock(t, "validate", plain); !strings.Contains(r.err, "left out: ") || !strings.Contains(r.out, "is valid: as far as that is known without its data") {
		t.Errorf("%+v", r)
	}
	// A name of the same machine, or another port of it, is another server.
	for _, other := range []string{strings.Replace(l.URL, "127.0.0.1", "localhost", 1), "http://127.0.0.1", l.URL + "0"} {
		quiet(penstock(t, "schema", plain, "--endpoint", other), other)
	}
	// The endpoint alone does not give values of references away.
	quiet(penstock(t, "schema", references, "--endpoint", l.URL))
	quiet(penstock(t, "run", references, "--endpoint", l.URL))
	quiet(penstock(t, "run", references, "--trust"))
	// With permission it is asked, and the values that went there are not shown.
	asked := func(want string, args ...string) {
		t.Helper()
		r := penstock(t, args...)
		heard := strings.Join(l.heard(), "\n")
		if !strings.Contains(heard, want) {
			t.Errorf("%q: asked %q, %+v", args, heard, r)
		}
		quiet(r, args...)
	}
	asked("/latest", "schema", plain, "--endpoint", l.URL)
	asked("hunter2hunter2-from-a-file", "schema", references, "--endpoint", l.URL, "--trust")
	asked("/latest", "schema", writeSpec(t, "version: 1\nsource: {text: {paths: [x]}}\n"), "--set", "source.text.paths=['s3://latest/meta-data"+at+"']")
	t.Setenv("PENSTOCK_ENDPOINTS", "https://other.example,"+l.URL)
	asked("/latest", "count", plain)
	t.Setenv("PENSTOCK_ENDPOINTS", "")
	t.Setenv("AWS_ENDPOINT_URL_S3", l.URL)
	asked("/latest", "count", plain)
}

// Addresses of this machine, of its network, and of clouds' metadata services are like all others:
// not without the person's word.
func TestMetadataServices(t *testing.T) {
	overhear(t)
	for _, host := range []string{"169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "127.0.0.1:1", "0.0.0.0:1", "localhost:1", "metadata.google.internal"} {
		r := penstock(t, "schema", writeSpec(t, "version: 1\nsource: {text: {paths: ['s3://latest/meta-data?endpoint=http://"+host+"&use_path_style=true']}}\n"))
		if r.code != exitUsage || !strings.Contains(r.err, "--endpoint http://"+host) {
			t.Errorf("%s: %+v", host, r)
		}
	}
}

// A spec of another user is looked at, as far as that needs no server, no reference and no program;
// it is not run.
func TestForeignSpec(t *testing.T) {
	l := overhear(t)
	t.Setenv("AWS_ENDPOINT_URL", l.URL) // so that the cloud's own server is this one
	dir := t.TempDir()
	ran := filepath.Join(dir, "ran")
	spec := func(source string) string {
		file := writeSpec(t, "version: 1\nsource: "+source+"\nsteps: [{exec: {command: [touch, "+ran+"]}}]\n"+ofShards)
		if err := os.Chmod(file, 0o666); err != nil { // anybody could have written it
			t.Fatal(err)
		}
		return file
	}
	local, remote := spec("{range: {n: 10}}"), spec("{text: {paths: ['s3://b/k?use_path_style=true']}}")
	reference := spec("{text: {paths: ['/x/${env:DB_PASSWORD}']}}")
	for _, file := range []string{local, remote, reference} {
		for _, c := range runs {
			r := penstock(t, append(c[:len(c):len(c)], file)...)
			if r.code != exitUsage || !strings.Contains(r.err+r.out, "this spec is not yours") || !strings.Contains(r.err+r.out, "--trust") {
				t.Errorf("%q: %+v", c, r)
			}
		}
		for _, c := range looks {
			r := penstock(t, append(c[:len(c):len(c)], file)...)
			if done := r.code == exitOK; done != (file == local || c[0] == "validate") || strings.Contains(r.out+r.err, "hunter2") {
				t.Errorf("%q: %+v", c, r)
			}
		}
	}
	if heard := l.heard(); heard != nil {
		t.Errorf("asked %q", heard)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("a step was run")
	}
	if r := penstock(t, "validate", reference); !strings.Contains(r.err, "the spec is not yours") || !strings.Contains(r.out, "without its references") {
		t.Errorf("%+v", r)
	}
	penstock(t, "schema", remote, "--trust")
	if l.heard() == nil {
		t.Error("with --trust it is looked at")
	}
	if r := penstock(t, "count", writeForeign(t, "version: 1\nsource: {range: {n: 10}}\n"), "--trust"); r.code != 0 || r.out != "10\n" {
		t.Errorf("%+v", r)
	}
}

// writeForeign is writeSpec for one of another user.
func writeForeign(t *testing.T, text string) string {
	t.Helper()
	file := writeSpec(t, text)
	disown(t, file)
	return file
}

// disown gives a file or folder to another user.
func disown(t *testing.T, path string) {
	t.Helper()
	if os.Getuid() != 0 {
		memtest.Skip(t, "files of another user, which only root can make")
	}
	if err := os.Chown(path, 12345, -1); err != nil {
		t.Fatal(err)
	}
}

// Values of references are not in what a command prints.
func TestReferencesAreMasked(t *testing.T) {
	overhear(t)
	dir := t.TempDir()
	t.Setenv("PLACE", filepath.Join(dir, "secret-place"))
	t.Setenv("WORD", "open\"sesame\\now")
	file := writeSpec(t, "version: 1\nname: n-${env:DB_PASSWORD}\nsource: {csv: {paths: ['${env:PLACE}/in.csv']}}\nsteps: [{filter: 'a != \"${env:DB_PASSWORD}\"'}]\n"+
		"sink: {json: {path: '${env:PLACE}/out'}}\nrun: {on_error: {policy: skip, dead_letter: '${env:PLACE}/dead'}}\n")
	hidden := func(args ...string) result {
		t.Helper()
		r := penstock(t, args...)
		for _, leak := range []string{"hunter2", "secret-place", "sesame"} {
			if strings.Contains(r.out+r.err, leak) {
				t.Errorf("%q shows %s: %+v", args, leak, r)
			}
		}
		if !strings.Contains(r.out+r.err, "***") {
			t.Errorf("%q: no ***: %+v", args, r)
		}
		return r
	}
	hidden("explain", file) // which fails: there is no file
	hidden("run", file, "--json")
	hidden("show", file)
	if err := os.Mkdir(filepath.Join(dir, "secret-place"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret-place", "in.csv"), []byte("a,b\nx,1\ny,z,2\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	hidden("explain", file)
	hidden("explain", "--analyze", file)
	hidden("run", file)
	hidden("run", file, "--set", "run.cpus='${env:WORD}'")
	r := hidden("run", file, "--set", "run.cpus='${env:WORD}'", "--json")
	var sum map[string]any
	if err := json.Unmarshal([]byte(r.out), &sum); err != nil {
		t.Errorf("%v: %s", err, r.out)
	}
	// Neither are they in what is kept of a run that could not read its data, or in what its
	// workers receive.
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "secret-place", "in.jsonl"), []byte(strings.Repeat("{\"a\": 1}\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	run := writeSpec(t, "version: 1\nsource: {json: {paths: ['${env:PLACE}/in.jsonl']}}\nsteps: [{with_columns: {y: 'cast(concat(\"x\", string(a)), \"int64\")'}}]\nshards: {global_batch: 1}\n"+
		"train: {command: ["+self+"], env: [PENSTOCK_TEST_MAIN=worker], config: {steps: 10, every: 5}, failures: {worker: 0}}\n")
	hidden("train", run, "--name", "first", "--storage", dir+"/runs")
	hidden("status", dir+"/runs/first")
	if err := filepath.WalkDir(dir+"/runs", func(file string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() {
			var b []byte
			if b, err = os.ReadFile(file); strings.Contains(string(b), "secret-place") {
				t.Errorf("%s has a secret: %s", file, b)
			}
		}
		return err
	}); err != nil {
		t.Error(err)
	}
	// Of what could not be read the dead letter says where, but not this.
	dead := penstock(t, "show", filepath.Join(dir, "secret-place", "dead"), "--format", "parquet")
	if dead.code != 0 || strings.Contains(dead.out, "secret-place") || !strings.Contains(dead.out, "***/in.csv") {
		t.Errorf("%+v", dead)
	}
}
