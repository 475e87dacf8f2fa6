//go:build !unix

package compat

import "syscall"

// SharePort does nothing: this system has no SO_REUSEPORT.
func SharePort(_, _ string, _ syscall.RawConn) error { return nil }
