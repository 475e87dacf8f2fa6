package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"
)

const (
	maxFileBytes   = 1 << 20  // of the configuration file
	maxSecretBytes = 64 << 10 // of one secret file
)

// Override is one value given on the command line. It wins over the environment and the file.
type Override struct {
	Flag   string   // as the user wrote it, "--grpc"; errors name it
	Path   string   // the YAML path it sets, "grpc.address"
	Values []string // one value; any number for a list
}

// Load returns the configuration that file, environment and flags give over [Default], checked and with its secrets read.
//
// An empty file name means no file. env is what [os.Environ] returns. A relative path in the file is relative to the
// file's directory, one in env or flags to the working directory. The error joins a [*Problem] for everything that is
// wrong, in whatever source; the Config is then zero. Warnings come with and without an error.
func Load(file string, env []string, flags ...Override) (Config, []Warning, error) {
	l := newLoader()
	if file != "" {
		l.readFile(file)
	}
	l.readEnvironment(env)
	l.readFlags(flags)
	l.validate()
	l.readSecrets()
	if len(l.problems) > 0 {
		return Config{}, l.warnings, errors.Join(l.problems...)
	}
	return l.cfg, l.warnings, nil
}

// loader collects one configuration and what is wrong with it.
type loader struct {
	cfg      Config
	origins  map[string]origin // where each path's value came from; paths left at their default are absent
	problems []error
	warnings []Warning
}

func newLoader() *loader { return &loader{cfg: Default(), origins: map[string]origin{}} }

// origin is the place of one value.
type origin struct {
	source string // see Problem.Source
	name   string // see Problem.Name
	line   int    // see Problem.Line
	dir    string // what a relative path is relative to; empty: the working directory
}

// at returns o with the line of n, where o is a file.
func (o origin) at(n *yaml.Node) origin { return o.on(n.Line) }

// on returns o with a line, where o is a file.
func (o origin) on(line int) origin {
	if o.name == "" {
		o.line = line
	}
	return o
}

// fail records a problem at a place.
func (l *loader) fail(o origin, path, text, hint string) {
	l.problems = append(l.problems, &Problem{
		Source: o.source, Line: o.line, Name: o.name, Path: path, Text: text, Hint: hint,
	})
}

// set notes where path got its value.
func (l *loader) set(path string, o origin) { l.origins[path] = o }

func (l *loader) readFile(file string) {
	o := origin{source: file, dir: filepath.Dir(file)}
	data, err := readBounded(file, maxFileBytes)
	if err != nil {
		text, hint := unreadable(file, err)
		l.fail(o, "", strings.TrimPrefix(text, file+": "), hint) // the place says which
		return
	}
	l.readDocument(data, o)
}

// readDocument reads the file's content.
func (l *loader) readDocument(data []byte, o origin) {
	if root := l.parse(data, "", o); root != nil {
		l.decodeStruct(reflect.ValueOf(&l.cfg).Elem(), root, "", o)
	}
}

// parse returns the content of the first YAML document in data, or nil when there is none to read. What path has instead of
// exactly one is recorded.
func (l *loader) parse(data []byte, path string, o origin) *yaml.Node {
	if line, text := illegibleAt(data); line > 0 {
		l.fail(o.on(line), path, text, "write plain UTF-8 text")
		return nil
	}
	docs, err := yaml.NewLoader(bytes.NewReader(data))
	if err != nil {
		l.fail(o, path, err.Error(), "")
		return nil
	}
	var first, second yaml.Node
	switch err := docs.Load(&first); {
	case errors.Is(err, io.EOF):
		l.fail(o, path, "is empty", "write {} for a configuration of defaults only")
		return nil
	case err != nil:
		l.failYAML(o, path, err)
		return nil
	}
	switch err := docs.Load(&second); {
	case errors.Is(err, io.EOF):
	case err != nil:
		l.failYAML(o, path, err)
	default:
		l.fail(o.at(&second), path, "a second document starts here", "keep one document: remove the line --- or ...")
	}
	return first.Content[0]
}

// failYAML records an error of the YAML library with the line it names.
func (l *loader) failYAML(o origin, path string, err error) {
	text := err.Error()
	if e, ok := errors.AsType[*yaml.LoadError](err); ok {
		text = e.Message
		o = o.on(e.Mark.Line)
	}
	l.fail(o, path, "is not YAML: "+text, "look for indentation, a bracket or a quote, here or in the lines above")
}

// illegibleAt returns the first line that is not plain text, and what is wrong with it; 0 when all is well.
func illegibleAt(data []byte) (line int, text string) {
	line = 1
	for len(data) > 0 {
		r, size := utf8.DecodeRune(data)
		switch {
		case r == utf8.RuneError && size == 1:
			return line, "is not UTF-8 text"
		case r == '\n':
			line++
		case r < ' ' && r != '\t' && r != '\r', r == 0x7f:
			return line, fmt.Sprintf("holds the control character U+%04X", r)
		}
		data = data[size:]
	}
	return 0, ""
}

func (l *loader) readFlags(flags []Override) {
	for _, f := range flags {
		o := origin{source: "flag", name: f.Flag}
		field, ok := leafAt(&l.cfg, f.Path)
		switch {
		case !ok:
			l.fail(o, f.Path, "is no setting", "")
		case field.value.Kind() == reflect.Slice:
			l.decodeTexts(field, f.Values, o)
		case len(f.Values) != 1:
			l.fail(o, f.Path, "takes one value", "give the flag once")
		default:
			l.decodeText(field.value, field.spec, f.Values[0], field.path, o)
		}
	}
}

// readSecrets fills every Secret from the file beside it.
func (l *loader) readSecrets() {
	c := &l.cfg
	c.Admin.Token = l.secret("admin.token_file", c.Admin.TokenFile)
	c.Redis.Password = l.secret("redis.password_file", c.Redis.PasswordFile)
	c.Redis.Sentinel.Password = l.secret("redis.sentinel.password_file", c.Redis.Sentinel.PasswordFile)
	for _, k := range l.tokenKeys() {
		k.Secret = l.secret(k.path+".secret_file", k.SecretFile)
		if k.PublicKeyFile != "" {
			var err error
			if k.PublicKey, err = readBounded(k.PublicKeyFile, maxSecretBytes); err != nil {
				text, hint := unreadable(k.PublicKeyFile, err)
				l.reject(k.path+".public_key_file", text, hint)
			}
		}
	}
	for i, file := range c.Anonymous.CookieSecretFiles {
		s := l.secret(fmt.Sprintf("anonymous.cookie_secret_files[%d]", i), file)
		c.Anonymous.CookieSecrets = append(c.Anonymous.CookieSecrets, s)
	}
	l.validateSecrets()
}

// secret returns what a secret file holds, without the newline at its end. An empty name gives an empty Secret.
func (l *loader) secret(path, file string) Secret {
	if file == "" {
		return Secret{}
	}
	data, err := readBounded(file, maxSecretBytes)
	if err != nil {
		text, hint := unreadable(file, err)
		l.reject(path, text, hint)
		return Secret{}
	}
	text := strings.TrimSuffix(strings.TrimSuffix(string(data), "\n"), "\r")
	if text == "" {
		l.reject(path, file+" is empty", "write the secret into it")
	}
	return NewSecret(text)
}

var errIrregular = errors.New("not a regular file")

// unreadable says that a file cannot be read, and how to mend it.
func unreadable(file string, err error) (text, hint string) {
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		err = e.Err // without the file's name and the system call
	}
	hint = "name another file"
	switch {
	case errors.Is(err, fs.ErrNotExist):
		hint = "name a file that is there"
	case errors.Is(err, fs.ErrPermission):
		hint = "let the user that this runs as read it"
	}
	return file + ": " + err.Error(), hint
}

// readBounded returns a regular file's content, refusing more than limit bytes. Anything else under that name, a pipe
// for example, could keep the process from starting.
func readBounded(file string, limit int64) ([]byte, error) {
	info, err := os.Stat(file)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errIrregular
	}
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("more than %d bytes", limit)
	}
	return data, nil
}

// reject records a problem with the value at path, at the place that the value came from, unless that place has a problem
// with it already: a value that could not be read is not checked as well.
func (l *loader) reject(path, text, hint string) {
	o := l.originOf(path)
	known := slices.ContainsFunc(l.problems, func(err error) bool {
		p, ok := errors.AsType[*Problem](err)
		return ok && p.Source == o.source && p.Name == o.name && p.Path == path
	})
	if !known {
		l.fail(o, path, text, hint)
	}
}

// originOf returns where path, or else the nearest part of the file around it, got its value.
func (l *loader) originOf(path string) origin {
	for path != "" {
		if o, ok := l.origins[path]; ok {
			return o
		}
		path = path[:max(0, strings.LastIndexAny(path, ".["))]
	}
	return origin{}
}
