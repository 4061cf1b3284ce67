package expr

import (
	"fmt"
	"regexp"
	"strings"
	"unicode/utf8"

	"cel.dev/cel-go/common"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/parser"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
)

// Parse reads an expression. An Invalid error shows the text with a mark under
// the place.
func Parse(text string) (*Expr, error) { return parse(text, false) }

// Decode reads what String wrote: as Parse, but it takes == and != of null, which
// are a mistake where a person writes them and what is left where a column was substituted.
func Decode(text string) (*Expr, error) { return parse(text, true) }

func parse(text string, nulls bool) (*Expr, error) {
	switch {
	case len(text) > maxText:
		return nil, fault.New(fault.Invalid, "expression of %d bytes; at most %d", len(text), maxText)
	case !utf8.ValidString(text):
		return nil, fault.New(fault.Invalid, "expression is not valid UTF-8")
	case strings.TrimSpace(text) == "":
		return nil, fault.New(fault.Invalid, "expression is empty")
	}
	// The parser counts grammar rules, several for each level of the tree: its own
	// limit only guards the stack, convert has the exact one.
	p, err := parser.NewParser(parser.MaxRecursionDepth(4*maxDepth), parser.ExpressionSizeCodePointLimit(maxText),
		parser.ErrorRecoveryLimit(1), parser.ErrorReportingLimit(1))
	if err != nil {
		return nil, fault.New(fault.Internal, "expression parser: %w", err)
	}
	tree, errs := p.Parse(common.NewTextSource(text))
	if list := errs.GetErrors(); len(list) > 0 {
		e := list[0]
		if e.Location.Line() < 1 {
			return nil, fault.New(fault.Invalid, "expression: %s", unquoted(tidy(e.Message)))
		}
		line, col, msg := e.Location.Line(), e.Location.Column(), tidy(e.Message)
		said := explain(text, line, col, msg)
		if said == msg {
			said = unquoted(msg)
		}
		return nil, syntaxError(text, line, col, said)
	}
	c := &converter{text: text, info: tree.SourceInfo(), nulls: nulls}
	root := c.convert(tree.Expr(), 0)
	if c.err != nil {
		return nil, c.err
	}
	return &Expr{root}, nil
}

// MustParse is Parse for texts known to be right; it panics on others.
func MustParse(text string) *Expr {
	e, err := Parse(text)
	if err != nil {
		panic(err)
	}
	return e
}

// syntaxError shows one line of text with a mark under a column (from 0, in code points).
func syntaxError(text string, line, col int, msg string) error {
	lines := strings.Split(strings.ReplaceAll(text, "\r\n", "\n"), "\n")
	show := []rune(lines[min(line, len(lines))-1])
	col = min(max(col, 0), len(show))
	const before, after = 60, 40 // of a long line, only what is around the place
	end := min(len(show), col+after)
	head, tail := "", ""
	if end < len(show) {
		tail = "..."
	}
	start := max(0, col-before)
	if start > 0 {
		head = "..."
	}
	lead := strings.Map(func(r rune) rune { // under what is shown: as wide
		if r == '\t' {
			return r
		}
		return ' '
	}, string(show[start:col]))
	return fault.New(fault.Invalid, "expression: %s\n  %s%s%s\n  %s%s^", msg, head, string(show[start:end]), tail, strings.Repeat(" ", len(head)), lead)
}

var (
	reWord      = regexp.MustCompile(`^(?:mismatched|extraneous) input '(in|true|false|null)' expecting .*$`)
	reExpecting = regexp.MustCompile(`(?s)^(?:mismatched|extraneous) input (.*) expecting .*$`)
	reNoViable  = regexp.MustCompile(`(?s)^no viable alternative at input (.*)$`)
	reToken     = regexp.MustCompile(`(?s)^token recognition error at: '(.*?)\s*'$`)
	reMissing   = regexp.MustCompile(`(?s)^missing (.*) at (.*)$`)
	reQuoted    = regexp.MustCompile(`(?s)(unexpected|unexpected character|cannot read|at) '(.{4,})'$`)
)

// unquoted leaves out of a message what it quotes of the expression: a part of a text that is a
// secret only as a whole would be read there. The line below the message shows it, where that
// whole is masked.
func unquoted(msg string) string {
	m := reQuoted.FindStringSubmatch(msg)
	if m == nil {
		return msg
	}
	before := msg[:len(msg)-len(m[0])]
	switch {
	case m[1] == "at":
		return strings.TrimRight(before, " ") + " here"
	case m[1] == "unexpected character":
		return before + openText
	}
	return before + m[1] + " text here"
}

const openText = "text that does not end, or has a \\ with nothing to stand for"

// tidy says in plain words what the parser generator says in its own.
func tidy(msg string) string {
	msg = strings.ReplaceAll(strings.TrimPrefix(msg, "Syntax error: "), "'<EOF>'", "end of expression")
	for _, r := range []struct {
		re *regexp.Regexp
		to string
	}{{reWord, `unexpected '$1'; for a column of that name write col("$1")`}, {reExpecting, "unexpected $1"}, {reNoViable, "cannot read $1"}, {reToken, "unexpected character '$1'"}, {reMissing, "missing $1 at $2"}} {
		if r.re.MatchString(msg) {
			if msg = r.re.ReplaceAllString(msg, r.to); strings.HasPrefix(msg, `unexpected character '"`) || strings.HasPrefix(msg, `unexpected character ''`) {
				return openText
			}
			return msg
		}
	}
	switch msg {
	case "invalid int literal":
		return "the number is beyond int64: one of uint64 has a u behind it, as in 18446744073709551615u, and a double a point, as in 1.0e20"
	case "invalid uint literal":
		return "the number is beyond uint64: a double has a point, as in 1.0e20"
	case "invalid double literal":
		return "the number is beyond double, which ends at 1.7976931348623157e308"
	case "invalid unicode code point":
		return "the escape in the text is no character: \\u has 4 hexadecimal digits and \\U 8, outside d800 to dfff and at most 0010ffff"
	}
	if strings.HasPrefix(msg, "unable to unescape") {
		return "the text has a \\ with nothing to stand for: write \\\\ for a backslash"
	}
	if id, ok := strings.CutPrefix(msg, "reserved identifier: "); ok {
		return fmt.Sprintf("%s is a reserved word: write col(%q) for a column of that name", id, id)
	}
	return msg
}

var (
	reSQL  = regexp.MustCompile(`(?i)^(?:(and|or|like|between|in)\b|(is\s+not\s+null|is\s+null|not\s+in|not\s+like)\b|(<>|=|&|\|))`)
	reNot  = regexp.MustCompile(`(?i)(?:^|[^\pL\pN_."'])not\s*$`)
	useSQL = map[string]string{"and": "&&, as in a && b", "or": "||, as in a || b", "like": "contains(x, \"part\"), startsWith, endsWith or matches(x, \"pattern\")",
		"between": "x >= low && x <= high", "is null": "is_null(x)", "is not null": "is_not_null(x)", "not in": "!(x in [1, 2])", "in": "x in [1, 2], in lower case",
		"not like": "!contains(x, \"part\") or !matches(x, \"pattern\")", "<>": "!=", "=": "==", "&": "&&", "|": "||"}
)

// explain adds to the message of a syntax error how to write what looks like SQL there. line is from 1, col from 0.
func explain(text string, line, col int, msg string) string {
	lines := strings.Split(text, "\n")
	if line > len(lines) {
		return msg
	}
	l := []rune(lines[line-1])
	col = min(max(col, 0), len(l))
	before, after := string(l[:col]), string(l[col:])
	if strings.HasPrefix(after, ">") && strings.HasSuffix(before, "<") {
		return "unexpected '<>': use !="
	}
	if m := reSQL.FindString(after); m != "" && (strings.HasPrefix(msg, "unexpected '") || strings.HasPrefix(msg, "unexpected character")) {
		word := strings.Join(strings.Fields(strings.ToLower(m)), " ")
		if word == "in" && strings.HasPrefix(after, "in") {
			return msg // a column of that name
		}
		return fmt.Sprintf("unexpected '%s': use %s", m, useSQL[word])
	}
	if strings.HasPrefix(msg, "unexpected '") && reNot.MatchString(before) {
		return "unexpected 'not': use !x, as in !(a > 1)"
	}
	return msg
}

// elsewhere says how functions of other languages are called here.
var elsewhere = map[string]string{"len": "size(x)", "length": "size(x)", "char_length": "size(x)", "not": "!x, as in !(a > 1)", "and": "a && b", "or": "a || b",
	"ifnull": "coalesce(x, y)", "nvl": "coalesce(x, y)", "isnull": "is_null(x)", "isna": "is_null(x)", "notnull": "is_not_null(x)",
	"like": "contains(x, \"part\") or matches(x, \"pattern\")"}

type converter struct {
	text string
	info *ast.SourceInfo
	err  error

	nulls bool // null may be compared
}

// fail keeps the first error and returns a node that nobody will see.
func (c *converter) fail(e ast.Expr, format string, args ...any) *node {
	if c.err == nil {
		loc := c.info.GetStartLocation(e.ID())
		col := loc.Column()
		if e.Kind() == ast.CallKind && isIdent(e.AsCall().FunctionName()) {
			col -= len(e.AsCall().FunctionName()) // a call's place is its parenthesis
		}
		c.err = syntaxError(c.text, max(loc.Line(), 1), col, fmt.Sprintf(format, args...))
	}
	return litNode(nil)
}

var symbols = map[string]string{
	"_&&_": "&&", "_||_": "||", "!_": "!", "_==_": "==", "_!=_": "!=", "_<_": "<", "_<=_": "<=", "_>_": ">", "_>=_": ">=",
	"_+_": "+", "_-_": "-", "_*_": "*", "_/_": "/", "_%_": "%", "-_": "neg", "_[_]": "[]", "@in": "in", "_?_:_": "?:",
}

// convert makes our tree of the parser's. depth counts levels of the latter, whose
// && and || are nested; it is bounded by the parser.
func (c *converter) convert(e ast.Expr, depth int) *node {
	if c.err != nil {
		return litNode(nil)
	}
	var n *node
	switch e.Kind() {
	case ast.IdentKind:
		name := e.AsIdent()
		if strings.HasPrefix(name, ".") {
			return c.fail(e, "unexpected '.'")
		}
		n = newNode(kColumn, name)
	case ast.LiteralKind:
		n = c.literal(e)
	case ast.ListKind:
		n = newNode(kList, "", c.all(e.AsList().Elements(), depth)...)
	case ast.SelectKind:
		s := e.AsSelect()
		n = newNode(kField, s.FieldName(), c.convert(s.Operand(), depth+1))
	case ast.CallKind:
		n = c.call(e, depth)
	case ast.MapKind, ast.StructKind:
		return c.fail(e, "map and message literals are not part of the language")
	default:
		return c.fail(e, "unsupported syntax")
	}
	if n.depth >= maxDepth {
		return c.fail(e, "expression nests deeper than %d", maxDepth)
	}
	return n
}

func (c *converter) all(es []ast.Expr, depth int) []*node {
	out := make([]*node, len(es))
	for i, e := range es {
		out[i] = c.convert(e, depth+1)
	}
	return out
}

func (c *converter) literal(e ast.Expr) *node {
	switch v := e.AsLiteral().Value().(type) {
	case bool, int64, uint64, float64, string:
		return litNode(v)
	case []byte:
		return litNode(blob(v))
	}
	return litNode(nil) // the only other literal of the grammar is null
}

func (c *converter) call(e ast.Expr, depth int) *node {
	ce := e.AsCall()
	name := ce.FunctionName()
	var args []*node
	if ce.IsMemberFunction() {
		args = append(args, c.convert(ce.Target(), depth+1))
	}
	args = append(args, c.all(ce.Args(), depth)...)
	if c.err != nil {
		return litNode(nil)
	}
	if sym, ok := symbols[name]; ok {
		if !c.nulls && (sym == "==" || sym == "!=") {
			for i, a := range args {
				if a.kind == kLiteral && a.val == nil {
					f := map[string]string{"==": "is_null", "!=": "is_not_null"}[sym]
					return c.fail(e, "a comparison with null is null, never true: use %s(%s)", f, short(args[1-i]))
				}
			}
		}
		return operator(sym, args)
	}
	if name == "col" {
		if s, ok := stringArg(args, 0); ok && len(args) == 1 {
			return newNode(kColumn, s)
		}
		return c.fail(e, `col takes one string literal: col("name")`)
	}
	if _, ok := functions[name]; !ok {
		msg := fmt.Sprintf("unknown function %s", name)
		if use := elsewhere[strings.ToLower(name)]; use != "" {
			msg += ": use " + use
		} else if _, err := ParseType(name); err == nil && len(args) == 1 {
			msg += fmt.Sprintf(": use cast(%s, %q)", short(args[0]), name)
		} else if n := near.Name(name, functionNames()); n != "" {
			msg += fmt.Sprintf("; did you mean %s?", n)
		}
		return c.fail(e, "%s", msg)
	}
	return call(name, args...)
}

// operator gives every way to write the same thing one tree.
func operator(sym string, args []*node) *node {
	switch sym {
	case "&&", "||":
		return junction(sym, args...)
	case "neg":
		if a := args[0]; a.kind == kLiteral {
			switch v := a.val.(type) {
			case int64:
				if v != -v || v == 0 { // not the smallest
					return litNode(-v)
				}
			case float64:
				return litNode(-v)
			}
		}
	case "[]":
		if s, ok := stringArg(args, 1); ok {
			return newNode(kField, s, args[0])
		}
	}
	return call(sym, args...)
}

// stringArg is args[i] where that is a string literal.
func stringArg(args []*node, i int) (string, bool) {
	if i >= len(args) || args[i].kind != kLiteral {
		return "", false
	}
	s, ok := args[i].val.(string)
	return s, ok
}
