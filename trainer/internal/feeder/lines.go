package feeder

import (
	"cmp"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// maxLine is the most bytes of a request or reply. Ledgers are the longest part, 8 bytes for a window at most: so much is millions of windows.
const maxLine = 64 << 20

// maxLedgers is how many bytes of ledgers a line has room for.
const maxLedgers = maxLine / 16 * 11

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
		return nil, fault.New(fault.Invalid, "a line of %d bytes to the data process or from it, at most %d: the ledgers of the data sets are too long", len(b)+1, most)
	}
	return append(b, '\n'), nil
}

// Fit drops ledgers, the longest first, until a [Start] has room for the others, and returns the sets whose they were.
func Fit(at map[string]At) (dropped []string) {
	total := 0
	for _, a := range at {
		total += len(a.Ledger)
	}
	longest := func(a, b string) int {
		return cmp.Or(len(at[b].Ledger)-len(at[a].Ledger), strings.Compare(a, b))
	}
	for _, name := range slices.SortedFunc(maps.Keys(at), longest) {
		if total <= maxLedgers {
			break
		}
		total -= len(at[name].Ledger)
		at[name] = At{State: at[name].State}
		dropped = append(dropped, name)
	}
	return dropped
}
