package parquetio

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/compute"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	arrays "github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// BenchmarkStringViews measures what docs/design/0003-parquet.md says of string views: strings of a PLAIN page as
// offsets and copied bytes, or as views into the page; and what consumers then do with them. ns/op is of 16384 values.
func BenchmarkStringViews(b *testing.B) {
	const n = 16384
	for _, width := range []int{8, 24, 120, 1000} {
		rng := rand.New(rand.NewPCG(1, 1))
		var page []byte
		for range n {
			k := width/2 + rng.IntN(width+1)
			page = binary.LittleEndian.AppendUint32(page, uint32(k))
			for range k {
				page = append(page, byte('a'+rng.IntN(26)))
			}
		}
		offs, data := make([]int32, n+1), make([]byte, len(page)+kernel.Slack)
		heads := make([]arrow.ViewHeader, n)
		copied := func() {
			if _, ok := kernel.PlainBytes(offs, data, page); !ok {
				b.Fatal("damaged")
			}
		}
		viewed := func() {
			at := 0
			for i := range heads {
				k := int(binary.LittleEndian.Uint32(page[at:]))
				at += 4
				heads[i].SetBytes(page[at : at+k])
				heads[i].SetIndexOffset(0, int32(at))
				at += k
			}
		}
		b.Run(fmt.Sprint(width, "/decode/strings"), func(b *testing.B) {
			for b.Loop() {
				copied()
			}
		})
		b.Run(fmt.Sprint(width, "/decode/views"), func(b *testing.B) {
			for b.Loop() {
				viewed()
			}
		})
		copied()
		viewed()
		for i := range heads {
			if heads[i].IsInline() { // SetIndexOffset is for others
				heads[i].SetBytes(data[offs[i]:offs[i+1]])
			}
		}
		strings := arrayOf(arrow.BinaryTypes.String, n, arrow.Int32Traits.CastToBytes(offs), data[:offs[n]])
		views := arrayOf(arrow.BinaryTypes.StringView, n, arrow.ViewHeaderTraits.CastToBytes(heads), page)
		runs := make([]arrays.Run, n)
		for i, r := range rng.Perm(n) {
			runs[i] = arrays.Run{Row: int32(r), N: 1}
		}
		for name, a := range map[string]arrow.Array{"strings": strings, "views": views} {
			b.Run(fmt.Sprint(width, "/shuffle/", name), func(b *testing.B) {
				for b.Loop() {
					out, err := arrays.Column(memory.DefaultAllocator, []arrow.Array{a}, runs)
					if err != nil {
						b.Fatal(err)
					}
					out.Release()
				}
			})
			b.Run(fmt.Sprint(width, "/ipc/", name), func(b *testing.B) {
				rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "s", Type: a.DataType()}}, nil), []arrow.Array{a}, n)
				for b.Loop() {
					w := ipc.NewWriter(io.Discard, ipc.WithSchema(rec.Schema()))
					if err := w.Write(rec); err != nil {
						b.Fatal(err)
					}
					w.Close()
				}
			})
			b.Run(fmt.Sprint(width, "/compare/", name), func(b *testing.B) {
				lit := compute.NewDatum("abc")
				for b.Loop() {
					out, err := compute.CallFunction(context.Background(), "equal", nil, compute.NewDatumWithoutOwning(a), lit)
					if err != nil {
						b.Skip(err)
					}
					out.Release()
				}
			})
		}
	}
}

// arrayOf makes an array without nulls of two buffers.
func arrayOf(t arrow.DataType, n int, a, b []byte) arrow.Array {
	d := array.NewData(t, n, []*memory.Buffer{nil, memory.NewBufferBytes(a), memory.NewBufferBytes(b)}, nil, 0, 0)
	defer d.Release()
	return array.MakeFromData(d)
}
