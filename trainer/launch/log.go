package launch

import (
	"io"
	"os"
	"path/filepath"

	"github.com/penstock-data/penstock/internal/fault"
)

// Local is the launcher that [Processes] makes. What processes print that are no workers can go where the output of workers goes.
type Local interface {
	Launcher
	// Log makes a writer for what one prints: it goes to the file name.log in Options.Logs, which is rotated, and to the terminal, with the name before each line,
	// as what workers print does. Where the file cannot be written the terminal is told. Write waits for a terminal as a worker does; it is safe for concurrent use, and
	// Close, to be called once, returns when all is written.
	Log(name string) (io.WriteCloser, error)
}

// log is what Local.Log makes: the way of a worker's output, from the other end of a pipe.
type log struct {
	*os.File
	o *output
	s *stream
}

func (p *processes) Log(name string) (io.WriteCloser, error) {
	o := &output{}
	if p.Logs != "" {
		f, err := p.openLog(name + ".log")
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{File: filepath.Join(p.Logs, name+".log")})
		}
		o.file = f
	}
	r, w, err := os.Pipe()
	if err != nil {
		o.closeFile()
		return nil, fault.New(fault.Exhausted, "a pipe for what %s prints: %w", name, err)
	}
	if p.Terminal != nil {
		o.term = newTerminal(p.Terminal, &p.screen, []int{0}, func(int) string { return name })
	}
	l := &log{File: w, o: o, s: newStream(o, r, true)}
	go l.s.read() // joined by Close
	return l, nil
}

func (l *log) Close() error {
	err := l.File.Close()
	<-l.s.done
	l.o.closeFile()
	if l.o.term != nil {
		l.o.term.close()
	}
	return err
}
