//go:build !linux

package blobio

const mapFlags = 0
