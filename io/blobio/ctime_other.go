//go:build !linux

package blobio

import "os"

// ctimeOf is Info.ctime.
func ctimeOf(os.FileInfo) int64 { return 0 }
