package load

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
)

// clockTick is the unit of the times in /proc/<pid>/stat: 100 a second on every Linux that Go runs on.
const clockTick = 10 * time.Millisecond

// CPU returns the processor time that a running process has used, by the kernel's accounting, in steps of 10 ms.
func CPU(pid int) (time.Duration, error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("reading processor time: %w", err)
	}
	return parseStat(string(stat))
}

// parseStat reads utime and stime, the fields 14 and 15 of proc_pid_stat(5). The second field, the name in parentheses,
// may hold anything.
func parseStat(stat string) (time.Duration, error) {
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	const utime, stime = 14 - 3, 15 - 3 // what is left begins with field 3
	if len(fields) <= stime {
		return 0, fmt.Errorf("unexpected process status %q", stat)
	}
	var ticks int64
	for _, field := range []string{fields[utime], fields[stime]} {
		n, err := strconv.ParseInt(field, 10, 64)
		if err != nil {
			return 0, fmt.Errorf("unexpected process status %q: %w", stat, err)
		}
		ticks += n
	}
	return time.Duration(ticks) * clockTick, nil
}

// MachineCPU returns the processor time that all processes of the machine have used, stolen time included, and the time
// that there was, both over all cores.
func MachineCPU() (used, all time.Duration, err error) {
	stat, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0, fmt.Errorf("reading the machine's processor time: %w", err)
	}
	return parseMachineStat(string(stat))
}

// parseMachineStat reads the first line of proc_stat(5): user, nice, system, idle, iowait, irq, softirq, steal. Interrupts
// belong to no process.
func parseMachineStat(stat string) (used, all time.Duration, err error) {
	line, _, _ := strings.Cut(stat, "\n")
	fields := strings.Fields(line)
	const user, system, steal = 1, 3, 8
	if len(fields) <= steal || fields[0] != "cpu" {
		return 0, 0, fmt.Errorf("unexpected machine status %q", line)
	}
	for i := user; i <= steal; i++ {
		ticks, err := strconv.ParseInt(fields[i], 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("unexpected machine status %q: %w", line, err)
		}
		all += time.Duration(ticks) * clockTick
		if i <= system || i == steal {
			used += time.Duration(ticks) * clockTick
		}
	}
	return used, all, nil
}

// RSS returns the resident memory of a running process in bytes.
func RSS(pid int) (int64, error) {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, fmt.Errorf("reading resident memory: %w", err)
	}
	return parseRSS(status)
}

func parseRSS(status []byte) (int64, error) {
	lines := bufio.NewScanner(bytes.NewReader(status))
	for lines.Scan() {
		if value, ok := strings.CutPrefix(lines.Text(), "VmRSS:"); ok {
			kib, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("no VmRSS in process status")
}

// RedisUsage is what a Redis or Valkey has done since it started.
type RedisUsage struct {
	CPU      time.Duration // of its main thread where it says so, else of the process
	Commands int64         // commands run by clients; a script is one, and what it calls counts too
	Scripts  int64         // calls of scripts
}

// Sub returns what was done between before and u.
func (u RedisUsage) Sub(before RedisUsage) RedisUsage {
	return RedisUsage{u.CPU - before.CPU, u.Commands - before.Commands, u.Scripts - before.Scripts}
}

// ReadRedisUsage asks a server what it has done. The asking itself is a command, too.
func ReadRedisUsage(ctx context.Context, client *redis.Client) (RedisUsage, error) {
	info, err := client.InfoMap(ctx, "cpu", "stats", "commandstats").Result()
	if err != nil {
		return RedisUsage{}, fmt.Errorf("reading what Redis has done: %w", err)
	}
	return parseRedisUsage(info)
}

func parseRedisUsage(info map[string]map[string]string) (u RedisUsage, err error) {
	cpu := info["CPU"]
	for _, kind := range []string{"user", "sys"} {
		text, ok := cpu["used_cpu_"+kind+"_main_thread"]
		if !ok {
			text = cpu["used_cpu_"+kind]
		}
		seconds, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return u, fmt.Errorf("unexpected processor time in INFO: %w", err)
		}
		u.CPU += time.Duration(seconds * float64(time.Second))
	}
	if u.Commands, err = strconv.ParseInt(info["Stats"]["total_commands_processed"], 10, 64); err != nil {
		return u, fmt.Errorf("unexpected number of commands in INFO: %w", err)
	}
	for _, command := range []string{"eval", "evalsha", "fcall"} {
		// calls=12,usec=34,usec_per_call=2.83,…; absent before the first call
		text, _, _ := strings.Cut(strings.TrimPrefix(info["Commandstats"]["cmdstat_"+command], "calls="), ",")
		if text == "" {
			continue
		}
		calls, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return u, fmt.Errorf("unexpected number of script calls in INFO: %w", err)
		}
		u.Scripts += calls
	}
	return u, nil
}
