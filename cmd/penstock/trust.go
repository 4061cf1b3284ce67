package main

import (
	"cmp"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/io/blobio"
)

// envEndpoints are servers that URLs in specs may name, as with --endpoint.
const envEndpoints = "PENSTOCK_ENDPOINTS"

// permission is what the person who runs a command lets specs do that others may have written:
// docs/trust.md.
type permission struct {
	given     bool
	endpoints []string
}

func (p *permission) flags(c *cobra.Command) {
	c.Flags().BoolVar(&p.given, "trust", false, "what the SPEC or the RUN asks for may be done, whoever wrote it: it runs programs, reads files and the environment, and writes as you; see docs/trust.md")
	c.Flags().StringArrayVar(&p.endpoints, "endpoint", nil, "`URL` of a server that URLs in the spec may name, and that gets requests and credentials, such as https://minio.example.org:9000; can be repeated; also $"+envEndpoints)
}

// trust is the permission for a spec that is looked at, or run. What is given by --set was typed by
// the person.
func (p *permission) trust(looks bool) (spec.Trust, error) {
	t := spec.Trust{Given: p.given, Typed: true, Looks: looks, Secrets: &secrets}
	for _, x := range p.endpoints {
		origin, err := blobio.Origin(x)
		if err != nil {
			return t, usage("--endpoint: %w", err)
		}
		t.Endpoints = append(t.Endpoints, origin)
	}
	for _, x := range listed(os.Getenv(envEndpoints)) {
		origin, err := blobio.Origin(x)
		if err != nil {
			return t, usage("%s: %w", envEndpoints, err)
		}
		t.Endpoints = append(t.Endpoints, origin)
	}
	for _, x := range ofEnvironment() {
		if origin, err := blobio.Origin(x); err == nil { // else it says nothing of a server that a spec could name
			t.Endpoints = append(t.Endpoints, origin)
		}
	}
	return t, nil
}

// ofEnvironment are the servers that the clouds' own variables name: requests go there without a
// word in a spec.
func ofEnvironment() []string {
	all := []string{os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL")}
	if host := os.Getenv("STORAGE_EMULATOR_HOST"); host != "" {
		if !strings.Contains(host, "://") {
			host = "http://" + host
		}
		all = append(all, host)
	}
	if domain := os.Getenv("AZURE_STORAGE_DOMAIN"); domain != "" {
		all = append(all, cmp.Or(os.Getenv("AZURE_STORAGE_PROTOCOL"), "https")+"://"+domain)
	}
	return all
}

func listed(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return r == ',' || r == ' ' })
}

// again are the flags that give another process of penstock the same permission.
func (p *permission) again() []string {
	var flags []string
	if p.given {
		flags = append(flags, "--trust")
	}
	for _, x := range append(p.endpoints, listed(os.Getenv(envEndpoints))...) {
		flags = append(flags, "--endpoint", x)
	}
	return flags
}

// sighted refuses a spec whose sources must not be looked at.
func sighted(s *spec.Spec) error {
	if !s.Blind() {
		return nil
	}
	return usageError{fault.New(fault.Denied, "%w\nso its data is not looked at; penstock validate checks the rest", s.Withheld())}
}
