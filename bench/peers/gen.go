package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
)

// rewritten are the files of the scan that arrow-go writes, from one that py/gen.py made.
var rewritten = []struct {
	name, from string
	group      int64
	props      []parquet.WriterProperty
}{
	{"taxi_arrow_snappy_1m", "scan/taxi_duck_snappy_120k", 1_000_000, []parquet.WriterProperty{snappyPages}},
	{"text_arrow_zstd", "base/text", 100_000, []parquet.WriterProperty{zstdPages, plainPages}},
	{"emb_arrow_snappy", "base/emb", 10_000, []parquet.WriterProperty{snappyPages, plainPages}},
	{"emb_arrow_bss_zstd", "base/emb", 10_000, []parquet.WriterProperty{zstdPages, plainPages,
		parquet.WithEncodingFor("vector.list.element", parquet.Encodings.ByteStreamSplit)}},
	{"tok_arrow_zstd", "base/tok", 5_000, []parquet.WriterProperty{zstdPages, plainPages}},
	{"tok_arrow_delta_zstd", "base/tok", 5_000, []parquet.WriterProperty{zstdPages, plainPages,
		parquet.WithEncodingFor("tokens.list.element", parquet.Encodings.DeltaBinaryPacked)}},
	{"tok_arrow_dict_snappy", "base/tok", 5_000, []parquet.WriterProperty{snappyPages}},
	{"img_arrow_none", "base/img", 500, []parquet.WriterProperty{parquet.WithCompression(compress.Codecs.Uncompressed), plainPages}},
	{"img_arrow_snappy", "base/img", 500, []parquet.WriterProperty{snappyPages, plainPages}},
	{"nulls_arrowv2_zstd", "scan/nulls_duckv1_snappy", 122_880, []parquet.WriterProperty{zstdPages, parquet.WithDataPageVersion(parquet.DataPageV2)}},
}

var (
	snappyPages = parquet.WithCompression(compress.Codecs.Snappy)
	zstdPages   = parquet.WithCompression(compress.Codecs.Zstd)
	plainPages  = parquet.WithDictionaryDefault(false)
)

// generate makes the files that are not there yet, those of arrow-go last.
func generate(python, drivers, dir string, scale float64) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	cmd := command("nice", "-n", "19", python, filepath.Join(drivers, "gen.py"), dir, fmt.Sprint(scale))
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("gen.py: %w", err)
	}
	for _, r := range rewritten {
		out := filepath.Join(dir, "scan", r.name+".parquet")
		if _, err := os.Stat(out); err == nil {
			continue
		}
		if err := rewrite(filepath.Join(dir, r.from+".parquet"), out+".new", r.group, r.props); err != nil {
			return fmt.Errorf("%s: %w", r.name, err)
		}
		if err := os.Rename(out+".new", out); err != nil {
			return err
		}
		fmt.Fprintln(os.Stderr, "made", out)
	}
	return nil
}

// rewrite copies a file's rows with arrow-go's reader and writer.
func rewrite(from, to string, group int64, props []parquet.WriterProperty) error {
	in, err := file.OpenParquetFile(from, false)
	if err != nil {
		return err
	}
	defer in.Close()
	r, err := pqarrow.NewFileReader(in, pqarrow.ArrowReadProperties{BatchSize: min(group, 20_000)}, memory.DefaultAllocator)
	if err != nil {
		return err
	}
	rr, err := r.GetRecordReader(context.Background(), nil, nil)
	if err != nil {
		return err
	}
	defer rr.Release()
	out, err := os.Create(to)
	if err != nil {
		return err
	}
	w, err := pqarrow.NewFileWriter(rr.Schema(), out, parquet.NewWriterProperties(append(props, parquet.WithMaxRowGroupLength(math.MaxInt64))...), pqarrow.DefaultWriterProps())
	if err != nil {
		return err
	}
	rows := int64(0)
	for rr.Next() {
		if rows >= group {
			w.NewBufferedRowGroup()
			rows = 0
		}
		if err := w.WriteBuffered(rr.RecordBatch()); err != nil {
			return err
		}
		rows += rr.RecordBatch().NumRows()
	}
	if err := rr.Err(); err != nil {
		return err
	}
	return w.Close() // closes out
}
