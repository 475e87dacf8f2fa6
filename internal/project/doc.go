// Package project holds the tests of the project itself: which package may import which, that the README's commands are
// the ones that continuous integration runs, and that no file names a machine it was written on.
package project
