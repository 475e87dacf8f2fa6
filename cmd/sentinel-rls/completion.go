package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/alecthomas/kong"
)

// completionCommand is `sentinel-rls completion`.
type completionCommand struct {
	Shell string `arg:"" enum:"bash,zsh,fish" help:"bash, zsh or fish."`
}

// Run prints the script.
func (c *completionCommand) Run(env *environment, line *kong.Context) error {
	write := map[string]func(io.Writer, []completed) error{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}[c.Shell]
	return write(env.stdout, completable(line.Model.Node, nil))
}

// completed is what can follow one command.
type completed struct {
	path     []string // words after the program's name; none: the program itself
	commands []*kong.Node
	flags    []*kong.Flag
	values   []string // of an argument that takes one of a few words
}

// completable lists every command, parents first.
func completable(n *kong.Node, path []string) []completed {
	c := completed{path: path, flags: n.Flags}
	if n.Parent != nil { // every command has the flag that the program itself has
		c.flags = append(c.flags[:len(c.flags):len(c.flags)], root(n).Flags...)
	}
	for _, argument := range n.Positional {
		if argument.Enum != "" {
			c.values = append(c.values, strings.Split(argument.Enum, ",")...)
		}
	}
	var below []completed
	for _, child := range n.Children {
		if child.Hidden || child.Type != kong.CommandNode {
			continue
		}
		c.commands = append(c.commands, child)
		below = append(below, completable(child, append(path[:len(path):len(path)], child.Name))...)
	}
	return append([]completed{c}, below...)
}

func root(n *kong.Node) *kong.Node {
	for n.Parent != nil {
		n = n.Parent
	}
	return n
}

// words returns the commands and flags that can follow.
func (c completed) words() []string {
	var words []string
	for _, child := range c.commands {
		words = append(words, child.Name)
	}
	for _, f := range c.flags {
		words = append(words, "--"+f.Name)
	}
	return append(words, c.values...)
}

func bashCompletion(w io.Writer, all []completed) error {
	p := &printer{w: w}
	p.line(0, "# bash completion for sentinel-rls: put it where bash-completion looks, or source it.")
	p.line(0, "_sentinel_rls() {")
	p.line(1, `local current=${COMP_WORDS[COMP_CWORD]} path= word`)
	p.line(1, `for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do`)
	p.line(2, `case "$path $word" in`)
	for _, c := range all[1:] {
		p.line(2, `" %s") path=%q ;;`, strings.Join(c.path, " "), " "+strings.Join(c.path, " "))
	}
	p.line(2, "esac")
	p.line(1, "done")
	p.line(1, `case "$path" in`)
	for _, c := range all {
		path := ""
		if len(c.path) > 0 {
			path = " " + strings.Join(c.path, " ")
		}
		p.line(1, `%q) COMPREPLY=($(compgen -W %q -- "$current")) ;;`, path, strings.Join(c.words(), " "))
	}
	p.line(1, "esac")
	p.line(0, "}")
	p.line(0, "complete -o default -F _sentinel_rls sentinel-rls")
	return p.err
}

func zshCompletion(w io.Writer, all []completed) error {
	p := &printer{w: w}
	p.line(0, "#compdef sentinel-rls")
	p.line(0, "# zsh completion for sentinel-rls: put it into a directory of $fpath as _sentinel-rls.")
	p.line(0, "_sentinel-rls() {")
	p.line(1, "local at= word; local -a follow # not path, which is zsh's own")
	p.line(1, `for word in "${(@)words[2,CURRENT-1]}"; do`)
	p.line(2, `case "$at $word" in`)
	for _, c := range all[1:] {
		p.line(2, `" %s") at=%s ;;`, strings.Join(c.path, " "), quoteShell(" "+strings.Join(c.path, " ")))
	}
	p.line(2, "esac")
	p.line(1, "done")
	p.line(1, `case "$at" in`)
	for _, c := range all {
		path := ""
		if len(c.path) > 0 {
			path = " " + strings.Join(c.path, " ")
		}
		var described []string
		for _, child := range c.commands {
			described = append(described, quoteShell(child.Name+":"+child.Help))
		}
		for _, f := range c.flags {
			described = append(described, quoteShell("--"+f.Name+":"+f.Help))
		}
		for _, value := range c.values {
			described = append(described, quoteShell(value))
		}
		p.line(1, `%s) follow=(%s) ;;`, quoteShell(path), strings.Join(described, " "))
	}
	p.line(1, "esac")
	p.line(1, "_describe -o sentinel-rls follow || _files")
	p.line(0, "}")
	p.line(0, `if [ "$funcstack[1]" = _sentinel-rls ]; then _sentinel-rls "$@"; else compdef _sentinel-rls sentinel-rls; fi`)
	return p.err
}

func fishCompletion(w io.Writer, all []completed) error {
	p := &printer{w: w}
	p.line(0, "# fish completion for sentinel-rls: put it into ~/.config/fish/completions/sentinel-rls.fish.")
	for _, c := range all {
		condition := "__fish_use_subcommand"
		if len(c.path) > 0 {
			condition = "__fish_seen_subcommand_from " + c.path[len(c.path)-1]
		}
		for _, child := range c.commands {
			within := condition
			if len(c.path) > 0 {
				within += fmt.Sprintf("; and not __fish_seen_subcommand_from %s", child.Name)
			}
			p.line(0, "complete -c sentinel-rls -n %s -f -a %s -d %s", quoteShell(within), child.Name, quoteShell(child.Help))
		}
		for _, value := range c.values {
			p.line(0, "complete -c sentinel-rls -n %s -f -a %s", quoteShell(condition), value)
		}
		for _, f := range c.flags {
			requires := ""
			if !f.IsBool() {
				requires = " -r"
			}
			p.line(0, "complete -c sentinel-rls -n %s%s -l %s -d %s", quoteShell(condition), requires, f.Name, quoteShell(f.Help))
		}
	}
	return p.err
}

// quoteShell quotes a text for zsh and fish, of which neither reads anything within single quotes but a quote (and fish a
// backslash).
func quoteShell(text string) string {
	return "'" + strings.NewReplacer(`\`, "", "'", `'\''`).Replace(text) + "'"
}
