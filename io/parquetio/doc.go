// Package parquetio reads and writes Apache Parquet.
//
// [New] makes a source: its splits are row groups, its schema comes from the
// footers, which are read once and kept in a compact form. Row groups are left
// out by statistics and bloom filters, pages by the page index; only the pages
// that are needed are fetched. [NewEncoding] makes the writing side.
//
// Types are those of the file's Arrow schema if it stores one, else those that
// the Parquet types suggest. Dictionary types are read as their value type, so
// that files written with and without dictionaries are alike, unless
// Options.Dictionary asks for dictionaries, of either. INT96 is a
// timestamp without zone, in the unit of Options.Int96. A text that is not UTF-8, and an INT96 that its unit does not
// hold, are errors that name the row, which ScanOptions.OnBadRow may leave out.
//
// Pages are read, checked (sizes, CRC), decompressed and decoded here, straight into
// Arrow buffers (native.go); arrow-go gives the schema and writes. Beside its batches, a reader holds no
// more than ScanOptions.AheadBytes (64 MiB if that is 0) and one page, as it is in the file and decompressed, however large pages are and
// however many columns there are.
package parquetio
