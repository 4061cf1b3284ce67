package exchange

import (
	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
)

// encoder makes the frames of records. One goroutine uses it.
type encoder struct {
	schema *arrow.Schema // of the last record
	text   []byte        // it, as metadata
	told   *arrow.Schema // what the other side knows; nil: nothing
}

// begin takes a record in, whose End the caller calls.
func (e *encoder) begin(rec arrow.RecordBatch) (*ipcrecord.Record, error) {
	s := rec.Schema()
	if s != e.schema && (e.schema == nil || !s.Equal(e.schema) || !s.Metadata().Equal(e.schema.Metadata())) {
		e.schema, e.text = s, ipcrecord.Schema(s)
	}
	r, err := ipcrecord.New(rec)
	if err == nil && len(e.text) > maxMeta {
		r.End()
		err = fault.New(fault.Exhausted, "a schema of %d bytes; at most %d: select fewer columns", len(e.text), maxMeta)
	}
	return r, err
}
