package pki

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// issuedMember is a certificate of a process, as its node assembles it that believes pin.
func issuedMember(ca *CA, member int, pin Pin) (*tls.Certificate, error) {
	key := must(NewKey())
	return Assemble(must(ca.IssueMember(must(NewCSR(key)), "j1", 1, member)), key, pin, Member)
}

// From one authority to another: who believes whom, before, between and after.
func TestRotation(t *testing.T) {
	ca := newCA(t, "c1")
	a := ca.Pin()
	secret := must(ca.Secret("x"))
	oldNode, oldHead := NewHolder(newNode(t, ca, "n7", 1), nil), NewHolder(must(ca.IssueHead("h")), nil)
	oldMember := NewHolder(must(issuedMember(ca, 0, a)), nil)
	server := ServerTLS(oldHead, ca) // made once: it follows
	wants(t, ca.Finish(), fault.Invalid, "is not being replaced")

	if err := ca.Rotate(); err != nil {
		t.Fatal(err)
	}
	b := ca.Pin()
	if a == b || !slices.Equal(ca.Pins(), []Pin{b, a}) || !Replaces(ca.Certificate(), a) || Replaces(ca.Certificate(), b) {
		t.Fatalf("%v after %v", ca.Pins(), a)
	}
	wants(t, ca.Rotate(), fault.Exists, "replaced already", "penstock ca finish")
	oldHead.Set(must(ca.IssueHead("h")))
	key := must(NewKey())
	chain := must(ca.IssueNode(must(NewCSR(key)), "n7", 1))
	node := NewHolder(must(Assemble(chain, key, a, Node)), nil) // it believed the one before
	if node.Issuer() != b || !slices.Equal(node.Believed(), []Pin{b, a}) {
		t.Errorf("it is of %v and believes %v", node.Issuer(), node.Believed())
	}
	dir := t.TempDir()
	os.Chmod(dir, 0o700)
	if err := Save(filepath.Join(dir, "x"), node.Certificate()); err != nil {
		t.Fatal(err)
	}
	if got := must(Load(filepath.Join(dir, "x"), Node)); !slices.Equal(Believed(got), []Pin{b, a}) {
		t.Error("what was saved is another")
	}
	member := NewHolder(must(issuedMember(ca, 1, a)), nil)
	for what, c := range map[string]*tls.Config{
		"a token of before": ClientTLS(nil, func() Pin { return a }, nil), "a new token": ClientTLS(nil, func() Pin { return b }, nil),
		"a node of before": ClientTLS(oldNode, oldNode.Issuer, nil), "a node": ClientTLS(node, node.Issuer, nil),
	} {
		if _, s, c := handshake(server, c); s != nil || c != nil {
			t.Errorf("%s: server %v, client %v", what, s, c)
		}
	}
	for _, pair := range [][2]*Holder{{oldMember, member}, {member, oldMember}} {
		if _, s, c := handshake(must(MemberTLS(pair[0], -1)), must(MemberTLS(pair[1], -1))); s != nil || c != nil {
			t.Errorf("processes: %v, %v", s, c)
		}
	}

	between := oldHead.Certificate()
	if err := ca.Finish(); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(ca.Pins(), []Pin{b}) || !bytes.Equal(secret, must(ca.Secret("x"))) {
		t.Error("another authority, or another secret")
	}
	oldHead.Set(must(ca.IssueHead("h")))
	_, _, err := handshake(server, ClientTLS(nil, func() Pin { return a }, nil))
	wants(t, err, fault.Denied, "replaced its authority", "penstock token create", "joins again")
	if !errors.Is(err, ErrReplaced) || errors.Is(err, ErrPin) {
		t.Errorf("not ErrReplaced: %v", err)
	}
	_, _, err = handshake(server, ClientTLS(nil, func() Pin { return Pin{1} }, nil))
	if !errors.Is(err, ErrPin) {
		t.Errorf("not ErrPin: %v", err)
	}
	if _, s, _ := handshake(server, ClientTLS(oldNode, func() Pin { return b }, nil)); s == nil {
		t.Error("a certificate of before is believed")
	}
	if _, ok := ca.IssuerOf(oldNode.Certificate().Leaf); ok {
		t.Error("it has an issuer that is believed")
	}
	if _, s, c := handshake(server, ClientTLS(node, node.Issuer, nil)); s != nil || c != nil {
		t.Errorf("a node: %v, %v", s, c)
	}
	last := NewHolder(must(issuedMember(ca, 2, b)), nil) // it believes the new one only
	if _, s, c := handshake(must(MemberTLS(last, -1)), must(MemberTLS(oldMember, -1))); s == nil && c == nil {
		t.Error("a process of before is believed")
	}
	if _, s, c := handshake(must(MemberTLS(last, -1)), must(MemberTLS(member, -1))); s != nil || c != nil {
		t.Errorf("processes: %v, %v", s, c)
	}
	// Whoever had the certificate of the head between has its key only, which is good for a day.
	if _, _, c := handshake(&tls.Config{Certificates: []tls.Certificate{*between}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}, ClientTLS(nil, func() Pin { return b }, nil)); c != nil {
		t.Error(c)
	}
	// And once more: it names both of before.
	if err := ca.Rotate(); err != nil || !Replaces(ca.Certificate(), a) || !Replaces(ca.Certificate(), b) {
		t.Errorf("%v, %v", err, ca.Certificate().URIs)
	}
	for range 2 * mostBefore {
		if err := errors.Join(ca.Finish(), ca.Rotate()); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(ca.Certificate().URIs); n != mostBefore {
		t.Errorf("%d of before are named", n)
	}
}

// Somebody with an authority of his own, who knows all certificates: nothing that he shows is
// believed.
func TestForgedRotation(t *testing.T) {
	ca, evil := newCA(t, "c1"), newCA(t, "c1")
	a := ca.Pin()
	if err := errors.Join(ca.Rotate(), evil.Rotate()); err != nil {
		t.Fatal(err)
	}
	good, bad := ca.is.Load(), evil.is.Load()
	key := must(NewKey())
	leaf := must(evil.IssueNode(must(NewCSR(key)), "n7", 1))[0]
	for what, chain := range map[string][][]byte{
		"his own":                          {leaf, bad.cert.Raw},
		"all his own":                      {leaf, bad.cert.Raw, bad.cross.Raw, bad.old.Raw},
		"ours before it":                   {leaf, bad.cert.Raw, bad.cross.Raw, good.old.Raw},
		"our cross certificate":            {leaf, bad.cert.Raw, good.cross.Raw, good.old.Raw},
		"ours crossed":                     {leaf, good.cert.Raw, good.cross.Raw, good.old.Raw},
		"a cross certificate that is none": {leaf, bad.cert.Raw, good.old.Raw, good.old.Raw},
		"ours as the cross certificate":    {leaf, bad.cert.Raw, bad.cert.Raw, good.old.Raw},
		"three":                            {leaf, bad.cert.Raw, good.old.Raw},
		"one":                              {leaf},
		"nothing":                          {},
		"a node's certificate signs":       {leaf, newNode(t, ca, "n9", 1).Certificate[0], good.cross.Raw, good.old.Raw},
	} {
		for _, pin := range []Pin{a, ca.Pin()} {
			if _, err := Assemble(chain, key, pin, Node); err == nil {
				t.Errorf("%s: it is believed", what)
			}
		}
	}
	// As head, with every certificate there is in tow.
	own := must(evil.IssueHead("h"))
	own.Certificate = append(own.Certificate[:1:1], bad.cert.Raw, bad.cross.Raw, bad.old.Raw, good.cert.Raw, good.cross.Raw, good.old.Raw)
	for _, pin := range []Pin{a, ca.Pin()} {
		_, _, err := handshake(&tls.Config{Certificates: []tls.Certificate{*own}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}, ClientTLS(nil, func() Pin { return pin }, nil))
		wants(t, err, fault.Denied, "not good")
	}
	// As node, and as process.
	his := must(Assemble(must(evil.IssueNode(must(NewCSR(key)), "n7", 1)), key, evil.Pin(), Node))
	his.Certificate = append(his.Certificate[:1:1], own.Certificate[1:]...)
	if _, s, _ := handshake(ServerTLS(NewHolder(must(ca.IssueHead("h")), nil), ca), ClientTLS(NewHolder(his, nil), ca.Pin, nil)); s == nil {
		t.Error("his node is believed")
	}
	process := must(issuedMember(evil, 0, evil.Pin()))
	config := must(MemberTLS(NewHolder(process, nil), -1))
	config.VerifyConnection = nil // he believes all
	process.Certificate = append(process.Certificate[:1:1], own.Certificate[1:]...)
	for _, h := range []*Holder{NewHolder(must(issuedMember(ca, 1, a)), nil)} {
		if _, s, _ := handshake(must(MemberTLS(h, -1)), config); s == nil {
			t.Error("his process is believed")
		}
		if _, _, c := handshake(config, must(MemberTLS(h, -1))); c == nil {
			t.Error("his process is believed by who dials it")
		}
	}
	// A certificate that says that it came after ours is worth nothing but words.
	x := must(ca.make(good))
	x.key = bad.key
	if _, _, err := handshake(&tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{leaf, x.cert.Raw}, PrivateKey: key}}, MinVersion: tls.VersionTLS13, NextProtos: []string{"h2"}}, ClientTLS(nil, ca.Pin, nil)); !errors.Is(err, ErrReplaced) {
		t.Errorf("%v", err)
	}
}

var errKilled = errors.New("killed")

// A head that is killed at any point of Rotate and Destroy leaves a folder with the one or the
// other, and no key of one that is none when the next head has begun.
func TestRotationIsKilled(t *testing.T) {
	for point := 0; ; point++ {
		dir := filepath.Join(t.TempDir(), "ca")
		ca := must(OpenCA(dir, "c1", nil))
		a := ca.Pin()
		kept := filepath.Join(filepath.Dir(dir), "disk") // what the disk has of the first key
		if err := os.Link(ca.path(), kept); err != nil {
			t.Fatal(err)
		}
		os.WriteFile(filepath.Join(dir, unfinished+"x"), []byte("a key"), 0o600) // of an earlier one
		left := point
		ca.step = func(string) error {
			if left--; left < 0 {
				return errKilled
			}
			return nil
		}
		err := ca.Rotate()
		if err == nil {
			err = ca.Destroy()
		}
		if err != nil && !errors.Is(err, errKilled) {
			t.Fatalf("point %d: %v", point, err)
		}
		done := err == nil
		next := must(LoadCA(dir, "c1", a, nil)) // the record is of before, in any case
		if err := next.Destroy(); err != nil {
			t.Fatalf("point %d: %v", point, err)
		}
		if list := must(os.ReadDir(dir)); len(list) != 1 {
			t.Errorf("point %d: left in the folder: %v", point, list)
		}
		disk := must(os.ReadFile(kept))
		if replaced := next.Pin() != a; replaced != (len(bytes.Trim(disk, "\x00")) == 0) {
			t.Errorf("point %d: replaced %v, and the disk has %.40q", point, replaced, disk)
		}
		if next.Pin() == a { // as if nothing had been
			if err := next.Rotate(); err != nil {
				t.Errorf("point %d: %v", point, err)
			}
		}
		if len(next.Pins()) != 2 || next.Pins()[1] != a {
			t.Errorf("point %d: %v", point, next.Pins())
		}
		finishKilled(t, next)
		if done {
			if point < 4 {
				t.Errorf("it was killed at %d points only", point)
			}
			return
		}
	}
}

// finishKilled is the same for Finish.
func finishKilled(t *testing.T, ca *CA) {
	for point := 0; ; point++ {
		left := point
		ca.step = func(string) error {
			if left--; left < 0 {
				return errKilled
			}
			return nil
		}
		b, err := ca.Pin(), ca.Finish()
		next := must(LoadCA(ca.dir, "c1", b, nil))
		if next.Pin() != b || len(next.Pins()) == 2 && err == nil {
			t.Errorf("point %d: %v", point, next.Pins())
		}
		if len(next.Pins()) == 1 {
			return
		}
		ca = next
	}
}

func TestRotationIsRefused(t *testing.T) {
	ca := newCA(t, "c1")
	a := ca.Pin()
	if err := errors.Join(ca.Rotate(), ca.Destroy()); err != nil {
		t.Fatal(err)
	}
	whole := must(os.ReadFile(ca.path()))
	// The records are of a cluster that has another, or are newer than the folder.
	_, err := LoadCA(ca.dir, "c1", newCA(t, "c1").Pin(), nil)
	wants(t, err, fault.Invalid, "not the one that cluster c1 has")
	for _, pin := range []Pin{a, ca.Pin()} {
		must(LoadCA(ca.dir, "c1", pin, nil))
	}
	other := newCA(t, "c1")
	if err := other.Rotate(); err != nil {
		t.Fatal(err)
	}
	is, his := ca.is.Load(), other.is.Load()
	for what, f := range map[string]*authority{
		"another's before":      {cert: is.cert, key: is.key, cross: is.cross, old: his.old, secret: is.secret},
		"another's cross":       {cert: is.cert, key: is.key, cross: his.cross, old: is.old, secret: is.secret},
		"no secret":             {cert: is.cert, key: is.key, cross: is.cross, old: is.old},
		"a short secret":        {cert: is.cert, key: is.key, secret: is.secret[:8]},
		"another's key":         {cert: is.cert, key: his.key, cross: is.cross, old: is.old, secret: is.secret},
		"a cross that is alone": {cert: is.cross, key: is.key, secret: is.secret},
	} {
		os.WriteFile(ca.path(), must(f.marshal()), 0o600)
		_, err := OpenCA(ca.dir, "c1", nil)
		wants(t, err, fault.Corrupt, "damaged")
		_ = what
	}
	for n := 0; n < len(whole)-30; n += 101 {
		os.WriteFile(ca.path(), whole[:n], 0o600)
		_, err := OpenCA(ca.dir, "c1", nil)
		wants(t, err, fault.Corrupt)
	}
	// A node's file has no secret.
	os.WriteFile(ca.path(), whole, 0o600)
	_, err = Load(ca.path(), Node)
	wants(t, err, fault.Corrupt, "another file")
	// What is no file of ours is not written to.
	victim := filepath.Join(t.TempDir(), "victim")
	os.WriteFile(victim, []byte("kept"), 0o600)
	if err := os.Symlink(victim, ca.gone()); err != nil {
		t.Fatal(err)
	}
	if err := ca.Destroy(); err != nil || string(must(os.ReadFile(victim))) != "kept" {
		t.Errorf("%v", err)
	}
}

// An authority that has ended is replaced too: who believes it only cannot follow.
func TestRotationOfAnEndedOne(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ca")
	past := func() time.Time { return time.Now().Add(-lifetimeCA - time.Hour) }
	a := must(OpenCA(dir, "c1", past)).Pin()
	ca := must(LoadCA(dir, "c1", a, nil))
	_, err := ca.IssueHead("h")
	wants(t, err, fault.Invalid, "penstock ca rotate")
	if err := ca.Rotate(); err != nil {
		t.Fatal(err)
	}
	ca = must(LoadCA(dir, "c1", a, nil))
	server := ServerTLS(NewHolder(must(ca.IssueHead("h")), nil), ca)
	if _, s, c := handshake(server, ClientTLS(nil, ca.Pin, nil)); s != nil || c != nil {
		t.Errorf("%v, %v", s, c)
	}
	if _, _, c := handshake(server, ClientTLS(nil, func() Pin { return a }, nil)); c == nil {
		t.Error("one that has ended is believed")
	}
}

func TestReplacesReads(t *testing.T) {
	ca := newCA(t, "c1")
	for _, c := range []*x509.Certificate{newNode(t, ca, "n7", 1).Leaf, must(ca.IssueHead("h")).Leaf, ca.Certificate()} {
		if Replaces(c, ca.Pin()) || Replaces(c, Pin{}) {
			t.Errorf("%v comes after something", c.URIs)
		}
	}
	if err := ca.Rotate(); err != nil {
		t.Fatal(err)
	}
	if u := ca.Certificate().URIs[0].String(); !strings.HasPrefix(u, "penstock://c1/after/") {
		t.Error(u)
	}
	if _, err := IdentityOf(ca.Certificate()); err == nil {
		t.Error("an authority is somebody")
	}
}
