// Package exec holds the contracts of execution and the byte budget: [Block],
// [Operator], [Task], [Graph], [Runner], [Stream], [Sink], [Budget].
//
// Operators compute, runners schedule. exec/operators has the operators,
// exec/plan translates a logical plan into a Graph, exec/local runs a Graph in
// this process, exec/internal/sched is the pure scheduler below it.
package exec
