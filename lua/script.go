// Package lua holds the script that decides groups of buckets on a Redis or Valkey server, and speaks its language:
// commands in, replies out.
//
// One script decides. It is assembled from one file per algorithm, each a pure function that mirrors package
// algorithms, and group.lua, which reads, decides and writes, one group or many in a run. It decides admission and the new state only; remaining,
// Retry-After and reset are computed by the Go rules from the state that it replies. The parity test compares both on
// real servers, case by case. Another one, heartbeat.lua, keeps the list of the processes that share a server.
//
// The oldest servers it runs on are Redis 6.2 and Valkey 7.2.
package lua

import (
	"crypto/sha1" //nolint:gosec // EVALSHA names scripts by their SHA-1
	_ "embed"
	"encoding/hex"
	"strconv"
	"strings"
	"sync"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

//go:embed token_bucket.lua
var tokenBucket string

//go:embed sliding_window.lua
var slidingWindow string

//go:embed fixed_window.lua
var fixedWindow string

//go:embed group.lua
var group string

// constants are the names in capitals that the files use. They are put in as numbers: a local of the script would be
// created anew by every call.
var constants = strings.NewReplacer(
	"MAX_LENGTH", strconv.Itoa(maxStateLength),
	"MAX_LEVEL", strconv.FormatInt(algorithms.MaxCapacity*1_000_000, 10),
	"MAX_HITS", strconv.FormatInt(algorithms.MaxLimit, 10),
	"MAX_COUNT", strconv.FormatInt(algorithms.MaxCount, 10),
	"MAX_SKEW", strconv.FormatInt(int64(algorithms.MaxClockSkew), 10),
	"MAX_PROCESSES", strconv.Itoa(MaxProcesses),
	"NEVER_REFILLED", strconv.FormatInt(algorithms.NeverRefilled.Milliseconds(), 10),
)

// Script is a script that a server runs by its digest. Immutable.
type Script struct {
	source string
	digest string
}

// Group returns the script that Encoder's commands run.
var Group = sync.OnceValue(func() Script {
	source := constants.Replace(tokenBucket + slidingWindow + fixedWindow + group)
	sum := sha1.Sum([]byte(source)) //nolint:gosec // as above
	return Script{source: source, digest: hex.EncodeToString(sum[:])}
})

// Source returns the text, for SCRIPT LOAD.
func (s Script) Source() string { return s.source }

// SHA1 returns the digest that EVALSHA takes, 40 lower-case hex digits.
func (s Script) SHA1() string { return s.digest }
