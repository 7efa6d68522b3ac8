package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

// newVersion builds "berth version". It calls no server, so that it works without one.
func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the program's version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			// -o json has the same values, for bug reports and scripts that compare
			// versions.
			body := map[string]string{"version": a.version, "go": runtime.Version(),
				"platform": runtime.GOOS + "/" + runtime.GOARCH}
			return a.show(view{body: body, names: []string{a.version}, table: func(bool) error {
				_, err := fmt.Fprintf(a.out, "berth %s (%s, %s)\n", a.version, body["go"], body["platform"])
				return err
			}})
		},
	}
}
