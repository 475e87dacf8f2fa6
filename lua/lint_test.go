package lua_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sentinel-rls/sentinel-rls/lua"
)

// What the script may say to the server, in these very words. All of it exists since Redis 6.2 and Valkey 7.2.
var commands = []*regexp.Regexp{
	regexp.MustCompile(`^redis\.call\('MGET', unpack\(KEYS\)\)`),
	regexp.MustCompile(`^redis\.call\('TIME'\)`),
	regexp.MustCompile(`^redis\.pcall\('SET', KEYS\[i\], write\[i\], 'PX', ttl(, 'NX')?\)`),
	regexp.MustCompile(`^redis\.error_reply\('[^']*'\)`),
}

var forbidden = map[string]*regexp.Regexp{
	"a conversion that loses digits": regexp.MustCompile(`\btostring\b|%\.?\d*[efgG]`),
	"a format other than %s and %d":  regexp.MustCompile(`format\('[^']*%[^sd']`),
	"a key that is not KEYS[i]":      regexp.MustCompile(`\bKEYS\b(?:[^)\[]|$)|KEYS\[[^i]|KEYS\[i[^\]]`),
	"a global variable":              regexp.MustCompile(`(?m)^(?:function\b|[A-Za-z_]+\s*=)|\b_G\b|\bsetfenv\b|\bgetfenv\b`),
	"code made at run time":          regexp.MustCompile(`\bloadstring\b|\bload\b|\bdofile\b`),
	"a local or random clock":        regexp.MustCompile(`\bos\.|\bmath\.random`),
	"a constant that nobody put in":  regexp.MustCompile(`\b[A-Z]+_[A-Z_]+\b`),
}

// lint returns what is wrong with a script.
func lint(source string) []string {
	code := regexp.MustCompile(`--[^\n]*`).ReplaceAllString(source, "")
	var found []string
	for _, at := range regexp.MustCompile(`\bredis\b`).FindAllStringIndex(code, -1) {
		rest := code[at[0]:]
		if !slices.ContainsFunc(commands, func(c *regexp.Regexp) bool { return c.MatchString(rest) }) {
			line, _, _ := strings.Cut(rest, "\n")
			found = append(found, "a command that is not on the list: "+line)
		}
	}
	for what, pattern := range forbidden {
		if text := pattern.FindString(code); text != "" {
			found = append(found, fmt.Sprintf("%s: %q", what, text))
		}
	}
	firstWrite, lastRead := strings.Index(code, "'SET'"), strings.LastIndex(code, "'MGET'")
	if firstWrite >= 0 && firstWrite < lastRead {
		found = append(found, "a read after a write")
	}
	return found
}

// Every key is one of KEYS, every write sets an expiry and comes after every read, and no number is printed but by %d.
func TestLUA_19_keys_are_declared(t *testing.T) {
	t.Parallel()
	for _, problem := range lint(lua.Group().Source()) {
		t.Error(problem)
	}
	for _, bad := range []string{
		`redis.pcall('SET', 'k', write[i], 'PX', ttl)`,
		`redis.pcall('SET', KEYS[i] .. ':x', write[i], 'PX', ttl)`,
		`redis.pcall('SET', KEYS[i], write[i])`,
		`redis.call('GET', KEYS[1])`,
		`redis.call('DEL', KEYS[i])`,
		`redis.pcall('TIME')`,
		`local call = redis.call`,
		`local r = redis`,
		`redis.call('SET', KEYS[i], write[i], 'PX', ttl)`,
		`redis.pcall('SET', KEYS[i + 1], write[i], 'PX', ttl)`,
		`redis['call']('TIME')`,
		`local k = KEYS`,
		`local x = tostring(1)`,
		`local x = string.format('%.0f', 1)`,
		`local x = os.time()`,
		`x = 1`,
		`local x = MAX_LEVEL`,
		"redis.pcall('SET', KEYS[i], write[i], 'PX', ttl)\nredis.call('MGET', unpack(KEYS))",
	} {
		if len(lint(bad)) == 0 {
			t.Errorf("the lint finds nothing wrong with %s", bad)
		}
	}
}

// One text, one digest: the files are whole and have no line that a server would read differently.
func TestSourcesAreTidy(t *testing.T) {
	t.Parallel()
	for name, source := range lua.Sources() {
		if !strings.HasSuffix(source, "end\n") && name != "group.lua" || !strings.HasPrefix(source, "-- ") {
			t.Errorf("%s: must begin with its description and end where its function does", name)
		}
		for i, line := range strings.Split(source, "\n") {
			if strings.TrimRight(line, " \t") != line || strings.ContainsAny(line, "\t\r") || len(line) > 120 {
				t.Errorf("%s: line %d has trailing space, a tab, a carriage return or more than 120 bytes", name, i+1)
			}
		}
	}
}
