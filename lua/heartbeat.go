package lua

import (
	"crypto/sha1" //nolint:gosec // EVALSHA names scripts by their SHA-1
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

//go:embed heartbeat.lua
var heartbeat string

// MaxProcesses is the largest number of processes that a list keeps.
const MaxProcesses = 10_000

// Heartbeat returns the script that Beat's commands run.
var Heartbeat = sync.OnceValue(func() Script {
	source := constants.Replace(heartbeat)
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return Script{source: source, digest: hex.EncodeToString(sum[:])}
})

// Beat returns the command, EVALSHA of Heartbeat's digest, by which a process says that it counts for a while; 0: that it
// leaves. process and fresh are hexadecimal; fresh is the name of the list if there is none.
func Beat(key, process string, span time.Duration, fresh string) []any {
	return []any{argEvalSHA, Heartbeat().SHA1(), 1, key, process, span.Microseconds(), fresh}
}

// List is what Heartbeat found: see heartbeat.lua.
type List struct {
	Now       algorithms.Micros // the server's clock
	Found     string            // the list's name before; empty: there was none
	Last      algorithms.Micros // when it was last written, by a clock that may have been another
	Name      string            // the list's name now
	Processes int
}

// errHeartbeat is the error on a reply that Heartbeat cannot have given.
var errHeartbeat = errors.New("the reply is none of the heartbeat script")

// DecodeList reads Heartbeat's reply.
func DecodeList(reply any) (l List, err error) {
	text, _ := reply.(string)
	words := strings.Fields(text)
	if len(words) != 6 {
		return List{}, fmt.Errorf("%w: %.100q", errHeartbeat, text)
	}
	var numbers [4]int64
	for i, word := range []string{words[0], words[1], words[3], words[5]} {
		if numbers[i], err = strconv.ParseInt(word, 10, 64); err != nil || numbers[i] < 0 {
			return List{}, fmt.Errorf("%w: %.100q", errHeartbeat, text)
		}
	}
	l = List{
		Now: algorithms.Micros(numbers[0]*1_000_000 + numbers[1]), Found: words[2], Last: algorithms.Micros(numbers[2]),
		Name: words[4], Processes: int(numbers[3]),
	}
	if l.Found == "-" {
		l.Found = ""
	}
	return l, nil
}

// ReadList reads the value of a list's key as a script would; false: there is none.
func ReadList(value any) (name string, last algorithms.Micros, ok bool) {
	text, _ := value.(string)
	name, rest, _ := strings.Cut(text, " ")
	when, _, _ := strings.Cut(rest, " ")
	n, err := strconv.ParseUint(when, 10, 63)
	if _, hexErr := strconv.ParseUint(name, 16, 64); hexErr != nil || err != nil || len(when) > 16 {
		return "", 0, false
	}
	return name, algorithms.Micros(n), true
}
