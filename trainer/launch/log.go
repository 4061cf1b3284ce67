package launch

import (
	"bytes"
	"io"
	"path/filepath"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
)

// Local is the launcher that [Processes] makes. What processes print that are no workers can go where the output of workers goes.
type Local interface {
	Launcher
	// Log makes a writer for what one prints: it goes to the file name.log in Options.Logs, which is rotated, and to the terminal, with the name before each line.
	// A line is written and shown when it ends, or the log is closed. Write returns no error: where the file cannot be written the terminal is told. Safe for concurrent use; close it once.
	Log(name string) (io.WriteCloser, error)
}

// log is what Local.Log makes.
type log struct {
	o  *output
	mu sync.Mutex // of what follows
	s  *stream
	b  []byte // of a line that has not ended
}

func (p *processes) Log(name string) (io.WriteCloser, error) {
	o := &output{}
	if p.Logs != "" {
		path := filepath.Join(p.Logs, name+".log")
		f, err := openLog(path, p.Rotate)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{File: path})
		}
		o.file = f
	}
	if p.Terminal != nil {
		o.term = newTerminal(p.Terminal, &p.screen, []int{0}, func(int) string { return name })
	}
	return &log{o: o, s: newStream(o, nil, true)}, nil
}

func (l *log) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b = append(l.b, b...)
	cut := bytes.LastIndexAny(l.b, "\r\n") + 1
	if cut == 0 && len(l.b) >= maxLine {
		cut = whole(l.b, false)
	}
	l.s.take(l.b[:cut])
	l.b = l.b[:copy(l.b, l.b[cut:])]
	return len(b), nil
}

func (l *log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.s.take(l.b)
	l.s.flush()
	l.o.closeFile()
	if l.o.term != nil {
		l.o.term.close()
	}
	return nil
}
