package cell

import "unicode"

// Joins reports that r is a zero width joiner or non-joiner where it shapes what is drawn: behind
// an emoji, or a letter or mark of a script whose letters join. Elsewhere nobody would see it.
func Joins(before, r rune) bool {
	if r != 0x200c && r != 0x200d || before < 0x600 || before == unicode.ReplacementChar || !unicode.IsGraphic(before) {
		return false
	}
	return before == 0xfe0f || unicode.In(before, unicode.So, unicode.Sk) || unicode.In(before, joined...)
}

// joined are the scripts in whose text the two are ordinary: cursive ones, and those with
// conjuncts.
var joined = []*unicode.RangeTable{
	unicode.Arabic, unicode.Syriac, unicode.Nko, unicode.Mongolian,
	unicode.Devanagari, unicode.Bengali, unicode.Gurmukhi, unicode.Gujarati, unicode.Oriya, unicode.Tamil, unicode.Telugu,
	unicode.Kannada, unicode.Malayalam, unicode.Sinhala, unicode.Tibetan, unicode.Myanmar, unicode.Khmer,
}
