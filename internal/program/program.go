// Package program names the program that runs, so that a process can see whether another one, perhaps on another machine, is the same.
package program

import (
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/zeebo/xxh3"
)

// release is that of the stock binary; "": this is another program.
var release string

// Stock says that this is the stock binary, and its release. Call it before main.
func Stock(version string) { release = version }

// Name is the same in all processes of one program, and in none of another. Of programs that users build it is the sum of the file, as what their functions do is seen nowhere else. The stock binary has no functions of users, and is
// named by its release and what the Go toolchain noted of it: machines may be of several architectures.
//
// The file is that which was started, on Linux also when another one has its name by now. It is read once. Safe for concurrent use.
var Name = sync.OnceValues(func() (string, error) {
	if release != "" {
		return "penstock " + release + built(), nil
	}
	path := "/proc/self/exe"
	if runtime.GOOS != "linux" {
		var err error
		if path, err = os.Executable(); err != nil {
			return "", fault.New(fault.Unsupported, "the file of this program: %w", err)
		}
	}
	return sum(path)
})

func sum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", fault.Wrap(err, fault.Place{File: path})
	}
	defer f.Close()
	h := xxh3.New128() // who tells others what he runs is one of them: this is against mistakes
	if _, err := io.Copy(h, f); err != nil {
		return "", fault.Wrap(err, fault.Place{File: path})
	}
	return fmt.Sprintf("xxh3:%x", h.Sum(nil)), nil
}

// built is what the Go toolchain noted of how the program was built.
func built() string {
	b, ok := debug.ReadBuildInfo()
	if !ok {
		return ""
	}
	v := " " + b.Main.Version + " " + b.GoVersion
	for _, s := range b.Settings {
		if strings.HasPrefix(s.Key, "vcs.") && s.Key != "vcs.time" {
			v += " " + s.Value
		}
	}
	return v
}
