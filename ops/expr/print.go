package expr

import (
	"fmt"
	"strconv"
	"strings"
)

// Precedence of operators as the grammar has it; lower binds tighter.
const (
	precMember = 1 + iota
	precUnary
	precMul
	precAdd
	precRelation
	precAnd
	precOr
	precTernary
)

var prec = map[string]int{
	"*": precMul, "/": precMul, "%": precMul, "+": precAdd, "-": precAdd,
	"==": precRelation, "!=": precRelation, "<": precRelation, "<=": precRelation, ">": precRelation, ">=": precRelation, "in": precRelation,
	"&&": precAnd, "||": precOr, "?:": precTernary, "!": precUnary, "neg": precUnary,
}

// reserved words cannot stand for columns; of them, tokens cannot stand for fields.
var reserved = map[string]bool{
	"true": true, "false": true, "null": true, "in": true, // tokens
	"as": false, "break": false, "const": false, "continue": false, "else": false, "for": false, "function": false, "if": false,
	"import": false, "let": false, "loop": false, "package": false, "namespace": false, "return": false, "var": false, "void": false, "while": false,
}

func isIdent(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c != '_' && (c|0x20 < 'a' || c|0x20 > 'z') && (i == 0 || c < '0' || c > '9') {
			return false
		}
	}
	return s != ""
}

// String is the canonical text: Parse(e.String()) equals e.
func (e *Expr) String() string { return e.root.String() }

func (n *node) String() string {
	var b strings.Builder
	n.print(&b, precTernary)
	return b.String()
}

func (n *node) prec() int {
	switch n.kind {
	case kLiteral:
		switch v := n.val.(type) {
		case int64:
			if v < 0 {
				return precUnary
			}
		case float64:
			if v < 0 || v == 0 && 1/v < 0 {
				return precUnary
			}
		}
	case kCall:
		if p, ok := prec[n.name]; ok {
			return p
		}
	}
	return precMember
}

// print writes n, in parentheses if it binds looser than limit.
func (n *node) print(b *strings.Builder, limit int) {
	p := n.prec()
	if p > limit {
		b.WriteByte('(')
		defer b.WriteByte(')')
	}
	switch n.kind {
	case kColumn:
		if _, word := reserved[n.name]; isIdent(n.name) && !word {
			b.WriteString(n.name)
		} else {
			b.WriteString("col(" + quote(n.name) + ")")
		}
	case kLiteral:
		b.WriteString(literalText(n.val))
	case kList:
		b.WriteByte('[')
		n.printArgs(b)
		b.WriteByte(']')
	case kField:
		n.args[0].print(b, precMember)
		if isIdent(n.name) && !reserved[n.name] && !n.args[0].isNumber() {
			b.WriteString("." + n.name)
		} else {
			b.WriteString("[" + quote(n.name) + "]")
		}
	case kCall:
		n.printCall(b, p)
	}
}

// isNumber: after one, a point would be read as a fraction's.
func (n *node) isNumber() bool {
	if n.kind != kLiteral {
		return false
	}
	switch n.val.(type) {
	case int64, uint64, float64:
		return true
	}
	return false
}

func (n *node) printArgs(b *strings.Builder) {
	for i, a := range n.args {
		if i > 0 {
			b.WriteString(", ")
		}
		a.print(b, precTernary)
	}
}

func (n *node) printCall(b *strings.Builder, p int) {
	switch n.name {
	case "neg":
		var arg strings.Builder
		n.args[0].print(&arg, precMember)
		if c := arg.String()[0]; c >= '0' && c <= '9' { // the sign would be read as part of the number: -(5), -(5["f"])
			b.WriteString("-(" + arg.String() + ")")
		} else {
			b.WriteString("-" + arg.String())
		}
	case "!":
		b.WriteByte('!')
		n.args[0].print(b, precMember)
	case "?:":
		n.args[0].print(b, precOr)
		b.WriteString(" ? ")
		n.args[1].print(b, precOr)
		b.WriteString(" : ")
		n.args[2].print(b, precTernary)
	case "[]":
		n.args[0].print(b, precMember)
		b.WriteByte('[')
		n.args[1].print(b, precTernary)
		b.WriteByte(']')
	case "&&", "||":
		for i, a := range n.args {
			if i > 0 {
				b.WriteString(" " + n.name + " ")
			}
			a.print(b, p-1)
		}
	default:
		if p == precMember {
			b.WriteString(n.name + "(")
			n.printArgs(b)
			b.WriteByte(')')
			return
		}
		n.args[0].print(b, p)
		b.WriteString(" " + n.name + " ")
		n.args[1].print(b, p-1)
	}
}

func literalText(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case uint64:
		return strconv.FormatUint(v, 10) + "u"
	case float64:
		s := strconv.FormatFloat(v, 'g', -1, 64)
		if !strings.ContainsAny(s, ".e") {
			s += ".0"
		}
		return s
	case string:
		return quote(v)
	case blob:
		return quoteBytes(string(v))
	}
	return fmt.Sprint(v)
}

// quote writes text as package mask knows it.
func quote(s string) string { return strconv.Quote(strings.ToValidUTF8(s, "\uFFFD")) }

func quoteBytes(s string) string {
	var b strings.Builder
	b.WriteString(`b"`)
	for i := range len(s) {
		switch c := s[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c >= 0x20 && c < 0x7f:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	b.WriteByte('"')
	return b.String()
}
