package exec

import "context"

type waitKey struct{}

// WithWait returns a context for calls of drivers and operators, whose Waiting calls begin. For runners.
func WithWait(ctx context.Context, begin func() (end func())) context.Context {
	return context.WithValue(ctx, waitKey{}, begin)
}

// Waiting says that a call of a table, made with this context, waits for another task of the
// run, which takes as long as that takes: no time limit applies until end is called, on the same goroutine.
func Waiting(ctx context.Context) (end func()) {
	if begin, ok := ctx.Value(waitKey{}).(func() func()); ok {
		return begin()
	}
	return func() {}
}
