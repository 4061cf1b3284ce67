package pki

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"fmt"
	"log/slog"
	"regexp"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
)

// Kind is what a token is for.
type Kind uint8

const (
	Join   Kind = iota // becoming a node, once
	Access             // what its scope says, until it ends
)

func (k Kind) String() string { return [...]string{"join", "access"}[k] }

// prefix begins the text of a token of this kind.
func (k Kind) prefix() string { return [...]string{"penstock-join", "penstock"}[k] }

// Token is what is given to a person, in one line: penstock-join.ID.SECRET.PIN or penstock.ID.SECRET.PIN. Every way of printing it leaves the secret out, but for Reveal and Bearer.
type Token struct {
	Kind   Kind
	ID     string          // not secret: what listings show
	Pin    Pin             // of the cluster's authority
	secret func() [32]byte // not the bytes: fmt finds its way to those in fields whose methods it may not call, even behind a pointer
}

var tokenID = regexp.MustCompile(`^[a-z0-9]{1,32}$`)

var text = base64.RawURLEncoding.Strict()

// NewToken makes a token with a secret of 256 random bits. Its id has lower case letters and digits, at most 32.
func NewToken(k Kind, id string, pin Pin) (Token, error) {
	if !tokenID.MatchString(id) {
		return Token{}, fault.New(fault.Invalid, "%q is no id of a token", id)
	}
	var b [32]byte
	rand.Read(b[:])
	return Token{Kind: k, ID: id, Pin: pin, secret: func() [32]byte { return b }}, nil
}

// maxToken is the most bytes of a text that could be a token.
const maxToken = 256

// ParseToken reads what Reveal wrote, with space around it or without. Errors say what is wrong with it, and show nothing of it.
func ParseToken(s string) (Token, error) {
	bad := func(why string) (Token, error) {
		return Token{}, fault.New(fault.Invalid, "the token %s; tokens look like penstock-join.ID.SECRET.PIN or penstock.ID.SECRET.PIN", why)
	}
	s = strings.TrimSpace(s)
	switch {
	case s == "":
		return bad("is empty")
	case len(s) > maxToken:
		return bad(fmt.Sprintf("has %d bytes", len(s)))
	}
	part := strings.Split(s, ".")
	var t Token
	var b [32]byte
	switch part[0] {
	case Join.prefix():
		t.Kind = Join
	case Access.prefix():
		t.Kind = Access
	default:
		return bad("begins with neither penstock-join. nor penstock.")
	}
	if len(part) != 4 {
		return bad(fmt.Sprintf("has %d parts instead of 4 (was all of it copied?)", len(part)))
	}
	if !tokenID.MatchString(part[1]) {
		return bad("has an id that is not lower case letters and digits")
	}
	t.ID = part[1]
	if !decode(&b, part[2]) {
		return bad(fmt.Sprintf("has a secret of %d characters that is not 43 of base64url (was all of it copied?)", len(part[2])))
	}
	if !decode((*[32]byte)(&t.Pin), part[3]) {
		return bad(fmt.Sprintf("has a pin of %d characters that is not 43 of base64url (was all of it copied?)", len(part[3])))
	}
	t.secret = func() [32]byte { return b }
	return t, nil
}

// decode reads 32 bytes, in the one way in which they are written.
func decode(to *[32]byte, s string) bool {
	if len(s) != text.EncodedLen(len(to)) || strings.ContainsAny(s, "\r\n") { // the decoder would skip line ends
		return false
	}
	n, err := text.Decode(to[:], []byte(s))
	return err == nil && n == len(to)
}

// IsZero says that it was made by neither NewToken nor ParseToken; it has no secret, and must not be asked for one.
func (t Token) IsZero() bool { return t.secret == nil }

// Reveal is the token in full: shown once, to whoever asked for it.
func (t Token) Reveal() string {
	return t.Kind.prefix() + "." + t.Bearer() + "." + t.Pin.String()
}

// MarshalText and UnmarshalText write a pin as tokens do.
func (p Pin) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

func (p *Pin) UnmarshalText(b []byte) error {
	if !decode((*[32]byte)(p), string(b)) {
		return fault.New(fault.Invalid, "%.60q is no pin: 43 characters of base64url", b)
	}
	return nil
}

func (p Pin) String() string { return text.EncodeToString(p[:]) }

// Bearer is ID.SECRET: what is said to a head that was recognised by its pin.
func (t Token) Bearer() string { b := t.secret(); return t.ID + "." + text.EncodeToString(b[:]) }

// Hash is what is kept of the secret.
func (t Token) Hash() Hash { b := t.secret(); return sha256.Sum256(b[:]) }

// Hash is the SHA-256 of a secret.
type Hash [sha256.Size]byte

// ParseBearer reads what Bearer wrote: the id, and the hash of the secret.
func ParseBearer(s string) (id string, h Hash, err error) {
	id, secret, _ := strings.Cut(s, ".")
	var b [32]byte
	if len(s) > maxToken || !tokenID.MatchString(id) || !decode(&b, secret) {
		return "", Hash{}, fault.New(fault.Denied, "the token is not of the form ID.SECRET")
	}
	return id, sha256.Sum256(b[:]), nil
}

// Equal compares in constant time.
func (h Hash) Equal(other Hash) bool { return subtle.ConstantTimeCompare(h[:], other[:]) == 1 }

// String shows the kind and the id.
func (t Token) String() string { return t.Kind.prefix() + "." + t.ID + ".(secret)" }

// Format is String for every verb.
func (t Token) Format(f fmt.State, _ rune) { fmt.Fprint(f, t.String()) }

// LogValue is String.
func (t Token) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText is String: a token is not written by accident.
func (t Token) MarshalText() ([]byte, error) { return []byte(t.String()), nil }
