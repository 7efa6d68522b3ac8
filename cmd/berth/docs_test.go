package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"berth/internal/lib/golden"
)

const cliDocument = "../../docs/reference/cli.md"

// docs/reference/cli.md is made from the commands themselves, so it cannot lag behind.
func TestTheDocumentIsTheCommands(t *testing.T) {
	t.Parallel()
	want := document()
	golden.Check(t, cliDocument, want)
}

func TestEveryCommandSaysWhatItDoes(t *testing.T) {
	t.Parallel()
	eachCommand(newRoot(&app{}), func(c *cobra.Command) {
		if c.Short == "" || strings.HasSuffix(c.Short, ".") {
			t.Errorf("%s: %q is no short description", c.CommandPath(), c.Short)
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Usage == "" {
				t.Errorf("%s --%s is not described", c.CommandPath(), f.Name)
			}
		})
	})
}

// document writes the reference of all commands.
func document() string {
	var b bytes.Buffer
	root := newRoot(&app{})
	b.WriteString("# The command line\n")
	b.WriteString("Made from the program by `go test ./cmd/berth -run Document -update`. Job files are described in [job-file.md](../guide/job-file.md).\n\n")
	b.WriteString("## Server and token\n")
	b.WriteString("The server is the first of these that is set: `--url` or `BERTH_URL`; the context of `--context` or `BERTH_CONTEXT`; the\n" +
		"current context of `~/.config/berth/config.yaml` (`BERTH_CONFIG`); `" + defaultURL + "`. The token is `BERTH_TOKEN`, or\n" +
		"else the one that `berth login` has stored for this server; it is never sent to another server.\n\n")
	b.WriteString("## Naming a job\n")
	b.WriteString("`JOB` is a handle (the end of an id as `berth list` shows it, six characters or more), an id, the beginning of\n" +
		"an id (four characters or more) or a name. If several jobs have this handle or beginning, the command lists them\n" +
		"and fails. A name means the latest job of that name; if several jobs have it, standard error reports this. After any of these, `[3]` names an\n" +
		"element of an array, and `.fit` a step of a pipeline: `sweep[3]`, `nightly.train.fit`, `nightly.tune[7]`.\n\n")
	b.WriteString("## Output\n")
	b.WriteString("`-o table` (for people), `wide` (the same with more columns and whole ids), `json` and `yaml` (the API's own\n" +
		"documents, times in UTC), `name` (ids alone, for scripts). Results go to standard output, and messages to standard\n" +
		"error, so `id=$(berth submit job.yaml)` works. Colour is used on a terminal only, and never with `NO_COLOR`.\n" +
		"With `-o json`, `logs` and `events -f` print one document per line.\n\n")
	b.WriteString("## Exit codes\n| code | means |\n| --- | --- |\n")
	for _, e := range exitCodes {
		fmt.Fprintf(&b, "| %d | %s |\n", e.code, e.meaning)
	}
	for _, g := range root.Groups() {
		fmt.Fprintf(&b, "\n## %s\n", strings.TrimSuffix(g.Title, ":"))
		for _, c := range root.Commands() {
			if c.GroupID == g.ID {
				eachCommand(c, func(c *cobra.Command) { describe(&b, c) })
			}
		}
	}
	fmt.Fprintf(&b, "\n### berth completion\nWrite the completion of a shell: `source <(berth completion bash)`; also `zsh`, `fish` and `powershell`.\nNames are completed from the server: jobs by handle, id or name, and channels, machines, pools, schedules, secrets, tenants and tokens;\nstatuses, output formats and stored contexts are completed without a server.\n")
	return b.String()
}

func describe(b *bytes.Buffer, c *cobra.Command) {
	if c.HasSubCommands() || c.Name() == "help" {
		return
	}
	fmt.Fprintf(b, "\n### %s\n", c.CommandPath())
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(b, "%s\n\n```\n%s\n```\n", text, strings.TrimSuffix(c.UseLine(), " [flags]"))
	var flags []string
	c.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		name := "--" + f.Name
		if f.Shorthand != "" {
			name = "-" + f.Shorthand + ", " + name
		}
		flags = append(flags, fmt.Sprintf("| `%s` | %s |", name, f.Usage))
	})
	if len(flags) > 0 {
		fmt.Fprintf(b, "\n| flag | |\n| --- | --- |\n%s\n", strings.Join(flags, "\n"))
	}
	if c.Example != "" {
		fmt.Fprintf(b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
}
