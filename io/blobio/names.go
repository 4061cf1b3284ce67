package blobio

import (
	"net/url"
	"path"
	"path/filepath"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
)

// Names are the folders that a user's path stands for, whatever the working directory and the options of
// a URL, each with a '/' at its end: as it is written, and, if that is another, with the links of a local path
// followed as far as it exists. Two paths of which no name begins with a name of the other share no file, but
// by links further down.
func Names(p string) ([]string, error) {
	bucket, key, err := Split(p)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(bucket)
	if err != nil {
		return nil, fault.New(fault.Invalid, "bucket URL: %w", err)
	}
	if u.Scheme != "file" {
		return []string{strings.TrimSuffix(u.Scheme+"://"+u.Host+"/"+key, "/") + "/"}, nil
	}
	local := path.Join(u.Path, key)
	names := []string{strings.TrimSuffix(local, "/") + "/"}
	if real := strings.TrimSuffix(followed(local), "/") + "/"; real != names[0] {
		names = append(names, real)
	}
	return names, nil
}

// followed is an absolute path with its links followed, up to the first element that does not exist.
func followed(p string) string {
	rest := ""
	for d := p; ; d = path.Dir(d) {
		if real, err := filepath.EvalSymlinks(d); err == nil {
			return path.Join(real, rest)
		}
		if d == "/" || d == "." {
			return p
		}
		rest = path.Join(path.Base(d), rest)
	}
}
