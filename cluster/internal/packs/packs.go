// Package packs moves the working directory of a job: packed into one file that depends on nothing but its content, kept by the hash of that file, unpacked again.
//
// A pack is a tar (POSIX, sorted names, no owners, no times, of modes only whether a file may be executed) in zstd. The same folder gives the same bytes, whoever packs it when and where, with the same
// version of this program. Regular files, folders and symbolic links that stay inside are packed; anything else is an error that names it. A file with several names is packed once per name.
//
// Whatever comes from outside is held to [Limits] before it takes memory or disk.
package packs

import (
	"cmp"
	"context"
	"encoding/hex"
	"io"

	"github.com/penstock-data/penstock/internal/fault"
)

// Hash is the SHA-256 of a pack's bytes, in lower case hexadecimal digits.
type Hash string

// ParseHash checks that s is one.
func ParseHash(s string) (Hash, error) {
	b, err := hex.DecodeString(s)
	if err != nil || len(b) != 32 || hex.EncodeToString(b) != s {
		return "", fault.New(fault.Invalid, "%.80q is no hash of a pack: 64 hexadecimal digits in lower case", s)
	}
	return Hash(s), nil
}

// Limits of a pack. Zero fields are those of [DefaultLimits].
type Limits struct {
	Packed   int64 // bytes of the pack
	Unpacked int64 // bytes of its files
	Files    int64 // files, folders and links
}

// DefaultLimits are 512 MiB packed, 4 GiB and 100,000 files unpacked.
var DefaultLimits = Limits{Packed: 512 << 20, Unpacked: 4 << 30, Files: 100_000}

const (
	maxPath  = 1024 // bytes of a path within a pack
	maxName  = 255  // of a part of it
	maxDepth = 64   // of its parts
)

func (l Limits) orDefault() Limits {
	d := DefaultLimits
	l.Packed = cmp.Or(l.Packed, d.Packed)
	l.Unpacked = cmp.Or(l.Unpacked, d.Unpacked)
	l.Files = cmp.Or(l.Files, d.Files)
	return l
}

// Info is what Create made.
type Info struct {
	Hash     Hash
	Packed   int64 // bytes
	Unpacked int64
	Files    int64 // files, folders and links
}

// Create packs the folder dir to w, without what its file .penstockignore names ([Ignore]). A file that changes while it is read is an error, as is one that cannot be read.
func Create(ctx context.Context, dir string, w io.Writer, l Limits) (Info, error) {
	return create(ctx, dir, w, l.orDefault())
}

// Unpack makes the new folder dir from a pack; nothing may be there yet. Files have mode 0644 or 0755, folders 0755, less the umask. Where it fails, nothing is left.
// The bytes of r are not trusted: nothing is written outside dir, and nothing beyond the limits. Whether they are those of a hash is for the caller to see ([Store.Unpack] does).
func Unpack(ctx context.Context, r io.Reader, dir string, l Limits) error {
	return unpack(ctx, r, dir, l.orDefault())
}
