package ipcio

import (
	"strings"
	"testing"

	flatbuffers "github.com/google/flatbuffers/go"
)

// early is a record batch message of Arrow 0.17 that names this codec.
func early(name string) []byte {
	b := flatbuffers.NewBuilder(0)
	k, v := b.CreateString("ARROW:experimental_compression"), b.CreateString(name)
	b.StartObject(2)
	b.PrependUOffsetTSlot(0, k, 0)
	b.PrependUOffsetTSlot(1, v, 0)
	kv := b.EndObject()
	b.StartVector(4, 1, 4)
	b.PrependUOffsetT(kv)
	kvs := b.EndVector(1)
	b.StartObject(5)
	batch := b.EndObject()
	b.StartObject(5)
	b.PrependInt16Slot(0, 3, 0) // V4
	b.PrependByteSlot(1, headerRecord, 0)
	b.PrependUOffsetTSlot(2, batch, 0)
	b.PrependUOffsetTSlot(4, kvs, 0)
	b.Finish(b.EndObject())
	return b.FinishedBytes()
}

func TestCompressionOfArrow017(t *testing.T) {
	for name, want := range map[string]int8{"LZ4": codecLZ4, "LZ4_FRAME": codecLZ4, "ZSTD": codecZstd, "UNCOMPRESSED": codecNone} {
		m, _, err := messageOf(early(name))
		if err != nil || m.codec != want {
			t.Errorf("%s: codec %d, error %v; want %d", name, m.codec, err, want)
		}
	}
	if _, _, err := messageOf(early("SNAPPY")); err == nil {
		t.Error("SNAPPY is read")
	}
}

func TestDamagedMetadataIsNamed(t *testing.T) {
	err := guard("record batch 3", func() error { _, _, err := messageOf([]byte{255, 0, 0, 0}); return err })
	if err == nil || !strings.Contains(err.Error(), "record batch 3: the metadata is damaged: it points outside of itself") {
		t.Error(err)
	}
}
