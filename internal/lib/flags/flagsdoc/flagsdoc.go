// Package flagsdoc writes the reference of a program's flags as Markdown, for the
// tests that hold docs/reference to the programs.
package flagsdoc

import (
	"fmt"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"berth/internal/lib/golden"
)

// Hold fails the test unless the file at path is the reference of program's flags, which -update
// writes. A default is the flag's value before parsing, so a flag whose default
// depends on the machine must set that default after parsing.
func Hold(t *testing.T, path, program, intro string, f *pflag.FlagSet) {
	t.Helper()
	golden.Check(t, path, reference(program, intro, f))
}

// reference returns the Markdown table of all flags, sorted by name, without hidden flags and
// without --help and --version. intro is the text below the title.
func reference(program, intro string, f *pflag.FlagSet) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Flags of %s\n%s\n\n", program, intro)
	fmt.Fprintf(&b, "Generated from the program by `go test ./cmd/%s -run Reference -update`. ", program)
	b.WriteString("The command line takes precedence over the environment.")
	if f.Lookup("settings-file") != nil {
		b.WriteString(" Both take precedence over the file of `--settings-file`, whose keys are the names of the " +
			"flags without `--`. A flag that may be repeated is a list there, and an unknown key is an error.")
	}
	b.WriteString("\n\n")
	b.WriteString("| flag | environment | default | meaning |\n| --- | --- | --- | --- |\n")
	f.VisitAll(func(x *pflag.Flag) {
		if x.Hidden || x.Name == "help" || x.Name == "version" {
			return
		}
		// The same rule names the environment variables where the program reads its
		// configuration.
		variable := "BERTH_" + strings.ToUpper(strings.ReplaceAll(x.Name, "-", "_"))
		value := ""
		if x.DefValue != "" && x.DefValue != "[]" {
			value = "`" + strings.Trim(x.DefValue, "[]") + "`"
		}
		fmt.Fprintf(&b, "| `--%s` | `%s` | %s | %s |\n", x.Name, variable, value,
			strings.ReplaceAll(x.Usage, "|", `\|`))
	})
	return b.String()
}
