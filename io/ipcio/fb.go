package ipcio

import (
	"encoding/binary"
	"fmt"
	"runtime/debug"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// A small reader of flatbuffers: enough for Arrow's metadata, without copies.
// Offsets that leave the buffer panic with errOutside; guard turns that
// into a Corrupt error, and every exported path runs under guard.

// guard runs f and turns panics over outside bytes into Corrupt errors, and a memory fault into an errFault.
// What it does not know is an unforeseen in the error: damage that a check of ours should have found.
func guard(what string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			if e, ok := p.(*fault.Error); ok { // the allocator's, when memory is out
				err = e
				return
			}
			if e, ok := p.(interface{ Addr() uintptr }); ok {
				err = errFault(e.Addr())
				return
			}
			if _, ok := p.(errOutside); ok {
				err = driver.Errorf(driver.Corrupt, "%s: the metadata is damaged: it points outside of itself; write the file again", what)
				return
			}
			err = driver.Errorf(driver.Corrupt, "%s: the data is damaged in a way that is not foreseen here; "+
				"write the file again, and report this: %w", what, unforeseen{p})
		}
	}()
	return f()
}

// errFault is an access to memory that faulted, at this address.
type errFault uintptr

func (errFault) Error() string { return "memory fault" }

// errOutside is the panic of metadata that points outside of itself.
type errOutside struct{}

// unforeseen is a panic with another value.
type unforeseen struct{ value any }

func (u unforeseen) Error() string { return fmt.Sprint(u.value) }

// part is b[at:at+n], or panics with errOutside.
func part(b []byte, at, n int) []byte {
	if at < 0 || n < 0 || at > len(b)-n {
		panic(errOutside{})
	}
	return b[at : at+n : at+n]
}

func u16(b []byte, at int) int   { return int(binary.LittleEndian.Uint16(part(b, at, 2))) }
func u32(b []byte, at int) int   { return int(binary.LittleEndian.Uint32(part(b, at, 4))) }
func i64(b []byte, at int) int64 { return int64(binary.LittleEndian.Uint64(part(b, at, 8))) }

type table struct {
	b   []byte
	pos int
}

func root(b []byte) table { return table{b, u32(b, 0)} }

// at is the position of field id, 0 if it is absent. It must find whatever the
// library's own reader finds.
func (t table) at(id int) int {
	vt := t.pos - int(int32(u32(t.b, t.pos)))
	if o := 4 + 2*id; o < u16(t.b, vt) {
		if v := u16(t.b, vt+o); v != 0 {
			return t.pos + v
		}
	}
	return 0
}

func (t table) int8(id int) int8 {
	if at := t.at(id); at != 0 {
		return int8(part(t.b, at, 1)[0])
	}
	return 0
}

// int16 and int32 are numbers, or what stands for one that is absent.
func (t table) int16(id int, absent int16) int16 {
	if at := t.at(id); at != 0 {
		return int16(u16(t.b, at))
	}
	return absent
}

func (t table) int32(id int, absent int32) int32 {
	if at := t.at(id); at != 0 {
		return int32(u32(t.b, at))
	}
	return absent
}

func (t table) int64(id int) int64 {
	if at := t.at(id); at != 0 {
		return i64(t.b, at)
	}
	return 0
}

func (t table) table(id int) (table, bool) {
	at := t.at(id)
	if at == 0 {
		return table{}, false
	}
	return table{t.b, at + u32(t.b, at)}, true
}

// vector returns the elements, size bytes each.
func (t table) vector(id, size int) []byte {
	at := t.at(id)
	if at == 0 {
		return nil
	}
	at += u32(t.b, at)
	return part(t.b, at+4, u32(t.b, at)*size)
}

// text returns the bytes of a string.
func (t table) text(id int) []byte { return t.vector(id, 1) }

// tables returns the elements of a vector of tables.
func (t table) tables(id int) []table {
	v := t.vector(id, 4)
	if v == nil {
		return nil
	}
	at := t.at(id)
	at += u32(t.b, at) + 4
	ts := make([]table, len(v)/4)
	for i := range ts {
		p := at + 4*i
		ts[i] = table{t.b, p + u32(t.b, p)}
	}
	return ts
}
