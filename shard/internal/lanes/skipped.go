package lanes

import (
	"maps"
	"slices"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// skips counts what a pass skipped, against the limits of the policies: the runs
// of the engine, of which a pass needs many, are given none.
type skips struct {
	rows  int64 // read
	run   tally
	steps map[string]*tally
	told  []int64 // see news
}

type tally struct {
	exec.OnError
	skipped int64
}

func newSkips(s *Source) skips {
	l := skips{run: tally{OnError: s.limits}, steps: map[string]*tally{}}
	for step, o := range s.stepLimits {
		l.steps[step] = &tally{OnError: o}
	}
	return l
}

// add counts skipped rows.
func (l *skips) add(skipped []exec.Skipped) {
	for i := range skipped {
		if t := l.steps[fault.PlaceOf(skipped[i].Err).Step]; t != nil {
			t.skipped++
		} else {
			l.run.skipped++
		}
	}
}

// all are the counts: rows, those skipped by the run, and by each step in the order of their names.
func (l *skips) all(yield func(*int64) bool) {
	if !yield(&l.rows) || !yield(&l.run.skipped) {
		return
	}
	for _, step := range slices.Sorted(maps.Keys(l.steps)) {
		if !yield(&l.steps[step].skipped) {
			return
		}
	}
}

// total is how many rows were skipped.
func (l *skips) total() int64 {
	n := l.run.skipped
	for _, t := range l.steps {
		n += t.skipped
	}
	return n
}

// news is what was counted since the last call, for others to join; nil where nothing was skipped by a policy with a limit.
func (l *skips) news() (more []int64) {
	if !l.limited() {
		return nil
	}
	if l.told == nil {
		l.told = make([]int64, 2+len(l.steps))
	}
	i := 0
	for n := range l.all {
		more = append(more, *n-l.told[i])
		l.told[i] = *n
		i++
	}
	return more
}

// limited reports whether a policy has a limit.
func (l *skips) limited() bool {
	limited := l.run.MaxRows > 0 || l.run.MaxRate > 0
	for _, t := range l.steps {
		limited = limited || t.MaxRows > 0 || t.MaxRate > 0
	}
	return limited
}

// join adds what was counted elsewhere, and compares with the limits.
func (l *skips) join(more []int64) error {
	if more == nil {
		return nil
	}
	if len(more) != 2+len(l.steps) {
		return internal("%d counts of skipped rows for %d policies", len(more)-1, 1+len(l.steps))
	}
	i := 0
	for n := range l.all {
		*n += more[i]
		i++
	}
	return l.check(false)
}

// check compares with the limits; rates are judged from 1,000 rows on, and at the end.
func (l *skips) check(end bool) error {
	if err := l.run.check("", l.rows, end); err != nil {
		return err
	}
	for step, t := range l.steps {
		if err := t.check(" by "+step, l.rows, end); err != nil {
			return err
		}
	}
	return nil
}

func (t *tally) check(by string, rows int64, end bool) error {
	if t.MaxRows > 0 && t.skipped > t.MaxRows {
		return fault.New(fault.Exhausted, "on_error: %d rows skipped%s in this epoch, more than max_rows %d", t.skipped, by, t.MaxRows)
	}
	if t.MaxRate > 0 && (end || rows >= 1000) && float64(t.skipped) > t.MaxRate*float64(rows) {
		return fault.New(fault.Exhausted, "on_error: %d of %d rows skipped%s in this epoch, more than max_rate %v", t.skipped, rows, by, t.MaxRate)
	}
	return nil
}
