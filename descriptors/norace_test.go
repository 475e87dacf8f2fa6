//go:build !race

package descriptors_test

const raceDetector = false
