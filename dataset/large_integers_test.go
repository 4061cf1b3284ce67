package dataset_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/jsonio"
)

// What the type that files have in common does not hold is an error of its value, not another
// value: no file decides for another's digits.
func TestCommonTypesLoseNothing(t *testing.T) {
	csv := func(o fileset.Options) driver.Source { return csvio.New(csvio.Options{Options: o}) }
	json := func(o fileset.Options) driver.Source { return jsonio.New(jsonio.Options{Options: o}) }
	long := func(line string) string { return strings.Repeat(line, 3<<20/len(line)) }
	for name, c := range map[string]struct {
		open   func(fileset.Options) driver.Source
		ext    string
		first  string
		second string
		want   string // ""; no error
	}{
		"csv, fractions elsewhere":      {csv, ".csv", "x\n9007199254740993\n", "x\n1.5\n", `"9007199254740993" is no double: a double does not hold all of its digits; to give the column another type: types: {x: `},
		"csv, fractions before":         {csv, ".csv", "x\n1.5\n", "x\n18446744073709551617\n", `"18446744073709551617" is no double`},
		"csv, what a double holds":      {csv, ".csv", "x\n9007199254740992\n-36893488147419103232\n", "x\n1.5\n", ""},
		"csv, nanoseconds late":         {csv, ".csv", "x\n" + long("2024-01-01 00:00:00.000001\n") + "2024-01-01 00:00:00.000000001\n", "x\n2024-01-01\n", "is no timestamp"},
		"csv, late in one file":         {csv, ".csv", "x\n" + long("1.0\n") + "9007199254740993\n", "x\n1\n", `"9007199254740993" is no double`},
		"json, fractions elsewhere":     {json, ".jsonl", "{\"x\":9007199254740993}\n", "{\"x\":1.5}\n", "9007199254740993: a double does not hold all of its digits; give the column a type, types: {"},
		"json, fractions before":        {json, ".jsonl", "{\"x\":1.5}\n", "{\"x\":18446744073709551617}\n", "a double does not hold all of its digits"},
		"json, late in one file":        {json, ".jsonl", long("{\"x\":1.0}\n") + "{\"x\":-9007199254740993}\n", "{\"x\":1}\n", "a double does not hold all of its digits"},
		"json, in a list":               {json, ".jsonl", "{\"x\":[1.5]}\n", "{\"x\":[1, 9007199254740993]}\n", "a double does not hold all of its digits"},
		"json, what a double holds":     {json, ".jsonl", "{\"x\":9007199254740992}\n{\"x\":36893488147419103232}\n", "{\"x\":1.5}\n", ""},
		"json, integers behind uint64":  {json, ".jsonl", long("{\"x\":1}\n") + "{\"x\":18446744073709551616}\n", "{\"x\":1}\n", "does not fit int64"},
		"json, nanoseconds in one file": {json, ".jsonl", long("{\"x\":\"2024-01-01 00:00:00.000001\"}\n") + "{\"x\":\"2024-01-01 00:00:00.000000001\"}\n", "{\"x\":\"2024-01-01\"}\n", "is no timestamp"},
	} {
		dir := t.TempDir()
		for file, text := range map[string]string{"a": c.first, "b": c.second} {
			if err := writeFile(filepath.Join(dir, file+c.ext), text); err != nil {
				t.Fatal(err)
			}
		}
		_, err := dataset.Read(c.open(fileset.Options{Paths: []string{dir}})).Drain(t.Context(), nil)
		if c.want == "" {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		if p := fault.PlaceOf(err); fault.CodeOf(err) != fault.RowError || p.File == "" || !strings.HasPrefix(p.Column, "x") || p.Row == 0 || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
