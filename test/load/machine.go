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
}

// ThisMachine describes the machine; what cannot be read is "unknown".
func ThisMachine() Machine {
	m := Machine{Processor: "unknown", Cores: runtime.GOMAXPROCS(0), Kernel: "unknown", Go: runtime.Version()}
	if info, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		m.Processor = processorName(info)
	}
	if release, err := os.ReadFile("/proc/sys/kernel/osrelease"); err == nil {
		m.Kernel = "Linux " + strings.TrimSpace(string(release))
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
