package parquetio

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
)

// Whatever a footer may say of a chunk comes back, one at a time and in any order.
func TestPackedChunks(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	num := func() int64 {
		switch rnd.IntN(4) {
		case 0:
			return rnd.Int64N(200)
		case 1:
			return rnd.Int64N(1 << 40)
		case 2:
			return math.MaxInt64 - rnd.Int64N(3)
		}
		return rnd.Int64N(1 << 20)
	}
	const leaves, groups = 7, 50
	f := &footer{chunks: packed{leaves: leaves}}
	var want []chunk
	for range groups {
		g := groupInfo{rows: num(), base: num()}
		f.groups = append(f.groups, g)
		for range leaves {
			c := chunk{start: num(), size: num(), raw: num(), values: num(), nulls: num() - 1, text: num() - 1, codec: int8(rnd.IntN(128) - 1), flags: chunkFlags(rnd.IntN(256)),
				min: strings.Repeat("m", rnd.IntN(maxStat+1)), max: strings.Repeat("x", rnd.IntN(maxStat+1))}
			if rnd.IntN(2) == 0 {
				c.ci, c.ciLen = num(), 1+rnd.Int32N(1<<30)
			}
			if rnd.IntN(2) == 0 {
				c.oi, c.oiLen = num(), 1+rnd.Int32N(1<<30)
			}
			if rnd.IntN(2) == 0 {
				c.bloom, c.bloomLen = max(num(), 1), rnd.Int32()
			}
			want = append(want, c)
			f.chunks.add(&g, &c)
		}
	}
	some := new(rowGroup)
	for range 500 {
		i := rnd.IntN(groups)
		all := f.group(i)
		if !slices.Equal(all.chunks, want[i*leaves:(i+1)*leaves]) || all.rows != f.groups[i].rows {
			t.Fatalf("row group %d: %+v, want %+v", i, all.chunks, want[i*leaves:(i+1)*leaves])
		}
		l := rnd.IntN(leaves)
		if f.unpack(i, some, []int{l}); some.chunks[l] != want[i*leaves+l] || some.rows != all.rows {
			t.Fatalf("row group %d, leaf %d: %+v", i, l, some.chunks[l])
		}
	}
}
