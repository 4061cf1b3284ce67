//go:build !linux

package launch

// Sweep finds nothing but on Linux: processes cannot be recognised by their environment.
func Sweep(name, value string) (int, error) { return 0, nil }
