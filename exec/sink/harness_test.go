package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if cfg := os.Getenv("PENSTOCK_SINK_CHILD"); cfg != "" {
		child(cfg)
		return
	}
	// Every file is synced: on a file system in memory that takes no time.
	if fi, err := os.Stat("/dev/shm"); err == nil && fi.IsDir() && os.Getenv("TMPDIR") == "" {
		os.Setenv("TMPDIR", "/dev/shm")
	}
	goleak.VerifyTestMain(m)
}

// ipcEncoding writes Arrow IPC files, slowly if asked to.
type ipcEncoding struct{ Slow time.Duration }

func (ipcEncoding) Kind() string                { return "ipc" }
func (ipcEncoding) Extension() string           { return ".arrow" }
func (ipcEncoding) Config() json.RawMessage     { return json.RawMessage(`{ "a": 1 }`) }
func (ipcEncoding) Check(s *arrow.Schema) error { return nil }
func (e ipcEncoding) NewEncoder(w io.Writer, s *arrow.Schema, alloc memory.Allocator) (driver.Encoder, error) {
	c := &counter{w: w}
	iw, err := ipc.NewFileWriter(c, ipc.WithSchema(s), ipc.WithAllocator(alloc))
	if err != nil {
		return nil, err
	}
	return &ipcEncoder{c: c, w: iw, slow: e.Slow, held: alloc.Allocate(1000), alloc: alloc}, nil
}

type ipcEncoder struct {
	c     *counter
	w     *ipc.FileWriter
	slow  time.Duration
	held  []byte
	alloc memory.Allocator
}

func (e *ipcEncoder) Write(r arrow.RecordBatch) error {
	if e.slow > 0 {
		time.Sleep(e.slow)
	}
	return e.w.Write(r)
}
func (e *ipcEncoder) Size() int64  { return e.c.n }
func (e *ipcEncoder) Close() error { e.alloc.Free(e.held); return e.w.Close() }
func (e *ipcEncoder) Abort()       { e.alloc.Free(e.held); e.c.w = io.Discard; e.w.Close() }

// joinEncoding is an ipcEncoding whose files can be joined.
type joinEncoding struct{ ipcEncoding }

func (joinEncoding) Joins(*arrow.Schema) bool { return true }

func (e joinEncoding) Join(ctx context.Context, w io.Writer, o *driver.JoinOptions) error {
	enc, err := e.NewEncoder(w, o.Schema, o.Alloc)
	if err != nil {
		return err
	}
	for _, f := range o.Files {
		in := f.Open(ctx)
		raw, err := io.ReadAll(in)
		in.Close()
		if err == nil {
			err = copyBatches(enc, raw)
		}
		if err != nil {
			enc.Abort()
			return err
		}
	}
	return enc.Close()
}

func copyBatches(enc driver.Encoder, raw []byte) error {
	r, err := ipc.NewFileReader(bytes.NewReader(raw))
	if err != nil {
		return err
	}
	defer r.Close()
	for i := range r.NumRecords() {
		rec, err := r.RecordBatchAt(i)
		if err != nil {
			return err
		}
		err = enc.Write(rec)
		rec.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// idEncoding writes one line per row: its first column, an int64. It has no place for an
// empty file's schema.
type idEncoding struct{}

func (idEncoding) Kind() string            { return "ids" }
func (idEncoding) Extension() string       { return ".ids" }
func (idEncoding) Config() json.RawMessage { return nil }
func (idEncoding) Check(s *arrow.Schema) error {
	if s.Field(0).Type.ID() != arrow.INT64 {
		return driver.Errorf(driver.Invalid, "column %q is no int64", s.Field(0).Name)
	}
	return nil
}
func (idEncoding) NewEncoder(w io.Writer, s *arrow.Schema, alloc memory.Allocator) (driver.Encoder, error) {
	return &idEncoder{c: counter{w: w}}, nil
}

type idEncoder struct{ c counter }

func (e *idEncoder) Write(r arrow.RecordBatch) error {
	for _, v := range r.Column(0).(*array.Int64).Int64Values() {
		if _, err := fmt.Fprintln(&e.c, v); err != nil {
			return err
		}
	}
	return nil
}
func (e *idEncoder) Size() int64  { return e.c.n }
func (e *idEncoder) Close() error { return nil }
func (e *idEncoder) Abort()       {}

// data is a made-up source: Splits splits of Rows rows, ids counting through. Rows
// whose id is Bad modulo 100 are skipped (Bad < 0: none).
type data struct {
	Splits, Rows int
	Bad          int
}

var parts = []any{"plain", "", "a/b=c%", "__HIVE_DEFAULT_PARTITION__", nil, "ünï 北", "x..y", ".hidden", "_under"}

var dataSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64},
	{Name: "p", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "k", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
	{Name: "text", Type: arrow.BinaryTypes.String},
}, nil)

func (d data) splits() []exec.SinkSplit {
	s := make([]exec.SinkSplit, d.Splits)
	for i := range s {
		s[i] = exec.SinkSplit{ID: fmt.Sprintf("data#%d", i), Rows: int64(d.Rows), Bytes: 1 << 20}
	}
	return s
}

// partOf says which of parts a row has, kOf its k (0 means null).
func partOf(id int64) any { return parts[(id/3)%int64(len(parts))] }
func kOf(id int64) int64  { return (id * 7919) % 503 }

func (d data) block(alloc memory.Allocator, split, from, to int) *exec.Block {
	o := exec.Origin{Split: fmt.Sprintf("data#%d", split), File: "data", Index: int64(split)}
	b := array.NewRecordBuilder(alloc, dataSchema)
	defer b.Release()
	blk := &exec.Block{Origin: o, Row: int64(from), Span: int64(to - from)}
	for row := from; row < to; row++ {
		id := int64(split*d.Rows + row)
		if d.Bad >= 0 && id%100 == int64(d.Bad) {
			one := array.NewRecordBuilder(alloc, arrow.NewSchema(dataSchema.Fields()[:1], nil))
			one.Field(0).(*array.Int64Builder).Append(id)
			err := fault.New(fault.RowError, "bad id %d", id).At(fault.Place{Step: "step 1 (test)", Column: "id"})
			blk.Skipped = append(blk.Skipped, exec.Skipped{Err: err, Origin: o, Row: int64(row), Record: one.NewRecordBatch()})
			one.Release()
			continue
		}
		b.Field(0).(*array.Int64Builder).Append(id)
		if p, ok := partOf(id).(string); ok {
			b.Field(1).(*array.StringBuilder).Append(p)
		} else {
			b.Field(1).AppendNull()
		}
		if k := kOf(id); k == 0 {
			b.Field(2).AppendNull()
		} else {
			b.Field(2).(*array.Int32Builder).Append(int32(k))
		}
		b.Field(3).(*array.StringBuilder).Append(strings.Repeat("t", int(id%17)))
	}
	blk.Batch = b.NewRecordBatch()
	return blk
}

// runSpec is a run of data into a sink, as the engine would do it.
type runSpec struct {
	Data    data
	Workers int
	Batch   int
	Alloc   memory.Allocator `json:"-"`
	// Fail, if not nil, is called before every write.
	Fail func(part, split, row int) error `json:"-"`
}

func (r runSpec) run(ctx context.Context, s exec.Sink) (err error) {
	alloc := r.Alloc
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	plan, err := s.Begin(ctx, dataSchema, r.Data.splits())
	if err != nil || plan.Committed {
		return err
	}
	work := make(chan int, len(plan.Parts))
	for i, p := range plan.Parts {
		if !p.Done {
			work <- i
		}
	}
	close(work)
	var mu sync.Mutex
	var errs []error
	failed := func() bool { mu.Lock(); defer mu.Unlock(); return len(errs) > 0 }
	var wg sync.WaitGroup
	for range r.Workers {
		wg.Go(func() {
			for i := range work {
				if failed() {
					return
				}
				if err := r.part(ctx, s, i, plan.Parts[i], alloc); err != nil {
					mu.Lock()
					errs = append(errs, err)
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return errors.Join(err, s.Abort(ctx))
	}
	if err := s.Commit(ctx, &exec.CommitEnv{CPUs: 2}); err != nil {
		return errors.Join(err, s.Abort(ctx))
	}
	return nil
}

func (r runSpec) part(ctx context.Context, s exec.Sink, part int, p exec.PartRange, alloc memory.Allocator) error {
	w, err := s.NewPart(ctx, part, &exec.Env{Alloc: alloc})
	if err != nil {
		return err
	}
	var t exec.Tally
	for split := p.First; split < p.End; split++ {
		t.Read, t.Span = t.Read+int64(r.Data.Rows), t.Span+int64(r.Data.Rows)
		for row := 0; row < r.Data.Rows; row += r.Batch {
			if r.Fail != nil {
				if err := r.Fail(part, split, row); err != nil {
					return errors.Join(err, w.Abort(ctx))
				}
			}
			b := r.Data.block(alloc, split, row, min(row+r.Batch, r.Data.Rows))
			t.Skip(b.Skipped)
			err := w.Write(ctx, b)
			b.Release()
			if err != nil {
				return errors.Join(err, w.Abort(ctx))
			}
		}
	}
	return w.Finish(ctx, t)
}

// readFile returns the ids in a file, and checks the folders' values against them.
func readFile(t *testing.T, rel string, raw []byte) (ids []int64) {
	t.Helper()
	if strings.HasSuffix(rel, ".ids") {
		for _, f := range strings.Fields(string(raw)) {
			var id int64
			fmt.Sscan(f, &id)
			ids = append(ids, id)
		}
		return ids
	}
	r, err := ipc.NewFileReader(bytes.NewReader(raw))
	if err != nil {
		t.Fatalf("%s: %v", rel, err)
	}
	defer r.Close()
	for i := range r.NumRecords() {
		rec, err := r.RecordBatchAt(i)
		if err != nil {
			t.Fatalf("%s: %v", rel, err)
		}
		ids = append(ids, rec.Column(0).(*array.Int64).Int64Values()...)
		rec.Release()
	}
	return ids
}

// rows reads an output as a reader of the manifest or of the bare folder does.
func rows(t *testing.T, path string, bare bool) []int64 {
	t.Helper()
	ctx := t.Context()
	r, err := openRoot(ctx, path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.b.Close()
	type file struct {
		rel   string
		rows  int64
		bytes int64
	}
	var files []file
	if bare {
		for info, err := range r.list(ctx, "") {
			if err != nil {
				t.Fatal(err)
			}
			if rel := strings.TrimPrefix(info.Key, r.prefix); !info.Dir && !hidden(rel) {
				files = append(files, file{rel, -1, info.Size})
			}
		}
	} else {
		m, err := ReadManifest(ctx, path, nil)
		if fault.CodeOf(err) == fault.NotFound {
			return nil
		}
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range m.Files {
			files = append(files, file{f.Path, f.Rows, f.Bytes})
		}
	}
	var ids []int64
	for _, f := range files {
		raw, err := r.b.ReadAll(ctx, r.prefix+f.rel, 1<<30)
		if err != nil {
			t.Fatal(err)
		}
		got := readFile(t, f.rel, raw)
		if f.rows >= 0 && (int64(len(got)) != f.rows || int64(len(raw)) != f.bytes) {
			t.Fatalf("%s: %d rows, %d bytes; the manifest says %d, %d", f.rel, len(got), len(raw), f.rows, f.bytes)
		}
		for _, seg := range strings.Split(filepath.Dir(f.rel), "/") {
			checkSegment(t, seg, got)
		}
		ids = append(ids, got...)
	}
	return ids
}

func checkSegment(t *testing.T, seg string, ids []int64) {
	t.Helper()
	k, v, ok := strings.Cut(seg, "=")
	if !ok {
		return
	}
	for _, id := range ids {
		var want string
		switch k {
		case "p":
			if p, ok := partOf(id).(string); ok {
				want = escapeValue(p)
			} else {
				want = hiveNull
			}
		case "k":
			if want = fmt.Sprint(kOf(id)); want == "0" {
				want = hiveNull
			}
		default:
			t.Fatalf("folder %q", seg)
		}
		if v != want {
			t.Fatalf("row %d in folder %q, want %s=%s", id, seg, k, want)
		}
	}
}

// exact checks that both kinds of readers see every good row of d once.
func exact(t *testing.T, path string, ds ...data) {
	t.Helper()
	want := make(map[int64]int)
	n := 0
	for _, d := range ds {
		for id := range int64(d.Splits * d.Rows) {
			if d.Bad < 0 || id%100 != int64(d.Bad) {
				want[id]++
				n++
			}
		}
	}
	for _, bare := range []bool{false, true} {
		got := rows(t, path, bare)
		have := make(map[int64]int)
		for _, id := range got {
			have[id]++
		}
		if len(got) != n {
			t.Fatalf("%s (bare %v): %d rows, want %d", path, bare, len(got), n)
		}
		for id, c := range want {
			if have[id] != c {
				t.Fatalf("%s (bare %v): row %d is there %d times, want %d", path, bare, id, have[id], c)
			}
		}
	}
}

func visible(t *testing.T, path string) (names []string) {
	t.Helper()
	r, err := openRoot(t.Context(), path, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.b.Close()
	for info, err := range r.list(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		if rel := strings.TrimPrefix(info.Key, r.prefix); !info.Dir && !hidden(rel) {
			names = append(names, rel)
		}
	}
	return names
}

// recordsDir is where the records of the local output at path are.
func recordsDir(path string) string {
	return filepath.Join(filepath.Dir(path), recordsPrefix+filepath.Base(path))
}

func newFiles(t *testing.T, o Options) *Files {
	t.Helper()
	if o.Encoding == nil {
		o.Encoding = ipcEncoding{}
	}
	if o.Job == "" {
		o.Job = "job"
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

var _ = blobio.Options{}
