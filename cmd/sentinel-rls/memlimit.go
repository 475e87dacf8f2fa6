package main

import (
	"os"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
)

// memoryShare is the part of a container's memory that the Go runtime is told to stay under. The rest is for what it does
// not count: the program's own pages, the kernel's buffers of its connections.
const memoryShare = 0.9

// cgroupRoot is where a container sees its own limits.
const cgroupRoot = "/sys/fs/cgroup"

// limitMemory tells the runtime to stay under the container's memory limit, so that the collector works harder before the
// kernel ends the process. It returns the limit that is in force; 0: there is none. GOMEMLIMIT wins, which the runtime has
// read itself by now.
func limitMemory(variables []string, root string) int64 {
	given := slices.ContainsFunc(variables, func(v string) bool { return strings.HasPrefix(v, "GOMEMLIMIT=") && v != "GOMEMLIMIT=" })
	if container, ok := containerMemory(root); ok && !given {
		debug.SetMemoryLimit(int64(float64(container) * memoryShare))
	}
	const none = 1<<63 - 1
	if limit := debug.SetMemoryLimit(-1); limit != none {
		return limit
	}
	return 0
}

// containerMemory returns the memory limit of the cgroup below root, version 2 or 1. False: there is none.
func containerMemory(root string) (bytes int64, ok bool) {
	for _, name := range []string{"memory.max", "memory/memory.limit_in_bytes"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			continue
		}
		// Version 2 says "max" for none, version 1 a number near 2^63.
		bytes, err = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		return bytes, err == nil && bytes > 0 && bytes < 1<<60
	}
	return 0, false
}
