package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/shard"
)

// printer appends the lines of a batch.
type printer func(*bytes.Buffer, *shard.Batch) error

func printDigest(w *bytes.Buffer, b *shard.Batch) error {
	fmt.Fprintf(w, "%d %d %d %x\n", b.Step(), b.Rank(), b.Real(), b.Digest())
	return nil
}

// printGlobal prints batches of a job of one rank.
func printGlobal(o *dataset.ShardOptions) printer {
	return func(w *bytes.Buffer, b *shard.Batch) error {
		sum := b.Digest
		switch {
		case o.Tail != shard.TailPad:
		case b.Record() != nil:
			rec := realRecord(b)
			defer rec.Release()
			sum = func() [32]byte { return shard.DigestRecord(rec) }
		default:
			sum = func() [32]byte { return shard.DigestTensors(realTensors(b, o.Form)) }
		}
		fmt.Fprintf(w, "%d %d %x\n", b.Step(), b.Real(), sum())
		return nil
	}
}

// realRecord is a masked batch in Arrow form without its pads and mask.
func realRecord(b *shard.Batch) arrow.RecordBatch {
	rec := b.Record()
	var fields []arrow.Field
	var cols []arrow.Array
	for i, f := range rec.Schema().Fields() {
		if f.Name != shard.MaskName {
			fields, cols = append(fields, f), append(cols, rec.Column(i))
		}
	}
	md := rec.Schema().Metadata()
	all := array.NewRecordBatch(arrow.NewSchema(fields, &md), cols, rec.NumRows())
	defer all.Release()
	return all.NewSlice(0, int64(b.Real()))
}

// realTensors are a masked batch's without pads and mask.
func realTensors(b *shard.Batch, form shard.Form) []shard.Tensor {
	var out []shard.Tensor
	ragged := raggedNames(form)
	for _, t := range b.Tensors() {
		n := b.Real()
		switch {
		case t.Name == shard.MaskName:
			continue
		case ragged[t.Name] == values:
			n = t.Shape[0] // pads have none
		case ragged[t.Name] == offsets:
			n++
		}
		t.Data = t.Data[:len(t.Data)/max(t.Shape[0], 1)*n]
		t.Shape = append([]int{n}, t.Shape[1:]...)
		out = append(out, t)
	}
	return out
}

// Parts of ragged columns.
const (
	values = iota + 1
	offsets
)

// raggedNames are the tensors of ragged columns.
func raggedNames(form shard.Form) map[string]int {
	m := map[string]int{}
	for name, c := range form.Columns {
		if c.Lists == shard.ListsRagged {
			m[name], m[name+".offsets"] = values, offsets
		}
	}
	return m
}

// printRows prints the samples of a batch as JSON.
func printRows(o *dataset.ShardOptions) printer {
	return func(w *bytes.Buffer, b *shard.Batch) error {
		var rec arrow.RecordBatch
		switch {
		case b.Record() == nil:
			rec = recordOf(b, o)
		case o.Tail == shard.TailPad:
			rec = realRecord(b)
		default:
			rec = b.Record()
			rec.Retain()
		}
		defer rec.Release()
		var lines bytes.Buffer
		enc, err := jsonio.NewEncoding(&jsonio.EncodingOptions{NonFinite: "string"})
		if err != nil {
			return err
		}
		e, err := enc.NewEncoder(&lines, rec.Schema(), memory.DefaultAllocator)
		if err != nil {
			return err
		}
		if err := e.Write(rec); err != nil {
			e.Abort()
			return err
		}
		if err := e.Close(); err != nil {
			return err
		}
		for _, n := range b.Samples() {
			row, _ := lines.ReadBytes('\n')
			fmt.Fprintf(w, `{"step":%d,"rank":%d,"n":%d,"row":%s}`+"\n", b.Step(), b.Rank(), n, term.JSON(bytes.TrimSuffix(row, []byte("\n"))))
		}
		return nil
	}
}

// recordOf is the real rows of a batch of tensors as a record: dimensions become lists of
// fixed size, ragged columns lists. It borrows the batch's memory.
func recordOf(b *shard.Batch, o *dataset.ShardOptions) arrow.RecordBatch {
	ts := b.Tensors()
	if o.Tail == shard.TailPad {
		ts = realTensors(b, o.Form)
	}
	ragged := raggedNames(o.Form)
	var fields []arrow.Field
	var cols []arrow.Array
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	for i, t := range ts {
		var data arrow.ArrayData
		switch ragged[t.Name] {
		case offsets:
			continue
		case values:
			items := arrayData(t)
			at := slices.IndexFunc(ts, func(x shard.Tensor) bool { return x.Name == t.Name+".offsets" })
			data = array.NewData(arrow.LargeListOfNonNullable(items.DataType()), ts[at].Shape[0]-1, []*memory.Buffer{nil, memory.NewBufferBytes(ts[at].Data)}, []arrow.ArrayData{items}, 0, 0)
			items.Release()
		default:
			data = arrayData(ts[i])
		}
		fields = append(fields, arrow.Field{Name: t.Name, Type: data.DataType()})
		cols = append(cols, array.MakeFromData(data))
		data.Release()
	}
	return array.NewRecordBatch(arrow.NewSchema(fields, nil), cols, int64(b.Real()))
}

var arrowTypes = map[shard.DType]arrow.DataType{
	shard.Bool: arrow.FixedWidthTypes.Boolean, shard.Int8: arrow.PrimitiveTypes.Int8, shard.Int16: arrow.PrimitiveTypes.Int16,
	shard.Int32: arrow.PrimitiveTypes.Int32, shard.Int64: arrow.PrimitiveTypes.Int64, shard.Uint8: arrow.PrimitiveTypes.Uint8,
	shard.Uint16: arrow.PrimitiveTypes.Uint16, shard.Uint32: arrow.PrimitiveTypes.Uint32, shard.Uint64: arrow.PrimitiveTypes.Uint64,
	shard.Float16: arrow.FixedWidthTypes.Float16, shard.BFloat16: arrow.PrimitiveTypes.Float32, shard.Float32: arrow.PrimitiveTypes.Float32,
	shard.Float64: arrow.PrimitiveTypes.Float64,
}

// arrayData is a tensor as an array of lists of fixed size. Arrow has none of size 0: those are lists without items.
func arrayData(t shard.Tensor) arrow.ArrayData {
	raw, n := t.Data, 1
	for _, d := range t.Shape {
		n *= d
	}
	switch t.DType {
	case shard.Bool:
		raw = make([]byte, bitutil.BytesForBits(int64(n)))
		for i, v := range t.Data {
			bitutil.SetBitTo(raw, i, v != 0)
		}
	case shard.BFloat16: // the upper half of a float32
		raw = make([]byte, 4*n)
		for i := range n {
			copy(raw[4*i+2:], t.Data[2*i:2*i+2])
		}
	}
	var data arrow.ArrayData = array.NewData(arrowTypes[t.DType], n, []*memory.Buffer{nil, memory.NewBufferBytes(raw)}, nil, 0, 0)
	for k := len(t.Shape) - 1; k > 0; k-- {
		rows := 1
		for _, d := range t.Shape[:k] {
			rows *= d
		}
		var dt arrow.DataType = arrow.ListOfNonNullable(data.DataType())
		bufs := []*memory.Buffer{nil}
		if size := t.Shape[k]; size > 0 {
			dt = arrow.FixedSizeListOfNonNullable(int32(size), data.DataType())
		} else {
			bufs = append(bufs, memory.NewBufferBytes(make([]byte, 4*(rows+1))))
		}
		list := array.NewData(dt, rows, bufs, []arrow.ArrayData{data}, 0, 0)
		data.Release()
		data = list
	}
	return data
}

// place is where a sample or a document comes from.
type place struct {
	Source   string `json:"source"`
	File     string `json:"file"`
	RowGroup int64  `json:"row_group"`
	Row      int64  `json:"row"`
}

func placeOf(p shard.Place) place { return place{p.Source, p.File, p.RowGroup, p.Row} }

func printLineage(w *bytes.Buffer, b *shard.Batch) error {
	var lines bytes.Buffer
	enc := json.NewEncoder(&lines)
	enc.SetEscapeHTML(false)
	for _, l := range b.Lineage() {
		x := struct {
			Step int64 `json:"step"`
			Rank int   `json:"rank"`
			N    int64 `json:"n"`
			place
			Documents []place `json:"documents,omitempty"`
		}{Step: b.Step(), Rank: b.Rank(), N: l.N, place: placeOf(l.Place)}
		for _, p := range l.Parts {
			x.Documents = append(x.Documents, placeOf(p))
		}
		if err := enc.Encode(x); err != nil {
			return err
		}
	}
	w.Write(term.JSON(lines.Bytes()))
	return nil
}
