package feeder

import (
	"encoding/json"
	"io"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// maxLine is the most bytes of a request or reply. Ledgers are the longest part, 8 bytes for a window at most: so much is millions of windows.
const maxLine = 64 << 20

// lines reads requests or replies.
type lines struct{ *wire.Lines }

func newLines(in io.Reader, most int) lines { return lines{wire.NewLines(in, most, "")} }

// next reads one into v. What was said wrongly is [fault.Invalid]; io.EOF: there are no more.
func (l lines) next(v any) error {
	b, err := l.Next()
	if err != nil {
		return err
	}
	if err := json.Unmarshal(b, v); err != nil {
		return fault.New(fault.Invalid, "%w", err)
	}
	return nil
}

// lineOf is v as a line, for the other side's lines. Invalid: it would not take it.
func lineOf(v any, most int) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fault.New(fault.Internal, "a line: %w", err)) // of strings and numbers: cannot fail
	}
	if len(b) >= most {
		return nil, fault.New(fault.Invalid, "a line of %d bytes to the data process or from it, at most %d: the ledgers of the data sets are too long; larger shuffle windows make shorter ones", len(b)+1, most)
	}
	return append(b, '\n'), nil
}
