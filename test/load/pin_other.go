//go:build !linux

package load

import "errors"

var errNoPinning = errors.New("processes are pinned to cores on Linux only")

// OnCore fails: see its twin for Linux.
func OnCore(int, func() error) error { return errNoPinning }

// MoveToCore fails: see its twin for Linux.
func MoveToCore(int) (back func() error, err error) { return nil, errNoPinning }
