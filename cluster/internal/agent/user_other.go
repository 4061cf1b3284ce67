//go:build !linux

package agent

import "github.com/penstock-data/penstock/internal/fault"

var errUser = fault.New(fault.Unsupported, "jobs run as another user on Linux only")

func lookUp(string) (*jobUser, error) { return nil, errUser }

func (*jobUser) as(func() error) error { return errUser }

func (*jobUser) reaches(string) error { return errUser }
