package driver

import (
	"reflect"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/internal/fault"
)

// Unreadable is the type of a column that is there and cannot be read, as Arrow's Go types do not
// hold its values: it stands in schemas, and the other columns can be read. No batch has
// such a column. Made with [NewUnreadable]; immutable.
type Unreadable struct {
	arrow.ExtensionBase // of nulls
	// Column is the column, or what is in it: "x", "x.item.a". What is its type there: "int128".
	// Advice is what to cast it to.
	Column, What, Advice string
	// File is one that has it. Types of the same What are equal.
	File string
}

// NewUnreadable makes the type; file may be empty.
func NewUnreadable(file, column, what, advice string) *Unreadable {
	return &Unreadable{ExtensionBase: arrow.ExtensionBase{Storage: arrow.Null}, Column: column, What: what, Advice: advice, File: file}
}

// Err is what reading the column gives.
func (u *Unreadable) Err() error {
	return fault.New(fault.Unsupported, "the type is %s, which cannot be read; leave the column out, or, where the file is made, cast it to %s", u.What, u.Advice).
		At(fault.Place{File: u.File, Column: u.Column})
}

// CheckReadable reports the first of columns that cannot be read; nil stands for all of s.
func CheckReadable(s *arrow.Schema, columns []string) error {
	check := func(f arrow.Field) error {
		if u, ok := f.Type.(*Unreadable); ok {
			return u.Err()
		}
		return nil
	}
	if columns == nil {
		for _, f := range s.Fields() {
			if err := check(f); err != nil {
				return err
			}
		}
	}
	for _, c := range columns {
		for _, i := range s.FieldIndices(c) {
			if err := check(s.Field(i)); err != nil {
				return err
			}
		}
	}
	return nil
}

// String is "unsupported (int128)".
func (u *Unreadable) String() string { return "unsupported (" + u.What + ")" }

// unreadableArray is never made but by who asks for arrays of the type.
type unreadableArray struct{ array.ExtensionArrayBase }

// ArrayType implements arrow.ExtensionType.
func (*Unreadable) ArrayType() reflect.Type { return reflect.TypeFor[unreadableArray]() }

// ExtensionName implements arrow.ExtensionType. It is not registered.
func (*Unreadable) ExtensionName() string { return "penstock.unreadable" }

// ExtensionEquals implements arrow.ExtensionType.
func (u *Unreadable) ExtensionEquals(other arrow.ExtensionType) bool {
	o, ok := other.(*Unreadable)
	return ok && o.What == u.What
}

// Serialize implements arrow.ExtensionType.
func (u *Unreadable) Serialize() string { return u.What }

// Deserialize implements arrow.ExtensionType.
func (*Unreadable) Deserialize(arrow.DataType, string) (arrow.ExtensionType, error) {
	return nil, fault.New(fault.Unsupported, "a column that cannot be read is not stored")
}
