package blobio

import (
	"os"
	"reflect"
	"strings"

	"gocloud.dev/blob"
)

// servers are where to find which server the URLs of a scheme mean, which settings outside of the URL decide.
var servers = map[string]struct {
	client [][]string // fields of the SDK's client
	env    []string   // what drivers read; used only if the client lacks a field (GCS by gRPC, another release of an SDK)
}{
	"s3": {
		client: [][]string{{"options", "BaseEndpoint"}, {"options", "Region"}},
		env: []string{"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_IGNORE_CONFIGURED_ENDPOINT_URLS", "AWS_REGION", "AWS_DEFAULT_REGION",
			"AWS_PROFILE", "AWS_CONFIG_FILE"},
	},
	"gs": {
		client: [][]string{{"raw", "BasePath"}},
		env:    []string{"STORAGE_EMULATOR_HOST", "STORAGE_EMULATOR_HOST_GRPC", "GOOGLE_CLOUD_UNIVERSE_DOMAIN"},
	},
	"azblob": {
		client: [][]string{{"inner", "endpoint"}},
		env: []string{"AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_DOMAIN", "AZURE_STORAGE_PROTOCOL", "AZURE_STORAGE_IS_CDN",
			"AZURE_STORAGE_IS_LOCAL_EMULATOR", "AZURE_STORAGE_CONNECTION_STRING", "AZURE_STORAGEBLOB_CONNECTIONSTRING"},
	},
}

// serverOf identifies, with the bucket's URL, the server that an open bucket is on: equal for equal servers, without
// credentials where the client says it. "" if the URL says all. It sends no request.
func serverOf(scheme string, b *blob.Bucket) string {
	from, ok := servers[scheme]
	if !ok {
		return ""
	}
	said := make([]string, 0, len(from.env))
	for _, path := range from.client {
		s, ok := textAt(b, append([]string{"b", "client"}, path...))
		if !ok {
			said = said[:0]
			for _, name := range from.env {
				said = append(said, name+"="+os.Getenv(name))
			}
			break
		}
		s, _, _ = strings.Cut(s, "?") // Azure: a token, which changes
		said = append(said, s)
	}
	return strings.Join(said, "\n")
}

// textAt is the text of a field, "" of a nil pointer. It is false if there is no such string.
func textAt(v any, path []string) (string, bool) {
	f, ok := fieldAt(v, path...)
	switch {
	case !ok:
		return "", false
	case f.Type() == reflect.TypeFor[*string]():
		if f.IsNil() {
			return "", true
		}
		f = f.Elem()
	}
	return f.String(), f.Kind() == reflect.String
}

// fieldAt follows fields from v, a pointer, through pointers and interfaces, exported or not: the
// types on the way cannot be named without linking the SDKs. The field can be read and set.
func fieldAt(v any, path ...string) (reflect.Value, bool) {
	at := reflect.ValueOf(v)
	for _, name := range path {
		for at.Kind() == reflect.Pointer || at.Kind() == reflect.Interface {
			at = at.Elem() // of nil: no Value
		}
		if at.Kind() != reflect.Struct || !at.CanAddr() {
			return reflect.Value{}, false
		}
		if at = at.FieldByName(name); !at.IsValid() {
			return reflect.Value{}, false
		}
		at = opened(at)
	}
	return at, true
}

// opened is the variable that v stands for, as if its name were exported.
func opened(v reflect.Value) reflect.Value {
	return reflect.NewAt(v.Type(), v.Addr().UnsafePointer()).Elem()
}
