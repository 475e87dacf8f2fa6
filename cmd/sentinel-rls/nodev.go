//go:build nodev

package main

// devCommands has no commands in this build.
type devCommands struct{}
