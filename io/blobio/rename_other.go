//go:build !linux

package blobio

import (
	"errors"
	"os"
)

func renameNoReplace(*os.File, string, string) error { return errors.ErrUnsupported }
