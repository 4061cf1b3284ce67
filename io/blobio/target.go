package blobio

import (
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
)

// Remote reports whether a user's path is one that requests are sent for: no local file, and not
// memory of the process.
func Remote(p string) bool {
	scheme := strings.ToLower(strings.TrimSuffix(schemeRE.FindString(p), "://"))
	return scheme != "" && scheme != "file" && scheme != "mem"
}

// modest are the parameters of URLs that say nothing of where requests go and of who sends them but
// what a name of that form can say: how the cloud's own servers are asked.
var modest = map[string]map[string]*regexp.Regexp{
	"s3": {
		"region": region, "role": regexp.MustCompile(`^arn:[A-Za-z0-9:/+=,.@_-]{1,200}$`), "profile": regexp.MustCompile(`^[A-Za-z0-9+=,.@_-]{1,100}$`),
		"use_path_style": flag, "s3ForcePathStyle": flag, "hostname_immutable": flag, "dualstack": flag, "fips": flag, "accelerate": flag, "anonymous": flag,
		"rate_limiter_capacity": regexp.MustCompile(`^[0-9]{1,9}$`), "ssetype": regexp.MustCompile(`^[A-Za-z0-9:]{1,30}$`), "kmskeyid": regexp.MustCompile(`^[A-Za-z0-9:/_-]{1,200}$`),
		"request_checksum_calculation": word, "response_checksum_validation": word,
	},
	"gs":     {"anonymous": flag, "grpc": flag, "zonal": flag},
	"azblob": {"storage_account": regexp.MustCompile(`^[a-z0-9]{3,24}$`)},
}

var (
	region = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$`) // it becomes part of a host's name
	flag   = regexp.MustCompile(`^[A-Za-z0-9]{1,5}$`)
	word   = regexp.MustCompile(`^[a-z_]{1,30}$`)
)

// Target says where the requests of a remote path go that its parameters name: scheme://host, or
// scheme://host:port, as [Origin] has it; "" where it leaves that to the cloud and the environment.
// Parameters that are not known to be harmless are an Invalid error: what they could reach is not
// known.
func Target(p string) (string, error) {
	bucketURL, _, err := Split(p)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(bucketURL)
	if err != nil {
		return "", fault.New(fault.Invalid, "bucket URL: %w", err)
	}
	q, err := url.ParseQuery(u.RawQuery)
	if err != nil {
		return "", fault.New(fault.Invalid, "the parameters of the URL: %w", err)
	}
	named := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(q)) {
		value := q[key][0]
		form := modest[u.Scheme][key]
		switch {
		case len(q[key]) > 1:
			return "", fault.New(fault.Invalid, "parameter %s is given twice", key)
		case form != nil && form.MatchString(value):
		case form != nil:
			return "", fault.New(fault.Invalid, "parameter %s=%s: this is none", key, value)
		case names[u.Scheme] != nil && slices.Contains(names[u.Scheme], key):
			named[key] = value
		default:
			return "", fault.New(fault.Invalid, "parameter %s: a spec may not give it; have %s", key, strings.Join(slices.Sorted(slices.Values(append(slices.Collect(maps.Keys(modest[u.Scheme])), names[u.Scheme]...))), ", "))
		}
	}
	if len(named) == 0 {
		return "", nil
	}
	switch u.Scheme {
	case "s3":
		return Origin(named["endpoint"])
	case "gs":
		return Origin("https://" + named["universe_domain"])
	}
	domain, protocol := "blob.core.windows.net", "https"
	if d := named["domain"]; d != "" {
		domain = d
	}
	if s := named["protocol"]; s != "" {
		protocol = s
	}
	return Origin(protocol + "://" + domain)
}

// names are the parameters that say where requests go.
var names = map[string][]string{"s3": {"endpoint"}, "gs": {"universe_domain"}, "azblob": {"domain", "protocol", "localemu", "cdn"}}

var (
	hostRE  = regexp.MustCompile(`^([a-z0-9_]([a-z0-9_.-]*[a-z0-9_])?|\[[0-9a-f:.]+\])$`)
	portsRE = regexp.MustCompile(`^[1-9][0-9]{0,4}$`)
)

// Origin is scheme://host, with :port where that is not the scheme's own, of the URL of a server,
// in lower case: what two URLs have in common whose requests go to the same server.
func Origin(server string) (string, error) {
	bad := func() (string, error) {
		return "", fault.New(fault.Invalid, "%q is no server: write http:// or https://, a host, and a port where it has one: https://minio.example.org:9000", server)
	}
	u, err := url.Parse(server)
	if err != nil || u.User != nil || u.RawQuery != "" || u.Fragment != "" || u.Opaque != "" {
		return bad()
	}
	scheme, host, port := strings.ToLower(u.Scheme), strings.ToLower(u.Host), u.Port()
	if port != "" || strings.HasSuffix(host, ":") {
		host = strings.TrimSuffix(host, ":"+port)
	}
	if scheme != "http" && scheme != "https" || !hostRE.MatchString(host) || port != "" && !portsRE.MatchString(port) {
		return bad()
	}
	if port != "" && port != map[string]string{"http": "80", "https": "443"}[scheme] {
		host += ":" + port
	}
	return scheme + "://" + host, nil
}
