package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/testserver"
)

// Keys with two slashes, and with a tab, are found below a prefix, by a glob and by name; outputs and the cache have such keys, too.
func TestKeysOfBuckets(t *testing.T) {
	m, url := testserver.S3Memory(t, "b")
	_, query, _ := strings.Cut(url, "?")
	at := func(key string) string { return "s3://b/" + key + "?" + query }
	dir := t.TempDir()
	for i, key := range []string{"d/a.parquet", "d//b.parquet", "d/x//y/c.parquet", "t/tab\there.parquet"} {
		rows := []string{"1", "10", "100", "1000"}[i]
		out := filepath.Join(dir, rows)
		ok(t, "run", writeSpec(t, "version: 1\nsource: {range: {n: "+rows+"}}\nsink: {parquet: {path: "+out+"}}\n"))
		files, err := filepath.Glob(filepath.Join(out, "*.parquet"))
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		data, err := os.ReadFile(files[0])
		if err != nil {
			t.Fatal(err)
		}
		m.Put("b", key, data)
	}
	counts := func() {
		t.Helper()
		for path, want := range map[string]string{"d/": "111\n", "d": "111\n", "d//*.parquet": "10\n", "d//": "10\n", "d/*.parquet": "1\n", "d/x//y/c.parquet": "100\n",
			"t/": "1000\n", "t/tab\there.parquet": "1000\n", "t/*.parquet": "1000\n"} {
			if got := ok(t, "count", at(path)); got != want {
				t.Errorf("count %q: %q, want %q", path, got, want)
			}
		}
	}
	counts()
	for _, out := range []string{"o//x/", "o/t\tab", "o/../up"} {
		spec := writeSpec(t, "version: 1\nsource: {parquet: {paths: [\""+at("d/")+"\"]}}\nsink: {parquet: {path: \""+strings.ReplaceAll(at(out), "\t", `\t`)+"\"}}\n"+
			"run: {cache: {dir: "+filepath.Join(dir, "cache")+", max: 64MiB}}\n")
		for range 2 { // the second finds nothing to do, or reads from the cache
			ok(t, "run", spec)
		}
		if got := ok(t, "count", at(out)); got != "111\n" {
			t.Errorf("%q: count of what was written: %s", out, got)
		}
	}
	below := strings.Join(m.Keys("b"), "\n")
	for _, want := range []string{"\no//x/part-", "\no/t\tab/part-", "\no/../up/part-"} {
		if !strings.Contains(below, want) {
			t.Errorf("no %q in\n%q", want, below)
		}
	}
}
