package lua

// Sources returns the files that the script is assembled from, by name.
func Sources() map[string]string {
	return map[string]string{"token_bucket.lua": tokenBucket, "sliding_window.lua": slidingWindow, "fixed_window.lua": fixedWindow, "group.lua": group}
}

// FunctionsScript returns a script that has the assembled functions of the algorithms, the very text that Group has,
// and runs body after them.
func FunctionsScript(body string) string {
	return constants.Replace(tokenBucket + slidingWindow + fixedWindow + body)
}

// MaxStateLength is maxStateLength.
const MaxStateLength = maxStateLength

// MaxRules is maxRules.
const MaxRules = maxRules

// Known returns how many rules e remembers.
func (e *Encoder) Known() int { return len(e.known) }
