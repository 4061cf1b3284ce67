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

// textAt follows fields from v to a string, "" if that is a nil pointer. It is false if there is no such string.
// The types on the way cannot be named without linking the SDKs.
func textAt(v any, path []string) (string, bool) {
	at := reflect.ValueOf(v)
	for i := 0; ; {
		switch at.Kind() {
		case reflect.Pointer, reflect.Interface:
			if at.IsNil() {
				return "", i == len(path) && at.Type() == reflect.TypeFor[*string]()
			}
			at = at.Elem()
		case reflect.Struct:
			if i == len(path) {
				return "", false
			}
			at = at.FieldByName(path[i])
			i++
		case reflect.String:
			return at.String(), i == len(path)
		default: // no such field, too
			return "", false
		}
	}
}
