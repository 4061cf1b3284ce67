package shard

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/penstock-data/penstock/internal/fault"
)

// StateVersion is the version of states that this package writes and reads.
const StateVersion = 1

// maxState bounds the JSON of a state: 2 KiB per source is what 64 lanes take.
const maxState = 16 << 20

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// stateFields is a state without its methods: what its sum is of.
type stateFields State

// text is the JSON of the fields, and its sum: CRC-32C in 8 hexadecimal digits.
func (f *stateFields) text() (b []byte, sum string, err error) {
	b, err = json.Marshal(f)
	return b, fmt.Sprintf("%08x", crc32.Checksum(b, castagnoli)), err
}

// MarshalJSON gives the fields and, as the last one, "sum".
func (s State) MarshalJSON() ([]byte, error) {
	b, sum, err := (*stateFields)(&s).text()
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(b[:len(b)-1], `,"sum":"%s"}`, sum), nil
}

// UnmarshalJSON reads a state. Blanks and the order of fields are free; what the fields say must be what
// was written: what is damaged, edited or of another version is an error that says so.
func (s *State) UnmarshalJSON(b []byte) error {
	if len(b) > maxState {
		return fault.New(fault.Corrupt, "not a state: %d bytes, more than %d", len(b), maxState)
	}
	var v struct {
		Version *int            `json:"version"`
		Sum     json.RawMessage `json:"sum"`
	}
	if err := json.Unmarshal(b, &v); err != nil {
		return fault.New(fault.Corrupt, "not a state: damaged or cut short: %w", err)
	}
	switch {
	case v.Version == nil:
		return fault.New(fault.Corrupt, "not a state: it has no version")
	case *v.Version != StateVersion:
		return fault.New(fault.Unsupported, "the state has version %d, this program reads version %d: use the release that wrote it", *v.Version, StateVersion)
	}
	var f stateFields
	if err := json.Unmarshal(b, &f); err != nil {
		return fault.New(fault.Corrupt, "not a state: %w", err)
	}
	if v.Sum == nil {
		return fault.New(fault.Corrupt, "the state has no sum: states are not written by hand; take the file as it was written, or an earlier state")
	}
	_, sum, err := f.text()
	if err != nil {
		return fault.New(fault.Internal, "the sum of a state: %w", err)
	}
	if string(v.Sum) != `"`+sum+`"` {
		return fault.New(fault.Corrupt, "the state was edited or damaged: its sum does not fit what it says; take the file as it was written, or an earlier state")
	}
	*s = State(f)
	return nil
}

// ReadState reads a state's JSON. What is damaged, edited or of another version is an error that says so.
func ReadState(r io.Reader) (State, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxState+1))
	if err != nil {
		return State{}, fault.New(fault.Unavailable, "reading the state: %w", err)
	}
	if len(b) > maxState {
		return State{}, fault.New(fault.Invalid, "the state is larger than %d bytes", maxState)
	}
	return ParseState(b)
}

// ParseState reads a state's JSON: see [State.UnmarshalJSON].
func ParseState(b []byte) (s State, err error) {
	err = s.UnmarshalJSON(b)
	return s, err
}

// MarshalJSON gives [at, [w, ...]].
func (w WeightsAt) MarshalJSON() ([]byte, error) { return json.Marshal([]any{w.At, w.Weights}) }

// UnmarshalJSON reads [at, [w, ...]].
func (w *WeightsAt) UnmarshalJSON(b []byte) error {
	var parts []json.RawMessage
	if err := json.Unmarshal(b, &parts); err != nil || len(parts) != 2 {
		return fmt.Errorf("weights must be [sample, [weight, ...]], not %.40s", b)
	}
	*w = WeightsAt{}
	if err := json.Unmarshal(parts[0], &w.At); err != nil {
		return err
	}
	return json.Unmarshal(parts[1], &w.Weights)
}
