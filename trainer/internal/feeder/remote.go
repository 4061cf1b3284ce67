package feeder

import (
	"context"
	"io"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/feed"
)

// Remote is the feeder of another machine, at the other end of conn, which [Relay] serves there. It takes conn over. Its end is that of the feeder ([ErrDied]), for good.
func Remote(conn io.ReadWriteCloser) Feeder {
	r := &remote{conn: conn, heard: make(chan struct{})}
	r.line = newLine(conn, func() { conn.Close() })
	r.patience, r.stopping = 2*answerTime, 2*stopTime // the other side gives up its data process first
	go func() {
		defer close(r.heard)
		err := r.read(conn)
		conn.Close()
		if err == io.EOF {
			r.end(fault.New(fault.WorkerLost, "its machine has closed the connection"))
		} else {
			r.end(fault.New(fault.WorkerLost, "the connection to its machine is lost: %w", err))
		}
	}()
	return r
}

type remote struct {
	*line
	conn  io.Closer
	heard chan struct{}
}

func (r *remote) Listen(ctx context.Context) (string, error) { return r.line.listen(ctx, "") }

func (r *remote) Start(ctx context.Context, st Start) (map[string]string, <-chan error, error) {
	return r.line.start(ctx, "", st)
}

func (r *remote) Ledger(ctx context.Context, name string) ([]byte, error) {
	return r.line.ledger(ctx, name)
}

func (r *remote) Hold(ctx context.Context) (map[string]feed.Step, error) { return r.line.hold(ctx) }

func (r *remote) Mark(ctx context.Context, steps map[string]feed.Step) error {
	return r.line.mark(ctx, steps)
}

func (r *remote) Stop() error { return r.line.stop() }

func (r *remote) Close() error {
	err := r.line.stop()
	r.conn.Close()
	<-r.heard
	return err
}
