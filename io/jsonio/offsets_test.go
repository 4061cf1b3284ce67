package jsonio_test

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/jsonio"
)

func TestOffsets(t *testing.T) {
	const text = "\xef\xbb\xbf{\"a\":1}\n\n  \r\n  {\"a\":2}\r\n{\"a\":\n{\"a\":3} x\n{\"a\":4}"
	drivertest.Lines(t, "x.jsonl", text, []int64{3, 16, 43}, func(path string, size int64) driver.Source {
		return jsonio.New(jsonio.Options{Options: fileset.Options{Paths: []string{path}}, SplitBytes: size})
	})
}

func BenchmarkFromByte(b *testing.B) {
	line := `{"id": 1234567, "x": 0.25, "text": "some text here", "tags": ["a", "b"]}` + "\n"
	drivertest.BenchFromByte(b, "x.jsonl", strings.Repeat(line, 32<<20/len(line)), func(path string, size int64) driver.Source {
		return jsonio.New(jsonio.Options{Options: fileset.Options{Paths: []string{path}}, SplitBytes: size})
	})
}
