package sink

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

const goodManifest = `{"version":2,"number":1,"job":"a","mode":"error","format":"ipc","partition_by":["p"],"metadata":{"k":"v"},"jobs":["a"],"rows":3,"bytes":10,
"files":[{"path":"p=1/part-0-00000-000.arrow","job":"a","rows":3,"bytes":10}]}`

func TestManifestDecode(t *testing.T) {
	if _, err := decodeManifest([]byte(goodManifest)); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		old, new string
		code     fault.Code
		text     string
	}{
		{`"version":2,`, `"version":3,"new_thing":[],`, fault.Unsupported, "version 3"},
		{`"version":2,`, `"version":1,`, fault.Unsupported, "use the one that wrote it"},
		{`"version":2,`, ``, fault.Corrupt, "version"},
		{`"number":1`, `"number":0`, fault.Corrupt, "range"},
		{`"mode"`, `"mood"`, fault.Corrupt, "mood"},
		{`"jobs":["a"]`, `"jobs":["b"]`, fault.Corrupt, `"a"`},
		{`"rows":3,"bytes":10,
`, `"rows":4,"bytes":10,
`, fault.Corrupt, "add up"},
		{`"rows":3,"bytes":10}`, `"rows":-3,"bytes":10}`, fault.Corrupt, "range"},
		{`p=1/part`, `../part`, fault.Corrupt, "path"},
		{`p=1/part`, `/part`, fault.Corrupt, "path"},
		{`p=1/part`, `p=1//part`, fault.Corrupt, "path"},
		{`p=1/part`, `_penstock/part`, fault.Corrupt, "hidden"},
		{`]}`, `]} x`, fault.Corrupt, ""},
		{`]}`, `]`, fault.Corrupt, ""},
		{`"files":[`, `"files":[{"path":"p=1/part-0-00000-000.arrow","job":"a","rows":0,"bytes":0},`, fault.Corrupt, "twice"},
	} {
		bad := strings.Replace(goodManifest, tc.old, tc.new, 1)
		if bad == goodManifest {
			t.Fatalf("%q is not there", tc.old)
		}
		if _, err := decodeManifest([]byte(bad)); fault.CodeOf(err) != tc.code || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%q for %q: %v", tc.new, tc.old, err)
		}
	}
}

func TestReadManifest(t *testing.T) {
	dir := t.TempDir()
	if _, err := ReadManifest(t.Context(), dir, nil); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("empty folder: %v", err)
	}
	if _, err := ReadManifest(t.Context(), filepath.Join(dir, "nope"), nil); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("no folder: %v", err)
	}
	os.MkdirAll(recordsDir(dir), 0o777)
	put := func(name, text string) {
		if err := os.WriteFile(filepath.Join(recordsDir(dir), name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	put("0001.json", goodManifest)
	put("0002.pending", "decided, not done: nothing to a reader")
	put("2.json", "no manifest's name")
	put("0x03.json", "nor this")
	m, err := ReadManifest(t.Context(), dir, nil)
	if err != nil || m.Number != 1 || len(m.Files) != 1 || m.Metadata["k"] != "v" {
		t.Fatalf("%+v, %v", m, err)
	}
	put("10000.json", strings.Replace(goodManifest, `"number":1`, `"number":10000`, 1))
	put("9999.json", strings.Replace(goodManifest, `"number":1`, `"number":9999`, 1))
	if m, err = ReadManifest(t.Context(), dir, nil); err != nil || m.Number != 10000 {
		t.Fatalf("%+v, %v", m, err)
	}
	put("10001.json", goodManifest)
	if _, err = ReadManifest(t.Context(), dir, nil); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "10001.json") {
		t.Errorf("%v", err)
	}
}

// Damaged records are errors that name the file, not a reason to write twice.
func TestDamagedRecords(t *testing.T) {
	dir := t.TempDir()
	o := Options{Path: dir, TargetBytes: 2 << 20}
	fail := runSpec{Data: small, Workers: 1, Batch: 100, Fail: func(part, split, row int) error {
		if split == 7 {
			return errTest
		}
		return nil
	}}
	if err := fail.run(t.Context(), newFiles(t, o)); err == nil {
		t.Fatal("no error")
	}
	job := filepath.Join(recordsDir(dir), "jobs", "job")
	for _, name := range []string{"job.json", "part-00001.json"} {
		good, err := os.ReadFile(filepath.Join(job, name))
		if err != nil {
			t.Fatal(err)
		}
		os.WriteFile(filepath.Join(job, name), good[:len(good)/2], 0o666)
		err = (runSpec{Data: small, Workers: 1, Batch: 100}).run(t.Context(), newFiles(t, o))
		if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), name) {
			t.Errorf("%v", err)
		}
		os.WriteFile(filepath.Join(job, name), good, 0o666)
	}
	// A staged file that somebody removed.
	staged, _ := filepath.Glob(filepath.Join(job, "stage", "*", "00000-*", "*.arrow.staged"))
	if len(staged) != 1 {
		t.Fatalf("staged %v", staged)
	}
	os.Rename(staged[0], filepath.Join(dir, "_away"))
	err := (runSpec{Data: small, Workers: 1, Batch: 100}).run(t.Context(), newFiles(t, o))
	if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "missing") || len(visible(t, dir)) > 0 {
		t.Errorf("%v", err)
	}
	os.Rename(filepath.Join(dir, "_away"), staged[0])
	if err := (runSpec{Data: small, Workers: 1, Batch: 100}).run(t.Context(), newFiles(t, o)); err != nil {
		t.Fatal(err)
	}
	exact(t, dir, small)
}

func fuzzDecode[T any](f *testing.F, dec func([]byte) (*T, error), seeds ...string) {
	for _, s := range seeds {
		f.Add([]byte(s))
		f.Add([]byte(s[:len(s)/2]))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		v, err := dec(data)
		if err != nil {
			if c := fault.CodeOf(err); c != fault.Corrupt && c != fault.Unsupported {
				t.Fatalf("code %v: %v", c, err)
			}
			return
		}
		again, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := dec(again); err != nil {
			t.Fatalf("what was read does not read back: %v\n%s", err, again)
		}
	})
}

func FuzzManifest(f *testing.F) { fuzzDecode(f, decodeManifest, goodManifest) }

func FuzzReceipt(f *testing.F) {
	fuzzDecode(f, decodeReceipt, `{"version":2,"job":"a","digest":"d","tag":"01234567","part":7,"first":1,"end":3,"attempt":"0123456789abcdef/00007-0123456789abcdef",
"rows":3,"skipped":1,"files":[{"path":"p=1/x","rows":3,"bytes":1}],"dead":{"path":"dead-x","rows":1,"bytes":5}}`, goodReceipt)
}

func FuzzJob(f *testing.F) {
	fuzzDecode(f, decodeJob, `{"version":2,"job":"a","base":0,"tag":"01234567","parts":[0,2],"splits":3,"digest":"d","schema":"s","format":"ipc","config":{"a":1},
"partition_by":["p"],"dead_letter":{"url":"mem://x","prefix":"p/","tag":"01234567"}}`)
}

func FuzzDecision(f *testing.F) {
	fuzzDecode(f, decodeDecision, `{"version":2,"manifest":`+goodManifest+`,"moves":[{"from":"jobs/a/stage/0123456789abcdef/00000-0123456789abcdef/p=1/y.staged","to":"p=1/y","bytes":1}],
"dead":{"url":"mem://x","prefix":"p/","tag":"01234567","moves":[]}}`)
}
