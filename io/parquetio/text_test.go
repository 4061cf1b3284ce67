package parquetio

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// TestNamesOfOtherBytes: a column whose name is not UTF-8 is an error that says which, in which file.
func TestNamesOfOtherBytes(t *testing.T) {
	f := handFile{columns: []handColumn{{name: "a", physical: pInt32, pages: [][]*string{le32(1)}}, {name: "pr\xe9nom", physical: pInt32, pages: [][]*string{le32(1)}}}}
	_, err := open(t, nil, f.write(t))
	if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), `column 1, "pr\xe9nom", is not UTF-8`) || !strings.Contains(err.Error(), "hand.parquet") {
		t.Errorf("got %v", err)
	}
}
