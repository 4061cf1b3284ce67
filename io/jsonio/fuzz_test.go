package jsonio

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/fileset"
)

// tooDeep reports nesting beyond maxDepth, where this package stops and
// encoding/json goes on.
func tooDeep(b []byte) bool {
	d := json.NewDecoder(bytes.NewReader(b))
	depth := 0
	for {
		t, err := d.Token()
		if err != nil {
			return false
		}
		switch t {
		case json.Delim('{'), json.Delim('['):
			if depth++; depth > maxDepth {
				return true
			}
		case json.Delim('}'), json.Delim(']'):
			depth--
		}
	}
}

// valid is json.Valid by this package.
func valid(b []byte, more bool) bool {
	x := text{b: b, more: more, odd: oddNull}
	return x.skip(0) == nil && len(x.odds) == 0 && x.blank()
}

// isText says that the strings of valid JSON are text: UTF-8, without half a surrogate pair, which
// encoding/json replaces by U+FFFD.
func isText(b []byte) bool {
	x := text{b: b}
	return x.skip(0) == nil && x.wrong == nil
}

func FuzzSyntax(f *testing.F) {
	for _, s := range []string{`{"a": [1, -2.5e+3, true, false, null, "x\u00e9\ud83d\ude42\n"]}`, `[]`, `{}`, `"`, `01`, `-`, `1.`, `1e`, `[1,]`, `{"a"}`, `"\ud800"`, `tru`, "\"\x01\"", "\"\xff\"", `[[[[]]]]`, ` 1 2`} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if got, want := valid(b, false), json.Valid(b); got != want && !tooDeep(b) {
			t.Fatalf("%q is valid: %v, encoding/json says %v", b, got, want)
		}
		// A text that goes on is never wrong where a longer one is right.
		if json.Valid(b) && !tooDeep(b) {
			for cut := range len(b) {
				x := text{b: b[:cut], more: true}
				if err := x.skip(0); err != nil && err != errMore {
					t.Fatalf("%q of %q: %v", b[:cut], b, err)
				}
			}
			var s string
			if json.Unmarshal(b, &s) == nil && isText(b) && !bytes.Equal(bytes.TrimSpace(b), []byte("null")) {
				x := text{b: b}
				x.space()
				if got, err := x.str(); err != nil || string(got) != s || !utf8.Valid(got) {
					t.Fatalf("%q is %q (%v), want %q", b, got, err, s)
				}
			}
			var v float64
			if err := json.Unmarshal(b, &v); err == nil && !bytes.Equal(bytes.TrimSpace(b), []byte("null")) {
				x := text{b: b}
				x.space()
				n, err := x.num()
				if got, ok := n.float64(); err != nil || !ok || got != v {
					t.Fatalf("%q is %v, want %v", b, got, v)
				}
			}
		}
	})
}

// document makes a random value: what encoding/json gives back for it.
func document(r *rand.Rand, depth int) any {
	switch k := r.IntN(10); {
	case k == 0:
		return nil
	case k == 1:
		return r.IntN(2) == 0
	case k < 4:
		return float64(r.IntN(2000)-1000) / float64(int(1)<<r.IntN(3))
	case k == 4:
		return r.NormFloat64() * 1e30
	case k < 7 || depth > 4:
		return strings.Repeat([]string{"a", "é", "\"\\/", "\n\t\x01", "🙂", "\u2028<"}[r.IntN(6)], r.IntN(4))
	case k == 7:
		out := make([]any, r.IntN(4))
		for i := range out {
			out[i] = document(r, depth+1)
		}
		return out
	}
	out := map[string]any{}
	for range r.IntN(4) {
		out[fmt.Sprintf("k%d", r.IntN(6))] = document(r, depth+1)
	}
	return out
}

// Columns of type string given by types keep any value, so the columns of random
// documents decode to what encoding/json decodes.
func TestDifferential(t *testing.T) {
	const seed = 11
	r := rand.New(rand.NewPCG(seed, 0))
	for n := range 3000 {
		want := map[string]any{}
		for k := range 4 {
			want[fmt.Sprintf("c%d", k)] = document(r, 0)
		}
		b, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		if n%2 == 0 {
			var i bytes.Buffer
			if err := json.Indent(&i, b, " ", "\t"); err != nil {
				t.Fatal(err)
			}
			b = i.Bytes()
		}
		s := &sink{alloc: memtest.New(t)}
		p := &parser{root: &column{s: s, kind: kStruct, byName: map[string]int{}}}
		for k := range 4 {
			name := fmt.Sprintf("c%d", k)
			c, err := newColumn(s, arrow.Field{Name: name, Type: arrow.BinaryTypes.String}, name, given)
			if err != nil {
				t.Fatal(err)
			}
			p.root.kids = append(p.root.kids, c)
			p.root.byName[name] = k
		}
		p.text = text{b: b}
		if err := p.row(); err != nil {
			t.Fatalf("seed %d, document %d: %s: %v", seed, n, b, err)
		}
		for k, c := range p.root.kids {
			d := c.finish(c.n)
			a := array.NewStringData(d)
			d.Release()
			w := want[fmt.Sprintf("c%d", k)]
			var got any
			switch _, isText := w.(string); {
			case a.IsNull(0):
			case isText:
				got = a.Value(0)
			default:
				if err := json.Unmarshal([]byte(a.Value(0)), &got); err != nil {
					t.Fatal(err)
				}
			}
			if !reflect.DeepEqual(got, w) {
				t.Fatalf("seed %d, document %d: column %d of %s is %v, want %v", seed, n, k, b, got, w)
			}
			a.Release()
		}
	}
}

// columnsOf are columns of many kinds.
func columnsOf(t testing.TB, s *sink) *parser {
	p := &parser{root: &column{s: s, kind: kStruct, byName: map[string]int{}}}
	for i, f := range []arrow.Field{
		{Name: "a", Type: arrow.PrimitiveTypes.Int64}, {Name: "b", Type: arrow.PrimitiveTypes.Float64}, {Name: "c", Type: arrow.BinaryTypes.String},
		{Name: "d", Type: arrow.ListOf(arrow.StructOf(arrow.Field{Name: "x", Type: arrow.FixedWidthTypes.Boolean, Nullable: true}, arrow.Field{Name: "y", Type: arrow.PrimitiveTypes.Uint8, Nullable: true}))},
		{Name: "e", Type: arrow.FixedWidthTypes.Timestamp_ns}, {Name: "f", Type: &arrow.Decimal128Type{Precision: 10, Scale: 2}},
		{Name: "g", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int16)}, {Name: "h", Type: arrow.FixedSizeListOf(2, arrow.BinaryTypes.Binary)},
		{Name: "i", Type: arrow.FixedWidthTypes.Time32ms}, {Name: "j", Type: arrow.FixedWidthTypes.Date64}, {Name: "k", Type: arrow.Null}, {Name: "l", Type: arrow.PrimitiveTypes.Float32},
	} {
		from := guessed
		if i%2 == 0 {
			from = given
		}
		c, err := newColumn(s, f, f.Name, from)
		if err != nil {
			t.Fatal(err)
		}
		p.root.kids = append(p.root.kids, c)
		p.root.byName[f.Name] = i
		p.root.kidBits += c.nullBits
	}
	return p
}

var rowSeeds = []string{
	`{"a": 1, "b": 2.5, "c": "x", "d": [{"x": true}, {"y": 3}, null], "e": "2024-01-01T00:00:00Z", "f": 1.25, "g": {"k": 1}, "h": ["aGk=", null], "i": "12:00:00", "j": "2024-02-29", "l": 1e10}`,
	`{"a": "bad", "d": [{"x": 5}, {"y": 300}], "g": {"k": "x"}, "h": ["!"], "h": []}`,
	`{"a": 1, "a": 2, "d": [], "d": [null], "c": [1, 2], "k": null}`, `{}`, `[]`, `{"a": 12345678901234567890, "e": "x"}`,
}

// check finishes the columns and validates what they hold.
func check(t *testing.T, p *parser, rows int) {
	t.Helper()
	for _, k := range p.root.kids {
		d := k.finish(rows)
		a := array.MakeFromData(d)
		d.Release()
		if a.Len() != rows {
			t.Fatalf("column %s has %d rows of %d", k.name, a.Len(), rows)
		}
		nulls := 0
		for i := range a.Len() {
			_ = a.ValueStr(i)
			if a.IsNull(i) {
				nulls++
			}
		}
		if v, ok := a.(interface{ ValidateFull() error }); ok {
			if err := v.ValidateFull(); err != nil {
				t.Fatalf("column %s: %v", k.name, err)
			}
		}
		if nulls != a.NullN() && a.DataType().ID() != arrow.NULL {
			t.Fatalf("column %s has %d nulls, says %d", k.name, nulls, a.NullN())
		}
		a.Release()
	}
	p.root.n = 0
}

// FuzzLines parses lines; what encoding/json refuses is a bad row, and rows that
// fail leave nothing behind.
func FuzzLines(f *testing.F) {
	for _, s := range rowSeeds {
		f.Add([]byte(s + "\n" + rowSeeds[0] + "\n" + s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s := &sink{alloc: memtest.New(t)}
		p := columnsOf(t, s)
		defer p.root.release()
		rows := 0
		for _, line := range bytes.Split(b, []byte("\n")) {
			p.text = text{b: line}
			err := p.row()
			if err == nil {
				rows++
				if p.blank() && !json.Valid(line) {
					t.Fatalf("%q is a row, encoding/json refuses it", line)
				}
			} else if _, ok := err.(*syntaxError); ok && json.Valid(line) && !tooDeep(line) {
				t.Fatalf("%q: %v, encoding/json takes it", line, err)
			}
			if p.root.n != rows {
				t.Fatalf("%d rows, want %d", p.root.n, rows)
			}
		}
		check(t, p, rows)
	})
}

// FuzzArray reads an array through a buffer that is far too small, and all at
// once: the same rows and the same verdict, which is that of encoding/json.
func FuzzArray(f *testing.F) {
	for _, s := range rowSeeds {
		f.Add([]byte("["+s+" , "+rowSeeds[0]+"]\n"), uint8(7))
	}
	f.Add([]byte("\xEF\xBB\xBF [ ] "), uint8(1))
	f.Add([]byte(`[{"a":1},]`), uint8(0))
	f.Fuzz(func(t *testing.T, b []byte, size uint8) {
		var rows, bad [2]int
		var errs [2]error
		odd := false // there is a word that encoding/json refuses, and this package for a bad row only
		for k, n := range []int{int(size) + 1, len(b) + 1} {
			s := &sink{alloc: memtest.New(t)}
			p := columnsOf(t, s)
			p.text.more = true
			a := &elements{p: p, most: fileset.MaxLine, in: io.NopCloser(bytes.NewReader(b)), cancel: func() {}, alloc: s.alloc, small: make([]byte, n)}
			a.buf = a.small
			for {
				err := a.row(context.Background(), false)
				if err == io.EOF {
					break
				}
				if e, ok := err.(*fault.Error); ok && e.Code == fault.RowError {
					if errors.Is(err, errOdd) {
						odd = true
					}
					bad[k]++
					continue
				}
				if errs[k] = err; err != nil {
					break
				}
				rows[k]++
				if size%3 == 0 && rows[k] == 1 { // once: back and again
					a.unread()
					p.root.truncate(p.root.n - 1)
					if err := a.row(context.Background(), false); err != nil {
						t.Fatalf("a row does not parse again: %v", err)
					}
				}
			}
			check(t, p, rows[k])
			p.root.release()
			a.close()
		}
		if rows[0] != rows[1] || bad[0] != bad[1] || (errs[0] == nil) != (errs[1] == nil) {
			t.Fatalf("%q: %d rows, %d bad, %v by pieces of %d; %d, %d, %v at once", b, rows[0], bad[0], errs[0], size, rows[1], bad[1], errs[1])
		}
		x := bytes.TrimPrefix(b, bom)
		var all []json.RawMessage
		err := json.Unmarshal(x, &all)
		if isArray := bytes.HasPrefix(bytes.TrimLeft(x, " \t\r\n"), []byte("[")); isArray && !odd && !tooDeep(x) && (err == nil) != (errs[0] == nil) || err == nil && isArray && errs[0] == nil && len(all) != rows[0]+bad[0] {
			t.Fatalf("%q: %d rows, %d bad, %v; encoding/json has %d, %v", b, rows[0], bad[0], errs[0], len(all), err)
		}
	})
}

func FuzzScaled(f *testing.F) {
	f.Add([]byte("-12.50e3"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if v, err := scaled(b, 5, 38); err == nil && len(v.String()) > 39 {
			t.Fatal(v)
		}
	})
}
