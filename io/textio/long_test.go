package textio

import (
	"testing"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
)

func TestLongLine(t *testing.T) {
	long := drivertest.LongText(27 << 20)
	drivertest.LongRow(t, "x.txt", []byte("a\n"+long+"\r\nb\n"+long+"\nc"), Column, []string{"a", long, "b", long, "c"}, 2, func(path string) driver.Source {
		return New(Options{Options: fileset.Options{Paths: []string{path}}, SplitBytes: 1 << 30})
	})
}
