package dataset

import (
	"context"
	"iter"
	"reflect"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// MapRows runs f on every row as a Go struct T and makes rows of the structs U.
//
// Exported fields stand for columns: by the tag `arrow:"name"` (`arrow:"-"` leaves a field out), else by the
// field's name in snake case. Fields are bool, integers, floats, string, []byte,
// time.Time (timestamp[us, UTC]), slices of those, and pointers to any of them for
// columns with nulls (but no slices of pointers); a null in any other field is a row error. Columns of T are cast to the
// types of its fields; columns that T does not name are not read. What f gets
// may be kept. f runs in several goroutines at once.
func MapRows[T, U any](d *Dataset, f func(T) (U, error)) *Dataset {
	return rowsStep[T](d, "map_rows", func(in, out *rowType) *ops.Func {
		return &ops.Func{Schema: out.schema, Map: func(ctx context.Context, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
			rows, err := decodeRows[T](in, rec)
			if err != nil {
				return nil, err
			}
			res := make([]U, len(rows))
			for i := range rows {
				if res[i], err = f(rows[i]); err != nil {
					return nil, userRow(err, i)
				}
			}
			return encodeRows(out, res, ops.Allocator(ctx))
		}}
	}, reflect.TypeFor[U]())
}

// FlatMapRows is MapRows for functions that make any number of rows of each.
func FlatMapRows[T, U any](d *Dataset, f func(T) ([]U, error)) *Dataset {
	return rowsStep[T](d, "flat_map_rows", func(in, out *rowType) *ops.Func {
		return &ops.Func{Schema: out.schema, FlatMap: func(ctx context.Context, rec arrow.RecordBatch) (arrow.RecordBatch, []int32, error) {
			rows, err := decodeRows[T](in, rec)
			if err != nil {
				return nil, nil, err
			}
			var res []U
			var parents []int32
			for i := range rows {
				us, err := f(rows[i])
				if err != nil {
					return nil, nil, userRow(err, i)
				}
				res = append(res, us...)
				for range us {
					parents = append(parents, int32(i))
				}
			}
			b, err := encodeRows(out, res, ops.Allocator(ctx))
			return b, parents, err
		}}
	}, reflect.TypeFor[U]())
}

// FilterRows keeps the rows for which f is true. All columns stay.
func FilterRows[T any](d *Dataset, f func(T) (bool, error)) *Dataset {
	in, err := rowTypeOf(reflect.TypeFor[T]())
	if err != nil {
		return d.fail("filter_rows", err)
	}
	return d.then("filter_rows", func(n ops.Node, m ops.Meta) (ops.Node, error) {
		if err := in.check(n.Schema(), m); err != nil {
			return nil, err
		}
		return ops.NewFilterFunc(n, &ops.Func{Filter: func(ctx context.Context, rec arrow.RecordBatch) (*array.Boolean, error) {
			rows, err := decodeRows[T](in, rec)
			if err != nil {
				return nil, err
			}
			b := array.NewBooleanBuilder(ops.Allocator(ctx))
			defer b.Release()
			b.Reserve(len(rows))
			for i := range rows {
				keep, err := f(rows[i])
				if err != nil {
					return nil, userRow(err, i)
				}
				b.UnsafeAppend(keep)
			}
			return b.NewBooleanArray(), nil
		}}, m)
	})
}

// Rows iterates over the rows as Go structs, with the rules of [MapRows].
func Rows[T any](ctx context.Context, d *Dataset, o *RunOptions) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var zero T
		in, err := rowTypeOf(reflect.TypeFor[T]())
		if err == nil {
			err = d.plain(ctx)
		}
		if err != nil {
			yield(zero, err)
			return
		}
		typed := d.then("rows", in.project)
		for rec, err := range typed.Records(ctx, o) {
			var rows []T
			if err == nil {
				rows, err = decodeRows[T](in, rec)
			}
			if err != nil {
				yield(zero, err)
				return
			}
			for i := range rows {
				if !yield(rows[i], nil) {
					return
				}
			}
		}
	}
}

func rowsStep[T any](d *Dataset, verb string, make func(in, out *rowType) *ops.Func, u reflect.Type) *Dataset {
	in, err := rowTypeOf(reflect.TypeFor[T]())
	if err != nil {
		return d.fail(verb, err)
	}
	out, err := rowTypeOf(u)
	if err != nil {
		return d.fail(verb, err)
	}
	f := make(in, out)
	n := d.then(verb, nil)
	n.step = func(ctx context.Context, nodes []ops.Node, m ops.Meta) (ops.Node, error) {
		typed, err := in.project(nodes[0], m)
		if err != nil {
			return nil, err
		}
		return ops.NewMap(ctx, typed, f, 0, m)
	}
	return n
}

// project selects the type's columns from n and casts them where they differ.
func (rt *rowType) project(n ops.Node, m ops.Meta) (ops.Node, error) {
	names := make([]string, len(rt.fields))
	casts := map[string]string{}
	for i, f := range rt.fields {
		names[i] = f.name
		if at := n.Schema().FieldIndices(f.name); len(at) == 1 && !arrow.TypeEqual(n.Schema().Field(at[0]).Type, f.typ) {
			casts[f.name] = expr.TypeName(f.typ)
		}
	}
	n, err := ops.Select(n, names, m)
	if err != nil || len(casts) == 0 {
		return n, err
	}
	return ops.Cast(n, casts, m)
}

// check is for filters, which keep all columns: types must be equal.
func (rt *rowType) check(s *arrow.Schema, m ops.Meta) error {
	for _, f := range rt.fields {
		at := s.FieldIndices(f.name)
		if len(at) == 0 {
			return fault.New(fault.Invalid, "unknown column %q (field %s)%s", f.name, f.goName, near.Column(f.name, s)).At(fault.Place{Step: m.Step()})
		}
		if t := s.Field(at[0]).Type; !arrow.TypeEqual(t, f.typ) {
			return fault.New(fault.Invalid, "column is %s, field %s is %s: cast the column first, or change the field", typename.Name(t), f.goName, typename.Name(f.typ)).
				At(fault.Place{Step: m.Step(), Column: f.name})
		}
	}
	return nil
}

func userRow(err error, i int) error {
	return fault.Wrap(fault.WithCode(fault.UserCode, err), fault.Place{Row: fault.N(int64(i))})
}
