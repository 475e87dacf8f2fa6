package main

import (
	"embed"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/jessevdk/go-flags"
)

// The completion scripts. They ask the program: GO_FLAGS_COMPLETION makes go-flags complete the words instead of obeying them.
//
//go:embed completion
var completionScripts embed.FS

// completionCommand is `sentinel-rls completion`.
type completionCommand struct {
	Args struct {
		Shell shell `positional-arg-name:"shell" description:"bash, zsh or fish."`
	} `positional-args:"yes" required:"yes"`
}

// Run prints the script.
func (c *completionCommand) Run(env *environment) error {
	script, err := completionScripts.ReadFile("completion/" + string(c.Args.Shell))
	if err != nil {
		return err
	}
	_, err = env.stdout.Write(script)
	return err
}

// shell is the name of a shell that there is a script for.
type shell string

// UnmarshalFlag takes only such names.
func (s *shell) UnmarshalFlag(name string) error {
	if completed := s.Complete(name); len(completed) != 1 || completed[0].Item != name {
		return fmt.Errorf("no completion for %s; expected bash, zsh or fish", name)
	}
	*s = shell(name)
	return nil
}

// Complete returns the names that begin as match does.
func (*shell) Complete(match string) (names []flags.Completion) {
	for _, name := range []string{"bash", "fish", "zsh"} {
		if strings.HasPrefix(name, match) {
			names = append(names, flags.Completion{Item: name})
		}
	}
	return names
}

// printCompletions prints a line for each word that can follow, with a tab and its description.
func printCompletions(w io.Writer, words []flags.Completion) {
	for _, word := range words {
		fmt.Fprintln(w, word.Item+"\t"+word.Description)
	}
}

// completing says whether a completion script asks.
func completing() bool { return os.Getenv("GO_FLAGS_COMPLETION") != "" }
