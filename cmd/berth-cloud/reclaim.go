package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/local"
	"berth/internal/devstack/dockerd"
)

// reclaim are the flags of the subcommand that ends local machines as a cloud ends spot machines.
type reclaim struct {
	dir  string
	lead time.Duration
	all  bool
}

func reclaimCommand() *cobra.Command {
	var r reclaim
	cmd := &cobra.Command{
		Use:   "reclaim --dir FOLDER [--lead TIME] MACHINE | --all",
		Short: "End a local machine as a cloud ends a spot machine",
		Long: "End a local machine as a cloud ends a spot machine: write the notice, wait until the announced time, " +
			"and kill all processes and containers of the machine at once.",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			if r.all == (len(args) == 1) {
				return errors.New("name one machine, or give --all")
			}
			return r.run(cmd.Context(), args, cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.dir, "dir", "", "folder of the state of all instances, as of berth-cloud local (required)")
	f.DurationVar(&r.lead, "lead", 0, "time from the notice to the end; 0: no notice")
	f.BoolVar(&r.all, "all", false, "all machines, one after the other")
	_ = cmd.MarkFlagRequired("dir") // the error is for unknown flags
	return cmd
}

// run ends the machine in args, or all machines.
func (r reclaim) run(ctx context.Context, args []string, out io.Writer) error {
	// Create is not called, so the program of an instance is not needed.
	p, err := local.New(local.Options{Dir: r.dir, Program: "/bin/false", Most: 1,
		Engines: &local.Engines{Destroy: dockerd.Destroy}})
	if err != nil {
		return err
	}
	var names []berth.MachineID
	for _, name := range args {
		names = append(names, berth.MachineID(name))
	}
	if r.all {
		if names, err = p.Machines(ctx); err != nil {
			return err
		}
	}
	var faults []error
	for _, name := range names {
		killed, err := p.Reclaim(ctx, name, r.lead)
		var e *cloud.Error
		switch {
		case r.all && errors.As(err, &e) && e.Kind == cloud.NotFound: // ended meanwhile
		case err != nil:
			faults = append(faults, err)
		case killed:
			fmt.Fprintf(out, "machine %s killed with its processes and containers\n", name)
		default:
			fmt.Fprintf(out, "machine %s had ended before\n", name)
		}
	}
	return errors.Join(faults...)
}
