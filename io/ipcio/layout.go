package ipcio

// layout is where a column begins in a batch's lists, and what it takes.
type layout struct{ node, buf, vari int }

// layouts computes the layout of every column and the end. Only the number of
// variadic buffers differs from batch to batch.
func layouts(fields []field, m *batch) []layout {
	at := make([]layout, len(fields)+1)
	for i := range fields {
		at[i+1] = at[i]
		at[i+1].skip(&fields[i], m)
	}
	return at
}

// skip passes over a column, whether its values can be read or not.
func (l *layout) skip(f *field, m *batch) {
	l.node++
	if f.dict >= 0 {
		l.buf += 2
		return
	}
	switch f.kind {
	case kindNull, kindRunEndEncoded:
	case kindStruct, kindFixedSizeList:
		l.buf++
	case kindBinary, kindUTF8, kindLargeBinary, kindLargeUTF8, kindListView, kindLargeListView:
		l.buf += 3
	case kindBinaryView, kindUTF8View:
		n := i64(m.variadic, 8*l.vari)
		if n < 0 || n > int64(len(m.buffers)/16) {
			panic(errOutside{})
		}
		l.vari++
		l.buf += 2 + int(n)
	case kindUnion:
		l.buf++ // numbers of types
		if f.dense {
			l.buf++
		}
		if m.v4 {
			l.buf++ // validity, which later versions do without
		}
	default:
		l.buf += 2
	}
	for i := range f.children {
		l.skip(&f.children[i], m)
	}
}
