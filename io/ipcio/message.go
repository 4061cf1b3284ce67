package ipcio

import (
	"strings"

	"github.com/penstock-data/penstock/io/driver"
)

// Message headers and bounds of what metadata may claim.
const (
	headerSchema     = 1
	headerDictionary = 2
	headerRecord     = 3

	maxMeta   = 64 << 20 // bytes of one message's metadata
	maxFields = 1 << 20  // fields of a schema, nested ones included
	maxDepth  = 64       // nesting of types
	maxRows   = 1<<31 - 1
)

// message is the metadata of a dictionary or record batch.
type message struct {
	header  int8
	bodyLen int64
	dict    int64 // dictionaries: id
	delta   bool
	batch
}

// batch is a RecordBatch table.
type batch struct {
	rows     int64
	nodes    []byte // {length, nulls int64} each
	buffers  []byte // {offset, length int64} each
	variadic []byte // int64 each
	v4       bool   // the metadata is of version 4
	codec    int8   // codecNone, codecLZ4, codecZstd
}

const (
	codecNone = int8(-1)
	codecLZ4  = int8(0)
	codecZstd = int8(1)
)

// messageOf parses the metadata of a message.
func messageOf(meta []byte) (m message, t table, err error) {
	t = root(meta)
	m.header, m.bodyLen = t.int8(1), t.int64(3)
	h, ok := t.table(2)
	if !ok || m.bodyLen < 0 {
		return m, t, driver.Errorf(driver.Corrupt, "a message has no header, or a body of %d bytes", m.bodyLen)
	}
	version := t.int16(0, 0)
	switch m.header {
	case headerSchema:
		return m, h, nil
	case headerDictionary:
		m.dict, m.delta = h.int64(0), h.int8(2) != 0
		if h, ok = h.table(1); !ok {
			return m, t, driver.Errorf(driver.Corrupt, "a dictionary has no data")
		}
	case headerRecord:
	default:
		return m, t, driver.Errorf(driver.Unsupported, "a message of type %d; tables hold record batches and dictionaries", m.header)
	}
	if version < 3 || version > 4 {
		return m, t, driver.Errorf(driver.Unsupported, "metadata version %d; 4 and 5 are read", version+1)
	}
	m.batch = batch{rows: h.int64(0), nodes: h.vector(1, 16), buffers: h.vector(2, 16), variadic: h.vector(4, 8), codec: codecNone, v4: version == 3}
	if c, ok := h.table(3); ok {
		m.codec = c.int8(0)
		if m.codec != codecLZ4 && m.codec != codecZstd || c.int8(1) != 0 {
			return m, t, driver.Errorf(driver.Unsupported, "compression codec %d, method %d; lz4 and zstd per buffer are read", m.codec, c.int8(1))
		}
	}
	if m.codec == codecNone && m.v4 {
		if m.codec, err = earlyCodec(t); err != nil {
			return m, t, err
		}
	}
	if m.rows < 0 || m.rows > maxRows {
		return m, t, driver.Errorf(driver.Corrupt, "a batch claims %d rows", m.rows)
	}
	return m, h, nil
}

// earlyCodec is the codec that Arrow 0.17 names in the metadata of the message t. Buffers are laid out as
// they are today.
func earlyCodec(t table) (int8, error) {
	for _, kv := range t.tables(4) {
		if string(kv.text(0)) != "ARROW:experimental_compression" {
			continue
		}
		switch name := strings.ToLower(string(kv.text(1))); name {
		case "uncompressed":
			return codecNone, nil
		case "lz4", "lz4_frame":
			return codecLZ4, nil
		case "zstd":
			return codecZstd, nil
		default:
			return 0, driver.Errorf(driver.Unsupported, "buffers compressed with %q; lz4 and zstd are read", name)
		}
	}
	return codecNone, nil
}
