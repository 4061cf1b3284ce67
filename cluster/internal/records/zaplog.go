package records

import (
	"context"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newZap is the logger that etcd gets: it writes to log, a level lower than etcd means, and once stopping is set at level debug only, as etcd calls the end of each of its listeners an error. onFatal is
// called, in place of a panic or the end of the process, where etcd cannot go on; it must not return.
func newZap(log *slog.Logger, stopping *atomic.Bool, onFatal func(message string, err error)) *zap.Logger {
	return zap.New(core{log, stopping}, zap.WithFatalHook(fatalHook(onFatal)), zap.WithPanicHook(fatalHook(onFatal)))
}

type core struct {
	log      *slog.Logger
	stopping *atomic.Bool
}

// idle are warnings that say nothing where there is only a unix socket in a private folder.
// The last two are of a store that is closed before etcd has looked after its own version.
var idle = []string{"Running http and grpc server on single port", "simple token is not cryptographically signed", "Failed to detect schema version", "failed to update storage version"}

func (c core) level(l zapcore.Level) slog.Level {
	switch {
	case l <= zapcore.InfoLevel, l <= zapcore.ErrorLevel && c.stopping.Load():
		return slog.LevelDebug
	case l == zapcore.WarnLevel:
		return slog.LevelInfo
	case l == zapcore.ErrorLevel:
		return slog.LevelWarn
	}
	return slog.LevelError
}

func (c core) Enabled(l zapcore.Level) bool {
	return l > zapcore.DebugLevel && c.log.Enabled(context.Background(), c.level(l))
}

func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{slog.New(c.log.Handler().WithAttrs(attrs(fields))), c.stopping}
}

func (c core) Check(e zapcore.Entry, ce *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if !c.Enabled(e.Level) || slices.ContainsFunc(idle, func(s string) bool { return strings.HasPrefix(e.Message, s) }) {
		return ce
	}
	return ce.AddCore(e, c)
}

func (c core) Write(e zapcore.Entry, fields []zapcore.Field) error {
	c.log.LogAttrs(context.Background(), c.level(e.Level), "etcd: "+e.Message, attrs(fields)...)
	return nil
}

func (core) Sync() error { return nil }

func attrs(fields []zapcore.Field) []slog.Attr {
	out := make([]slog.Attr, 0, len(fields))
	for _, f := range fields {
		m := zapcore.NewMapObjectEncoder()
		f.AddTo(m)
		for k, v := range m.Fields {
			out = append(out, slog.Any(k, v))
		}
	}
	return out
}

type fatalHook func(message string, err error)

func (h fatalHook) OnWrite(e *zapcore.CheckedEntry, fields []zapcore.Field) {
	var err error
	for _, f := range fields {
		if f.Type == zapcore.ErrorType {
			err, _ = f.Interface.(error)
		}
	}
	h(e.Message, err)
}
