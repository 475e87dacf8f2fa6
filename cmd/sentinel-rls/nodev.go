//go:build nodev

package main

// devCommands are none in this build.
func devCommands() []command { return nil }
