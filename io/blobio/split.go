package blobio

import (
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
)

var (
	schemeRE = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*://`)
	queryRE  = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]*=[^&?]*(&[A-Za-z][A-Za-z0-9_.-]*=[^&?]*)*$`)
)

// Split cuts a user's path into the bucket's URL and the key (or key prefix, or
// glob) below it. No I/O.
//
//	/data/*.csv                  file:///                       data/*.csv
//	data/x.csv (in /home/me)     file:///home/me?relative=true  data/x.csv
//	../x.csv                     file:///home/me?relative=true  ../x.csv
//	file:///data/x%20y.csv       file:///                       data/x y.csv
//	s3://b/x/*.parquet?region=r  s3://b?region=r                x/*.parquet
//	mem://name/k                 mem://name                     k
//
// Local paths are cleaned (no '//', './' or inner '..'); a '/' at the end stays.
// Keys in bucket URLs are taken as they are, without percent decoding. As '?'
// also belongs to globs, only a last '?' with name=value pairs after it begins a
// query; a path that ends in '?' has an empty one, whatever came before.
func Split(p string) (bucketURL, key string, err error) {
	if strings.IndexByte(p, 0) >= 0 {
		return "", "", fault.New(fault.Invalid, "path %q holds a zero byte", p)
	}
	prefix := schemeRE.FindString(p)
	scheme, rest := strings.ToLower(strings.TrimSuffix(prefix, "://")), p[len(prefix):]
	switch scheme {
	case "":
		return splitLocal(p)
	case "file":
		rest = strings.TrimPrefix(rest, "localhost")
		if !strings.HasPrefix(rest, "/") {
			return "", "", fault.New(fault.Invalid, "file URL %q: write file:///path, with three slashes", p)
		}
		if rest, err = url.PathUnescape(rest); err != nil {
			return "", "", fault.New(fault.Invalid, "file URL %q: %w", p, err)
		}
		return splitLocal(rest)
	}
	rest, query := cutQuery(rest)
	bucket, key, _ := strings.Cut(rest, "/")
	if bucket == "" {
		return "", "", fault.New(fault.Invalid, "%q lacks the name of a bucket: write %s://bucket/key", p, scheme)
	}
	if i := strings.IndexFunc(bucket, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune(`?#@%:[]\&=`, r) }); i >= 0 {
		return "", "", fault.New(fault.Invalid, "%q: no bucket is called %q: names have letters, digits, and . - _", p, bucket)
	}
	bucketURL = scheme + "://" + bucket
	if query != "" {
		bucketURL += "?" + query
	}
	return bucketURL, key, nil
}

// Check reports what Split, or Open, would refuse of a user's path without I/O.
func Check(p string) error {
	bucketURL, _, err := Split(p)
	if err != nil {
		return err
	}
	scheme, _, _ := strings.Cut(bucketURL, "://")
	return fault.Wrap(checkScheme(scheme), fault.Place{File: p})
}

func splitLocal(p string) (bucketURL, key string, err error) {
	if p == "" {
		return "", "", fault.New(fault.Invalid, "the path is empty: use . for the working directory")
	}
	u := url.URL{Scheme: "file", Path: "/"}
	key = path.Clean(p)
	if path.IsAbs(key) {
		key = key[1:]
	} else {
		wd, err := os.Getwd()
		if err != nil {
			return "", "", fault.New(fault.Invalid, "relative path %q: %w", p, err)
		}
		u.Path, u.RawQuery = filepath.ToSlash(wd), "relative=true"
		if key == "." {
			key = ""
		}
	}
	if strings.HasSuffix(p, "/") && key != "" {
		key += "/"
	}
	return u.String(), key, nil
}

// cutQuery cuts a query off the end of s.
func cutQuery(s string) (rest, query string) {
	i := strings.LastIndexByte(s, '?')
	if i < 0 || i+1 < len(s) && !queryRE.MatchString(s[i+1:]) {
		return s, ""
	}
	return s[:i], s[i+1:]
}
