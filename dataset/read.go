package dataset

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/binio"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/memio"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/io/textio"
	"github.com/penstock-data/penstock/ops"
)

// The functions below take files, folders (read recursively), globs (with **)
// and bucket URLs (s3://, gs://, azblob://, mem://). For more options make the
// source with its package and call [Read].

// ReadParquet reads Parquet files.
func ReadParquet(paths ...string) *Dataset {
	return Read(parquetio.New(parquetio.Options{Options: fileset.Options{Paths: paths}}))
}

// ReadCSV reads CSV files with a header line; types are found from a sample.
func ReadCSV(paths ...string) *Dataset {
	return Read(csvio.New(csvio.Options{Options: fileset.Options{Paths: paths}}))
}

// ReadJSON reads JSON lines, or JSON arrays of objects; types are found from a sample.
func ReadJSON(paths ...string) *Dataset {
	return Read(jsonio.New(jsonio.Options{Options: fileset.Options{Paths: paths}}))
}

// ReadIPC reads Arrow IPC files and streams.
func ReadIPC(paths ...string) *Dataset {
	return Read(ipcio.New(ipcio.Options{Options: fileset.Options{Paths: paths}}))
}

// ReadText reads lines: one column, text.
func ReadText(paths ...string) *Dataset {
	return Read(textio.New(textio.Options{Options: fileset.Options{Paths: paths}}))
}

// ReadBinary reads whole files: columns path and bytes.
func ReadBinary(paths ...string) *Dataset {
	return Read(binio.New(binio.Options{Options: fileset.Options{Paths: paths}}))
}

// Range makes the rows 0 to n-1: one column, id.
func Range(n int64) *Dataset { return Read(memio.Range(n)) }

// FromRecords reads records that are in memory; it retains them.
func FromRecords(schema *arrow.Schema, recs ...arrow.RecordBatch) *Dataset {
	src, err := memio.Records(schema, recs...)
	if err != nil {
		d := &Dataset{meta: ops.Meta{Verb: "records"}}
		d.err = fault.Wrap(err, fault.Place{Step: d.meta.Step()})
		return d
	}
	return Read(src)
}

// Formats rebuild sources of plans that were written down: all of this module.
func Formats() []driver.Format {
	return []driver.Format{parquetio.Format(), csvio.Format(), jsonio.Format(), ipcio.Format(), textio.Format(), binio.Format(), memio.Format()}
}
