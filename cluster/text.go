package cluster

import (
	"errors"
	"fmt"
	"math"
	"unicode/utf8"

	"github.com/penstock-data/penstock/internal/fault"
)

// plain refuses text that is not UTF-8: no message carries it. what names it.
func plain(what, s string) error {
	if utf8.ValidString(s) {
		return nil
	}
	return fault.New(fault.Invalid, "%s is not UTF-8: %.100q", what, s)
}

// plainMap does that with what and what is under it.
func plainMap(what string, m map[string]string, secret bool) error {
	for k, v := range m {
		if err := plain("the name of a "+what, k); err != nil {
			return err
		}
		if !utf8.ValidString(v) {
			if secret {
				v = "(secret)"
			}
			return fault.New(fault.Invalid, "%s %s is not UTF-8: %.100q", what, k, v)
		}
	}
	return nil
}

// finite refuses a number of CPUs that no message carries.
func finite(what string, cpus float64) error {
	if math.IsNaN(cpus) || math.IsInf(cpus, 0) {
		return fault.New(fault.Invalid, "%s: %v is no number of CPUs", what, cpus)
	}
	return nil
}

func (j *Job) plain() error {
	if err := errors.Join(finite("what a job needs", j.Needs.CPUs), finite("what a job needs on data nodes", j.Data.Needs.CPUs)); err != nil {
		return fault.WithCode(fault.Invalid, err)
	}
	for i, a := range j.Argv {
		if err := plain(fmt.Sprint("argument ", i), a); err != nil {
			return err
		}
	}
	for _, named := range []map[string]int64{j.Needs.Named, j.Data.Needs.Named} {
		for k := range named {
			if err := plain("the name of a resource", k); err != nil {
				return err
			}
		}
	}
	for _, x := range []struct{ what, text string }{{"the id of the submission", j.ID}, {"the name of the job", j.Name}} {
		if err := plain(x.what, x.text); err != nil {
			return err
		}
	}
	if err := plainMap("variable", j.Env, false); err != nil {
		return err
	}
	if err := plainMap("secret", j.Secrets, true); err != nil {
		return err
	}
	if err := plainMap("label", j.Labels, false); err != nil {
		return err
	}
	return plainMap("label", j.Data.Labels, false)
}

func (c *NodeConfig) plain() error {
	if err := finite("what a node offers", c.CPUs); err != nil {
		return err
	}
	for k := range c.Named {
		if err := plain("the name of a resource", k); err != nil {
			return err
		}
	}
	if err := plain("the name of the node", c.Name); err != nil {
		return err
	}
	return plainMap("label", c.Labels, false)
}
