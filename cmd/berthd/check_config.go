package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/spf13/cobra"
	"go.temporal.io/sdk/contrib/envconfig"

	"berth/internal/control/controlplane"
	"berth/internal/control/controlplane/preflight"
	"berth/internal/lib/tracing"
)

// newCheckConfig builds "berthd check-config", which examines an installation with the settings that berthd
// itself would have.
func newCheckConfig(lookup func(string) (string, bool)) *cobra.Command {
	s := settings{Config: controlplane.Default()}
	var output string
	cmd := &cobra.Command{
		Use:   "check-config",
		Short: "Report everything that is wrong with an installation",
		Long: "Examine the settings, the files that they name, certificates, the database, its clock, the secret " +
			"keys, Temporal and the object store, and print a line for each result: ok, advice or fault. The exit " +
			"status is 1 if there is a fault. The check takes the settings from where berthd takes them, needs no " +
			"running berthd, and changes nothing: it writes one object to the object store and deletes it.",
		Example: "  berthd check-config\n" +
			"  systemd-run --pipe --wait --uid=berth --property=EnvironmentFile=/etc/berth/berthd.env \\\n" +
			"    berthd check-config",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if output != "text" && output != "json" {
				return fmt.Errorf("--output %q: allowed are text, json", output)
			}
			// The rights of this user decide which files berthd could read, so run the check as the
			// service's user.
			in := preflight.Input{UID: os.Geteuid()}
			// An invalid setting is one finding among others: the check goes on, so that one run
			// shows all faults.
			keep := func(err error) {
				if err != nil {
					in.Faults = append(in.Faults, err)
				}
			}
			keep(load(cmd.Flags(), lookup))
			keep(s.parse())
			// Only the fault matters: the check exports no traces.
			_, err := tracing.FromEnvironment(lookup, s.otlp)
			keep(err)
			in.Temporal, err = envconfig.LoadDefaultClientOptions()
			if err != nil {
				keep(fmt.Errorf("temporal client settings: %w", err))
			}
			in.Config = s.Config
			return printFindings(cmd, output, preflight.Run(cmd.Context(), in))
		},
	}
	s.flags(cmd.Flags())
	cmd.Flags().StringVarP(&output, "output", "o", "text", "output format: text or json")
	return cmd
}

// printFindings prints the findings; faults are an error, after all findings. Scripts rely on the exit
// status 1 of a fault. Advice alone exits with 0.
func printFindings(cmd *cobra.Command, output string, findings []preflight.Finding) error {
	if output == "json" {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", "  ")
		// Findings contain URLs, whose & must stay readable.
		e.SetEscapeHTML(false)
		if err := e.Encode(findings); err != nil {
			return err
		}
	} else if err := preflight.Print(cmd.OutOrStdout(), findings); err != nil {
		return err
	}
	switch n := preflight.Faults(findings); n {
	case 0:
		return nil
	case 1:
		return fmt.Errorf("1 fault")
	default:
		return fmt.Errorf("%d faults", n)
	}
}
