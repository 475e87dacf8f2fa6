package config

import (
	"reflect"
	"regexp"
	"strings"
)

// envPrefix starts every variable of ours.
const envPrefix = "SENTINEL_"

// EnvName returns the environment variable that sets a YAML path.
func EnvName(path string) string {
	return envPrefix + strings.ToUpper(strings.ReplaceAll(path, ".", "_"))
}

// readEnvironment reads the variables of ours in env; of a repeated name the first counts, as for os.Getenv.
func (l *loader) readEnvironment(env []string) {
	byName := map[string]leaf{}
	var names []string
	for f := range leaves(&l.cfg) {
		name := EnvName(f.path)
		byName[name] = f
		names = append(names, name)
	}
	seen := map[string]bool{}
	for _, pair := range env {
		name, text, _ := strings.Cut(pair, "=")
		if !strings.HasPrefix(name, envPrefix) || seen[name] {
			continue
		}
		seen[name] = true
		f, ok := byName[name]
		switch {
		case ok:
			l.readVariable(f, name, text)
		case !foreign(name, text):
			l.warnings = append(l.warnings, Warning{Name: name, Text: unknownVariable(name, names)})
		}
	}
}

// kubernetesLink matches the variables that Kubernetes makes for a service called sentinel or sentinel-SOMETHING.
var kubernetesLink = regexp.MustCompile(`_SERVICE_HOST$|_SERVICE_PORT(_[A-Z0-9_]+)?$|_PORT_[0-9]+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?$`)

// foreign reports whether a variable with our prefix belongs to someone else. SENTINEL_RLS_ is another product's prefix;
// Kubernetes' SENTINEL_PORT is told from a misspelt setting by its value, tcp://ADDRESS:PORT.
func foreign(name, text string) bool {
	return strings.HasPrefix(name, "SENTINEL_RLS_") || kubernetesLink.MatchString(name) ||
		strings.HasSuffix(name, "_PORT") && strings.Contains(text, "://")
}

// unknownVariable says that a variable sets nothing, and which one it may be meant for.
func unknownVariable(name string, known []string) string {
	text := "sets nothing"
	if near := Nearest(name, known); near != "" {
		text += "; did you mean " + near + "?"
	}
	return text
}

// readVariable sets a field from an environment variable. A list is a YAML list in brackets, or its items with commas
// between them.
func (l *loader) readVariable(f leaf, name, text string) {
	o := origin{source: "environment", name: name}
	if f.value.Kind() != reflect.Slice {
		l.decodeText(f.value, f.spec, text, f.path, o)
		return
	}
	text = strings.TrimSpace(text)
	switch {
	case strings.HasPrefix(text, "["):
		if root := l.parse([]byte(text), f.path, o); root != nil {
			l.decodeList(f.value, f.spec, root, f.path, o)
		}
	case f.value.Type().Elem().Kind() == reflect.Struct:
		example := "[{alg: HS256, secret_file: /run/secrets/hs256}]"
		if f.value.Type().Elem() == reflect.TypeFor[TokenIssuer]() {
			example = "[{issuer: https://id.example.com, algorithms: [RS256], jwks_url: https://id.example.com/jwks.json}]"
		}
		l.fail(o, f.path, "must be a YAML list", "as "+example)
	case text == "":
		l.decodeTexts(f, nil, o)
	default:
		items := strings.Split(text, ",")
		for i := range items {
			items[i] = strings.TrimSpace(items[i])
		}
		l.decodeTexts(f, items, o)
	}
}
