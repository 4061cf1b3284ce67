package csvio

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
)

func TestOffsets(t *testing.T) {
	const text = "\xef\xbb\xbf# c\na,b\n1,x\n\n# 2,y\n3,\"q, q\"\r\n4\nzz,z\n5,\n6,w"
	drivertest.Lines(t, "x.csv", text, []int64{11, 22, 39, 42}, func(path string, size int64) driver.Source {
		return New(Options{Comment: "#", Options: fileset.Options{Paths: []string{path}, Types: map[string]string{"a": "int64"}}, SplitBytes: size})
	})
}

func BenchmarkFromByte(b *testing.B) {
	line := `1234567,0.25,some text here,2024-01-31,true,"quoted, text"` + "\n"
	drivertest.BenchFromByte(b, "x.csv", "a,b,c,d,e,f\n"+strings.Repeat(line, 32<<20/len(line)), func(path string, size int64) driver.Source {
		return New(Options{Options: fileset.Options{Paths: []string{path}}, SplitBytes: size})
	})
}
