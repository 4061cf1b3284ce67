//go:build linux

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/etcdtest"
)

func init() {
	roles["etcd"], roles["slow"] = playEtcd, slow
}

// playEtcd is an external store, as somebody else would run it.
func playEtcd() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	e, err := etcdtest.Start(ctx, os.Args[1], "", "")
	if err != nil {
		return err
	}
	defer e.Close()
	fmt.Println("ready", e.Clients[0].Addr())
	<-ctx.Done()
	return nil
}

// slow is the child of a step that gives back what it gets, and takes its time.
func slow() error {
	dir := os.Getenv("CHAOS_DIR")
	_, node, _ := strings.Cut(os.Getenv(chaosEnv), "/")
	chunks, err := os.OpenFile(filepath.Join(dir, "chunks"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	work, err := time.ParseDuration(os.Getenv("CHAOS_WORK"))
	if err != nil {
		return err
	}
	for buf := make([]byte, 64<<10); ; {
		n, err := os.Stdin.Read(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := chunks.Write([]byte(".")); err != nil {
			return err
		}
		time.Sleep(work) // nobody waits for this
		hold(dir, fmt.Sprintf("%s-%d", node, os.Getpid()), true)
		if _, err := os.Stdout.Write(buf[:n]); err != nil {
			return err
		}
	}
}
