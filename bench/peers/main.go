// Command peers measures Penstock beside other engines and loaders, on the same files, in one run.
// `make bench-peers` installs them, makes the files, runs everything and writes bench/results.
//
//	peers run [-only NAME,...] [-rounds N] [-quick] [-out DIR] [-venv DIR] [-drivers DIR] DATA
//	peers gen [-scale X] [-venv DIR] [-drivers DIR] DATA      the files
//	peers case NAME ARG...       one of our workloads, under a supervisor: see py/peer.py for the marks
//	peers scan ENGINE CORES      our scan, arrow-go's, or the bare limit: a file per line
//	peers report FILE            tables and plots again, from the figures of a run
package main

import (
	"log"
	"os"
	"os/exec"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 2 {
		log.Fatal("usage: peers run|gen|case|scan|report ...; see the comment in bench/peers/main.go")
	}
	commands := map[string]func([]string) error{"run": runAll, "gen": genFiles, "case": runCase, "scan": scanServer, "report": reportAgain}
	f, ok := commands[os.Args[1]]
	if !ok {
		log.Fatalf("peers: no command %q", os.Args[1])
	}
	if err := f(os.Args[2:]); err != nil {
		log.Fatal("peers: ", err)
	}
}

func command(args ...string) *exec.Cmd { return exec.Command(args[0], args[1:]...) }

// spawn starts this program again.
func spawn(args ...string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := command(append([]string{self}, args...)...)
	cmd.Stderr = os.Stderr
	return cmd, cmd.Start()
}
