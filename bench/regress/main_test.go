package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// fake is a meter of workloads that take as long as they are told, in kernels.
type fake struct {
	clock float64
	rows  int64
	takes map[string]func(run int) float64
}

func (f *fake) checker(file string, update bool) *checker {
	c := &checker{meter: meter{cpu: func() float64 { return f.clock }, rounds: 7}, file: file, tolerance: 1.25, noise: 1.2, update: update}
	c.kernel = func() error { f.clock++; return nil }
	for _, name := range []string{"a", "b"} {
		run := 0
		c.works = append(c.works, work{name, func(string) (int64, error) {
			f.clock += f.takes[name](run)
			run++
			return f.rows, nil
		}, 5})
	}
	return c
}

func always(x float64) func(int) float64 { return func(int) float64 { return x } }

// jumpy is x, or in every second run twice that.
func jumpy(x float64) func(int) float64 { return func(run int) float64 { return x * float64(1+run%2) } }

func TestCheck(t *testing.T) {
	type step struct {
		a             func(int) float64 // b takes 2 always
		update        bool
		slower, noisy bool
		left          float64 // of a, in the file
	}
	for name, steps := range map[string][]step{
		"equal":                 {{a: always(1), left: 1}, {a: always(1), left: 1}},
		"slower":                {{a: always(1), left: 1}, {a: always(1.3), slower: true, left: 1}},
		"slower and updated":    {{a: always(1), left: 1}, {a: always(1.3), update: true, left: 1.3}, {a: always(1.5), left: 1.3}},
		"little by little":      {{a: always(1), left: 1}, {a: always(1.1), left: 1}, {a: always(1.2), left: 1}, {a: always(1.3), slower: true, left: 1}},
		"faster":                {{a: always(1), left: 1}, {a: always(0.7), left: 0.7}, {a: always(0.9), slower: true, left: 0.7}},
		"noisy":                 {{a: always(1), left: 1}, {a: jumpy(0.9), noisy: true, left: 1}, {a: jumpy(0.4), noisy: true, left: 1}},
		"noisy, and far slower": {{a: always(1), left: 1}, {a: jumpy(3), slower: true, left: 1}},
		"noisy and new":         {{a: jumpy(1), noisy: true}, {a: always(1), left: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "r.json")
			for i, s := range steps {
				f := &fake{rows: 5, takes: map[string]func(int) float64{"a": s.a, "b": always(2)}}
				slower, noisy, err := f.checker(file, s.update).check()
				if err != nil || slices.Equal(slower, []string{"a"}) != s.slower || slices.Equal(noisy, []string{"a"}) != s.noisy || len(slower)+len(noisy) > 1 {
					t.Fatalf("run %d: slower %v, noisy %v, %v", i, slower, noisy, err)
				}
				left := map[string]float64{}
				b, err := os.ReadFile(file)
				if err != nil || json.Unmarshal(b, &left) != nil || left["a"] != s.left || left["b"] != 2 {
					t.Fatalf("run %d: %v is left, %v", i, left, err)
				}
			}
		})
	}
	f := &fake{rows: 4, takes: map[string]func(int) float64{"a": always(1), "b": always(2)}}
	if _, _, err := f.checker(filepath.Join(t.TempDir(), "r.json"), false).check(); err == nil || err.Error() != "a: 4 rows" {
		t.Errorf("too few rows give %v", err)
	}
}
