package blobio

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"
	"time"

	"github.com/penstock-data/penstock/io/blobcache"
	"gocloud.dev/blob"
	"gocloud.dev/blob/azureblob"
)

// twin is an S3 server with one object, whose ETag and time are those of any twin's.
func twin(t *testing.T, data []byte) (url string, reads *atomic.Int64) {
	reads = new(atomic.Int64)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method == "GET" {
			reads.Add(1)
		}
		w.Header().Set("ETag", `"one"`)
		http.ServeContent(w, r, "", time.Unix(1e9, 0), bytes.NewReader(data))
	}))
	t.Cleanup(s.Close)
	return s.URL, reads
}

// awsEnv leaves to the test alone where S3 is.
func awsEnv(t *testing.T) {
	for _, name := range servers["s3"].env {
		t.Setenv(name, "")
	}
	for k, v := range map[string]string{"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_EC2_METADATA_DISABLED": "true", "AWS_REGION": "us-east-1",
		"AWS_CONFIG_FILE": os.DevNull, "AWS_SHARED_CREDENTIALS_FILE": os.DevNull} {
		t.Setenv(k, v)
	}
}

// What one server sent is not served for another one under the same URL, whatever names the server; for the same one it is.
func TestCacheTellsServersApart(t *testing.T) {
	config := filepath.Join(t.TempDir(), "config")
	for name, point := range map[string]func(t *testing.T, url string){
		"AWS_ENDPOINT_URL":    func(t *testing.T, url string) { t.Setenv("AWS_ENDPOINT_URL", url) },
		"AWS_ENDPOINT_URL_S3": func(t *testing.T, url string) { t.Setenv("AWS_ENDPOINT_URL_S3", url) },
		"profile": func(t *testing.T, url string) {
			if err := os.WriteFile(config, []byte("[default]\nendpoint_url = "+url+"\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv("AWS_CONFIG_FILE", config)
		},
	} {
		t.Run(name, func(t *testing.T) {
			awsEnv(t)
			cache, err := blobcache.New(blobcache.Options{Dir: t.TempDir(), Max: blobcache.MinMax})
			if err != nil {
				t.Fatal(err)
			}
			defer cache.Close()
			mine, theirs := bytes.Repeat([]byte("mine  "), 1000), bytes.Repeat([]byte("theirs"), 1000)
			a, readsA := twin(t, mine)
			b, readsB := twin(t, theirs)
			for i, at := range []struct {
				url  string
				want []byte
			}{{a, mine}, {b, theirs}, {a, mine}, {b, theirs}} {
				point(t, at.url)
				bucket, err := Open(t.Context(), "s3://x?use_path_style=true", &Options{Cache: cache})
				if err != nil {
					t.Fatal(err)
				}
				got, err := bucket.ReadAll(t.Context(), "k", 1<<20)
				if err != nil || !bytes.Equal(got, at.want) {
					t.Errorf("open %d: %.6q, %v", i, got, err)
				}
				if err := bucket.Close(); err != nil {
					t.Error(err)
				}
			}
			if readsA.Load() != 1 || readsB.Load() != 1 {
				t.Errorf("read %d and %d times", readsA.Load(), readsB.Load())
			}
		})
	}
}

// The clients of all SDKs say which server they mean: this fails when another release keeps it elsewhere.
func TestServerOf(t *testing.T) {
	awsEnv(t)
	check := func(b *blob.Bucket, scheme, want string) {
		t.Helper()
		if got := serverOf(scheme, b); got != want {
			t.Errorf("%s: %q, want %q", scheme, got, want)
		}
	}
	open := func(url string) *blob.Bucket {
		t.Helper()
		b, err := blob.OpenBucket(t.Context(), url)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { b.Close() })
		return b
	}
	check(open("s3://x"), "s3", "\nus-east-1")
	t.Setenv("AWS_ENDPOINT_URL_S3", "http://s3:1")
	check(open("s3://x?region=cn-north-1"), "s3", "http://s3:1\ncn-north-1")
	for _, host := range []string{"gs:1", "gs:2"} {
		t.Setenv("STORAGE_EMULATOR_HOST", host)
		check(open("gs://x?anonymous=true"), "gs", "http://"+host+"/storage/v1/")
	}
	for _, name := range servers["azblob"].env {
		t.Setenv(name, "")
	}
	t.Setenv("AZURE_STORAGE_SAS_TOKEN", "sig=secret")
	for _, account := range []string{"one", "two"} {
		t.Setenv("AZURE_STORAGE_ACCOUNT", account)
		t.Setenv("AZURE_STORAGE_DOMAIN", "azure.test")
		// Not by URL: the driver reads the environment once for all of a process.
		url, err := azureblob.NewServiceURL(azureblob.NewDefaultServiceURLOptions())
		if err != nil {
			t.Fatal(err)
		}
		client, err := azureblob.NewDefaultClient(url, "x")
		if err != nil {
			t.Fatal(err)
		}
		b, err := azureblob.OpenBucket(t.Context(), client, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer b.Close()
		check(b, "azblob", fmt.Sprintf("https://%s.azure.test/x", account))
	}
	// A client that does not say it, as another scheme's: the environment does.
	for scheme, from := range servers {
		other := open("mem://")
		for _, name := range from.env {
			t.Setenv(name, "")
			before := serverOf(scheme, other)
			t.Setenv(name, "1")
			if serverOf(scheme, other) == before {
				t.Errorf("%s: %s makes no difference", scheme, name)
			}
		}
	}
	check(open("mem://"), "mem", "")
}
