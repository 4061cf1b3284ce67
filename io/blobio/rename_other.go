//go:build !linux

package blobio

func renameNoReplace(oldname, newname string) error { return linkNoReplace(oldname, newname) }
