// Feedserver serves the shards of a spec as `penstock data` does, for tests of the Python client, and nothing else: it has a
// preemption notice besides, which SIGUSR2 gives. As bench it serves batches of rows x width float32 from memory, without end.
//
//	feedserver data [--set k=v]... [--ranks N] [--rank R] --socket PATH SPEC
//	feedserver bench --rows N --width N [--records] --socket PATH
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
	"github.com/spf13/cobra"
)

func main() {
	if err := command().Execute(); err != nil {
		said := map[string]any{"error": map[string]string{"code": fault.CodeOf(err).String(), "text": err.Error()}}
		_ = json.NewEncoder(os.Stdout).Encode(said)
		if !slices.Contains(os.Args, "--child") {
			fmt.Fprintln(os.Stderr, "feedserver:", err)
		}
		os.Exit(1)
	}
}

func command() *cobra.Command {
	var sets []string
	var ranks, rank int
	var socket string
	data := &cobra.Command{Use: "data SPEC", Args: cobra.ExactArgs(1), RunE: func(cmd *cobra.Command, a []string) error {
		s, err := spec.Load(a[0], sets)
		if err != nil {
			return err
		}
		n, o, err := s.ShardOptions()
		if err != nil {
			return err
		}
		ds, err := s.Dataset()
		if err != nil {
			return err
		}
		if ranks > 0 {
			n = ranks
		}
		if rank >= 0 {
			o.Ranks = []int{rank}
		}
		return serve(socket, func(ctx context.Context) ([]*shard.Iterator, error) { return ds.Shards(ctx, n, o) })
	}}
	f := data.Flags()
	f.StringArrayVar(&sets, "set", nil, "key=value")
	f.IntVar(&ranks, "ranks", 0, "how many")
	f.IntVar(&rank, "rank", -1, "only this one")
	f.StringVar(&socket, "socket", "", "path")
	f.Bool("child", false, "errors are not for stderr")
	var rows, width int
	var records bool
	bench := &cobra.Command{Use: "bench", Args: cobra.NoArgs, RunE: func(*cobra.Command, []string) error {
		return serve(socket, func(ctx context.Context) ([]*shard.Iterator, error) {
			return wide(16*rows, width).Shards(ctx, 1, &dataset.ShardOptions{Options: shard.Options{
				GlobalBatch: rows, Endless: true, Form: shard.Form{Tensors: !records}, Shuffle: &shard.Shuffle{Mode: shard.ModeNone}}})
		})
	}}
	f = bench.Flags()
	f.IntVar(&rows, "rows", 1024, "of a batch")
	f.IntVar(&width, "width", 16, "float32 of a row")
	f.BoolVar(&records, "records", false, "Arrow records, not tensors")
	f.StringVar(&socket, "socket", "", "path")
	root := &cobra.Command{Use: "feedserver", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(data, bench)
	return root
}

// serve serves until stdin ends.
func serve(socket string, open func(context.Context) ([]*shard.Iterator, error)) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	its, err := open(ctx)
	if err != nil {
		return err
	}
	l, err := feed.Listen(socket)
	if err != nil {
		return err
	}
	defer l.Close()
	fmt.Println(`{"ready": true}`)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	notice, usr2 := make(chan struct{}), make(chan os.Signal, 1)
	signal.Notify(usr2, syscall.SIGUSR2)
	go func() {
		<-usr2
		close(notice)
	}()
	return feed.Serve(ctx, l, its, &feed.Options{Notice: notice})
}

// wide has one column of width float32 per row.
func wide(rows, width int) *dataset.Dataset {
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.FixedSizeListOfNonNullable(int32(width), arrow.PrimitiveTypes.Float32)}}, nil)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer rb.Release()
	l := rb.Field(0).(*array.FixedSizeListBuilder)
	v := l.ValueBuilder().(*array.Float32Builder)
	v.Reserve(rows * width)
	for i := range rows {
		l.Append(true)
		for k := range width {
			v.UnsafeAppend(float32(i * k))
		}
	}
	return dataset.FromRecords(schema, rb.NewRecordBatch())
}
