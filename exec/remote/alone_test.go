package remote_test

import (
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/fault"
)

// nobody is a listener to which nobody comes.
type nobody struct{ closed chan struct{} }

func (n nobody) Accept() (net.Conn, error) {
	<-n.closed
	return nil, net.ErrClosed
}
func (n nobody) Close() error   { close(n.closed); return nil }
func (n nobody) Addr() net.Addr { return &net.TCPAddr{} }

// TestAlone: a node to whose leader nobody answers gives up long before it would stop waiting for one that begins late, and says that another attempt may do better.
func TestAlone(t *testing.T) {
	gs, dirs := gangtest.WithFolders(t, 2)
	gs[0].Close()
	gs[1].Close()
	now := time.Now()
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Until(now) + time.Minute) // for the certificate
		g, err := gang.Open(dirs[1], nobody{make(chan struct{})})
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		r, err := remote.New(g, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		plan, _ := graph(2, 2)
		at := time.Now()
		_, err = r.Run(t.Context(), plan, nil)
		if fault.CodeOf(err) != fault.Unavailable || !errors.Is(err, remote.ErrLost) || !strings.Contains(err.Error(), "the network between the nodes is cut") {
			t.Error(err)
		}
		if took := time.Since(at); took > time.Minute {
			t.Errorf("it gave up after %v", took)
		}
	})
}
