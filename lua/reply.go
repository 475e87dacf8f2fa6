package lua

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// ErrReply is wrapped by every error of Decode.
var ErrReply = errors.New("malformed script reply")

// Reply is what the script answered about one group.
type Reply struct {
	Now     algorithms.Micros  // the server's clock
	Before  []algorithms.State // per call, what the script went by: absent too for a value that it could not read
	Allowed bool               // every take, charge and peek fitted
	Healed  int                // unreadable values that this group overwrote
	Refused string             // what the server said when it refused to write; empty: it did not. Allowed and Healed say nothing then
}

// maxSeconds bounds the server's clock to where the script's arithmetic is exact: 2^52 µs, in the year 2112.
const maxSeconds = 1 << 52 / 1_000_000

// Decode reads the reply to the command that groups were encoded into, one Reply for each. A reply of another type, with
// another number of fields, or with a field that the script cannot have written is an error that wraps ErrReply: what is
// missing must not read as zeros, which admit.
func Decode(reply any, groups ...[]Call) ([]Reply, error) {
	text, refusal, err := parts(reply)
	if err != nil {
		return nil, err
	}
	seconds, rest, _ := strings.Cut(text, " ")
	micros, rest, _ := strings.Cut(rest, " ")
	now, ok := decodeTime(seconds, micros)
	if !ok {
		return nil, fmt.Errorf("%w: no time in %.200q", ErrReply, text)
	}
	replies, keys, more := make([]Reply, len(groups)), 0, false
	for i, calls := range groups {
		var status string
		status, rest, more = strings.Cut(rest, " ")
		if ok = replies[i].decodeStatus(status, len(calls), refusal); !ok {
			return nil, fmt.Errorf("%w: no status %d in %.200q", ErrReply, i+1, text)
		}
		replies[i].Now = now
		keys += len(calls)
	}
	states := make([]algorithms.State, keys)
	for i, calls := range groups {
		replies[i].Before, states = states[:len(calls):len(calls)], states[len(calls):]
		for j := range calls {
			if !more {
				return nil, fmt.Errorf("%w: fewer values than %d keys in %.200q", ErrReply, keys, text)
			}
			var value string
			value, rest, more = strings.Cut(rest, " ")
			if value == "-" || value == "?" {
				continue
			}
			if replies[i].Before[j], ok = DecodeState(calls[j].Rule, value, now); !ok {
				return nil, fmt.Errorf("%w: value %d of group %d is %.100q in %.200q", ErrReply, j+1, i+1, value, text)
			}
		}
	}
	if more {
		return nil, fmt.Errorf("%w: more than %d values in %.200q", ErrReply, keys, text)
	}
	return replies, nil
}

// parts takes a reply apart: the string, and what is beside it when the server refused to write.
func parts(reply any) (text, refusal string, err error) {
	switch reply := reply.(type) {
	case string:
		return reply, "", nil
	case []any:
		if len(reply) == 2 {
			text, ok := reply[0].(string)
			refusal, alsoOK := reply[1].(string)
			if ok && alsoOK {
				return text, refusal, nil
			}
		}
	}
	return "", "", fmt.Errorf("%w: a %T, not a string, nor two", ErrReply, reply)
}

func decodeTime(seconds, micros string) (algorithms.Micros, bool) {
	s, okS := decimal(seconds)
	us, okUS := decimal(micros)
	if !okS || !okUS || s > maxSeconds || us >= 1_000_000 {
		return 0, false
	}
	return algorithms.Micros(s*1_000_000 + us), true
}

// decodeStatus reads 1 or 0, with +healed behind it unless nothing was healed, or ! where there is a refusal.
func (r *Reply) decodeStatus(status string, calls int, refusal string) bool {
	flag, count, some := strings.Cut(status, "+")
	if some {
		n, isNumber := decimal(count)
		if !isNumber || n < 1 || n > int64(calls) {
			return false
		}
		r.Healed = int(n)
	}
	switch {
	case flag == "!" && !some:
		r.Refused = refusal
		return refusal != ""
	case flag == "1":
		r.Allowed = true
	}
	return flag == "1" || flag == "0"
}
