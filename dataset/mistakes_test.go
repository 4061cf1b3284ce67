package dataset

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/memio"
)

// away is a source that cannot be reached, which is known after a while.
type away struct{ tries *int }

func (away) Kind() string                     { return "away" }
func (away) Config() (json.RawMessage, error) { return nil, errors.New("none") }
func (a away) Resolve(context.Context, *driver.ResolveOptions) (driver.Table, error) {
	*a.tries++
	return nil, fault.New(fault.Unavailable, "no answer")
}

// What is wrong with a plan is looked for once in each dataset, however often that is in it, stops when there is much, and where a source cannot be reached.
func TestMistakesAreBounded(t *testing.T) {
	began := time.Now()
	twice := Read(memio.Range(10)).Select("nope")
	for range 40 {
		twice = twice.Union(twice)
	}
	if _, err := twice.Schema(t.Context()); fault.CodeOf(err) != fault.Invalid || strings.Count(err.Error(), "\n") > 0 {
		t.Error(err)
	}
	for _, ds := range []*Dataset{Read(memio.Range(10)), Read(memio.Range(10)).Limit(5)} {
		for i := range 5000 {
			ds = ds.Filter(fmt.Sprintf("nope%d > 1", i))
		}
		_, err := ds.Schema(t.Context())
		if n := len(strings.Split(err.Error(), "\n")); n < 20 || n > 25 {
			t.Errorf("%d lines", n)
		}
	}
	tries := 0
	ds := Read(away{&tries})
	for range 20 {
		ds = ds.Union(Read(away{&tries}), Read(memio.Range(1)).Select("nope"))
	}
	if _, err := ds.Schema(t.Context()); fault.CodeOf(err) != fault.Unavailable || tries != 1 {
		t.Errorf("%d tries: %v", tries, err)
	}
	if d := time.Since(began); d > 10*time.Second {
		t.Errorf("it took %v", d)
	}
}
