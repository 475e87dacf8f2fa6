//go:build race

package rls_test

// raceDetector says that the race detector is on, which makes everything slower.
const raceDetector = true
