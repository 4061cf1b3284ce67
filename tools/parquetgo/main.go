// Command parquetgo writes Parquet files with parquet-go, for the tests of the reader: every type that it has, with the encodings, codecs, page versions and nestings
// that it knows, at random.
//
//	parquetgo FOLDER SEED
package main

import (
	"fmt"
	"log"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/parquet-go/parquet-go"
)

// leaf is a Go type and the tags that it may have.
type leaf struct {
	t    reflect.Type
	tags []string
}

var codecs = []string{"uncompressed", "snappy", "gzip", "brotli", "zstd", "lz4"}

var leaves = []leaf{
	{reflect.TypeFor[bool](), []string{"", "plain"}},
	{reflect.TypeFor[int32](), []string{"", "delta", "dict", "split"}},
	{reflect.TypeFor[int64](), []string{"", "delta", "dict", "split", "timestamp(millisecond)", "timestamp(microsecond)"}},
	{reflect.TypeFor[uint32](), []string{"", "delta", "dict"}},
	{reflect.TypeFor[uint64](), []string{"", "delta", "dict"}},
	{reflect.TypeFor[float32](), []string{"", "split", "dict"}},
	{reflect.TypeFor[float64](), []string{"", "split", "dict"}},
	{reflect.TypeFor[string](), []string{"", "delta", "dict", "enum", "json"}},
	{reflect.TypeFor[[]byte](), []string{"", "delta", "dict"}},
	{reflect.TypeFor[[16]byte](), []string{"uuid", "", "delta"}},
	{reflect.TypeFor[time.Time](), []string{"timestamp(nanosecond)", "delta"}},
}

type gen struct{ *rand.Rand }

func pick[T any](g gen, of []T) T { return of[g.IntN(len(of))] }

// field is a column: a leaf, an optional one, a list, a struct, a map.
func (g gen) field(i, depth int) reflect.StructField {
	l := pick(g, leaves)
	t, tag := l.t, pick(g, l.tags)
	tags, codec := []string{"c" + strconv.Itoa(i)}, pick(g, codecs)
	switch kind := g.IntN(8); {
	case depth > 0 && kind == 0:
		t, tag = reflect.SliceOf(t), "list"
		if l.t.Kind() == reflect.Slice || l.t == reflect.TypeFor[time.Time]() {
			t = reflect.TypeFor[[]string]()
		}
	case depth > 0 && kind == 1:
		t, tag, codec = g.group(1+g.IntN(3), depth-1), "", ""
	case depth > 0 && kind == 2:
		t, tag = reflect.TypeFor[map[string]int64](), ""
		codec = ""
	case depth > 0 && kind == 3:
		t, tag, codec = reflect.SliceOf(g.group(1+g.IntN(2), depth-1)), "list", ""
	case kind < 6:
		tags = append(tags, "optional") // the zero value is null
	}
	for _, s := range []string{tag, codec} {
		if s != "" {
			tags = append(tags, s)
		}
	}
	return reflect.StructField{Name: "C" + strconv.Itoa(i), Type: t, Tag: reflect.StructTag(`parquet:"` + strings.Join(tags, ",") + `"`)}
}

func (g gen) group(n, depth int) reflect.Type {
	var fs []reflect.StructField
	for i := range n {
		fs = append(fs, g.field(i, depth))
	}
	return reflect.StructOf(fs)
}

// fill sets v to a random value, often to the zero one.
func (g gen) fill(v reflect.Value) {
	switch v.Type() {
	case reflect.TypeFor[time.Time]():
		v.Set(reflect.ValueOf(time.Unix(g.Int64N(1<<32), g.Int64N(1e9)).UTC()))
		return
	case reflect.TypeFor[[]byte]():
		v.SetBytes([]byte(g.text()))
		return
	}
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(g.IntN(2) == 0)
	case reflect.Int32, reflect.Int64:
		v.SetInt(pick(g, []int64{0, 1, -1, g.Int64N(1000), int64(int32(g.Uint32())), math.MaxInt32}))
	case reflect.Uint32, reflect.Uint64:
		v.SetUint(pick(g, []uint64{0, 1, g.Uint64N(1000), uint64(g.Uint32()), math.MaxUint32}))
	case reflect.Float32, reflect.Float64:
		v.SetFloat(pick(g, []float64{0, 1, g.NormFloat64(), math.Inf(1), math.NaN()}))
	case reflect.String:
		v.SetString(g.text())
	case reflect.Array:
		for i := range v.Len() {
			v.Index(i).SetUint(g.Uint64N(256))
		}
	case reflect.Slice:
		n := pick(g, []int{0, 1, 2, 20})
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		for i := range n {
			g.fill(v.Index(i))
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		for i := range g.IntN(2) { // one key: their order is the map's
			v.SetMapIndex(reflect.ValueOf("k"+strconv.Itoa(i)), reflect.ValueOf(g.Int64()))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			g.fill(v.Field(i))
		}
	}
}

func (g gen) text() string {
	return pick(g, []string{"", "a", "Süß", fmt.Sprintf("prefix/%06d", g.IntN(1000)), strings.Repeat("x", g.IntN(300))})
}

func (g gen) file(path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	defer f.Close()
	t := g.group(12, 2)
	w := parquet.NewWriter(f, parquet.SchemaOf(reflect.New(t).Interface()), parquet.DataPageVersion(1+g.IntN(2)), parquet.PageBufferSize(pick(g, []int{200, 4096, 256 << 10})),
		parquet.DataPageStatistics(g.IntN(2) == 0), parquet.MaxRowsPerRowGroup(pick(g, []int64{97, 1 << 20})))
	row := reflect.New(t)
	for range pick(g, []int{1, 100, 2000}) {
		g.fill(row.Elem())
		if err := w.Write(row.Interface()); err != nil {
			return err
		}
	}
	return w.Close()
}

func main() {
	log.SetFlags(0)
	seed, err := strconv.ParseUint(os.Args[2], 10, 64)
	if err != nil {
		log.Fatal(err)
	}
	g := gen{rand.New(rand.NewPCG(seed, 1))}
	for i := range 24 {
		if err := g.file(filepath.Join(os.Args[1], fmt.Sprintf("parquetgo-%02d.parquet", i))); err != nil {
			log.Fatal(err)
		}
	}
}
