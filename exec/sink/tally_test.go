package sink

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

const goodReceipt = `{"version":2,"job":"a","digest":"d","tag":"01234567","part":7,"first":1,"end":3,"attempt":"0123456789abcdef/00007-0123456789abcdef",
"rows":3,"skipped":2,"files":[{"path":"p=1/x","rows":3,"bytes":1}],"tally":{"read":9,"span":11,"skipped":{"step 1 (map)":2}}}`

// A receipt says what its rows came from, within limits; one of another version is refused.
func TestReceiptTally(t *testing.T) {
	r, err := decodeReceipt([]byte(goodReceipt))
	if err != nil {
		t.Fatal(err)
	}
	if got := r.Tally; got.Read != 9 || got.Span != 11 || got.Skipped["step 1 (map)"] != 2 {
		t.Errorf("%+v", got)
	}
	for version, want := range map[string]string{"1": "use the one that wrote it", "3": "use a newer one"} {
		if _, err := decodeReceipt([]byte(strings.Replace(goodReceipt, `"version":2`, `"version":`+version, 1))); fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), want) {
			t.Errorf("version %s: %v", version, err)
		}
	}
	for _, bad := range []string{
		strings.Replace(goodReceipt, `,"tally":{"read":9,"span":11,"skipped":{"step 1 (map)":2}}`, "", 1),
		strings.Replace(goodReceipt, `"read":9`, `"read":-1`, 1),
		strings.Replace(goodReceipt, `"span":11`, `"span":-1`, 1),
		strings.Replace(goodReceipt, `(map)":2`, `(map)":3`, 1),
		strings.Replace(goodReceipt, `(map)":2`, `(map)":3,"x":-1`, 1),
		strings.Replace(goodReceipt, `(map)":2`, `(map)":9223372036854775807,"x":9223372036854775807,"y":4`, 1),
		strings.Replace(goodReceipt, `"skipped":2`, `"skipped":9223372036854775807`, 1),
	} {
		if _, err := decodeReceipt([]byte(bad)); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// Who finds the job committed hears what it read and left out: by all its runs, also where another job was appended since.
func TestFinishedTally(t *testing.T) {
	d := data{Splits: 12, Rows: 300, Bad: 7} // one row of a hundred
	out := t.TempDir()
	files := func(job string) *Files {
		return newFiles(t, Options{Path: out, Job: job, Mode: ModeAppend, TargetBytes: 3 << 20})
	}
	stop := func(part, _, _ int) error {
		if part == 2 {
			return fault.New(fault.Invalid, "stop")
		}
		return nil
	}
	if err := (runSpec{Data: d, Workers: 1, Batch: 77, Fail: stop}).run(t.Context(), files("a")); fault.CodeOf(err) != fault.Invalid {
		t.Fatal(err)
	}
	s := files("a")
	plan, err := s.Begin(t.Context(), dataSchema, d.splits())
	if err != nil {
		t.Fatal(err)
	}
	for i, p := range plan.Parts {
		if p.Done != (i < 2) || p.Done && (p.Rows != 891 || p.Tally.Read != 900 || p.Tally.Span != 900 || p.Tally.Skipped["0 step 1 (test)"] != 9) {
			t.Errorf("part %d: %+v", i, p)
		}
	}
	if err := s.Abort(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, job := range []string{"a", "b"} {
		s := files(job)
		if err := (runSpec{Data: d, Workers: 2, Batch: 50}).run(t.Context(), s); err != nil {
			t.Fatal(err)
		}
		if r := s.Result(); r.RowsIn != 3600 || r.Rows != 3564 || r.Skipped != 36 {
			t.Errorf("%s: %+v", job, r)
		}
	}
	again := func(job string) {
		t.Helper()
		s := files(job)
		plan, err := s.Begin(t.Context(), dataSchema, d.splits())
		if err != nil || !plan.Committed || len(plan.Parts) != 1 {
			t.Fatalf("%+v, %v", plan, err)
		}
		if p := plan.Parts[0]; !p.Done || p.Rows != 3564 || p.Tally.Read != 3600 || p.Tally.AllSkipped() != 36 || s.Result().RowsIn != 3600 || s.Result().Skipped != 36 {
			t.Errorf("%s: %+v, %+v", job, p, s.Result())
		}
	}
	again("a")
	again("b")
}
