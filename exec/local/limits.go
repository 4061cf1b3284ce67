package local

import (
	"fmt"
	"math"
	"sort"
	"strings"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// The limits of skipped rows. They are judged in canonical order, with the rows seen up to the skipped one: the same numbers in every
// run. A job that is written part by part may have finished some of them in an earlier run: those count where they lie in that order.
// What lies inside of such a part is not known any more, so that the share of skipped rows is judged where parts end, in all runs of the job.

// policyOf is that of exec.Skipped.By.
func (r *run) policyOf(by string) *policy {
	if p := r.policies[by]; p != nil {
		return p
	}
	return r.runPolicy
}

// judge gives the first error that f has of a policy; name says whose it is. Such an error is not for another attempt.
func (r *run) judge(f func(name string, p *policy) error) (err error) {
	defer func() {
		if err != nil {
			r.judged.Store(true)
		}
	}()
	if err := f("", r.runPolicy); err != nil {
		return r.runPolicy.withRows(err)
	}
	for _, st := range r.stages {
		for i := range st.ops {
			if p := st.ops[i].policy; p != r.runPolicy {
				if err := f(" by "+st.ops[i].Step(), p); err != nil {
					return p.withRows(err)
				}
			}
		}
	}
	return nil
}

// mostNamed rows that were skipped are named where a limit is passed, beside the last one: a run that fails has no dead letter.
const mostNamed = 5

// count counts a skipped row.
func (p *policy) count(s *exec.Skipped) {
	p.skipped++
	p.last = s.Err
	if len(p.first) < mostNamed {
		p.first = append(p.first, p.last)
	}
}

// withRows names, behind an error of a limit, the rows that this run has skipped: the last one in its line, the first ones each in one.
func (p *policy) withRows(err error) error {
	if p.skipped == 0 {
		return err
	}
	line := func(err error) string {
		text, _, _ := strings.Cut(err.Error(), "\n")
		return text
	}
	text := "; the last one: " + line(p.last)
	for i, row := range p.first[:min(int64(len(p.first)), p.skipped-1)] {
		if i == 0 {
			text += "\nthe first ones:"
		}
		text += "\n  " + line(row)
	}
	return fault.New(fault.CodeOf(err), "%w%s", err, text)
}

// tooMany compares with MaxRows.
func tooMany(name string, p *policy) error {
	n := p.skipped + p.taken
	if p.MaxRows == 0 || n <= p.MaxRows {
		return nil
	}
	return fault.New(fault.Exhausted, "on_error: %d rows skipped%s%s, more than max_rows %d%s", n, name, p.earlier(p.taken), p.MaxRows, p.advice(name, "raise max_rows"))
}

// tooLarge compares with MaxRate, once there are enough rows to tell.
func (r *run) tooLarge(name string, p *policy) error {
	if r.rowsSeen < 1000 {
		return nil
	}
	return r.share(name, p)
}

func (r *run) share(name string, p *policy) error {
	n := p.skipped + p.passed
	if p.MaxRate == 0 || float64(n) <= p.MaxRate*float64(r.rowsSeen) {
		return nil
	}
	return fault.New(fault.Exhausted, "on_error: %d of %d rows skipped%s%s, more than max_rate %v%s", n, r.rowsSeen, name, p.earlier(p.passed), p.MaxRate, p.advice(name, "raise max_rate"))
}

// forbidden: under Fail nobody has skipped anything.
func forbidden(name string, p *policy) error {
	if p.Policy != exec.Fail || p.taken == 0 {
		return nil
	}
	return fault.New(fault.Exhausted, "on_error: policy fail, and an earlier run of this job has skipped %d rows%s in parts that it finished%s", p.taken, name, p.advice(name, "set policy skip"))
}

// earlier says how many rows an earlier run of the job skipped.
func (p *policy) earlier(n int64) string {
	if n == 0 {
		return ""
	}
	return fmt.Sprintf(" (%d of them by an earlier run of this job)", n)
}

// advice says how a job goes on.
func (p *policy) advice(name, what string) string {
	if p.taken == 0 || name != "" { // another policy of a step is another job
		return ": " + what + ", or mend the data"
	}
	return ": " + what + " to go on from its finished parts, or mend the data"
}

// takeOver counts the parts that earlier runs of the job have finished, and judges what is certain: how many rows they skipped, and
// their share in those with nothing before them that is still to be done.
func (r *run) takeOver() error {
	next := math.MaxInt
	for i := range r.parts {
		p := &r.parts[i]
		if !p.Done {
			next = min(next, p.First)
			continue
		}
		for step, n := range p.Tally.Skipped {
			r.policyOf(step).taken += n
		}
		r.splits.Add(int64(p.End - p.First))
	}
	st := doneStats(r.parts)
	r.rowsIn.Add(st.RowsIn)
	r.rowsOut.Add(st.RowsOut)
	r.skipped.Add(st.Skipped)
	if err := r.judge(forbidden); err != nil {
		return err
	}
	if err := r.judge(tooMany); err != nil {
		return err
	}
	return r.pass(next)
}

// judgeWhole judges a job whose one part an earlier run has finished.
func (r *run) judgeWhole(t *exec.Tally) error {
	for step, n := range t.Skipped {
		p := r.policyOf(step)
		p.taken, p.passed = p.taken+n, p.passed+n
	}
	r.rowsSeen = t.Span
	for _, f := range []func(string, *policy) error{forbidden, tooMany, r.share} {
		if err := r.judge(f); err != nil {
			return err
		}
	}
	return nil
}

// doneStats sums what is known of the rows of finished parts.
func doneStats(parts []exec.PartRange) (s exec.Stats) {
	for i := range parts {
		if p := &parts[i]; p.Done {
			s.RowsIn += p.Tally.Read
			s.RowsOut += p.Rows
			s.Skipped += p.Tally.AllSkipped()
		}
	}
	return s
}

// pass judges the finished parts of earlier runs that lie before split.
func (r *run) pass(split int) error {
	for ; r.passed < len(r.parts) && r.parts[r.passed].End <= split; r.passed++ {
		p := &r.parts[r.passed]
		if !p.Done {
			continue
		}
		for step, n := range p.Tally.Skipped {
			r.policyOf(step).passed += n
		}
		r.rowsSeen += p.Tally.Span
		if err := r.judge(r.tooLarge); err != nil {
			return err
		}
	}
	return nil
}

// judgeEnd judges the whole.
func (r *run) judgeEnd() error {
	if r.sink != nil {
		if err := r.pass(math.MaxInt); err != nil {
			return err
		}
	}
	return r.judge(r.share)
}

// endsPart reports whether split is the last one of its part that is read.
func (r *run) endsPart(split int) bool {
	i := sort.Search(len(r.parts), func(i int) bool { return r.parts[i].End > split })
	for j := split + 1; j < r.parts[i].End; j++ {
		s, at := r.scanOf(j)
		if k := s.scan.Keep; k == nil || k[at] {
			return false
		}
	}
	return true
}
