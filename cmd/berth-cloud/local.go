package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"berth/internal/control/cloud/local"
	"berth/internal/control/cloud/offers"
	"berth/internal/devstack/dockerd"
)

// The values of --engines.
const (
	enginesHost    = "host"    // the instances share an engine of the host
	enginesPrivate = "private" // each instance has a dockerd of its own
)

// localFlags are the flags of the local provider that are not in local.Options.
type localFlags struct {
	prices  string
	engines string
	images  []string
}

// localCommand returns the subcommand for machines on this host.
func localCommand() *cobra.Command {
	var o local.Options
	var more localFlags
	cmd := &cobra.Command{
		Use:   "local --dir FOLDER --agent PROGRAM --offers FILE [-- AGENT-FLAG...]",
		Short: "Answer one request with agents on this host, for demonstrations and tests",
		Long: "Answer one request with agents on this host, for demonstrations and tests.\n\n" +
			"Each instance is one process of berth-agent with a state folder of its own. Terminate kills " +
			"this process and its children. Containers of an engine that other instances share continue. With " +
			"--engines=private, which needs root, each instance has a Docker engine of its own, and its containers " +
			"end with it.",
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if o.Offers, err = offers.Load(more.prices, "local"); err != nil {
				return fmt.Errorf("--offers: %w", err)
			}
			o.Args = args
			if o.Engines, err = more.openEngines(); err != nil {
				return err
			}
			p, err := local.New(o)
			if err != nil {
				return err
			}
			return serve(cmd, p)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "folder of the state of all instances (required)")
	f.StringVar(&o.Program, "agent", "", "path of berth-agent, or of a script that starts it last (required)")
	f.StringVar(&more.prices, "offers", "", "CSV file of machine types, with provider local (required)")
	f.StringVar(&more.engines, "engines", enginesHost,
		"container engines of the instances: host (one that they share), or private (each its own dockerd)")
	imageFlag(cmd, &more.images)
	f.IntVar(&o.Most, "max", 8, "number of instances that may exist at the same time")
	for _, name := range []string{"dir", "agent", "offers"} {
		_ = cmd.MarkFlagRequired(name) // the error is for unknown flags
	}
	return cmd
}

// openEngines returns the private engines, or nil.
func (f localFlags) openEngines() (*local.Engines, error) {
	for _, i := range f.images {
		if name, tar, ok := strings.Cut(i, "="); !ok || name == "" || !strings.HasPrefix(tar, "/") {
			return nil, fmt.Errorf("--image %q: write NAME=ROOTFS.tar with an absolute path", i)
		}
	}
	switch {
	case f.engines == enginesHost && len(f.images) > 0:
		return nil, errors.New("--image is for --engines=private: import the image into the engine of the host")
	case f.engines == enginesHost:
		return nil, nil
	case f.engines != enginesPrivate:
		return nil, fmt.Errorf("--engines %q: allowed are host, private", f.engines)
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	host := []string{self, "local-machine"}
	for _, i := range f.images {
		host = append(host, "--image="+i)
	}
	return &local.Engines{Host: host, Destroy: dockerd.Destroy}, nil
}
