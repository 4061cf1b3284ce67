package main

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
)

func submitCommand() *cobra.Command {
	var r remote
	var name string
	var quiet bool
	c := &cobra.Command{
		Use:   "submit -- PROGRAM [ARGUMENT...]",
		Short: "Run a program of your own as a job of the cluster, on one node or several",
		Long: `Submit runs PROGRAM, a file of the working directory, as a job. --working-dir, by default the folder that the command is given in, is sent to the head, less what its file .penstockignore
names, and the job runs in a copy of it on a node. Data and output are not in that copy: name them by bucket, or by an absolute path that all nodes have. What the job prints comes out
here, and the command exits as it does. SIGINT stops the job; a second one leaves it to end by itself. If its node is lost, it starts again on another.

With --nodes N the program runs on each of N nodes, with those resources each. In Go, penstock.Init at the top of main makes one of these processes: node 0 leads, and plans and
training runs are those of all nodes (docs/cluster.md, "Your own Go program"). With --data-nodes M there are
M nodes more, the last ones, which in a training run only read and compute for the workers of the others. When one fails or is lost, all start again. A program that ends with exit code 75 starts again elsewhere; ten such ends in a row, each within two minutes, fail the job.

` + whichCluster + "\n\n" + exitHelp,
		Example: `  penstock submit -- ./late -out "$PWD/out/late/"                              # built by: CGO_ENABLED=0 go build -o late .
  penstock submit --cluster head.example.org:7071 --nodes 3 --cpus 8 --memory 16GiB -- ./late -out s3://bucket/late/
  penstock submit --detach --id nightly-2026-11-22 -- ./late -out "$PWD/out/night/"   # prints its id; the same id again is the same job`,
		Args: func(cmd *cobra.Command, a []string) error {
			switch n := cmd.ArgsLenAtDash(); {
			case len(a) == 0:
				return usage("submit: the program is missing; for example: %s", example(cmd))
			case n != 0: // its flags are not those of submit
				return usage("submit: put the program and its arguments behind --; for example: %s", example(cmd))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, a []string) error { return r.program(cmd, a, name, quiet) },
	}
	r.flags(c)
	colorFlag(c)
	r.dataFlags(c, "1")
	f := c.Flags()
	f.Lookup("cpus").Usage = "`CPUs` that it gets on each node; default: 1"
	f.StringVar(&name, "name", "", "what people call the job; default: the program's")
	f.BoolVar(&quiet, "quiet", false, "print only what the job prints")
	return c
}

// program submits a program: a file of the working directory, as it is called there, or from here.
func (r *remote) program(cmd *cobra.Command, argv []string, name string, quiet bool) error {
	file, err := r.find(argv[0])
	if err != nil {
		return err
	}
	j, inside, err := r.job(file)
	if err != nil {
		return err
	}
	if j.Needs.CPUs == 0 {
		j.Needs.CPUs = 1
	}
	if j.Data.Nodes > 0 && j.Data.Needs.CPUs == 0 {
		j.Data.Needs.CPUs = 1
	}
	j.Name = cmp.Or(name, filepath.Base(inside))
	j.Argv = append([]string{"./" + inside}, argv[1:]...)
	return r.submit(cmd, j, quiet)
}

// find is the file of a program. The working directory comes before the folder that the command is given in.
func (r *remote) find(program string) (string, error) {
	looked := []string{program}
	if r.dir != "" && !filepath.IsAbs(program) {
		looked = []string{filepath.Join(r.dir, program), program}
	}
	for _, file := range looked {
		switch fi, err := os.Stat(file); {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			return "", usage("submit: %w", err)
		case !fi.Mode().IsRegular():
			return "", usage("submit: %s is not a file: give the program that the job runs", file)
		case fi.Mode()&0o111 == 0:
			return "", usage("submit: %s is not executable: give a program, or make it one with chmod +x", file)
		}
		return file, nil
	}
	if found, err := exec.LookPath(program); err == nil {
		return "", usage("submit: %s is %s here, not a file of the working directory, which is what the nodes get: submit a script that calls it, with a first line like #!/bin/sh", program, found)
	}
	at := ""
	if len(looked) > 1 {
		at = fmt.Sprintf(" (looked for as %s)", strings.Join(looked, " and "))
	}
	build := ", and build it first (for Go: CGO_ENABLED=0 go build -o program .)"
	if filepath.Ext(program) != "" { // .sh, .py
		build = ""
	}
	return "", usage("submit: program %s is not there%s: give its path%s", program, at, build)
}
