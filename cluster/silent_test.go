package cluster

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// silent is a head that says no more than so many bytes on a node's second connection, which is the one after it has joined.
func silent(t *testing.T, head string, most int64) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { l.Close() })
	var seen atomic.Int64
	go func() {
		for {
			node, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer node.Close()
				up, err := net.Dial("tcp", head)
				if err != nil {
					return
				}
				defer up.Close()
				go func() { _, _ = io.Copy(up, node); up.Close(); node.Close() }()
				if seen.Add(1) > 1 {
					_, _ = io.CopyN(node, up, most)
					_, _ = io.Copy(io.Discard, up)
					return
				}
				_, _ = io.Copy(node, up)
			}()
		}
	}()
	return l.Addr().String()
}

// A node that the head does not welcome gives up when its caller does, and does not take leave of a head that told it nothing.
func TestNoWelcome(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var unwelcome atomic.Int64
	t.Run("bytes", func(t *testing.T) {
		for most := int64(2400); most <= 2900; most += 50 { // the welcome is among these
			t.Run(fmt.Sprint(most), func(t *testing.T) {
				t.Parallel()
				token, err := c.head.JoinToken(c.ctx())
				must(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
				defer cancel()
				began := time.Now()
				n, err := Join(ctx, silent(t, c.addr, most), token, c.node(fmt.Sprint("vm-", most), Resources{CPUs: 1}))
				if took := time.Since(began); took > 10*time.Second {
					t.Errorf("after %v: %v", took, err)
				}
				if err == nil {
					n.Close()
				} else if t.Log(err); strings.Contains(err.Error(), "does not welcome it") {
					unwelcome.Add(1)
				}
			})
		}
	})
	if unwelcome.Load() == 0 {
		t.Error("every node was welcome, or did not join")
	}
}
