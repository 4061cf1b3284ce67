package driver

import (
	"context"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// JoiningEncoding is an Encoding that makes one file of several: of those that tasks wrote side by side.
type JoiningEncoding interface {
	Encoding
	// Joins reports whether files of this schema can be joined: what is read of them is what was written.
	Joins(schema *arrow.Schema) bool
	// Join writes to w one file with the rows of o.Files, in their order, where Joins says yes. The same files and o.Most give the same
	// bytes. It does not close w.
	Join(ctx context.Context, w io.Writer, o *JoinOptions) error
}

// JoinOptions of JoiningEncoding; all are required.
type JoinOptions struct {
	Schema *arrow.Schema // that each file was begun with (NewEncoder)
	Files  []JoinFile
	Alloc  memory.Allocator
	// Most is about how many bytes of rows and of what is encoded are held at once.
	Most int64
}

// JoinFile is a complete file of the encoding.
type JoinFile struct {
	Path string // as a user would write it
	Rows int64
	// Open gives its bytes.
	Open func(ctx context.Context) io.ReadCloser
}
