package rows

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"testing"
)

// TestTransposed compares every kernel with its Go twin, on any number of rows and columns; nothing beside the columns is written.
func TestTransposed(t *testing.T) {
	kernels := []struct {
		name string
		has  bool
		to   func(rows []byte, off, size, n int, srcs [][]byte)
		from func(dsts [][]byte, rows []byte, off, size, n int)
	}{
		{"fastest", true, interleave4, func(dsts [][]byte, rows []byte, off, size, n int) {
			deinterleave4(dsts, rows, off, size, n, make([]byte, 4*n))
		}},
		{"AVX2", avx2, func(rows []byte, off, size, n int, srcs [][]byte) {
			interleave4Go(rows, off, size, interleaveSquares(rows, off, size, n, srcs), n, srcs)
		}, func(dsts [][]byte, rows []byte, off, size, n int) {
			deinterleave4Go(dsts, rows, off, size, deinterleaveSquares(dsts, rows, off, size, n), n)
		}},
	}
	const seed = 1
	r := rand.New(rand.NewPCG(seed, 0))
	fill := func(b []byte) []byte {
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for _, k := range kernels {
		t.Run(k.name, func(t *testing.T) {
			if !k.has {
				t.Skip("this processor lacks it")
			}
			for columns := 1; columns <= 40; columns++ {
				for _, n := range []int{1, 7, 8, 9, 15, 16, 17, 31, 32, 48, 100} {
					off, behind := 4*r.IntN(3), 4*r.IntN(3)
					size := off + 4*columns + behind
					srcs := make([][]byte, columns)
					for i := range srcs {
						srcs[i] = fill(make([]byte, 4*n+4))[4:] // not aligned
					}
					rows := fill(make([]byte, n*size))
					want := bytes.Clone(rows)
					interleave4Go(want, off, size, 0, n, srcs)
					k.to(rows, off, size, n, srcs)
					name := fmt.Sprintf("%d rows of %d columns, %d bytes before them and %d behind", n, columns, off, behind)
					if !bytes.Equal(rows, want) {
						t.Fatalf("%s: rows differ", name)
					}
					for i := range n { // the twin, once more by hand
						for c := range columns {
							if binary.LittleEndian.Uint32(rows[i*size+off+4*c:]) != binary.LittleEndian.Uint32(srcs[c][4*i:]) {
								t.Fatalf("%s: value %d of row %d", name, c, i)
							}
						}
					}
					dsts := make([][]byte, columns)
					for i := range dsts {
						dsts[i] = fill(make([]byte, 4*n+4))
					}
					guards := make([][]byte, columns)
					for i := range dsts {
						guards[i] = bytes.Clone(dsts[i][4*n:])
					}
					k.from(dsts, rows, off, size, n)
					for i := range dsts {
						if !bytes.Equal(dsts[i][:4*n], srcs[i]) {
							t.Fatalf("%s: column %d differs", name, i)
						}
						if !bytes.Equal(dsts[i][4*n:], guards[i]) {
							t.Fatalf("%s: written behind column %d", name, i)
						}
					}
				}
			}
		})
	}
}
