package gang_test

import (
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
)

// TestCloseWhileWriting: a connection whose other side does not read is closed at once, and whoever writes and reads hears it.
func TestCloseWhileWriting(t *testing.T) {
	gs := gangtest.New(t, 2)
	l, err := gs[1].Listen("x")
	if err != nil {
		t.Fatal(err)
	}
	for name, size := range map[string]int{"small": 10_000, "large": 100_000, "corked": 1000} {
		c, err := gs[0].Dial(t.Context(), 1, "x")
		if err != nil {
			t.Fatal(err)
		}
		d, _ := accept(t, l)
		over, read := make(chan struct{}), make(chan struct{})
		calls := gang.Calls(c)
		go func() {
			defer close(over)
			if name == "corked" {
				c.(gang.Corker).Cork()
			}
			for b := make([]byte, size); ; {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
		go func() { c.Read(make([]byte, 1)); close(read) }()
		for last := int64(-1); last != calls.Load() || last == 0; time.Sleep(50 * time.Millisecond) { // until it stands: nobody reads
			last = calls.Load()
		}
		at := time.Now()
		c.Close()
		<-read
		<-over
		if took := time.Since(at); took > 3*time.Second { // TLS says goodbye for 5
			t.Errorf("%s pieces: closed after %v", name, took)
		}
		d.Close()
	}
}
