package jsonio_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/jsonio"
)

// TestNotText: a string that is no text is a bad row with file, row and column, whatever place it has, and
// nothing of it gets into a value or a name.
func TestNotText(t *testing.T) {
	for _, c := range []struct{ row, column, want string }{
		{"{\"x\":\"caf\xe9\"}", "x", "not valid UTF-8"},
		{"{\"x\":\"caf\xe9 \\n\"}", "x", "not valid UTF-8"},
		{"{\"x\":\"\xed\xa0\x80\"}", "x", "not valid UTF-8"}, // a surrogate
		{"{\"x\":\"\xc0\xaf\"}", "x", "not valid UTF-8"},     // an overlong form
		{"{\"x\":\"\xf4\x90\x80\x80\"}", "x", "not valid UTF-8"},
		{`{"x":"\ud83d"}`, "x", "half of a surrogate pair"},
		{`{"x":"\ude42\ud83d"}`, "x", "half of a surrogate pair"},
		{`{"x":"\ud83d\u0041"}`, "x", "half of a surrogate pair"},
		{"{\"a\":1,\"caf\xe9\":1}", "", "not valid UTF-8"},
		{"{\"a\":1,\"caf\xe9\":1,\"caf\xe8\":2}", "", "not valid UTF-8"},
		{`{"a":1,"\ud83d":1}`, "", "half of a surrogate pair"},
		{"{\"a\":1,\"other\":[\"\xff\"]}", "", "not valid UTF-8"},
		{"{\"s\":{\"y\":\"\xff\"}}", "s.y", "not valid UTF-8"},
		{"{\"s\":{\"\xff\":1}}", "s", "not valid UTF-8"},
		{"{\"l\":[\"ok\",\"\xff\"]}", "l", "not valid UTF-8"},
		{"{\"m\":{\"\xff\":1}}", "m", "not valid UTF-8"},
		{"{\"m\":{\"k\":1,\"k\":2}}", "m", "twice"},
		{"{\"raw\":[\"\xff\"]}", "raw", "not valid UTF-8"},
		{`{"raw":{"k":"\ud83d"}}`, "raw", "half of a surrogate pair"},
		{`{"a":1,"a":2}`, "a", "twice"},
		{`{"a":1,"\u0061":2}`, "a", "twice"},
		{`{"s":{"y":"1","y":"2"}}`, "s.y", "twice"},
		{`{"l":["a"],"l":["b"]}`, "l", "twice"},
		{"\"\xff\"", "", "not an object"},
		{`{"b":"\ud83d"}`, "b", "half of a surrogate pair"},
	} {
		for _, form := range []string{"{\"a\":0}\n%s\n{\"a\":2}\n", `[{"a":0},%s,{"a":2}]`} {
			if c.want == "not an object" {
				c.want = "a row is an object"
			}
			path := save(t, "x.json", fmt.Appendf(nil, form, c.row))
			o := paths(path)
			o.Types = map[string]string{"a": "int", "x": "string", "s": "struct<y: string>", "l": "list<string>", "m": "map<string, int>", "raw": "string", "b": "binary"}
			_, err := readAll(t, o, nil)
			at := fault.PlaceOf(err)
			if fault.CodeOf(err) != fault.RowError || at.File != path || at.Row != fault.N(1) || at.Column != c.column || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%q: %v (%v, %+v), want %q of row 1, column %q", c.row, err, fault.CodeOf(err), at, c.want, c.column)
			}
			bad := 0
			rec, err := readAll(t, o, &driver.ScanOptions{Alloc: memtest.New(t), OnBadRow: func(error) error { bad++; return nil }})
			if err != nil {
				t.Fatalf("%q: %v", c.row, err)
			}
			if got := fmt.Sprint(rec.Column(rec.Schema().FieldIndices("a")[0])); bad != 1 || got != "[0 2]" {
				t.Errorf("%q: %d rows are skipped, %s are left", c.row, bad, got)
			}
			rec.Release()
		}
	}
}

// TestNotTextSampled: the columns come from rows that are text.
func TestNotTextSampled(t *testing.T) {
	for _, form := range []string{"%s\n{\"a\":2}\n", `[%s,{"a":2}]`} {
		for _, row := range []string{"{\"a\":1,\"caf\xe9\":1}", "{\"a\":1,\"caf\xe9\":1,\"caf\xe8\":1}", `{"a":1,"a":"x"}`, `{"a":1,"\ud83d":1}`} {
			o := paths(save(t, "x.json", fmt.Appendf(nil, form, row)))
			if _, err := readAll(t, o, nil); fault.CodeOf(err) != fault.RowError {
				t.Errorf("%q: %v, want a bad row", row, err)
			}
			rec, err := readAll(t, o, &driver.ScanOptions{OnBadRow: func(error) error { return nil }})
			if err != nil {
				t.Fatalf("%q: %v", row, err)
			}
			if got := string(encode(t, nil, rec)); got != "{\"a\":2}\n" {
				t.Errorf("%q: %s", row, got)
			}
			rec.Release()
		}
	}
}

// TestManyKeys: two equal keys of a large map are found too.
func TestManyKeys(t *testing.T) {
	row := func(last int) string {
		m := []string{}
		for i := range 40 {
			m = append(m, fmt.Sprintf(`"k%d":%d`, i, i))
		}
		return fmt.Sprintf("{\"m\":{%s,\"k%d\":0}}\n", strings.Join(m, ","), last)
	}
	o := paths(save(t, "x.jsonl", []byte(row(40)+row(39))))
	o.Types = map[string]string{"m": "map<string, int>"}
	bad := ""
	rec, err := readAll(t, o, &driver.ScanOptions{OnBadRow: func(err error) error { bad = err.Error(); return nil }})
	if err != nil || rec.NumRows() != 1 || !strings.Contains(bad, `the key "k39" is there twice`) {
		t.Errorf("%v, %v", err, bad)
	}
	rec.Release()
}

// TestWriteNotText: the sink writes JSON or an error.
func TestWriteNotText(t *testing.T) {
	e, err := jsonio.NewEncoding(nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []arrow.DataType{arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString} {
		s := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, {Name: "v", Type: typ}}, nil)
		b := array.NewRecordBuilder(memory.DefaultAllocator, s)
		b.Field(0).AppendNull()
		b.Field(1).(array.StringLikeBuilder).Append("caf\xe9")
		rec := b.NewRecordBatch()
		var out bytes.Buffer
		enc, err := e.NewEncoder(&out, s, memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		if err := enc.Write(rec); fault.CodeOf(err) != fault.Corrupt || fault.PlaceOf(err).Column != "v" {
			t.Errorf("%s: %v", typ, err)
		}
		enc.Abort()
		rec.Release()
		b.Release()
	}
	twice := arrow.StructOf(arrow.Field{Name: "x", Type: arrow.Null}, arrow.Field{Name: "x", Type: arrow.Null})
	for _, f := range []arrow.Field{{Name: "caf\xe9", Type: arrow.Null}, {Name: "s", Type: arrow.StructOf(arrow.Field{Name: "\xff", Type: arrow.Null})}, {Name: "s", Type: arrow.ListOf(twice)}} {
		if err := e.Check(arrow.NewSchema([]arrow.Field{f}, nil)); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%v: %v", f, err)
		}
	}
	if !json.Valid(encode(t, nil, func() arrow.RecordBatch {
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "v", Type: arrow.BinaryTypes.String}}, nil))
		b.Field(0).(*array.StringBuilder).Append("é🙂\ufffd\x00\x1f\u2028")
		return b.NewRecordBatch()
	}())) {
		t.Error("what is text is not written as JSON")
	}
}
