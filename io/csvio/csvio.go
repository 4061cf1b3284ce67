// Package csvio reads and writes CSV: text files of records of fields, plain or
// compressed with gzip or zstd.
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
//   - Binary columns are base64 (with padding), dates 2006-01-02, times of day 15:04:05.999999999
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
	"encoding/json"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/strict"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// Options of a CSV source.
type Options struct {
	fileset.Options
	NoHeader     bool              `json:"no_header,omitempty" doc:"files have no header line; columns are column_1, column_2, ... or as names says"`
	Names        []string          `json:"names,omitempty" doc:"names of the columns, instead of the header's"`
	Delimiter    string            `json:"delimiter,omitempty" doc:"one byte between fields; default , (tab in .tsv files)"`
	Quote        string            `json:"quote,omitempty" doc:"one byte around fields; default \"; none: no quoting"`
	Comment      string            `json:"comment,omitempty" doc:"one byte; lines that begin with it are skipped"`
	Nulls        []string          `json:"nulls,omitzero" doc:"unquoted texts that mean null in every column; default: the empty field, and in columns of neither text nor binary NULL, null, NA and N/A"`
	Types        map[string]string `json:"types,omitempty" doc:"column to type; others are found from a sample"`
	SampleBytes  int64             `json:"sample_bytes,omitempty" doc:"how much of the first file to look at for types; default 1 MiB. Of up to 16 others, evenly spread, 64 KiB each at most"`
	Multiline    bool              `json:"multiline,omitempty" doc:"quoted fields may hold line breaks; each file is one split"`
	AllowMissing bool              `json:"allow_missing,omitempty" doc:"fields missing at the end of a record are null"`
	IgnoreExtra  bool              `json:"ignore_extra,omitempty" doc:"columns of later files that the sample does not have are left out; default: an error"`
	SplitBytes   int64             `json:"split_bytes,omitempty" doc:"size of splits; default 32 MiB"`
}

const sampleDefault = 1 << 20

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

var extensions = []string{".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst", ".csv.zstd", ".tsv.zstd"}

// rules are checked options.
type rules struct {
	Options
	types map[string]arrow.DataType
	nulls []string // words, "" among them if empty is null
	given bool     // nulls are the user's
}

func (o *Options) check() (*rules, error) {
	r := &rules{Options: *o, types: map[string]arrow.DataType{}}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fault.New(fault.Invalid, format, args...)) }
	for _, b := range []struct{ name, v string }{{"delimiter", o.Delimiter}, {"quote", o.Quote}, {"comment", o.Comment}} {
		if b.v == "none" && b.name == "quote" {
			continue
		}
		if len(b.v) > 1 || b.v != "" && (b.v[0] >= 0x80 || strings.ContainsAny(b.v, "\r\n\x00")) {
			bad("%s: %q must be one ASCII character", b.name, b.v)
		}
	}
	d := o.dialect("")
	if len(errs) == 0 && (d.delim == d.quote || d.delim == d.comment || d.quote == d.comment && d.quote != 0) {
		bad("delimiter, quote and comment must differ")
	}
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

// dialect of a file.
func (o *Options) dialect(name string) dialect {
	d := dialect{delim: ',', quote: '"', multiline: o.Multiline}
	for _, c := range []string{"", ".gz", ".zst", ".zstd"} {
		if strings.HasSuffix(strings.ToLower(name), ".tsv"+c) {
			d.delim = '\t'
		}
	}
	if o.Delimiter != "" {
		d.delim = o.Delimiter[0]
	}
	if o.Quote == "none" {
		d.quote = 0
	} else if o.Quote != "" {
		d.quote = o.Quote[0]
	}
	if o.Comment != "" {
		d.comment = o.Comment[0]
	}
	return d
}
