package remote

import (
	"encoding/json"
	"errors"
	"log/slog"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
)

// oneWay is a connection to which nothing can be written, and whose other side says the next of its words each second.
type oneWay struct {
	script
	words  [][]byte
	again  bool // the last one for ever
	closed chan struct{}
}

func (c *oneWay) Write([]byte) (int, error) { return 0, syscall.EPIPE }

func (c *oneWay) Close() error {
	select {
	case <-c.closed:
	default:
		close(c.closed)
	}
	return nil
}

func (c *oneWay) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
	case <-c.closed:
		return 0, net.ErrClosed
	}
	if len(c.words) == 0 {
		return 0, syscall.ECONNRESET
	}
	n := copy(p, c.words[0])
	if !c.again || len(c.words) > 1 {
		c.words = c.words[1:]
	}
	return n, nil
}

// TestLastWordsAreRead: a node that cannot write to its leader any more hears what that has said last, and does not wait for it for ever.
func TestLastWordsAreRead(t *testing.T) {
	end := func(err error) []byte {
		return message(nil, kindEnd, func(b []byte) []byte {
			if err != nil {
				return putError(putFlag(b, false), err)
			}
			return putFlag(b, true)
		})
	}
	for name, c := range map[string]struct {
		last  [][]byte
		again bool
		want  error
	}{
		"it is over":   {[][]byte{end(nil)}, false, exec.ErrServed},
		"it failed":    {[][]byte{end(errors.New("x"))}, false, ErrEnded},
		"nothing":      {nil, false, ErrLost},
		"pings always": {[][]byte{message(nil, kindPing, nil)}, true, ErrLost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				o := &exec.Options{CPUs: 1}
				set, _, err := local.SettingsOf(o)
				if err != nil {
					t.Fatal(err)
				}
				h := hello{Settings: set}
				text, err := json.Marshal(h)
				if err != nil {
					t.Fatal(err)
				}
				first := message(nil, kindHello, func(b []byte) []byte { return append(b, text...) })
				l := newLink(&oneWay{words: append([][]byte{first}, c.last...), again: c.again, closed: make(chan struct{})})
				r, at := &Runner{o: Options{Log: slog.New(slog.DiscardHandler)}}, time.Now()
				if err := r.served(t.Context(), t.Context(), func() {}, l, exectest.Scan(exectest.NewTable(3, 10)), nil, o, &h); !errors.Is(err, c.want) {
					t.Errorf("%v, want %v", err, c.want)
				}
				l.close()
				if took := time.Since(at); took > silence+2*time.Second {
					t.Errorf("it went on for %v", took)
				}
			})
		})
	}
}
