package blobio_test

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
)

// Whatever in a URL says where requests go is named, and what is not known is refused.
func TestTarget(t *testing.T) {
	for p, want := range map[string]string{
		"s3://b/k": "",
		"s3://b/k?region=eu-west-1&use_path_style=true&anonymous=true":    "",
		"s3://b/k?endpoint=http://169.254.169.254":                        "http://169.254.169.254",
		"s3://b/k?endpoint=HTTPS://Host:443/path&region=x":                "https://host",
		"s3://b/k?endpoint=http:%2F%2Fevil%3A80":                          "http://evil",
		"s3://b/k?endpoint=http://[FE80::1]:9":                            "http://[fe80::1]:9",
		"gs://b/k?anonymous=true":                                         "",
		"gs://b/k?universe_domain=evil.example":                           "https://evil.example",
		"azblob://c/k?storage_account=abc":                                "",
		"azblob://c/k?domain=evil.example":                                "https://evil.example",
		"azblob://c/k?protocol=http":                                      "http://blob.core.windows.net",
		"azblob://c/k?protocol=http&domain=127.0.0.1:10000&localemu=true": "http://127.0.0.1:10000",
	} {
		if got, err := blobio.Target(p); got != want || err != nil {
			t.Errorf("Target(%q) = %q, %v; want %q", p, got, err, want)
		}
	}
	for p, want := range map[string]string{
		"s3://b/k?disable_https=true":                       "may not give it",
		"s3://b/k?awssdk=v1":                                "may not give it",
		"s3://b/k?Endpoint=http://x":                        "may not give it",
		"gs://b/k?private_key_path=/etc/shadow":             "may not give it",
		"gs://b/k?access_id=me":                             "may not give it",
		"hdfs://b/k?endpoint=http://x":                      "may not give it",
		"s3://b/k?region=x.evil.example":                    "this is none",
		"s3://b/k?region=evil.example%23":                   "this is none",
		"azblob://c/k?storage_account=evil.example%2F":      "this is none",
		"azblob://c/k?domain=127.0.0.1:1@evil.example":      "is no server",
		"s3://b/k?endpoint=http://good@evil":                "is no server",
		"s3://b/k?endpoint=ftp://evil":                      "is no server",
		"s3://b/k?endpoint=http://ev%25il":                  "is no server",
		"s3://b/k?endpoint=//evil":                          "is no server",
		"s3://b/k?endpoint=http://x&endpoint=http://y":      "twice",
		"s3://b?endpoint=http:%2F%2Fevil%3A80/key?region=x": "no bucket is called",
		"s3://b#x/k":             "no bucket is called",
		"s3://u:p@b/k":           "no bucket is called",
		"s3://evil.example%2F/k": "no bucket is called",
	} {
		if got, err := blobio.Target(p); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("Target(%q) = %q, %v; want an error with %q", p, got, err, want)
		}
	}
	for p, want := range map[string]bool{"s3://b": true, "S3://b": true, "http://x": true, "x": false, "/x": false, "file:///x": false, "FILE:///x": false, "mem://x": false, " s3://b": false} {
		if blobio.Remote(p) != want {
			t.Errorf("Remote(%q) = %v", p, !want)
		}
	}
}
