package wire

import (
	"bufio"
	"io"

	"github.com/penstock-data/penstock/internal/fault"
)

// Lines reads lines of a length that is limited. Not safe for concurrent use.
type Lines struct {
	r    *bufio.Reader
	most int
	hint string
}

// NewLines reads lines of r that have at most most bytes, with their ends. A longer one is an error, [fault.Invalid]: hint follows its text, and no more than about that is read of it.
func NewLines(r io.Reader, most int, hint string) *Lines {
	return &Lines{bufio.NewReaderSize(r, min(16<<10, most)), most, hint}
}

// Wait waits for something that [Lines.Next] has not given. An error of the reader, as that of a deadline, loses nothing.
func (l *Lines) Wait() (there bool, err error) {
	_, err = l.r.Peek(1)
	return err == nil, err
}

// Next is valid until the next call. It is read piece by piece: nothing is allocated on a claim. io.EOF: there are no more.
func (l *Lines) Next() ([]byte, error) {
	b, err := l.r.ReadSlice('\n')
	if err == nil { // no longer than the buffer
		return b, nil
	}
	all := append([]byte(nil), b...)
	for err == bufio.ErrBufferFull && len(all) < l.most {
		b, err = l.r.ReadSlice('\n')
		all = append(all, b...)
	}
	switch {
	case err == bufio.ErrBufferFull || len(all) > l.most:
		return nil, fault.New(fault.Invalid, "a line of more than %d bytes%s", l.most, l.hint)
	case err == io.EOF && len(all) > 0:
		return nil, fault.New(fault.Corrupt, "the connection ended in the midst of a line: %w", io.ErrUnexpectedEOF)
	case err != nil:
		return nil, err
	}
	return all, nil
}
