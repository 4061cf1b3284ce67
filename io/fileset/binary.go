package fileset

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
)

// Binary is an option of text formats that have columns.
type Binary struct {
	Binary string `json:"binary,omitempty" doc:"how columns that types makes binary are written: text (default), whose bytes they are, which need not be UTF-8; or base64, as the csv and json sinks write them" enum:"text|base64"`
}

// Check reports what is wrong with it.
func (b *Binary) Check() error {
	if b.Binary != "" && b.Binary != "text" && b.Binary != "base64" {
		return fault.New(fault.Invalid, "binary: %q is neither text nor base64", b.Binary)
	}
	return nil
}

// Base64 reports that bytes are written as base64.
func (b *Binary) Base64() bool { return b.Binary == "base64" }

// HasBytes reports whether t is a type of bytes, or a nested one with such in it.
func HasBytes(t arrow.DataType) bool {
	if n, ok := t.(arrow.NestedType); ok {
		for _, f := range n.Fields() {
			if HasBytes(f.Type) {
				return true
			}
		}
	}
	return isBytes(t)
}
