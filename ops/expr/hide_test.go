package expr_test

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/mask"
	"github.com/penstock-data/penstock/ops/expr"
)

// What is computed of a secret when an expression is planned is as secret, also of a column that
// another expression puts there.
func TestConstantsOfSecrets(t *testing.T) {
	var secrets mask.Set
	secrets.Add("hunter2-ü", "31337")
	expr.Hide(&secrets)
	defer expr.Hide(nil)
	s := arrow.NewSchema([]arrow.Field{{Name: "b", Type: arrow.BinaryTypes.String}}, nil)
	for text, leak := range map[string]string{
		`upper("hunter2-ü") == b`:                  "HUNTER2",
		`contains(b, substr("hunter2-ü", 1, 6))`:   "unter2",
		`b == "x" + replace("hunter2-ü", "2", "")`: "hunter-",
		`size(b) > 31337 * 2`:                      "62674",
	} {
		e, err := expr.Parse(text)
		if err != nil {
			t.Fatal(err)
		}
		shown := e.Fold(s).String()
		if masked := secrets.Text(shown); !strings.Contains(shown, leak) || strings.Contains(masked, leak) {
			t.Errorf("%s is %s, and shows %s", text, shown, masked)
		}
	}
	// A column of a secret, in whose place that is put.
	k, err := expr.Parse(`"hunter2-ü"`)
	if err != nil {
		t.Fatal(err)
	}
	e, err := expr.Parse(`lower(replace(k, "hunter", "GATHERER")) == b`)
	if err != nil {
		t.Fatal(err)
	}
	shown := e.Substitute(map[string]*expr.Expr{"k": k}).Fold(s).String()
	if masked := secrets.Text(shown); !strings.Contains(shown, "gatherer") || strings.Contains(masked, "gatherer") {
		t.Errorf("%s shows %s", shown, masked)
	}
	// What has no secret in it is none.
	if e, err = expr.Parse(`upper("plain") == b`); err != nil {
		t.Fatal(err)
	}
	if shown := e.Fold(s).String(); secrets.Text(shown) != `"PLAIN" == b` {
		t.Errorf("%s", secrets.Text(shown))
	}
}

// An error of syntax shows no part of a secret whose characters have ended the text that it was
// meant for, and none of a long one that is cut before what is wrong.
func TestSyntaxErrorsOfSecrets(t *testing.T) {
	long := strings.Repeat("0123456789abcdefghij", 8)
	for _, secret := range []string{`myp@ss"w0rd-tail`, `open"sesame now`, "tab\tulated\"secret words", "quoted`sesame word", long, long + `"x`, `back\qslash-sesame`, "line\nsesame\"words"} {
		var secrets mask.Set
		secrets.Add(secret)
		for _, text := range []string{`b == "%" = 1`, `b == "%`, `b == %`, `b == '%' )`, `foo("%" bar`, `b.%`, `[1 "%"]`} {
			text = strings.Replace(text, "%", secret, 1)
			_, err := expr.Parse(text)
			if err == nil {
				continue
			}
			masked := secrets.Text(err.Error())
			for i := range len(secret) - 5 {
				if part := secret[i : i+6]; strings.Contains(masked, part) && !strings.Contains(part, "\n") {
					t.Errorf("%q shows %q: %s", text, part, masked)
					break
				}
			}
		}
	}
}
