package main

import (
	"embed"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/jessevdk/go-flags"

	"github.com/sentinel-rls/sentinel-rls/config"
)

// The long descriptions of the commands, by their words: what --help shows last, and what docs/cli.md is made of.
//
//go:embed help
var helpTexts embed.FS

func helpText(name string) string {
	text, err := helpTexts.ReadFile("help/" + name + ".md")
	if err != nil {
		panic(err) // a name that is written here and not there
	}
	return string(text)
}

// command is one that the program has.
type command struct {
	name, summary string
	target        target // its flags and arguments; nil: one of those below must be named
	below         []command
}

// target is a pointer to a struct of a command's flags and arguments.
type target interface {
	Run(env *environment) error
}

// checked is a target that has more to say about its flags and arguments than their tags.
type checked interface {
	Validate() error
}

// commands returns what can be asked of the program.
func commands() []command {
	return append([]command{
		{name: "serve", summary: "Answer Envoy. Without configuration: one demo endpoint, limits in memory.", target: new(serveCommand)},
		{name: "validate", summary: "Check policies, and a configuration, without serving them.", target: new(validateCommand)},
		{
			name: "explain", target: new(explainCommand),
			summary: "Say which policy and limits a request meets, and with --peek what they hold. Spends nothing.",
		},
		{name: "diff", summary: "Say what changes for whom between two sets of policies.", target: new(diffCommand)},
		{name: "reset", summary: "Give one caller of one endpoint full buckets again.", target: new(resetCommand)},
		{name: "top", summary: "Show whom a running server denies most, and where.", target: new(topCommand)},
		{
			name: "compat", summary: "Stand in for envoyproxy/ratelimit: its environment, ports and answers.", target: new(compatServe),
			below: []command{
				{name: "serve", summary: "Answer in its place, set up by its environment variables. The default.", target: new(compatServe)},
				{name: "check", summary: "Say what would change for its files and environment, and what to set.", target: new(compatCheck)},
			},
		},
		{name: "healthcheck", summary: "Ask a running server for its gRPC health, as containers do.", target: new(healthcheckCommand)},
		{name: "completion", summary: "Print a completion script for a shell.", target: new(completionCommand)},
		{name: "version", summary: "Print the version.", target: new(versionCommand)},
	}, devCommands()...)
}

// commandLine reads one command line.
type commandLine struct {
	*flags.Parser
	targets map[*flags.Command]target
}

func newCommandLine(stdout io.Writer) *commandLine {
	l := &commandLine{
		Parser:  flags.NewNamedParser("sentinel-rls", flags.HelpFlag|flags.PassDoubleDash),
		targets: make(map[*flags.Command]target),
	}
	l.LongDescription = "Tenant-aware rate limits and authentication for Envoy."
	l.CompletionHandler = func(words []flags.Completion) { printCompletions(stdout, words) }
	l.add(l.Command, commands())
	return l
}

func (l *commandLine) add(to *flags.Command, all []command) {
	for _, c := range all {
		var data any = new(struct{})
		if c.target != nil {
			data = c.target
		}
		added, err := to.AddCommand(c.name, c.summary, c.summary, data)
		if err != nil {
			panic(err) // a tag of the command's struct
		}
		if c.target != nil {
			added.SubcommandsOptional = true
			l.targets[added] = c.target
		}
		l.add(added, c.below)
	}
}

// helpError is the help that was asked for.
type helpError string

func (e helpError) Error() string { return string(e) }

// parse returns what to run, its flags and arguments set. An error says what is wrong with args, or is a helpError.
func (l *commandLine) parse(args []string) (target, error) {
	rest, err := l.ParseArgs(args)
	if completing() {
		return nil, helpError("")
	}
	words, at := l.active()
	if problem, ok := errors.AsType[*flags.Error](err); ok {
		switch problem.Type {
		case flags.ErrHelp:
			return nil, l.help(problem.Message, words, at)
		case flags.ErrUnknownFlag:
			name, _, _ := strings.Cut(rest[0], "=")
			err = fmt.Errorf("unknown flag %s%s", name, hint(name, flagsOf(at)))
		case flags.ErrUnknownCommand:
			err = unknownCommand(rest[0], at)
		case flags.ErrCommandRequired:
			err = fmt.Errorf("expected a command: %s", strings.Join(namesOf(at), ", "))
		}
	}
	run := l.targets[at]
	switch {
	case err != nil || len(rest) == 0:
	case len(at.Commands()) > 0:
		err = unknownCommand(rest[0], at)
	default:
		err = fmt.Errorf("unexpected argument %s", rest[0])
	}
	if c, ok := run.(checked); ok && err == nil {
		err = c.Validate()
	}
	if err != nil {
		return nil, fmt.Errorf("%w; see %s --help", err, strings.Join(append([]string{l.Name}, words...), " "))
	}
	return run, nil
}

// active returns the command that was named, and its words after the program's name.
func (l *commandLine) active() (words []string, at *flags.Command) {
	for at = l.Command; at.Active != nil; {
		at = at.Active
		words = append(words, at.Name)
	}
	return words, at
}

// help adds the long description, which go-flags would set anew, code and lists and all.
func (l *commandLine) help(usage string, words []string, at *flags.Command) helpError {
	if l.targets[at] != nil && len(at.Commands()) == 0 {
		usage += "\n" + helpText(strings.Join(words, "-"))
	}
	return helpError(usage)
}

// hint names what was probably meant, or all there is.
func hint(word string, known []string) string {
	if near := config.Nearest(word, known); near != "" {
		return "; did you mean " + near + "?"
	}
	return "; known here: " + strings.Join(known, ", ")
}

func unknownCommand(name string, within *flags.Command) error {
	return fmt.Errorf("unknown command %s%s", name, hint(name, namesOf(within)))
}

func namesOf(c *flags.Command) (names []string) {
	for _, below := range c.Commands() {
		names = append(names, below.Name)
	}
	return names
}

// flagsOf returns the flags that may follow a command, with their dashes.
func flagsOf(c *flags.Command) (names []string) {
	for _, o := range c.Options() {
		names = append(names, "--"+o.LongName)
	}
	return append(names, "--help")
}
