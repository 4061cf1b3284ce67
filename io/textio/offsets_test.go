package textio_test

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/textio"
)

func TestOffsets(t *testing.T) {
	const text = "\xef\xbb\xbfone\n\n\r\ntwo\r\nthree"
	drivertest.Lines(t, "x.txt", text, []int64{3, 10, 15}, func(path string, size int64) driver.Source {
		return textio.New(textio.Options{Options: fileset.Options{Paths: []string{path}}, SplitBytes: size})
	})
}

func BenchmarkFromByte(b *testing.B) {
	line := `a line of text of some length, as logs have them, number 1234567` + "\n"
	drivertest.BenchFromByte(b, "x.txt", strings.Repeat(line, 32<<20/len(line)), func(path string, size int64) driver.Source {
		return textio.New(textio.Options{Options: fileset.Options{Paths: []string{path}}, SplitBytes: size})
	})
}
