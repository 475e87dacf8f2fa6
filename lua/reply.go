package lua

import (
	"errors"
	"fmt"
	"strings"

	"github.com/sentinel-rls/sentinel-rls/algorithms"
)

// ErrReply is wrapped by every error of Decode.
var ErrReply = errors.New("malformed script reply")

// Reply is what the script answered to one command.
type Reply struct {
	Now     algorithms.Micros  // the server's clock
	Before  []algorithms.State // per call, what the script went by: absent too for a value that it could not read
	Allowed bool               // every take, charge and peek fitted
	Healed  int                // unreadable values that this call overwrote
}

// maxSeconds bounds the server's clock to where the script's arithmetic is exact: 2^52 µs, in the year 2112.
const maxSeconds = 1 << 52 / 1_000_000

// Decode reads the reply to the command that calls were encoded into. A reply of another type, with another number of
// fields, or with a field that the script cannot have written is an error that wraps ErrReply: what is missing must not
// read as zeros, which admit.
func Decode(reply any, calls []Call) (Reply, error) {
	text, ok := reply.(string)
	if !ok {
		return Reply{}, fmt.Errorf("%w: a %T, not a string", ErrReply, reply)
	}
	seconds, rest, _ := strings.Cut(text, " ")
	micros, rest, _ := strings.Cut(rest, " ")
	status, rest, more := strings.Cut(rest, " ")

	var r Reply
	if r.Now, ok = decodeTime(seconds, micros); !ok {
		return Reply{}, fmt.Errorf("%w: no time in %.200q", ErrReply, text)
	}
	if r.Allowed, r.Healed, ok = decodeStatus(status, len(calls)); !ok {
		return Reply{}, fmt.Errorf("%w: no status in %.200q", ErrReply, text)
	}
	r.Before = make([]algorithms.State, len(calls))
	for i := range calls {
		if !more {
			return Reply{}, fmt.Errorf("%w: %d values for %d keys in %.200q", ErrReply, i, len(calls), text)
		}
		var value string
		value, rest, more = strings.Cut(rest, " ")
		if value == "-" || value == "?" {
			continue
		}
		if r.Before[i], ok = DecodeState(calls[i].Rule, value, r.Now); !ok {
			return Reply{}, fmt.Errorf("%w: value %d is %.100q in %.200q", ErrReply, i+1, value, text)
		}
	}
	if more {
		return Reply{}, fmt.Errorf("%w: more than %d values in %.200q", ErrReply, len(calls), text)
	}
	return r, nil
}

func decodeTime(seconds, micros string) (algorithms.Micros, bool) {
	s, okS := decimal(seconds)
	us, okUS := decimal(micros)
	if !okS || !okUS || s > maxSeconds || us >= 1_000_000 {
		return 0, false
	}
	return algorithms.Micros(s*1_000_000 + us), true
}

// decodeStatus reads 1 or 0, with +healed behind it unless nothing was healed.
func decodeStatus(status string, calls int) (allowed bool, healed int, ok bool) {
	flag, count, some := strings.Cut(status, "+")
	if some {
		n, isNumber := decimal(count)
		if !isNumber || n < 1 || n > int64(calls) {
			return false, 0, false
		}
		healed = int(n)
	}
	return flag == "1", healed, flag == "1" || flag == "0"
}
