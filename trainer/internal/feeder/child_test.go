package feeder

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/feed"
)

// childMain is the main function of the processes that tests start; the mode says what they are.
func childMain(mode string) {
	args := strings.Fields(mode)
	var err error
	switch args[0] {
	case "consume":
		err = consume(args[1], args[2])
	case "data":
		fmt.Fprintln(os.Stderr, "a warning")
		err = Control(context.Background(), os.Stdin, os.Stdout, sets(), gang.Aide)
	case "refuse":
		Refuse(os.Stdout, fault.New(fault.Invalid, "spec.yaml:3: unknown key"))
	case "crash":
		err = fmt.Errorf("no such library")
	case "talk":
		fmt.Println("hello")
		io.Copy(io.Discard, os.Stdin)
	case "deaf":
		time.Sleep(time.Hour)
	case "parent": // dies with a data process below it, whose id it has said
		f := Process(args[1], childArgv("data"), nil, nil)
		if _, _, err = f.Start(context.Background(), Start{Ranks: 1}); err == nil {
			fmt.Println(f.(*process).child.cmd.Process.Pid)
			syscall.Kill(os.Getpid(), syscall.SIGKILL)
		}
	default:
		err = fmt.Errorf("no mode %q", mode)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// childArgv is the command of a child: it finds its mode in an argument, as the environment is everybody's.
func childArgv(mode string) []string {
	return []string{"env", "PENSTOCK_FEEDER_CHILD=" + mode, os.Args[0]}
}

// consume reads a few batches of a rank, says so, and waits for its end.
func consume(socket, rank string) error {
	r, err := strconv.Atoi(rank)
	if err != nil {
		return err
	}
	c, err := feed.Dial(context.Background(), socket, r, nil)
	if err != nil {
		return err
	}
	fmt.Println("connected")
	for {
		b, err := c.Next(context.Background())
		if err != nil {
			return err
		}
		b.Release()
	}
}

// consumer starts a process that reads what a rank gets, without end, and returns once it is connected.
func consumer(t *testing.T, socket string, rank int) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), fmt.Sprintf("PENSTOCK_FEEDER_CHILD=consume %s %d", socket, rank))
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(line, err)
	}
	return cmd
}
