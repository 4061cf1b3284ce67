// Feedserver serves the shards of a spec as `penstock data` does, for tests of the Python client, and nothing else: it has a
// preemption notice besides, which SIGUSR2 gives.
//
//	feedserver data [--set k=v]... [--ranks N] [--rank R] --socket PATH SPEC
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
		s, err := spec.Load(a[0], sets, spec.Trust{Typed: true})
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
	root := &cobra.Command{Use: "feedserver", SilenceUsage: true, SilenceErrors: true}
	root.AddCommand(data)
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
	notice, usr2 := &feed.Notice{}, make(chan os.Signal, 1)
	signal.Notify(usr2, syscall.SIGUSR2)
	go func() {
		<-usr2
		notice.Give()
	}()
	return feed.Serve(ctx, l, its, &feed.Options{Notice: notice})
}
