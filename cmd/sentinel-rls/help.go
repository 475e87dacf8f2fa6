package main

import "embed"

// The long descriptions of the commands: what --help shows, and what docs/cli.md is made of.
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

// Help is what --help shows below the first line.
func (serveCommand) Help() string { return helpText("serve") }

// Help is what --help shows below the first line.
func (validateCommand) Help() string { return helpText("validate") }

// Help is what --help shows below the first line.
func (explainCommand) Help() string { return helpText("explain") }

// Help is what --help shows below the first line.
func (diffCommand) Help() string { return helpText("diff") }

// Help is what --help shows below the first line.
func (resetCommand) Help() string { return helpText("reset") }

// Help is what --help shows below the first line.
func (topCommand) Help() string { return helpText("top") }

// Help is what --help shows below the first line.
func (healthcheckCommand) Help() string { return helpText("healthcheck") }

// Help is what --help shows below the first line.
func (completionCommand) Help() string { return helpText("completion") }

// Help is what --help shows below the first line.
func (versionCommand) Help() string { return helpText("version") }
