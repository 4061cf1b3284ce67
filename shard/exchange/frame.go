package exchange

import (
	"encoding/binary"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
	"github.com/penstock-data/penstock/shard"
)

// A frame is a header of fixed size, and what it says follows:
//
//	0   kind
//	1   zero
//	4   bytes of the message's head
//	8   bytes of IPC metadata
//	12  zero
//	16  bytes of rows
//
// Numbers are little-endian. The head comes first, then the metadata, then the rows. TLS guards the bytes, so there is no checksum.
const headerSize = 24

// Kinds of frames.
const (
	framePlain  = iota + 1 // a message without rows
	framePacked            // with packed rows
	frameRecord            // with a record: the metadata of its dictionaries and of itself, each with its length in front; their bodies
	frameSchema            // of the records that follow: the metadata of an IPC schema
	framePing              // this node lives
	frameEnd               // nothing follows but an answer: this node closes
	frameEnded             // the answer: everything before has come
)

// Limits of what a frame may claim. Nothing is allocated for a claim alone: memory grows with what has come.
const (
	maxMeta = ipcrecord.MaxMeta
	maxRows = 1 << 38 // bytes; as of one tensor
)

// header is that of a frame.
type header struct {
	kind       byte
	head, meta int
	rows       int64
}

// left is how many bytes follow.
func (h *header) left() int64 { return int64(h.head) + int64(h.meta) + h.rows }

func (h *header) append(b []byte) []byte {
	b = append(b, h.kind, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, uint32(h.head))
	b = binary.LittleEndian.AppendUint32(b, uint32(h.meta))
	b = binary.LittleEndian.AppendUint32(b, 0)
	return binary.LittleEndian.AppendUint64(b, uint64(h.rows))
}

func parseHeader(b *[headerSize]byte) (h header, err error) {
	le := binary.LittleEndian
	head, meta, rows := le.Uint32(b[4:]), le.Uint32(b[8:]), le.Uint64(b[16:])
	if b[1]|b[2]|b[3] != 0 || le.Uint32(b[12:]) != 0 || head > shard.MaxHead || meta > maxMeta || rows > maxRows {
		return h, damaged("no header of a frame")
	}
	h = header{kind: b[0], head: int(head), meta: int(meta), rows: int64(rows)}
	ok := false
	switch h.kind {
	case framePlain:
		ok = meta == 0 && rows == 0
	case framePacked:
		ok = meta == 0
	case frameRecord:
		ok = meta > 0
	case frameSchema:
		ok = head == 0 && meta > 0 && rows == 0
	case framePing, frameEnd, frameEnded:
		ok = h.left() == 0
	}
	if !ok {
		return h, damaged("a frame of kind %d with %d, %d and %d bytes", h.kind, head, meta, rows)
	}
	return h, nil
}

func damaged(format string, args ...any) error {
	return fault.New(fault.Corrupt, "what comes over the connection is damaged: "+format, args...)
}
