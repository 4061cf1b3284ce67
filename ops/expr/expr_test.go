package expr

import (
	"fmt"

	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/cockroachdb/datadriven"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// TestGolden runs testdata: canonical texts, errors, predicates and folding.
func TestGolden(t *testing.T) {
	mem := memtest.New(t)
	rec := table(t, mem)
	defer rec.Release()
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			var out strings.Builder
			for _, text := range strings.Split(d.Input, "\n") {
				e, err := Parse(text)
				if err != nil {
					if d.Cmd != "error" {
						t.Errorf("%s: %v", text, err)
					}
					fmt.Fprintf(&out, "%s\n", err)
					if fault.CodeOf(err) != fault.Invalid {
						t.Errorf("%s: code %s", text, fault.CodeOf(err))
					}
					continue
				}
				switch d.Cmd {
				case "error":
					_, err := eval(t, rec, mem, text)
					if err == nil {
						t.Errorf("%s: no error", text)
					}
					if c := fault.CodeOf(err); c != fault.Invalid && c != fault.RowError {
						t.Errorf("%s: code %s", text, c)
					}
					fmt.Fprintf(&out, "%v\n", err)
				case "print":
					fmt.Fprintf(&out, "%s\n", e)
					if back := MustParse(e.String()); !sameNode(back.root, e.root) {
						t.Errorf("%s does not read back", e)
					}
				case "predicate":
					p := e.Predicate(tableSchema)
					fmt.Fprintf(&out, "%s", p)
					for _, term := range p {
						for _, v := range term.Values {
							fmt.Fprintf(&out, " %T", v)
						}
					}
					out.WriteByte('\n')
				case "fold":
					fmt.Fprintf(&out, "%s\n", e.Fold(tableSchema))
				case "mayfail":
					fmt.Fprintf(&out, "%t\n", e.MayFail(tableSchema))
				}
			}
			return out.String()
		})
	})
}

func TestTruthTables(t *testing.T) {
	mem := memtest.New(t)
	rec := table(t, mem) // ok is true, false, null
	defer rec.Release()
	for text, want := range map[string]string{
		"ok && true": "true, false, null", "ok && false": "false, false, false", "ok && null": "null, false, null",
		"true && ok": "true, false, null", "false && ok": "false, false, false", "null && ok": "null, false, null",
		"ok || true": "true, true, true", "ok || false": "true, false, null", "ok || null": "true, null, null",
		"true || ok": "true, true, true", "false || ok": "true, false, null", "null || ok": "true, null, null",
		"!ok": "false, true, null", "ok == ok": "true, true, null", "ok in [null]": "null, null, null",
		"null && null": "null, null, null", "null || null": "null, null, null", "!null": "null, null, null",
		"true && false": "false, false, false", "ok ? ok : !ok": "true, true, null",
		"ok in [true]": "true, false, null", "ok in [true, null]": "true, null, null", "ok in []": "false, false, null",
		"ok && ok && !ok": "false, false, null", "(null ? true : false) || ok": "true, false, null",
		"is_null(ok) || 1 / int(ok) > 0": "true, null, true",
	} {
		if got, err := eval(t, rec, mem, text); got != want+": bool" || err != nil {
			t.Errorf("%s: %s (%v), want %s", text, got, err, want)
		}
	}
}

func TestExprMethods(t *testing.T) {
	e := MustParse(`a > 1 && (b.c == "x" && col("d e") in [a, 2]) && random() < 0.5`)
	if got := strings.Join(e.Columns(), ","); got != "a,b,d e" {
		t.Errorf("columns %s", got)
	}
	if c := e.Conjuncts(); len(c) != 4 || c[2].String() != `col("d e") in [a, 2]` {
		t.Errorf("conjuncts %v", c)
	}
	if again := And(e.Conjuncts()...); !sameNode(again.root, e.root) {
		t.Errorf("joined again: %s", again)
	}
	if And().String() != "true" || And(e) != e {
		t.Error("And of none or one")
	}
	if !e.Random() || MustParse("a").Random() {
		t.Error("random")
	}
	if n, ok := Col("x y").IsCol(); n != "x y" || !ok {
		t.Error("IsCol of a column")
	}
	if _, ok := e.IsCol(); ok {
		t.Error("IsCol of more")
	}
	s := e.Substitute(map[string]*Expr{"a": MustParse("x && y"), "b": MustParse("b2[0]"), "zz": Col("q")})
	if want := `(x && y) > 1 && b2[0].c == "x" && col("d e") in [x && y, 2] && random() < 0.5`; s.String() != want {
		t.Errorf("substituted %s, want %s", s, want)
	}
	if e.Substitute(map[string]*Expr{"q": Col("r")}) != e {
		t.Error("substitution of nothing copies")
	}
	if c := Cast(Col("a"), arrow.PrimitiveTypes.Float32).String(); c != `cast(a, "float")` {
		t.Error(c)
	}
	// What repeated substitution makes too large is refused, not run.
	twice := MustParse("a + a")
	big := twice
	for range 40 {
		big = twice.Substitute(map[string]*Expr{"a": big})
	}
	if n, _ := big.Size(); n < maxSize {
		t.Errorf("size %d", n)
	}
	if _, err := big.Bind(tableSchema, 0); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("huge expression: %v", err)
	}
	if got := big.Columns(); len(got) != 1 {
		t.Errorf("columns %v", got)
	}
}

// Substitution may leave comparisons with null: their text reads back.
func TestDecode(t *testing.T) {
	e := MustParse("a == 1 && b != 2").Substitute(map[string]*Expr{"a": MustParse("null"), "b": MustParse("null")})
	back, err := Decode(e.String())
	if err != nil || !sameNode(back.root, e.root) {
		t.Errorf("%s: %v", e, err)
	}
	if _, err := Parse(e.String()); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("%s: error %v", e, err)
	}
}

// What is wrong with a pattern is said in a sentence of ours.
func TestPatternErrors(t *testing.T) {
	for pattern, want := range map[string]string{
		"(?=a)":                  `the pattern "(?=a)" is no regular expression, in the syntax of RE2: "(?=" is not there, as there is no looking ahead or behind`,
		"*a":                     `nothing stands before "*"; write \ before it`,
		"(a":                     `missing closing ) at "(a"`,
		"[z-a]":                  `invalid character class range at "z-a"`,
		"((a{999}){999}){999}":   "in the syntax of RE2",
		strings.Repeat("(a", 99): "...",
	} {
		_, err := MustParse(`matches(name, r"`+pattern+`")`).Bind(tableSchema, 0)
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "error parsing regexp") {
			t.Errorf("%s: %v", pattern, err)
		}
	}
}

func TestLimits(t *testing.T) {
	for name, text := range map[string]string{
		"long":     strings.Repeat("a", maxText+1),
		"parens":   strings.Repeat("(", 20000) + "a" + strings.Repeat(")", 20000),
		"brackets": strings.Repeat("[", 20000),
		"calls":    strings.Repeat("abs(", 10000) + "a" + strings.Repeat(")", 10000),
		"sum":      "a" + strings.Repeat("+a", 20000),
		"dots":     "a" + strings.Repeat(".b", 20000),
		"minus":    strings.Repeat("-(", 10000) + "a" + strings.Repeat(")", 10000),
		"ternary":  strings.Repeat("a?b:", 10000) + "c",
		"regex":    `matches(name, "` + strings.Repeat("a", maxRegex+1) + `")`,
		"repeat":   `matches(name, "((a{1000}){1000}){1000}")`,
		"utf8":     "a == \"\xff\"",
		"empty":    "  ",
	} {
		e, err := Parse(text)
		if err == nil {
			_, err = e.Bind(tableSchema, 0)
		}
		if fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%s: %v", name, err)
		} else if len(err.Error()) > 1000 {
			t.Errorf("%s: error of %d bytes", name, len(err.Error()))
		}
	}
	for _, text := range []string{"ok" + strings.Repeat(" && ok", 8000), "id" + strings.Repeat(" + id", 200), strings.Repeat("(", 200) + "id" + strings.Repeat(")", 200)} {
		e, err := Parse(text)
		if err == nil {
			_, err = e.Bind(tableSchema, 0)
		}
		if err != nil {
			t.Errorf("%.20s...: %v", text, err)
		}
	}
}
