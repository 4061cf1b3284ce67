package sift

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"
)

// masks draws words of every density: few rows, about half, nearly all, runs.
func masks(r *rand.Rand, n int) []uint64 {
	rows := make([]uint64, (n+63)/64)
	kind := r.IntN(6)
	p := r.Float64()
	for k := range rows {
		switch {
		case kind == 0:
			rows[k] = r.Uint64() & r.Uint64() & r.Uint64() & r.Uint64()
		case kind == 1:
			rows[k] = r.Uint64() | r.Uint64() | r.Uint64() | r.Uint64()
		case kind == 2 && r.Float64() < p:
			rows[k] = ^uint64(0)
		case kind == 3 && r.Float64() < p, kind == 5:
			rows[k] = r.Uint64()
		case kind == 4:
			rows[k] = (1<<r.IntN(64) - 1) << r.IntN(64)
		}
	}
	if left := n & 63; left > 0 {
		rows[len(rows)-1] &= 1<<left - 1
	}
	return rows
}

// both runs a test with the assembly and without.
func both(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Run("as it is", f)
	if setFast(false) {
		defer setFast(true)
		t.Run("go", f)
	}
}

func testKeep[T Width](t *testing.T, of func(i int) T) {
	seed := uint64(time.Now().UnixNano())
	r := rand.New(rand.NewPCG(seed, 0))
	for range 300 {
		n := r.IntN(700)
		rows := masks(r, n)
		src := make([]T, n)
		var want []T
		var index []int32
		for i := range src {
			src[i] = of(i)
			if rows[i/64]>>(i%64)&1 == 1 {
				want = append(want, src[i])
				index = append(index, int32(i))
			}
		}
		if c := Count(rows); c != len(want) {
			t.Fatalf("seed %d: counted %d of %d", seed, c, len(want))
		}
		guard := of(99)
		buf := slices.Repeat([]T{guard}, len(want)+80) // behind dst nothing may be written
		dst := buf[8 : 8+len(want) : 8+len(want)]
		Keep(dst, src, rows)
		if !slices.Equal(dst, want) {
			t.Fatalf("seed %d: kept %v, want %v, rows %x", seed, dst, want, rows)
		}
		for i, v := range buf {
			if (i < 8 || i >= 8+len(want)) && v != guard {
				t.Fatalf("seed %d: wrote at %d of %d", seed, i-8, len(want))
			}
		}
		got := make([]int32, len(want))
		if Index(got, rows, 0); !slices.Equal(got, index) {
			t.Fatalf("seed %d: indices %v, want %v", seed, got, index)
		}
	}
}

func TestKeep(t *testing.T) {
	both(t, func(t *testing.T) {
		testKeep(t, func(i int) uint8 { return uint8(i * 7) })
		testKeep(t, func(i int) uint16 { return uint16(i * 777) })
		testKeep(t, func(i int) uint32 { return uint32(i * 77777) })
		testKeep(t, func(i int) uint64 { return uint64(i) * 77777777777 })
		testKeep(t, func(i int) [2]uint64 { return [2]uint64{uint64(i), ^uint64(i)} })
	})
}

func TestBits(t *testing.T) {
	both(t, func(t *testing.T) {
		seed := uint64(time.Now().UnixNano())
		r := rand.New(rand.NewPCG(seed, 0))
		for range 500 {
			n := r.IntN(700)
			rows, src := masks(r, n), masks(r, n)
			var want []uint64
			count, set := 0, 0
			for i := range n {
				if rows[i/64]>>(i%64)&1 == 0 {
					continue
				}
				if count%64 == 0 {
					want = append(want, 0)
				}
				bit := src[i/64] >> (i % 64) & 1
				want[count/64] |= bit << (count % 64)
				count++
				set += int(bit)
			}
			dst := make([]uint64, (count+63)/64)
			got := Bits(dst, func(k int) uint64 { return src[k] }, rows)
			if got != set || !slices.Equal(dst, want) {
				t.Fatalf("seed %d: %d bits set in %x, want %d in %x", seed, got, dst, set, want)
			}
		}
	})
}

func TestShort(t *testing.T) {
	both(t, func(t *testing.T) {
		for _, f := range []func(){
			func() { Keep(make([]uint32, 63), make([]uint32, 64), []uint64{^uint64(0)}) },
			func() { Keep(make([]uint32, 128), make([]uint32, 127), []uint64{^uint64(0), ^uint64(0)}) },
			func() { Keep(make([]uint64, 127), make([]uint64, 128), []uint64{^uint64(0), ^uint64(0)}) },
		} {
			func() {
				defer func() {
					if recover() == nil {
						t.Error("a slice that is too short was taken")
					}
				}()
				f()
			}()
		}
	})
}

func BenchmarkKeep(b *testing.B) {
	const n = 16 << 10
	for _, share := range []int{1, 10, 41, 90, 100} {
		r := rand.New(rand.NewPCG(1, 2))
		rows := make([]uint64, n/64)
		for i := range n {
			if r.IntN(100) < share {
				rows[i/64] |= 1 << (i % 64)
			}
		}
		src := make([]uint32, n)
		dst := make([]uint32, Count(rows))
		for _, on := range []bool{true, false} {
			b.Run(fmt.Sprintf("%d%%/asm=%v", share, on), func(b *testing.B) {
				if was := setFast(on); was != on {
					defer setFast(was)
				}
				b.SetBytes(4 * n)
				for range b.N {
					Keep(dst, src, rows)
				}
			})
		}
	}
}

// TestIndexFrom: numbers are counted from the first, in 64 bits too.
func TestIndexFrom(t *testing.T) {
	rows := []uint64{1<<3 | 1<<63, 0, ^uint64(0), 5}
	small, large := make([]int32, Count(rows)), make([]int64, Count(rows))
	const first = 1 << 40
	Index(small, rows, 0)
	Index(large, rows, first)
	for i := range small {
		if w := rows[small[i]/64] >> (small[i] % 64) & 1; w != 1 || i > 0 && small[i] <= small[i-1] || large[i] != first+int64(small[i]) {
			t.Fatalf("%d: %d and %d", i, small[i], large[i])
		}
	}
}
