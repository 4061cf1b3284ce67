// Package csvio reads and writes CSV: text files of records of fields, plain or
// compressed with gzip, zstd, bzip2 or xz, whatever their names say.
//
// Files are split by byte range, so one large file is read by many tasks; a line
// belongs to the range that holds its first byte. A quoted field may not hold a
// line break then: such a record is a bad row that says so. With Options.Multiline
// it may, and each file is one split.
//
// What the text means:
//   - A field in quotes is taken as it stands, a doubled quote in it being one. A
//     quote further inside an unquoted field is text.
//   - Without quotes, an empty field is null, in columns of any type. In columns of neither text nor binary
//     so are NULL, null, NA and N/A, and white space around a value does not count. Options.Nulls replaces
//     these words (the empty field stays null in columns of neither text nor binary), for all columns.
//   - Blank lines are skipped, except in files of one column, where they are nulls.
//   - A record with too many or too few fields, or a field that does not parse, is a
//     bad row. Fields of columns that a scan does not want are not looked at.
//   - Binary columns are the bytes of the text, or base64 (Options.Binary), dates 2006-01-02, times of day 15:04:05.999999999
//     (where types names them: they are text else), timestamps
//     2006-01-02T15:04:05.999999999Z with T or a space. An offset in the text is applied, also in a column
//     that types gives no zone; text without one is on the clock of the column's zone, as in expressions.
//
// Columns are matched by name in every file. Where types are not given they are
// found from a sample: the first MiB of the first file, and 64 KiB of up to 16 others. Digits with a
// leading zero or + are text. A value behind the sample that would have changed the type is a bad row: also
// such digits in a column of numbers, and a timestamp with an offset in a column of those without, or the
// other way round.
package csvio

import (
	"cmp"
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/strict"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// Options of a CSV source.
type Options struct {
	fileset.Options
	fileset.Text
	NoHeader       bool     `json:"no_header,omitempty" doc:"files have no header line; columns are column_1, column_2, ... or as names says"`
	HeaderRows     int      `json:"header_rows,omitempty" doc:"lines of the header; default 1. The name of a column is that of its fields in them that are not empty, with _ between"`
	SkipRows       int      `json:"skip_rows,omitempty" doc:"lines at the begin of each file that are passed over, before the header"`
	Names          []string `json:"names,omitempty" doc:"names of the columns, instead of the header's"`
	DuplicateNames string   `json:"duplicate_names,omitempty" doc:"what to do where a header has a name twice: number (default: a, a_1, a_2) or error" enum:"number|error"`
	Delimiter      string   `json:"delimiter,omitempty" doc:"one byte between fields; default: of comma, tab, ; and | the one that splits the first 32 KiB of a file best, comma (in .tsv files tab) where more do or none does. explain shows it"`
	Quote          string   `json:"quote,omitempty" doc:"one byte around fields; default \"; none: no quoting"`
	Escape         string   `json:"escape,omitempty" doc:"one byte that in quotes makes a quote or itself text, beside the doubled quote, as \\ does in files of Spark; default: none"`
	TextAfterQuote bool     `json:"text_after_quote,omitempty" doc:"text between a closing quote and the delimiter belongs to the field; default: such a record is a bad row"`
	Comment        string   `json:"comment,omitempty" doc:"one byte; lines that begin with it are skipped"`
	Nulls          []string `json:"nulls,omitzero" doc:"unquoted texts that mean null in every column; default: the empty field, and in columns of neither text nor binary NULL, null, NA and N/A"`
	Decimal        string   `json:"decimal,omitempty" doc:"one byte before the fraction of a number: . (default) or a comma"`
	Thousands      string   `json:"thousands,omitempty" doc:"one byte between groups of three digits of a number; default: none"`
	DateFormat     string   `json:"date_format,omitempty" doc:"how dates are written, e.g. %d.%m.%Y; in the codes %Y %y %m %b %B %d of strptime; default %Y-%m-%d"`
	TimeFormat     string   `json:"timestamp_format,omitempty" doc:"how timestamps are written, e.g. %d/%m/%Y %I:%M %p, in these codes and %H %I %p %M %S %f %z; default: ISO 8601"`
	fileset.Binary
	SampleBytes  int64 `json:"sample_bytes,omitempty" doc:"how much of the first file to look at for types; default 1 MiB. Of up to 16 others, evenly spread, 64 KiB each at most"`
	Multiline    bool  `json:"multiline,omitempty" doc:"quoted fields may hold line breaks; each file is one split"`
	AllowMissing bool  `json:"allow_missing,omitempty" doc:"fields missing at the end of a record are null"`
	IgnoreExtra  bool  `json:"ignore_extra,omitempty" doc:"columns of later files that the sample does not have are left out; default: an error"`
	SplitBytes   int64 `json:"split_bytes,omitempty" doc:"size of splits; default 32 MiB"`
}

const (
	sampleDefault = 1 << 20
	maxHeaderRows = 16
)

// New describes CSV files. No I/O; what is wrong with the options is an error of Resolve.
func New(o Options) driver.Source { return source{o} }

// Format rebuilds sources from their configuration.
func Format() driver.Format {
	return driver.Format{Kind: "csv", Open: func(config json.RawMessage) (driver.Source, error) {
		var o Options
		if err := strict.JSON("options of a csv source", config, &o); err != nil {
			return nil, err
		}
		return New(o), nil
	}}
}

type source struct{ o Options }

func (source) Kind() string                       { return "csv" }
func (s source) Config() (json.RawMessage, error) { return json.Marshal(s.o) }

// Meets implements driver.Placed.
func (s source) Meets(folder string) (path, root string) { return s.o.Meets(folder) }

var extensions = fileset.Compressed(".csv", ".tsv")

// rules are checked options.
type rules struct {
	Options
	types  map[string]arrow.DataType
	nulls  []string // words, "" among them if empty is null
	given  bool     // nulls are the user's
	format *textvalue.Format
}

func (o *Options) check() (*rules, error) {
	r := &rules{Options: *o, types: map[string]arrow.DataType{}}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fault.New(fault.Invalid, format, args...)) }
	special := map[string]string{} // what a byte is for
	for _, b := range []struct{ name, v string }{{"delimiter", o.Delimiter}, {"quote", cmp.Or(o.Quote, `"`)}, {"escape", o.Escape}, {"comment", o.Comment},
		{"decimal", o.Decimal}, {"thousands", o.Thousands}} {
		switch {
		case b.v == "" || b.v == "none" && b.name == "quote" || b.name == "escape" && b.v == cmp.Or(o.Quote, `"`):
		case len(b.v) > 1 || b.v[0] >= 0x80 || strings.ContainsAny(b.v, "\r\n\x00"):
			bad("%s: %q must be one ASCII character", b.name, b.v)
		case b.name == "decimal", b.name == "thousands": // they may be in quotes
		case special[b.v] != "":
			bad("delimiter, quote, escape and comment must differ: %s and %s are both %q", special[b.v], b.name, b.v)
		default:
			special[b.v] = b.name
		}
	}
	if err := o.Text.Check(); err != nil {
		errs = append(errs, err)
	}
	if o.Thousands != "" && cmp.Or(o.Decimal, ".") == o.Thousands {
		bad("decimal and thousands must differ: both are %q", o.Thousands)
	}
	if o.Decimal != "" && o.Decimal != "." && o.Decimal != "," {
		bad("decimal: %q is neither . nor a comma", o.Decimal)
	}
	if o.Thousands != "" && strings.ContainsAny(o.Thousands, "+-eE0123456789") {
		bad("thousands: %q is part of a number", o.Thousands)
	}
	if o.Escape != "" && o.Quote == "none" {
		bad("escape: there are no quotes that it could be in")
	}
	switch o.DuplicateNames {
	case "", "number", "error":
	default:
		bad("duplicate_names: %q is neither number nor error", o.DuplicateNames)
	}
	if err := o.Binary.Check(); err != nil {
		errs = append(errs, err)
	}
	if o.SkipRows < 0 || o.HeaderRows < 0 || o.HeaderRows > maxHeaderRows {
		bad("skip_rows and header_rows must not be negative, and header_rows at most %d", maxHeaderRows)
	}
	if o.NoHeader && o.HeaderRows > 0 {
		bad("no_header and header_rows are not for the same files")
	}
	format, err := textvalue.NewFormat(o.Decimal, o.Thousands, o.DateFormat, o.TimeFormat)
	if err != nil {
		bad("%w", err)
	}
	r.format = format
	for _, c := range slices.Sorted(maps.Keys(o.Types)) {
		t, err := typename.Parse(o.Types[c])
		if err == nil && !canRead(t) {
			err = errors.New("csv cannot hold " + typename.Name(t))
		}
		if err != nil {
			bad("types: column %q: %w", c, err)
			continue
		}
		r.types[c] = t
	}
	for i, n := range o.Names {
		if n == "" || slices.Contains(o.Names[:i], n) {
			bad("names: %q is empty or there twice", n)
		}
	}
	if o.SampleBytes < 0 || o.SplitBytes < 0 {
		bad("sample_bytes and split_bytes must not be negative")
	}
	if r.SampleBytes == 0 {
		r.SampleBytes = sampleDefault
	}
	if r.given = o.Nulls != nil; r.given {
		r.nulls = o.Nulls
	} else {
		r.nulls = []string{"NULL", "null", "NA", "N/A"}
	}
	if len(errs) == 1 {
		return nil, errs[0]
	}
	return r, fault.WithCode(fault.Invalid, errors.Join(errs...))
}

// dialect of a file, but for what is found out from its first bytes.
func (o *Options) dialect() dialect {
	d := dialect{quote: '"', multiline: o.Multiline, after: o.TextAfterQuote}
	first := func(s string, b *byte) {
		if s != "" {
			*b = s[0]
		}
	}
	first(o.Delimiter, &d.delim)
	first(o.Quote, &d.quote)
	first(o.Escape, &d.escape)
	first(o.Comment, &d.comment)
	if o.Quote == "none" {
		d.quote = 0
	}
	if d.escape == d.quote {
		d.escape = 0
	}
	return d
}

// delimiters are those that a file may have that no option names, the likeliest first, and those that it
// may have where it has none of them: what numbers may hold, and in .tsv files all but the tab.
func (o *Options) delimiters(name string) (likely, perhaps []byte) {
	tabs := strings.HasSuffix(strings.ToLower(fileset.Uncompressed(name)), ".tsv")
	for _, c := range []byte(",\t;|") {
		switch {
		case strings.IndexByte(o.Quote+o.Escape+o.Comment, c) >= 0:
		case tabs && c != '\t', strings.IndexByte(o.Decimal+o.Thousands, c) >= 0:
			perhaps = append(perhaps, c)
		default:
			likely = append(likely, c)
		}
	}
	return likely, perhaps
}
