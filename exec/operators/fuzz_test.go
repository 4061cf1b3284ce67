package operators

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/memtest"
)

// FuzzAnswer reads what a child may write.
func FuzzAnswer(f *testing.F) {
	for _, n := range []int{0, 3, 50} {
		for _, o := range [][]ipc.Option{nil, {ipc.WithZstd()}, {ipc.WithLZ4()}} {
			rec := testBatch(rand.New(rand.NewPCG(1, uint64(n))), n, memory.DefaultAllocator)
			var buf bytes.Buffer
			w := ipc.NewWriter(&buf, append(o, ipc.WithSchema(testSchema))...)
			for range 2 {
				if err := w.Write(rec); err != nil {
					f.Fatal(err)
				}
			}
			if err := w.Close(); err != nil {
				f.Fatal(err)
			}
			f.Add(buf.Bytes())
		}
	}
	f.Add([]byte("hello"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) > 1<<20 {
			return
		}
		alloc := memtest.New(t)
		c := &child{cmd: &command{answer: testSchema, limit: 1 << 20}, br: bufio.NewReader(bytes.NewReader(data))}
		for {
			c.mem.use(alloc, nil)
			rec, err := c.answer()
			if err != nil {
				break
			}
			for _, col := range rec.Columns() {
				for i := range min(col.Len(), 100) {
					_ = col.ValueStr(i)
				}
			}
			rec.Release()
		}
		c.free()
	})
}
