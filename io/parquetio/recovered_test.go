package parquetio

import (
	"bytes"
	"encoding/base64"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/flight"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/fault"
)

// insideText is what of an error's text is of the inside of a library or of Go; "" if nothing is.
func insideText(err error) string {
	if err == nil {
		return ""
	}
	for _, inside := range []string{"runtime error", "slice bounds", "out of range", "nil pointer", "panic", "goroutine", "arrow/ipc", "flatbuffer", "thrift:", "EOF"} {
		if strings.Contains(err.Error(), inside) {
			return inside
		}
	}
	return ""
}

// Whoever panics, the error is a sentence about the file, and tests learn whose panic it was.
func TestRecovered(t *testing.T) {
	before := onPanic
	defer func() { onPanic = before }()
	var none []int
	for name, c := range map[string]struct {
		f   func()
		own bool
	}{
		"index":   {func() { _ = none[len(name0)] }, true},
		"text":    {func() { panic("runtime error: inner") }, true},
		"library": {func() { arrow.NewMetadata([]string{"a"}, nil) }, false},
		"fault":   {func() { panic(errStored) }, false},
	} {
		told, own := false, false
		onPanic = func(_ any, o bool) { told, own = true, o }
		err := func() (err error) {
			defer recovered(&err, "the schema")
			c.f()
			return nil
		}()
		if fault.CodeOf(err) != fault.Corrupt || insideText(err) != "" || !strings.Contains(err.Error(), "is damaged") {
			t.Errorf("%s: %v", name, err)
		}
		if told != (name != "fault") || own != c.own {
			t.Errorf("%s: told %v, own %v", name, told, own)
		}
	}
}

const name0 = "index"

// storedSeed is a stored Arrow schema with types of all shapes.
func storedSeed(t testing.TB) []byte {
	s := arrow.NewSchema([]arrow.Field{
		{Name: "i", Type: arrow.PrimitiveTypes.Int16},
		{Name: "l", Type: arrow.FixedSizeListOf(2, &arrow.TimestampType{Unit: arrow.Second, TimeZone: "UTC"}), Nullable: true},
		{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int8), Nullable: true},
		{Name: "d", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.LargeString}},
	}, nil)
	return flight.SerializeSchema(s, memory.DefaultAllocator)
}

func readStored(raw []byte) error {
	_, _, _, err := plainSchema(base64.StdEncoding.EncodeToString(raw), []pqarrow.SchemaField{})
	return err
}

// A stored Arrow schema that is cut or changed anywhere is read, or said to be damaged in words about the file.
func TestDamagedStoredSchema(t *testing.T) {
	raw := storedSeed(t)
	if err := readStored(raw); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	damaged := 0
	for k := range 4 * len(raw) {
		bad := bytes.Clone(raw)
		if k < len(raw) {
			bad = bad[:k]
		} else {
			bad[rng.IntN(len(bad))] = []byte{0, 1, 0x7f, 0x80, 0xff}[rng.IntN(5)]
		}
		err := readStored(bad)
		if err == nil {
			continue
		}
		damaged++
		if c := fault.CodeOf(err); c != fault.Corrupt && c != fault.Unsupported || insideText(err) != "" {
			t.Fatalf("%d: %v of code %v", k, err, c)
		}
	}
	if damaged < len(raw) {
		t.Errorf("%d errors", damaged)
	}
	if _, _, _, err := plainSchema("no base64!", nil); fault.CodeOf(err) != fault.Corrupt || insideText(err) != "" {
		t.Error(err)
	}
}

func FuzzStoredSchema(f *testing.F) {
	f.Add(storedSeed(f))
	f.Fuzz(func(t *testing.T, raw []byte) {
		err := readStored(raw)
		if c := fault.CodeOf(err); err != nil && (c != fault.Corrupt && c != fault.Unsupported || insideText(err) != "") {
			t.Errorf("error %v of code %v", err, c)
		}
	})
}
