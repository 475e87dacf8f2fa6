package main

import (
	"runtime/debug"
	"testing"
)

// Not parallel: the limit is the process's own.
func TestMemoryLimitOfAContainer(t *testing.T) {
	before := debug.SetMemoryLimit(-1)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	for name, c := range map[string]struct {
		files map[string]string
		env   []string
		want  int64 // 0: as before
	}{
		"version 2":             {map[string]string{"memory.max": "134217728\n"}, nil, 120795955},
		"version 1":             {map[string]string{"memory/memory.limit_in_bytes": "134217728\n"}, nil, 120795955},
		"no limit, version 2":   {map[string]string{"memory.max": "max\n"}, nil, 0},
		"no limit, version 1":   {map[string]string{"memory/memory.limit_in_bytes": "9223372036854771712\n"}, nil, 0},
		"no container":          {nil, nil, 0},
		"nonsense":              {map[string]string{"memory.max": "much"}, nil, 0},
		"GOMEMLIMIT wins":       {map[string]string{"memory.max": "134217728"}, []string{"GOMEMLIMIT=1GiB"}, 0},
		"an empty one does not": {map[string]string{"memory.max": "134217728"}, []string{"GOMEMLIMIT="}, 120795955},
	} {
		debug.SetMemoryLimit(before)
		got := limitMemory(c.env, files(t, c.files))
		want := c.want
		if want == 0 && before != 1<<63-1 {
			want = before
		}
		if got != want {
			t.Errorf("%s: %d, want %d", name, got, want)
		}
	}
}
