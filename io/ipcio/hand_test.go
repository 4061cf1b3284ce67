package ipcio

import (
	"encoding/binary"
	"os"
	"path/filepath"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"
)

// Files written message by message: as old and foreign writers do, and as none should.

// handField is a Field table. The zero dict is none.
type handField struct {
	name     string
	typ      byte // its number in the format
	table    func(*flatbuffers.Builder) flatbuffers.UOffsetT
	dict     int64 // of int8
	meta     [][2]string
	children []handField
}

// Numbers of types, with their tables where these are not empty.
var (
	handUTF8  = handField{typ: 5}
	handInt32 = handInt(32)
)

func handInt(bits int32) handField {
	return handField{typ: 2, table: func(b *flatbuffers.Builder) flatbuffers.UOffsetT {
		b.StartObject(2)
		b.PrependInt32Slot(0, bits, 0)
		b.PrependBoolSlot(1, true, false)
		return b.EndObject()
	}}
}

func (f handField) called(name string) handField { f.name = name; return f }

func (f handField) put(b *flatbuffers.Builder) flatbuffers.UOffsetT {
	children := handTables(b, f.children, handField.put)
	meta := handTables(b, f.meta, handPair)
	name := b.CreateString(f.name)
	table := f.table
	if table == nil {
		table = func(b *flatbuffers.Builder) flatbuffers.UOffsetT { b.StartObject(0); return b.EndObject() }
	}
	typ := table(b)
	var dict flatbuffers.UOffsetT
	if f.dict != 0 {
		index := handInt(8).table(b)
		b.StartObject(4)
		b.PrependInt64Slot(0, f.dict, 0)
		b.PrependUOffsetTSlot(1, index, 0)
		dict = b.EndObject()
	}
	b.StartObject(7)
	b.PrependUOffsetTSlot(0, name, 0)
	b.PrependBoolSlot(1, true, false)
	b.PrependByteSlot(2, f.typ, 0)
	b.PrependUOffsetTSlot(3, typ, 0)
	b.PrependUOffsetTSlot(4, dict, 0)
	b.PrependUOffsetTSlot(5, children, 0)
	b.PrependUOffsetTSlot(6, meta, 0)
	return b.EndObject()
}

func handPair(kv [2]string, b *flatbuffers.Builder) flatbuffers.UOffsetT {
	k, v := b.CreateString(kv[0]), b.CreateString(kv[1])
	b.StartObject(2)
	b.PrependUOffsetTSlot(0, k, 0)
	b.PrependUOffsetTSlot(1, v, 0)
	return b.EndObject()
}

// handTables is a vector, or absent if it would be empty.
func handTables[T any](b *flatbuffers.Builder, of []T, put func(T, *flatbuffers.Builder) flatbuffers.UOffsetT) flatbuffers.UOffsetT {
	if len(of) == 0 {
		return 0
	}
	at := make([]flatbuffers.UOffsetT, len(of))
	for i, x := range of {
		at[i] = put(x, b)
	}
	b.StartVector(4, len(at), 4)
	for i := len(at) - 1; i >= 0; i-- {
		b.PrependUOffsetT(at[i])
	}
	return b.EndVector(len(at))
}

func handWords(b *flatbuffers.Builder, words ...int64) {
	for i := len(words) - 1; i >= 0; i-- {
		b.PrependInt64(words[i])
	}
}

// handBatch is a record batch, or the batch of a dictionary. Its buffers are as they lie in the file.
type handBatch struct {
	dict     int64
	rows     int64
	nodes    []int64 // rows and nulls of each
	buffers  [][]byte
	variadic []int64
	meta     [][2]string // of the message
}

// handVersion is that of Arrow 0.17.
const handVersion = 3

// handMessage is a message with its body, and the length of what is in front of the body.
func handMessage(header byte, table func(*flatbuffers.Builder) flatbuffers.UOffsetT, meta [][2]string, body []byte) (msg []byte, head int) {
	b := flatbuffers.NewBuilder(0)
	kv := handTables(b, meta, handPair)
	t := table(b)
	b.StartObject(5)
	b.PrependInt16Slot(0, handVersion, 0)
	b.PrependByteSlot(1, header, 0)
	b.PrependUOffsetTSlot(2, t, 0)
	b.PrependInt64Slot(3, int64(len(body)), 0)
	b.PrependUOffsetTSlot(4, kv, 0)
	b.Finish(b.EndObject())
	fb := b.FinishedBytes()
	for len(fb)%8 != 0 {
		fb = append(fb, 0)
	}
	msg = binary.LittleEndian.AppendUint32([]byte{255, 255, 255, 255}, uint32(len(fb)))
	msg = append(msg, fb...)
	return append(msg, body...), len(msg)
}

func (x handBatch) message() (msg []byte, head int) {
	var body []byte
	var places []int64
	for _, c := range x.buffers {
		places = append(places, int64(len(body)), int64(len(c)))
		body = append(body, c...)
		for len(body)%8 != 0 {
			body = append(body, 0)
		}
	}
	header := byte(headerRecord)
	table := func(b *flatbuffers.Builder) flatbuffers.UOffsetT {
		b.StartVector(16, len(x.nodes)/2, 8)
		handWords(b, x.nodes...)
		nodes := b.EndVector(len(x.nodes) / 2)
		b.StartVector(16, len(x.buffers), 8)
		handWords(b, places...)
		buffers := b.EndVector(len(x.buffers))
		b.StartVector(8, len(x.variadic), 8)
		handWords(b, x.variadic...)
		variadic := b.EndVector(len(x.variadic))
		b.StartObject(5)
		b.PrependInt64Slot(0, x.rows, 0)
		b.PrependUOffsetTSlot(1, nodes, 0)
		b.PrependUOffsetTSlot(2, buffers, 0)
		b.PrependUOffsetTSlot(4, variadic, 0)
		return b.EndObject()
	}
	if batch := table; x.dict != 0 {
		header = headerDictionary
		table = func(b *flatbuffers.Builder) flatbuffers.UOffsetT {
			data := batch(b)
			b.StartObject(3)
			b.PrependInt64Slot(0, x.dict, 0)
			b.PrependUOffsetTSlot(1, data, 0)
			return b.EndObject()
		}
	}
	return handMessage(header, table, x.meta, body)
}

// handFile is a file, or a stream, of these batches; dictionaries come before what needs them.
func handFile(stream bool, fields []handField, batches ...handBatch) []byte {
	schema := func(b *flatbuffers.Builder) flatbuffers.UOffsetT {
		fs := handTables(b, fields, handField.put)
		b.StartObject(4)
		b.PrependUOffsetTSlot(1, fs, 0)
		return b.EndObject()
	}
	first, _ := handMessage(headerSchema, schema, nil, nil)
	var out []byte
	if !stream {
		out = append(out, "ARROW1\x00\x00"...)
	}
	out = append(out, first...)
	var blocks [2][]int64
	for _, x := range batches {
		msg, head := x.message()
		kind := 1
		if x.dict != 0 {
			kind = 0
		}
		blocks[kind] = append(blocks[kind], int64(len(out)), int64(head), int64(len(msg)-head))
		out = append(out, msg...)
	}
	out = append(out, 255, 255, 255, 255, 0, 0, 0, 0)
	if stream {
		return out
	}
	b := flatbuffers.NewBuilder(0)
	s := schema(b)
	var at [2]flatbuffers.UOffsetT
	for i, words := range blocks {
		b.StartVector(24, len(words)/3, 8)
		handWords(b, words...)
		at[i] = b.EndVector(len(words) / 3)
	}
	b.StartObject(4)
	b.PrependInt16Slot(0, handVersion, 0)
	b.PrependUOffsetTSlot(1, s, 0)
	b.PrependUOffsetTSlot(2, at[0], 0)
	b.PrependUOffsetTSlot(3, at[1], 0)
	b.Finish(b.EndObject())
	foot := b.FinishedBytes()
	out = append(out, foot...)
	out = binary.LittleEndian.AppendUint32(out, uint32(len(foot)))
	return append(out, "ARROW1"...)
}

// handWrite puts a file where one is looked for. PENSTOCK_KEEP names a folder that gets a copy, for other readers.
func handWrite(t testing.TB, name string, file []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	for _, p := range []string{path, filepath.Join(os.Getenv("PENSTOCK_KEEP"), name)} {
		if !filepath.IsAbs(p) {
			continue
		}
		if err := os.WriteFile(p, file, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func le32s(vs ...int32) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, uint32(v))
	}
	return b
}

func le64s(vs ...int64) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint64(b, uint64(v))
	}
	return b
}
