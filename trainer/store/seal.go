package store

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"os"
	"regexp"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/trust"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// EnvKey is the environment variable of a person's key for runs: a secret of at least 16 bytes, or
// file:/path of a file that holds one. Where it is set, every record that is written (run.json,
// statuses, the log with its manifests) has a seal, HMAC-SHA256 by the key over the record, the
// name and the id of its run and its place in it, and every one that is read must have the right
// one. Files of checkpoints are then summed by SHA-256. A seal does not say that a record is the
// newest: who may write to the storage can remove records, and bring an earlier status back.
const EnvKey = wire.EnvKey

const (
	leastKey = 16      // bytes
	mostKey  = 4 << 10 // bytes
)

// keyOf is the person's key; nil: there is none. Errors never hold it.
func keyOf() ([]byte, error) {
	bad := func(format string, args ...any) ([]byte, error) {
		return nil, fault.New(fault.Invalid, EnvKey+" "+format, args...)
	}
	v, set := os.LookupEnv(EnvKey)
	if !set {
		return nil, nil
	}
	key := []byte(v)
	if name, ok := strings.CutPrefix(v, "file:"); ok {
		if err := trust.File(name); err != nil {
			return nil, fault.New(fault.CodeOf(err), "%s names a file that is not taken: %w", EnvKey, err)
		}
		f, err := os.Open(name)
		if err != nil {
			return nil, fault.New(fault.CodeOf(err), "%s: %w", EnvKey, err)
		}
		defer f.Close() // read only
		if key, err = io.ReadAll(io.LimitReader(f, mostKey+2)); err != nil {
			return nil, fault.New(fault.CodeOf(err), "%s: %w", EnvKey, err)
		}
		key = bytes.TrimRight(key, "\r\n")
	}
	switch {
	case len(key) < leastKey:
		return bad("is set, and holds %d bytes: a key has at least %d, such as what `head -c 32 /dev/urandom | base64` gives; or unset it", len(key), leastKey)
	case len(key) > mostKey:
		return bad("holds more than %d bytes", mostKey)
	}
	return key, nil
}

// sealRE is how a record with a seal begins, as encode writes it.
var sealRE = regexp.MustCompile(`^\{\n "version": [0-9]+,\n "kind": "[a-z]+",(\n "seal": "([0-9a-f]{64})",)`)

// sealOf is the seal of a record at rel, as its digits: data is the record without it.
func (r *Run) sealOf(rel string, data ...[]byte) string {
	h := hmac.New(sha256.New, r.key)
	id := r.rec.ID
	if rel == runFile { // which says it
		id = ""
	}
	for _, s := range []string{"penstock record", r.rec.Name, id, rel} { // none has a zero byte
		h.Write(append([]byte(s), 0))
	}
	for _, d := range data {
		h.Write(d)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// checkSeal is a Corrupt error for a record at rel that the person's key has not sealed.
func (r *Run) checkSeal(rel string, data []byte) error {
	if r.key == nil {
		return nil
	}
	const advice = "do not go on from it unless you know who wrote it; to look at it unchecked, unset " + EnvKey
	at := sealRE.FindSubmatchIndex(data)
	if at == nil {
		return fault.New(fault.Corrupt, "it has no seal, and "+EnvKey+" is set: it was written without a key, or by somebody else: "+advice)
	}
	if !hmac.Equal(data[at[4]:at[5]], []byte(r.sealOf(rel, data[:at[2]], data[at[3]:]))) {
		return fault.New(fault.Corrupt, "its seal is not that of the key in "+EnvKey+": it was altered, moved here from elsewhere, or sealed by another key: "+advice)
	}
	return nil
}

// Verified reports that the run's record was sealed by the key in EnvKey, as all records are that
// are read from now on: who wrote them had the key.
func (r *Run) Verified() bool { return r.key != nil }

// mayWrite refuses to mix records without a seal among others that have one.
func (r *Run) mayWrite() error {
	if r.sealed && r.key == nil {
		return fault.New(fault.Denied, "the records of run %q are sealed by a key: set %s to go on with it, or begin a new run from its checkpoint", r.rec.Name, EnvKey).At(r.place(runFile))
	}
	return nil
}
