package main

import (
	"fmt"
	"runtime"

	"github.com/spf13/cobra"
)

func newVersion(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the program's version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			body := map[string]string{"version": a.version, "go": runtime.Version(),
				"platform": runtime.GOOS + "/" + runtime.GOARCH}
			return a.show(view{body: body, names: []string{a.version}, table: func(bool) error {
				_, err := fmt.Fprintf(a.out, "berth %s (%s, %s)\n", a.version, body["go"], body["platform"])
				return err
			}})
		},
	}
}
