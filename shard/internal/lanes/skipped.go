package lanes

import (
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// skips counts what a pass skipped, against the limits of the policies: the runs
// of the engine, of which a pass needs many, are given none.
type skips struct {
	rows  int64 // read
	run   tally
	steps map[string]*tally
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
