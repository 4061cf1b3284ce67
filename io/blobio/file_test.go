package blobio_test

import (
	"bytes"
	"os"
	"runtime/debug"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
)

// TestFile: an open file is read and mapped in any pieces, counted as asked for, and checked at every one.
func TestFile(t *testing.T) {
	b := open(t, "file://"+t.TempDir(), nil)
	want := randomBytes(9, 3<<20+777)
	info := put(t, b, "k", want)
	var st blobio.Stats
	f, err := b.Object(info, &st).Open()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	size := info.Size
	for _, r := range []blobio.Range{{Off: 0, Len: 1}, {Off: 0, Len: size}, {Off: 4095, Len: 2}, {Off: 4096, Len: 4096}, {Off: 12345, Len: 1 << 20}, {Off: size - 1, Len: 1}} {
		m, err := f.Map(t.Context(), r.Off, r.Len, r.Len/2)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(m.Bytes(), want[r.Off:r.Off+r.Len]) {
			t.Errorf("%v is mapped wrong", r)
		}
		if n := st.Bytes.Swap(0); n != r.Len/2 || st.Requests.Swap(0) != 1 {
			t.Errorf("%v counts as %d bytes", r, n)
		}
		m.Unmap()
		m.Unmap()
		p := make([]byte, r.Len)
		if err := f.ReadAt(t.Context(), p, r.Off); err != nil || !bytes.Equal(p, want[r.Off:r.Off+r.Len]) {
			t.Errorf("%v is read wrong: %v", r, err)
		}
		if n := st.Bytes.Swap(0); n != r.Len {
			t.Errorf("%v counts as %d bytes", r, n)
		}
		st.Requests.Store(0)
	}
	for _, r := range []blobio.Range{{Off: -1, Len: 1}, {Off: 0, Len: 0}, {Off: size, Len: 1}, {Off: 1, Len: size}} {
		_, err := f.Map(t.Context(), r.Off, r.Len, 0)
		wantCode(t, err, fault.Invalid, b.Path("k"))
	}
	if err := f.Check(); err != nil {
		t.Error(err)
	}

	m, err := f.Map(t.Context(), 5000, 1<<20, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Unmap()
	path, _ := b.Local("k")
	if err := os.Truncate(path, 8192); err != nil {
		t.Fatal(err)
	}
	at, inside := faultOf(m.Bytes(), &m)
	if !inside || at != 8192-5000 {
		t.Errorf("the fault is at %d, %v", at, inside)
	}
	wantCode(t, f.Fault(5000+at), fault.Changed, b.Path("k"))
	wantCode(t, f.Check(), fault.Changed, b.Path("k"))
	wantCode(t, f.ReadAt(t.Context(), make([]byte, 10), 0), fault.Changed, b.Path("k"))
	_, err = f.Map(t.Context(), 0, 100, 0)
	wantCode(t, err, fault.Changed, b.Path("k"))
	if _, ok := m.Offset(1); ok {
		t.Error("address 1 is mapped")
	}

	mem := open(t, "mem://file", nil)
	_, err = mem.Object(put(t, mem, "k", want), nil).Open()
	wantCode(t, err, fault.Unsupported, "mem://file/k")
}

// faultOf reads b until it faults, and returns where that is in m.
func faultOf(b []byte, m *blobio.Mapping) (at int64, inside bool) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p, ok := recover().(interface{ Addr() uintptr }); ok {
			at, inside = m.Offset(p.Addr())
		}
	}()
	sum := byte(0)
	for _, x := range b {
		sum += x
	}
	return int64(sum), false
}
