// Package strict decodes configurations: unknown keys and trailing text are
// errors.
package strict

import (
	"bytes"
	"encoding/json"
	"io"

	"github.com/penstock-data/penstock/internal/fault"
)

// JSON decodes one object into v. Its errors have code Invalid and begin with what.
func JSON(what string, data []byte, v any) error {
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fault.New(fault.Invalid, "%s: %w", what, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fault.New(fault.Invalid, "%s: text after the end of the object", what)
	}
	return nil
}
