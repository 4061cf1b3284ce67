package operators

import (
	"bytes"
	"cmp"
	"encoding/base64"
	"errors"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/penstock-data/penstock/internal/fault"
)

// What children and this process say to each other beside batches; the Python package penstock does.
const (
	answerKey = "penstock.answer" // in the metadata of the schema that a child gets: the schema of its answers, an Arrow IPC stream without batches in base64
	// A child that fails on a batch, and can go on, answers with no rows and metadata of the batch:
	errorKey = "penstock.error" // the text
	codeKey  = "penstock.code"  // the name of a code of package fault; without it user_code
)

const maxRefusal = 64 << 10 // bytes of text

// withAnswer is a schema that says what the answers must be.
func withAnswer(in, answer *arrow.Schema) *arrow.Schema {
	var b bytes.Buffer
	w := ipc.NewWriter(&b, ipc.WithSchema(answer))
	if err := w.Close(); err != nil { // no child can give such columns either
		return in
	}
	md := in.Metadata()
	m := arrow.NewMetadata(append([]string{answerKey}, md.Keys()...), append([]string{base64.StdEncoding.EncodeToString(b.Bytes())}, md.Values()...))
	return arrow.NewSchemaWithEndian(in.Fields(), &m, in.Endianness())
}

// refused is a child's own error for a batch: the child lives, and takes the next one.
type refused struct{ err *fault.Error }

func (r *refused) Error() string { return r.err.Error() }
func (r *refused) Unwrap() error { return r.err }

func isRefused(err error) bool {
	_, ok := errors.AsType[*refused](err)
	return ok
}

// refusal is the error that an answer is; nil for other answers. The reader keeps the answer.
func (c *command) refusal(answer arrow.RecordBatch) error {
	m, ok := answer.(arrow.RecordBatchWithMetadata)
	if !ok {
		return nil
	}
	md := m.Metadata()
	text, ok := md.GetValue(errorKey)
	if !ok {
		return nil
	}
	name, _ := md.GetValue(codeKey)
	code := cmp.Or(fault.ParseCode(name), fault.UserCode)
	text = strings.TrimSpace(strings.ToValidUTF8(text[:min(len(text), maxRefusal)], "?"))
	return &refused{fault.New(code, "%s: %s", c, text)}
}
