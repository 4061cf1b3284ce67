//go:build linux

package launch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

func routines(t *testing.T, runs ...func(context.Context) error) Group {
	t.Helper()
	var ws []Worker
	for i, f := range runs {
		ws = append(ws, Worker{Rank: i, Run: f})
	}
	g, err := Goroutines().Launch(t.Context(), ws)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func waits(ctx context.Context) error { <-ctx.Done(); return context.Cause(ctx) }

func TestGoroutines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := errors.New("own")
		g := routines(t,
			func(context.Context) error { return nil },
			func(context.Context) error { return own },
			func(context.Context) error { panic("oh") },
			func(context.Context) error { runtime.Goexit(); return nil },
			waits, waits)
		synctest.Wait()
		if n := len(g.Exits()); n != 4 {
			t.Errorf("%d have ended", n)
		}
		if err := g.Signal(4, syscall.SIGUSR1); fault.CodeOf(err) != fault.Unsupported {
			t.Error(err)
		}
		if err := g.Signal(4, syscall.SIGTERM); err != nil {
			t.Error(err)
		}
		synctest.Wait()
		if n := len(g.Exits()); n != 5 {
			t.Errorf("%d have ended", n)
		}
		if err := g.Signal(4, syscall.SIGTERM); fault.CodeOf(err) != fault.NotFound {
			t.Error(err)
		}
		if err := g.Signal(9, syscall.SIGTERM); fault.CodeOf(err) != fault.NotFound {
			t.Error(err)
		}
		g.Stop(time.Minute)
		g.Stop(0)
		got := exits(t, g)
		for rank, want := range map[int]string{0: "rank 0 ended", 1: "rank 1 failed: own", 2: "rank 2 failed: panic: oh", 3: "rank 3 failed: the goroutine was ended by runtime.Goexit (or FailNow of a test)",
			4: "rank 4 failed: told to end (terminated)", 5: "rank 5 failed: the group was stopped"} {
			if e := got[rank]; e.String() != want || e.OK() != (rank == 0) || e.Ours != (rank >= 4) {
				t.Errorf("%q: %+v", e, e)
			}
		}
		if !errors.Is(got[1].Err, own) || !strings.Contains(got[2].Err.Error(), "TestGoroutines") {
			t.Errorf("%v, %v", got[1].Err, got[2].Err)
		}
	})
}

func TestGoroutineStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		g := routines(t, func(context.Context) error { <-release; return nil }, waits)
		began := time.Now()
		g.Stop(3 * time.Second)
		if took := time.Since(began); took != 3*time.Second {
			t.Errorf("took %v", took)
		}
		got := exits(t, g)
		if e := got[0]; fault.CodeOf(e.Err) != fault.Stalled || !strings.Contains(e.String(), "rank 0 failed: did not return within 3s") {
			t.Errorf("%v", e)
		}
		close(release) // its end is no second exit
		synctest.Wait()
	})
}

func TestGoroutinesRefused(t *testing.T) {
	for _, w := range []Worker{{}, {Run: waits, Memory: 1}, {Run: waits, Rank: -1}} {
		if _, err := Goroutines().Launch(t.Context(), []Worker{w}); err == nil {
			t.Errorf("%+v was started", w)
		}
	}
	g := routines(t)
	if _, open := <-g.Exits(); open {
		t.Error("an exit of nobody")
	}
	g.Stop(time.Hour)
	p := launch(t, Options{})
	if _, open := <-p.Exits(); open {
		t.Error("an exit of nobody")
	}
	p.Stop(time.Hour)
}

// The context of a launch does not end a group.
func TestGoroutinesOutliveLaunch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		g, err := Goroutines().Launch(ctx, []Worker{{Run: waits}})
		if err != nil {
			t.Fatal(err)
		}
		cancel()
		synctest.Wait()
		if n := len(g.Exits()); n != 0 {
			t.Error("it ended")
		}
		g.Stop(time.Second)
	})
}

func hangsInside(ctx context.Context, started chan<- struct{}) error {
	go func() { hangsBelow(ctx); started <- struct{}{} }()
	return waits(ctx)
}

func hangsBelow(ctx context.Context) { <-ctx.Done() }

func TestGoroutineStacks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := make(chan struct{}, 1)
		g := routines(t, func(ctx context.Context) error { return hangsInside(ctx, started) }, waits)
		synctest.Wait()
		got, err := g.Stacks(t.Context(), 0)
		if err != nil || !strings.Contains(got, "hangsInside") || !strings.Contains(got, "hangsBelow") || strings.Contains(got, "testing.tRunner") {
			t.Errorf("%v: %s", err, got)
		}
		if got, err := g.Stacks(t.Context(), 1); err != nil || strings.Contains(got, "hangs") || !strings.Contains(got, "waits") {
			t.Errorf("%v: %s", err, got)
		}
		if _, err := g.Stacks(t.Context(), -1); err == nil {
			t.Error("stacks of all")
		}
		g.Stop(time.Second)
		<-started
		if u := g.Usage(); len(u) != 2 || u[1].Rank != 1 {
			t.Error(u)
		}
		if _, err := g.Stacks(t.Context(), 0); fault.CodeOf(err) != fault.NotFound {
			t.Error(fmt.Sprint("stacks of one that has ended: ", err))
		}
	})
}
