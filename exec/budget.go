package exec

// Budget is the one byte budget.
type Budget struct{}
