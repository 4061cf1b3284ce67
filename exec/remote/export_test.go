package remote

// NewOver is New over connections that a test makes; l is of node 0.
func NewOver(g members, l listener, o *Options) *Runner { return newRunner(g, l, o) }
