//go:build !linux || !cgo

package device

// native is the driver's own library, which needs cgo.
func native() []source { return nil }
