package main

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/internal/trust"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/trainer/store"
)

// recordedRun is what a record of penstock train has started.
type recordedRun struct {
	argv []string // of workers
	dir  string   // theirs
	spec *spec.Original
}

// recorded reads a record. One whose own word for the command is another than its spec's is
// Corrupt: what people are shown is what is run.
func recorded(rec store.Record) (*recordedRun, error) {
	o, err := spec.ParseOriginal(rec.Spec)
	if err != nil {
		return nil, err
	}
	// Only looked at: the command has no references.
	s, err := o.Spec(spec.Trust{Looks: true, Foreign: fault.New(fault.Denied, "it is from a record")})
	if err != nil {
		return nil, fault.New(fault.Corrupt, "the spec in the record of run %q: %w", rec.Name, err)
	}
	r := &recordedRun{dir: cmp.Or(rec.Dir, "."), spec: o}
	if t := s.Train; t != nil {
		r.argv = t.Command
		if filepath.IsAbs(t.WorkingDir) {
			r.dir = t.WorkingDir
		} else {
			r.dir = filepath.Join(r.dir, t.WorkingDir)
		}
	}
	if !slices.Equal(r.argv, rec.Command) {
		return nil, fault.New(fault.Corrupt, "the record of run %q was altered: it names the command %s, and its spec %s", rec.Name, shellLine(rec.Command), shellLine(r.argv))
	}
	return r, nil
}

// recordFile is the file of a run's record, in its folder.
const recordFile = "run.json"

// localFolder is the path of a storage that is a folder.
func localFolder(storage string) (string, bool) {
	bucket, key, err := blobio.Split(storage)
	if err != nil {
		return "", false
	}
	u, err := url.Parse(bucket)
	if err != nil || u.Scheme != "file" {
		return "", false
	}
	return filepath.Join(filepath.FromSlash(u.Path), filepath.FromSlash(key)), true
}

// foreignRun is why the record of a run may be somebody else's; nil where it is this user's own.
// What is judged is the file that the record was read from: a link on the way to it may lead
// elsewhere since.
func foreignRun(r *store.Run, storage, name string) error {
	if r.Verified() {
		return nil
	}
	folder, local := localFolder(storage)
	if !local {
		return fault.New(fault.Denied, "it is in a bucket, where others may write")
	}
	folder = filepath.Join(folder, name)
	if err := trust.File(folder); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(folder, recordFile), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return fault.WithCode(fault.CodeOf(err), err)
	}
	defer f.Close() // read only
	if err := trust.Opened(f); err != nil {
		return err
	}
	text, err := io.ReadAll(io.LimitReader(f, store.MaxRecord+1))
	if err != nil {
		return fault.WithCode(fault.CodeOf(err), err)
	}
	if !r.IsText(text) {
		return fault.New(fault.Denied, "its record is not what it was a moment ago").At(fault.Place{File: f.Name()})
	}
	return nil
}

// agreed says what a run is resumed with, and has the person agree to it where its record may be
// somebody else's.
func (t *training) agreed(cmd *cobra.Command, name string, r *recordedRun, foreign error) error {
	out, argv, where := cmd.ErrOrStderr(), term.Line(shellLine(r.argv)), term.Line(r.dir)
	if foreign == nil || t.may.given {
		if !t.quiet {
			fmt.Fprintf(out, "penstock: run %s runs %s in %s\n", name, argv, where)
		}
		return nil
	}
	fmt.Fprintf(out, "penstock: run %s may be somebody else's: %v\npenstock: its record would run, as you, with what else it says: %s\npenstock: in %s\n", name, foreign, argv, where)
	refuse := usageError{fault.New(fault.Denied, "resume: the record of run %q is not known to be yours, and says what is run: give --trust if it may run that; penstock train SPEC --from takes only its checkpoint", name)}
	if !term.IsTerminal(os.Stdin) || !term.IsTerminal(out) {
		return refuse
	}
	if yes, err := askYes(os.Stdin, out, "Run it? [y/N] "); err != nil || !yes {
		return refuse
	}
	return nil
}

// askYes asks, and reports whether a line of the answer is a yes.
func askYes(in io.Reader, out io.Writer, question string) (bool, error) {
	if _, err := io.WriteString(out, question); err != nil {
		return false, err
	}
	if s, ok := out.(*term.Screen); ok { // no line's end follows
		if err := s.Flush(); err != nil {
			return false, err
		}
	}
	line, err := bufio.NewReader(io.LimitReader(in, 1024)).ReadString('\n')
	if err != nil && err != io.EOF {
		return false, err
	}
	answer := strings.ToLower(strings.TrimSpace(line))
	return err == nil && (answer == "y" || answer == "yes"), nil
}

// granted are the flags of a data process, which gets the spec of a run that may do what it does:
// all that this process lets it do.
func granted(may *spec.Trust) []string {
	flags := []string{"--trust"}
	for _, x := range may.Endpoints {
		flags = append(flags, "--endpoint", x)
	}
	return flags
}
