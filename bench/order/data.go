package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/parquetio"
)

const (
	sampleRows  = 16 << 20
	sampleFiles = 4
	documents   = 100_000
)

// fresh makes dir with what write puts there, unless it exists.
func fresh(dir string, write func(tmp string) error) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	tmp := dir + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return err
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	if err := write(tmp); err != nil {
		return err
	}
	return os.Rename(tmp, dir)
}

// samples are what a trainer of tables reads: four float32 and a label, 24 bytes a row; in 4 files
// of 64 row groups of 65,536, with a page index.
func samples(dir string) error {
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{Compression: "snappy", RowGroupRows: 1 << 16})
	if err != nil {
		return err
	}
	for i := range sampleFiles {
		ds := dataset.Range(sampleRows/sampleFiles).
			WithColumns("a = random()", "b = random()", "c = random()", "d = random()", "label = id * 7919 % 10").
			Cast(map[string]string{"a": "float32", "b": "float32", "c": "float32", "d": "float32"}).
			Drop("id")
		_, err := ds.Write(context.Background(), filepath.Join(dir, fmt.Sprint(i)), enc,
			&dataset.WriteOptions{RunOptions: dataset.RunOptions{Seed: uint64(i), Memory: 1 << 30}, TargetBytes: 1 << 40})
		if err != nil {
			return err
		}
	}
	return nil
}

// clicks are wider samples, as of an advertising model: 13 float32, 26 int32 ids of which few are
// frequent, a label; 164 bytes a row, in 256 row groups of 8,192, written as WriteParquet does.
func clicks(dir string) error {
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 8192})
	if err != nil {
		return err
	}
	var columns []string
	types := map[string]string{}
	for i := range 13 {
		columns = append(columns, fmt.Sprintf("f%02d = -log(1.0 - random())", i))
		types[fmt.Sprintf("f%02d", i)] = "float32"
	}
	for i := range 26 {
		columns = append(columns, fmt.Sprintf("c%02d = int(exp(random() * %d.0))", i, 4+i%10))
		types[fmt.Sprintf("c%02d", i)] = "int32"
	}
	ds := dataset.Range(2 << 20).WithColumns(append(columns, "label = random() < 0.03 ? 1 : 0")...).Cast(types).Drop("id")
	_, err = ds.Write(context.Background(), dir, enc, &dataset.WriteOptions{RunOptions: dataset.RunOptions{Seed: 7, Memory: 1 << 30}, TargetBytes: 1 << 40})
	return err
}

// vectors are samples of 512 float32 (2 KiB) and a label, as embeddings or small images: 128 row groups of
// 2,048, written as WriteParquet does.
func vectors(dir string) error {
	const width, group, groups = 512, 2048, 128
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "x", Type: arrow.FixedSizeListOfNonNullable(width, arrow.PrimitiveTypes.Float32)},
		{Name: "label", Type: arrow.PrimitiveTypes.Int64},
	}, nil)
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: group})
	if err != nil {
		return err
	}
	rng := rand.New(rand.NewPCG(7, 7))
	f, err := os.Create(filepath.Join(dir, "0.parquet"))
	if err != nil {
		return err
	}
	defer f.Close()
	w, err := enc.NewEncoder(f, schema, memory.DefaultAllocator)
	if err != nil {
		return err
	}
	for range groups {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		for range group {
			l := b.Field(0).(*array.FixedSizeListBuilder)
			l.Append(true)
			for range width {
				l.ValueBuilder().(*array.Float32Builder).Append(rng.Float32())
			}
			b.Field(1).(*array.Int64Builder).Append(rng.Int64N(1000))
		}
		rec := b.NewRecordBatch()
		b.Release()
		err := w.Write(rec)
		rec.Release()
		if err != nil {
			w.Abort()
			return err
		}
	}
	return w.Close()
}

// numbered are the columns of files whose row groups are laid out by hand.
var numbered = arrow.NewSchema([]arrow.Field{
	{Name: "row", Type: arrow.PrimitiveTypes.Int64},
	{Name: "label", Type: arrow.PrimitiveTypes.Int64},
	{Name: "a", Type: arrow.PrimitiveTypes.Float32},
	{Name: "b", Type: arrow.PrimitiveTypes.Float32},
}, nil)

// layout writes files of row groups of the given rows: row counts through all files, label is sorted
// and has 10 classes. Without an index pages cannot be found before they are read, as in files of
// many other writers.
func layout(dir string, index bool, groups ...[]int64) error {
	total, row := int64(0), int64(0)
	for _, g := range groups {
		for _, n := range g {
			total += n
		}
	}
	rng := rand.New(rand.NewPCG(7, 7))
	props := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Snappy), parquet.WithPageIndexEnabled(index),
		parquet.WithDataPageSize(16<<10), parquet.WithDictionaryDefault(false), parquet.WithMaxRowGroupLength(math.MaxInt64), parquet.WithBatchSize(1024))
	for i, g := range groups {
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("%03d.parquet", i)))
		if err != nil {
			return err
		}
		w, err := pqarrow.NewFileWriter(numbered, f, props, pqarrow.DefaultWriterProps())
		if err != nil {
			return err
		}
		for _, n := range g {
			b := array.NewRecordBuilder(memory.DefaultAllocator, numbered)
			for range n {
				b.Field(0).(*array.Int64Builder).Append(row)
				b.Field(1).(*array.Int64Builder).Append(row * 10 / total)
				b.Field(2).(*array.Float32Builder).Append(rng.Float32())
				b.Field(3).(*array.Float32Builder).Append(rng.Float32())
				row++
			}
			rec := b.NewRecordBatch()
			b.Release()
			err := w.Write(rec)
			rec.Release()
			if err != nil {
				return err
			}
		}
		if err := w.Close(); err != nil { // closes f
			return err
		}
	}
	return nil
}

// equal is n groups of the same number of rows.
func equal(n int, rows int64) []int64 {
	g := make([]int64, n)
	for i := range g {
		g[i] = rows
	}
	return g
}

// texts are documents of tokens: lengths lognormal with mean 600 and sigma 1.2, cut at 2,048.
func texts(dir string) error {
	schema := arrow.NewSchema([]arrow.Field{{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)}}, nil)
	rng := rand.New(rand.NewPCG(7, 4))
	f, err := os.Create(filepath.Join(dir, "tokens.parquet"))
	if err != nil {
		return err
	}
	w, err := pqarrow.NewFileWriter(schema, f, parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Snappy),
		parquet.WithDictionaryDefault(false), parquet.WithDataPageSize(64<<10)), pqarrow.DefaultWriterProps())
	if err != nil {
		return err
	}
	const group = 2000
	for range documents / group {
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		l := b.Field(0).(*array.ListBuilder)
		v := l.ValueBuilder().(*array.Int32Builder)
		for range group {
			l.Append(true)
			for range int(max(1, min(2048, math.Exp(math.Log(600)-1.2*1.2/2+1.2*rng.NormFloat64())))) {
				v.Append(rng.Int32N(50_000) + 1)
			}
		}
		rec := b.NewRecordBatch()
		b.Release()
		err := w.Write(rec)
		rec.Release()
		if err != nil {
			return err
		}
	}
	return w.Close()
}

// makeData makes what the workloads read, below dir.
func makeData(dir string) error {
	mixed := []int64{600_000, 200_000, 90_000}
	for i := range 110 {
		mixed = append(mixed, int64(500+400*(i%23)))
	}
	for _, d := range []struct {
		name  string
		write func(string) error
	}{
		{"samples", samples},
		{"clicks", clicks},
		{"vectors", vectors},
		{"texts", texts},
		{"small", func(d string) error { return layout(d, true, equal(256, 2048)) }},
		{"sorted", func(d string) error { return layout(d, true, equal(256, 8192)) }},
		{"unequal", func(d string) error { return layout(d, true, mixed) }},
		{"one", func(d string) error { return layout(d, true, equal(200, 16384)) }},
		{"one-plain", func(d string) error { return layout(d, false, equal(200, 16384)) }},
		{"three", func(d string) error { return layout(d, true, equal(40, 16384), equal(20, 30000), equal(60, 10000)) }},
		{"three-plain", func(d string) error { return layout(d, false, equal(40, 16384), equal(20, 30000), equal(60, 10000)) }},
	} {
		if err := fresh(filepath.Join(dir, d.name), d.write); err != nil {
			return fmt.Errorf("%s: %w", d.name, err)
		}
	}
	return nil
}
