package place

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// What cannot be is refused with its field; what passes can be added up over as many nodes and
// members as there are.
func TestBounds(t *testing.T) {
	kinds := map[string]int64{}
	for i := range MostKinds + 1 {
		kinds[fmt.Sprint("kind", i)] = 1
	}
	for says, r := range map[string]Resources{
		"-1 milli_cpus":                  {MilliCPUs: -1},
		"65536001 milli_cpus":            {MilliCPUs: MostMilliCPUs + 1},
		"-9223372036854775808 gpus":      {GPUs: math.MinInt64},
		"1025 gpus: 1024 are the most":   {GPUs: 1025},
		"-1 memory":                      {Memory: -1},
		"9223372036854775807 memory":     {Memory: math.MaxInt64},
		"-3 disk":                        {Named: map[string]int64{"disk": -3}},
		"1125899906842625 disk":          {Named: map[string]int64{"disk": MostNamed + 1}},
		"257 kinds":                      {Named: kinds},
		`with the name ""`:               {Named: map[string]int64{"": 1}},
		`with the name "a\nb"`:           {Named: map[string]int64{"a\nb": 1}},
		"it has 1 to 253 bytes without ": {Named: map[string]int64{strings.Repeat("x", 254): 1}},
	} {
		if err := r.Check(); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
		if c := r.Clamp(); c.Check() != nil || c.Named != nil {
			t.Errorf("%s: clamped to %v", says, c)
		}
	}
	most := Resources{MilliCPUs: MostMilliCPUs, GPUs: MostGPUs, Memory: MostMemory, Named: map[string]int64{"x": MostNamed}}
	if err := most.Check(); err != nil {
		t.Error(err)
	}
	var sum Resources
	for range 8000 { // members of a gang are 256
		sum.take(most, 1)
	}
	if sum.MilliCPUs < 0 || sum.GPUs < 0 || sum.Memory < 0 || sum.Named["x"] < 0 {
		t.Errorf("%v", sum)
	}
	labels := map[string]string{}
	for i := range MostLabels + 1 {
		labels[fmt.Sprint(i)] = ""
	}
	for says, l := range map[string]map[string]string{
		"257 labels": labels, `label "zone" with the value "a\x00"`: {"zone": "a\x00"}, `with the name "\x1b"`: {"\x1b": ""}, "up to 1024 bytes": {"a": strings.Repeat("x", MostLabel+1)},
	} {
		if err := CheckLabels(l); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v", says, err)
		}
	}
	if err := CheckLabels(map[string]string{"zone": "", "é": "ü"}); err != nil {
		t.Error(err)
	}
}
