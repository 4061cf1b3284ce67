package pki

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

func TestTokens(t *testing.T) {
	pin := Pin{1, 2, 3}
	for _, k := range []Kind{Join, Access} {
		a, b := must(NewToken(k, "t1", pin)), must(NewToken(k, "t1", pin))
		if a.Hash().Equal(b.Hash()) {
			t.Fatal("two secrets are one")
		}
		got := must(ParseToken("\n " + a.Reveal() + "\r\n"))
		if got.Kind != k || got.ID != "t1" || got.Pin != pin || !got.Hash().Equal(a.Hash()) || got.Reveal() != a.Reveal() {
			t.Errorf("%s was read as %s", a.Reveal(), got.Reveal())
		}
		id, h, err := ParseBearer(a.Bearer())
		if err != nil || id != "t1" || !h.Equal(a.Hash()) {
			t.Error(id, h, err)
		}
	}
	for _, id := range []string{"", "T1", "t.1", "t 1", strings.Repeat("t", 33)} {
		if _, err := NewToken(Join, id, pin); err == nil {
			t.Errorf("id %q is taken", id)
		}
	}
}

// No way of printing a token shows its secret, nor its bytes.
func TestTokensAreNotPrinted(t *testing.T) {
	tok := must(NewToken(Access, "t1", Pin{}))
	secret := strings.Split(tok.Reveal(), ".")[2]
	var log bytes.Buffer
	for _, h := range []slog.Handler{slog.NewTextHandler(&log, nil), slog.NewJSONHandler(&log, nil)} {
		slog.New(h).Info("x", "token", tok, "pointer", &tok, "in", struct{ T Token }{tok}, "list", []Token{tok})
	}
	type hidden struct{ t Token }
	type hiddenPtr struct{ t *Token }
	for _, v := range []any{tok, &tok, []Token{tok}, map[string]Token{"a": tok}, struct{ T Token }{tok}, hidden{tok}, hiddenPtr{&tok}, &hidden{tok}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%X", "%d", "%b"} {
			fmt.Fprintf(&log, verb+"\n", v)
		}
		j, _ := json.Marshal(v)
		log.Write(j)
	}
	fmt.Fprintln(&log, fault.New(fault.Denied, "token %v: %w", tok, fmt.Errorf("%s", tok)))
	out := log.String()
	raw := fmt.Sprintf("%d", tok.secret())
	for what, s := range map[string]string{"text": secret, "bytes": strings.Trim(raw, "[]"), "hex": fmt.Sprintf("%x", tok.secret()), "HEX": fmt.Sprintf("%X", tok.secret()), "Go": strings.Trim(fmt.Sprintf("%#v", tok.secret())[10:], "{}")} {
		if strings.Contains(out, s) {
			t.Errorf("the secret was printed as %s", what)
		}
	}
	if !strings.Contains(out, "penstock.t1.(secret)") {
		t.Error("the id was not printed")
	}
}

func TestTokenErrors(t *testing.T) {
	tok := must(NewToken(Join, "t1", Pin{7})).Reveal()
	part := strings.Split(tok, ".")
	join := func(p ...string) string { return strings.Join(p, ".") }
	for s, text := range map[string]string{
		"": "is empty", " \n": "is empty", "hello": "begins with neither", tok[:60]: "has 3 parts instead of 4", tok + ".x": "has 5 parts", tok[:len(tok)-1]: "pin of 42 characters",
		join(part[0], "T1", part[2], part[3]): "an id that is not", join(part[0], "t1", part[2][1:], part[3]): "a secret of 42 characters", join(part[0], "t1", part[2]+"=", part[3]): "a secret of 44",
		join(part[0], "t1", part[2][:42]+"+", part[3]): "a secret of 43", join(part[0], "t1", part[2][:20]+"\n"+part[2][21:], part[3]): "a secret of 43",
		join("Penstock", "t1", part[2], part[3]): "begins with neither", strings.Repeat("a", 300): "has 300 bytes", join(part[0], "", part[2], part[3]): "an id",
	} {
		_, err := ParseToken(s)
		wants(t, err, fault.Invalid, text)
		if err != nil && len(part[2]) > 8 && strings.Contains(err.Error(), part[2][5:15]) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
	// The last character has two bits that no byte uses: other texts are not the same token.
	alphabet := "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
	n := 0
	for _, c := range alphabet {
		if _, err := ParseToken(join(part[0], "t1", part[2][:42]+string(c), part[3])); err == nil {
			n++
		}
	}
	if n != 16 {
		t.Errorf("%d last characters are taken, want 16", n)
	}
	for _, s := range []string{"", ".", "t1", "t1.", part[2], "t1." + part[2] + ".x", "T1." + part[2], "t1." + strings.Repeat("A", 300), " t1." + part[2]} {
		_, _, err := ParseBearer(s)
		wants(t, err, fault.Denied)
		if strings.Contains(err.Error(), part[2][:10]) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}

func FuzzParseToken(f *testing.F) {
	for _, k := range []Kind{Join, Access} {
		s := must(NewToken(k, "t1", Pin{1})).Reveal()
		f.Add(s)
		f.Add(s[:70])
	}
	f.Add("penstock.a.b.c")
	f.Fuzz(func(t *testing.T, s string) {
		tok, err := ParseToken(s)
		id, h, berr := ParseBearer(s)
		if berr == nil && (id == "" || h == Hash{}) {
			t.Error("a bearer without id or secret")
		}
		if err != nil {
			if p := strings.Split(s, "."); len(p) > 2 && len(p[2]) >= 20 && !strings.Contains("the token begins with neither has parts instead of was all of it copied an id that is not lower case letters and digits tokens look like penstock-join.ID.SECRET.PIN or", p[2]) && strings.Contains(err.Error(), p[2]) {
				t.Errorf("the error shows the secret: %v", err)
			}
			if !tok.IsZero() || tok.ID != "" {
				t.Error("half a token")
			}
			return
		}
		if tok.Reveal() != strings.TrimSpace(s) {
			t.Errorf("%q is written as %q", s, tok.Reveal())
		}
		if id, h, err := ParseBearer(tok.Bearer()); err != nil || id != tok.ID || h != tok.Hash() {
			t.Error("the bearer is not the token's")
		}
		if strings.Contains(fmt.Sprintf("%v %#v", tok, tok), strings.Split(tok.Bearer(), ".")[1]) {
			t.Error("printed")
		}
	})
}
