package blobcache

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

const (
	childEnv   = "PENSTOCK_CACHE_CHILD" // folder,seed
	childMax   = 48 << 20
	childBytes = 16 << 20 // of each of the objects
)

var childObjects = []string{"a", "b", "c", "d", "e"}

// child reads and writes at random until it is killed, or finds other bytes than there should be.
func child() {
	dir, seedText, _ := strings.Cut(os.Getenv(childEnv), ",")
	seed, _ := strconv.ParseUint(seedText, 10, 64)
	c, err := New(Options{Dir: dir, Max: childMax})
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	var wg sync.WaitGroup
	for g := range 3 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(g)))
			for i := 0; ; i++ {
				object := childObjects[rnd.IntN(len(childObjects))]
				n := 1 + rnd.IntN(1<<(8+rnd.IntN(13)))
				off := rnd.Int64N(childBytes - int64(n))
				want := content(object, off, n)
				dst := make([]byte, n)
				end := 0
				missing := append(c.Read(context.Background(), MakeID(object), dst, off), Span{n, 0})
				for _, m := range missing {
					if string(dst[end:m.Off]) != string(want[end:m.Off]) {
						fmt.Println("other bytes")
						os.Exit(3)
					}
					end = m.Off + m.Len
				}
				if len(missing) > 1 {
					c.Write(MakeID(object), want, off)
				}
				if i == 20 && g == 0 {
					fmt.Println("warm")
				}
			}
		})
	}
	wg.Wait()
}

// Processes that share a cache, and are killed at any time, never see other bytes and never pass the limit.
func TestProcessesShareAndDie(t *testing.T) {
	dir := t.TempDir()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rounds := 4
	if os.Getenv("PENSTOCK_SOAK") == "1" {
		rounds = 200
	}
	rnd := rand.New(rand.NewPCG(seed, 99))
	watch := open(t, dir, childMax)
	write(watch, "mine", 0, 100)
	for r := range rounds {
		var all []*exec.Cmd
		outs := make([]strings.Builder, 3)
		warm := make([]chan struct{}, 3)
		for i := range outs {
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s,%d", childEnv, dir, seed+uint64(3*r+i)))
			warm[i] = make(chan struct{})
			cmd.Stdout = &warmWriter{b: &outs[i], warm: warm[i]}
			cmd.Stderr = cmd.Stdout
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			all = append(all, cmd)
		}
		for _, w := range warm {
			select {
			case <-w:
			case <-time.After(30 * time.Second):
				t.Error("a child does nothing")
			}
		}
		for range 20 {
			for _, object := range childObjects {
				read(t, watch, object, rnd.Int64N(childBytes/2), 1<<20)
			}
			if n := onDisk(t, dir); n > childMax {
				t.Errorf("%d bytes on disk of %d", n, childMax)
			}
		}
		for i, cmd := range all {
			cmd.Process.Kill()
			cmd.Wait()
			if cmd.ProcessState.Exited() {
				t.Errorf("round %d: child: %v\n%s", r, cmd.ProcessState, outs[i].String())
			}
		}
	}
	// After all that it still works.
	c, err := New(Options{Dir: dir, Max: childMax})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	write(c, "last", 0, 1<<20)
	if got := read(t, c, "last", 0, 1<<20); got != 1<<20 {
		t.Errorf("%d bytes found; %v", got, c.Stats())
	}
	t.Logf("the watcher: %v", watch.Stats())
}

// warmWriter closes warm at the first write.
type warmWriter struct {
	b    *strings.Builder
	warm chan struct{}
	once sync.Once
}

func (w *warmWriter) Write(p []byte) (int, error) {
	w.once.Do(func() { close(w.warm) })
	return w.b.Write(p)
}

// BenchmarkRead and BenchmarkWrite move 8 MiB, a large request, through the page cache.
func BenchmarkRead(b *testing.B) {
	c := open(b, b.TempDir(), 256<<20)
	data := make([]byte, 8<<20)
	id := MakeID("x")
	for i := range int64(8) {
		c.Write(id, data, i<<23)
	}
	b.SetBytes(8 << 20)
	i := int64(0)
	for b.Loop() {
		if m := c.Read(b.Context(), id, data, i%8<<23); m != nil {
			b.Fatal(m)
		}
		i++
	}
}

func BenchmarkWrite(b *testing.B) {
	c := open(b, b.TempDir(), 256<<20)
	data := make([]byte, 8<<20)
	b.SetBytes(8 << 20)
	i := 0
	for b.Loop() {
		c.Write(MakeID(fmt.Sprint(i/4)), data, int64(i%4)<<23)
		i++
		if i%16 == 0 {
			c.birth = time.Now().UnixNano() // what is there may go
		}
	}
}
