package mask

import (
	"encoding/json"
	"fmt"
	"net/url"
	"strings"
	"testing"
)

// A secret is masked however a text of this program writes it, and wherever it is cut between two
// writes.
func TestSet(t *testing.T) {
	secret := "p\"ss\\w<rd/ü +x"
	var s Set
	s.Add(secret, "abc")
	quoted, err := json.Marshal(map[string]string{"k": secret})
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{secret, string(quoted), asBytes(secret), fmt.Sprintf("%q", secret), asJSON(fmt.Sprintf("%q", secret), true), "s3://b/" + url.PathEscape(secret) + "?x=" + url.QueryEscape(secret)} {
		if got := s.Text(text + " abc"); strings.Contains(got, "rd") || !strings.Contains(got, "***") || !strings.HasSuffix(got, " abc") {
			t.Errorf("%q is masked as %q", text, got)
		}
		for cut := range text {
			var b strings.Builder
			w := s.Writer(&b)
			for _, part := range []string{"x\n" + text[:cut], text[cut:], "\ny"} {
				if n, err := w.Write([]byte(part)); err != nil || n != len(part) {
					t.Fatal(n, err)
				}
			}
			if err := w.Flush(); err != nil || b.String() != "x\n"+s.Text(text)+"\ny" {
				t.Fatalf("%q cut at %d: %q, %v", text, cut, b.String(), err)
			}
		}
	}
}

// A line of a secret is masked as the whole is, in each form.
func TestLinesOfSecrets(t *testing.T) {
	line := "p\"ss\\w<rd/ü +x"
	var s Set
	s.Add("first line\n  " + line + "\r\nlast line\n")
	for _, form := range forms(line) {
		if got := s.Text("it is " + form + "."); got != "it is ***." {
			t.Errorf("%s: %s", form, got)
		}
	}
	if got := s.Text("first%20line last+line"); got != "*** ***" {
		t.Error(got)
	}
}

// What is written before there is a secret is written at once.
func TestWriterWithoutSecrets(t *testing.T) {
	var s Set
	var b strings.Builder
	w := s.Writer(&b)
	fmt.Fprint(w, "hidden? ")
	s.Add("hidden")
	fmt.Fprint(w, "hid")
	if b.String() != "hidden? " {
		t.Errorf("%q", b.String())
	}
	fmt.Fprint(w, "den\n")
	if b.String() != "hidden? ***\n" {
		t.Errorf("%q", b.String())
	}
}
