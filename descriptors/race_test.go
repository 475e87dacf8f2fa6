//go:build race

package descriptors_test

// raceDetector says that the race detector is on, which makes everything slower.
const raceDetector = true
