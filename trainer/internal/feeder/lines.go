package feeder

import (
	"encoding/json"
	"io"

	"github.com/penstock-data/penstock/internal/fault"
)

// maxLine is the most bytes of a request or reply. Ledgers are the longest part, 8 bytes for a window at most: so much is millions of windows.
const maxLine = 64 << 20

// lines reads values of JSON that follow each other. One that is longer than most bytes is an error, [fault.Invalid], and no more than about that is kept of it.
type lines struct {
	in   io.Reader
	most int64
	dec  *json.Decoder
	read int64 // bytes of in
}

func newLines(in io.Reader, most int64) *lines {
	l := &lines{in: in, most: most}
	l.dec = json.NewDecoder(l)
	return l
}

// next reads a value into v. io.EOF: there are no more.
func (l *lines) next(v any) error { return l.dec.Decode(v) }

// Read implements io.Reader for the decoder: what it has read and not given out is the beginning of one value.
func (l *lines) Read(p []byte) (int, error) {
	left := l.most + 2 - (l.read - l.dec.InputOffset()) // with the end of the line, and of the one before
	if left <= 0 {
		return 0, fault.New(fault.Invalid, "a line of more than %d bytes", l.most)
	}
	n, err := l.in.Read(p[:min(int64(len(p)), left)])
	l.read += int64(n)
	return n, err
}

// lineOf is v as a line, for the other side's lines. Invalid: it would not take it.
func lineOf(v any, most int64) ([]byte, error) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(fault.New(fault.Internal, "a line: %w", err)) // of strings and numbers: cannot fail
	}
	if int64(len(b)) > most {
		return nil, fault.New(fault.Invalid, "a line of %d bytes to the data process or from it, at most %d: the ledgers of the data sets are too long; larger shuffle windows make shorter ones", len(b), most)
	}
	return append(b, '\n'), nil
}
