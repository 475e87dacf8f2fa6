//go:build !race

package rls_test

const raceDetector = false
