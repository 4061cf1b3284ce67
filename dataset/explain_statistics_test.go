package dataset_test

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/datatest"
)

// The page indexes of this file call all pages of required columns null: the rows are there, and an analysis says why no page is left out.
func TestExplainStatistics(t *testing.T) {
	path := datatest.Dir(t, "parquet-testing", "data", "datapage_v1-uncompressed-checksum.parquet")
	text, err := dataset.ReadParquet(path).Filter("a != 5").Explain(t.Context(), &dataset.ExplainOptions{Analyze: true})
	if err != nil || !strings.Contains(text, "statistics not used by scan 0: page indexes (impossible counts of nulls: ") {
		t.Errorf("%v\n%s", err, text)
	}
}
