package load

import (
	"bufio"
	"bytes"
	"os"
	"runtime"
	"strings"
)

// Machine is what figures depend on beside the program.
type Machine struct {
	Processor string `json:"processor"`
	Cores     int    `json:"cores"` // that this process may use
	Kernel    string `json:"kernel"`
	Go        string `json:"go"`
	// LoadAverage is that of the minute before: near 0, or other work has slowed everything.
	LoadAverage string `json:"load_average"`
}

// ThisMachine describes the machine; what cannot be read is "unknown".
func ThisMachine() Machine {
	m := Machine{Processor: "unknown", Cores: runtime.GOMAXPROCS(0), Kernel: "unknown", Go: runtime.Version(), LoadAverage: "unknown"}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.Processor = processorName(info)
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = "Linux " + strings.TrimSpace(string(release))
	}
	if averages, err := os.ReadFile("/proc/loadavg"); err == nil {
		m.LoadAverage, _, _ = strings.Cut(string(averages), " ")
	}
	return m
}

func processorName(cpuinfo []byte) string {
	lines := bufio.NewScanner(bytes.NewReader(cpuinfo))
	for lines.Scan() {
		if key, value, _ := strings.Cut(lines.Text(), ":"); strings.TrimSpace(key) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown"
}
