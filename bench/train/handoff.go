package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
)

const page = 4096

var looked atomic.Int64 // so that no compiler leaves the looks out

// handoff is the time from one batch to the next, of batches that a data process has in memory, beside memcpy: a copy of as many bytes, from one of 16 buffers to one of 8. Every
// consumer, that of memcpy too, looks at a byte of each page. Clients, memcpy and the DataLoader take turns in short rounds; a ratio is of one round, and the
// median of the rounds is printed.
func handoff(b *bench) error {
	var py *pythonClient
	if b.python != "" {
		var err error
		if py, err = b.pythonClient(); err != nil {
			return err
		}
		defer py.close()
	}
	for _, size := range []struct {
		name           string
		rows, width, n int
	}{{"4 MiB", 1024, 1024, 300}, {"64 KiB", 1024, 16, 8000}} {
		rounds, n := 7, size.n
		if b.Quick {
			rounds, n = 3, n/10
		}
		if err := b.handoffOf(size.name, size.rows, size.width, n, rounds, py); err != nil {
			return err
		}
	}
	return nil
}

func (b *bench) handoffOf(name string, rows, width, n, rounds int, py *pythonClient) error {
	bytes := 4 * rows * width
	client, err := b.server(rows, width)
	if err != nil {
		return err
	}
	defer client.close()
	c, err := feed.Dial(b.Ctx, client.socket, 0, nil)
	if err != nil {
		return err
	}
	defer c.Close()
	copying := memcpy(bytes)
	ways := []struct {
		name string
		one  func() (float64, error)
	}{
		{"copy", func() (float64, error) { return perBatch(n, copying) }},
		{"go", func() (float64, error) { return perBatch(n, func() error { return take(b.Ctx, c) }) }},
		{"copy again", func() (float64, error) { return perBatch(n, copying) }},
	}
	if py != nil {
		other, err := b.server(rows, width)
		if err != nil {
			return err
		}
		defer other.close()
		// The DataLoader is slow: fewer batches do.
		for kind, arg := range map[string]string{"numpy": other.socket, "torch": other.socket, "py copy": "", "loader": ""} {
			batches := n
			if kind == "loader" {
				batches = max(n/10, 50)
			}
			ways = append(ways, struct {
				name string
				one  func() (float64, error)
			}{kind, func() (float64, error) {
				return py.ask(request{Kind: kind, Bytes: bytes, Batches: batches, Socket: arg})
			}})
		}
	}
	got := map[string][]float64{}
	for range rounds {
		for _, w := range ways {
			t, err := w.one()
			if err != nil {
				return fmt.Errorf("%s: %w", w.name, err)
			}
			got[w.name] = append(got[w.name], t)
		}
	}
	over := func(a, of string) (ratios []float64) {
		for i := range got[a] {
			ratios = append(ratios, got[of][i]/got[a][i])
		}
		return ratios
	}
	us := func(a string) float64 { return 1e6 * kit.Median(got[a]) }
	label := map[string]string{"go": "Go client", "numpy": "Python client, numpy", "torch": "Python client, torch", "loader": "beside it: torch DataLoader, 1 loader worker"}
	base := map[string]string{"go": "copy", "numpy": "py copy", "torch": "py copy", "loader": "py copy"}
	for _, k := range []string{"go", "numpy", "torch", "loader"} {
		what := fmt.Sprintf("hand-off, batches of %s, %s: ", name, label[k])
		if got[k] == nil {
			b.absent(what + "time per batch")
			continue
		}
		goal := ""
		if bytes >= 1<<20 {
			if k != "loader" {
				goal = ">= 0.8x"
			}
			ratios := over(k, base[k])
			line := fmt.Sprintf("%.2fx (%.2f to %.2f); %.0f us a batch, memcpy %.0f us", kit.Median(ratios), slices.Min(ratios), slices.Max(ratios), us(k), us(base[k]))
			if k == "go" {
				line += fmt.Sprintf("; A/A of memcpy %.2fx", kit.Median(over("copy again", "copy")))
			}
			b.Add(what+"speed / memcpy", goal, "%s", line)
			continue
		}
		if k != "loader" {
			goal = "<= 50 us"
		}
		b.Add(what+"time per batch without memcpy", goal, "%.1f us (memcpy %.1f us)", us(k)-us(base[k]), us(base[k]))
	}
	return nil
}

// perBatch is the time of a call of one, in seconds. What is ready beforehand is taken first.
func perBatch(n int, one func() error) (float64, error) {
	for range max(n/10, 10) {
		if err := one(); err != nil {
			return 0, err
		}
	}
	begin := time.Now()
	for range n {
		if err := one(); err != nil {
			return 0, err
		}
	}
	return time.Since(begin).Seconds() / float64(n), nil
}

// look reads a byte of each page, and returns their sum.
func look(b []byte) (seen byte) {
	for i := 0; i < len(b); i += page {
		seen += b[i]
	}
	return seen
}

// take is a batch of a client.
func take(ctx context.Context, c *feed.Client) error {
	x, err := c.Next(ctx)
	if err != nil {
		return err
	}
	looked.Add(int64(look(x.Buffer())))
	x.Release()
	return nil
}

// memcpy copies size bytes with each call.
func memcpy(size int) func() error {
	from, to := make([]byte, 16*size), make([]byte, 8*size)
	for i := range from {
		from[i] = byte(i)
	}
	i := 0
	return func() error {
		target := to[i%8*size:][:size]
		copy(target, from[i%16*size:][:size])
		looked.Add(int64(look(target)))
		i++
		return nil
	}
}

// child is a process that ends with its stdin.
type child struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	out    *bufio.Reader
	socket string
}

func startChild(cmd *exec.Cmd) (_ *child, err error) {
	c := &child{cmd: cmd}
	cmd.Stderr = os.Stderr
	if c.in, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.out = bufio.NewReader(out)
	return c, cmd.Start()
}

func (c *child) close() {
	c.in.Close()
	_, _ = io.Copy(io.Discard, c.out)
	_ = c.cmd.Wait() // what it measured is known
}

// server starts a data process whose batches are in memory.
func (b *bench) server(rows, width int) (*child, error) {
	dir, err := os.MkdirTemp("", "penstock-bench-") // sockets have short names
	if err != nil {
		return nil, err
	}
	b.Cleanup(func() { os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	c, err := startChild(exec.CommandContext(b.Ctx, b.self, "serve", socket, strconv.Itoa(rows), strconv.Itoa(width)))
	if err != nil {
		return nil, err
	}
	c.socket = socket
	if _, err := c.out.ReadString('\n'); err != nil {
		c.close()
		return nil, fmt.Errorf("the data process: %w", err)
	}
	return c, nil
}

// serveRole gives one rank batches of ROWS x WIDTH float32 from 16 that are in memory, without end: serve SOCKET ROWS WIDTH. It ends with its stdin.
func serveRole(args []string) error {
	rows, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	width, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.FixedSizeListOfNonNullable(int32(width), arrow.PrimitiveTypes.Float32)}}, nil)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer rb.Release()
	l := rb.Field(0).(*array.FixedSizeListBuilder)
	v := l.ValueBuilder().(*array.Float32Builder)
	v.Reserve(16 * rows * width)
	for i := range 16 * rows {
		l.Append(true)
		for k := range width {
			v.UnsafeAppend(float32(i * k))
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	its, err := dataset.FromRecords(schema, rb.NewRecordBatch()).Shards(ctx, 1, &dataset.ShardOptions{Options: shard.Options{
		GlobalBatch: rows, Endless: true, Form: shard.Form{Tensors: true}, Shuffle: &shard.Shuffle{Mode: shard.ModeNone}}})
	if err != nil {
		return err
	}
	listener, err := feed.Listen(args[0])
	if err != nil {
		return err
	}
	defer listener.Close()
	fmt.Println("ready")
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	err = feed.Serve(ctx, listener, its, nil)
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// pythonClient is py/client.py: it measures when it is asked to.
type pythonClient struct{ *child }

type request struct {
	Kind    string `json:"kind"`
	Bytes   int    `json:"bytes"`
	Batches int    `json:"batches"`
	Socket  string `json:"socket"`
}

func (b *bench) pythonClient() (*pythonClient, error) {
	c, err := startChild(b.script("client.py"))
	return &pythonClient{c}, err
}

// ask is the time per batch in seconds.
func (p *pythonClient) ask(r request) (seconds float64, err error) {
	text, err := json.Marshal(r)
	if err != nil {
		return 0, err
	}
	if _, err := p.in.Write(append(text, '\n')); err != nil {
		return 0, err
	}
	line, err := p.out.ReadBytes('\n')
	if err != nil {
		return 0, fmt.Errorf("the Python client ended: %w", err)
	}
	return seconds, json.Unmarshal(bytes.TrimSpace(line), &seconds)
}
