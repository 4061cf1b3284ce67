package expr

import (
	"strconv"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/mask"
)

// hidden are the secrets of Hide.
var hidden atomic.Pointer[mask.Set]

// Hide has the texts and numbers that expressions make, when they are planned, of constants which
// hold a secret become secrets: upper("worth") is as secret as what it is made of. It is for a
// program that masks what it prints; nil ends it.
func Hide(secrets *mask.Set) { hidden.Store(secrets) }

// hide adds the value of a constant part, where a secret is in that.
func hide(n *node, v *scalar) {
	set := hidden.Load()
	if set == nil || set.Empty() || !v.valid {
		return
	}
	var text string
	switch id := v.typ.ID(); {
	case id == arrow.STRING || id == arrow.LARGE_STRING || id == arrow.BINARY || id == arrow.LARGE_BINARY:
		text = v.s
	case arrow.IsInteger(id):
		text = strconv.FormatInt(v.i, 10)
	case arrow.IsFloating(id):
		text = strconv.FormatFloat(v.f, 'g', -1, 64)
	default:
		return // a bool says little; the rest is no text
	}
	if whole := n.String(); set.Text(whole) != whole {
		set.Add(text)
	}
}
