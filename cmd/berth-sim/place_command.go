package main

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/spf13/cobra"

	"berth/placement"
)

// placeFlags holds the flags of berth-sim place.
type placeFlags struct {
	nodes, arrivals, mix, out string // paths of CSV files
	seed                      uint64 // of the shuffle
	shuffle                   bool   // whether the seed was set, since 0 is a seed too
}

// placeCommand returns berth-sim place, which reproduces the published experiments on
// placement.
func placeCommand() *cobra.Command {
	f := &placeFlags{}
	cmd := &cobra.Command{
		Use:   "place --nodes NODES.csv --arrivals ARRIVALS.csv --out OUT.csv",
		Short: "Place arrivals one at a time; nothing leaves, nothing moves",
		Long: `Place submits one arrival at a time to the engine.
Jobs never end or move; an arrival that fits nowhere is dropped.

NODES     sn,cpu_milli,memory_mib,gpu,model
ARRIVALS  seq,pod,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec, also compressed (.gz)
MIX       name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec: the frequency of each request;
          without the column gpu_spec, every request may use any GPU model.
          Without a MIX the engine learns the frequencies from past arrivals, as in production.
OUT       pod,node,gpus in order of arrival, such as p1,n7,0-1-5; an empty node: not placed

Further columns are ignored. It prints the requested and the placed share of the cluster's GPUs.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.shuffle = cmd.Flags().Changed("shuffle-seed")
			return f.run(cmd)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.nodes, "nodes", "", "the machines (CSV)")
	flags.StringVar(&f.arrivals, "arrivals", "", "the jobs in order of arrival (CSV, or CSV.gz)")
	flags.StringVar(&f.mix, "mix", "", "what is asked for how often (CSV); default: learned on the way")
	flags.StringVar(&f.out, "out", "", "where to write what was placed where (CSV)")
	flags.Uint64Var(&f.seed, "shuffle-seed", 0, "bring the arrivals into a random order first, by this seed")
	return cmd
}

// validate returns a usageError for each missing file.
func (f *placeFlags) validate() error {
	var errs []error
	for _, x := range []struct{ name, value string }{{"nodes", f.nodes}, {"arrivals", f.arrivals}, {"out", f.out}} {
		if x.value == "" {
			errs = append(errs, fmt.Errorf("--%s is missing: it names a CSV file", x.name))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return &usageError{err}
	}
	return nil
}

func (f *placeFlags) run(cmd *cobra.Command) error {
	if err := f.validate(); err != nil {
		return err
	}
	machines, err := readNodes(f.nodes)
	if err != nil {
		return &usageError{err}
	}
	arrivals, err := readArrivals(f.arrivals)
	if err != nil {
		return &usageError{err}
	}
	// The same seed gives the same order, so that two versions of the engine can be
	// compared.
	if f.shuffle {
		r := rand.New(rand.NewPCG(f.seed, 0))
		r.Shuffle(len(arrivals), func(i, j int) { arrivals[i], arrivals[j] = arrivals[j], arrivals[i] })
	}
	// Without a mix the engine learns the frequencies of requests from the arrivals.
	var mix *placement.Mix
	if f.mix != "" {
		pods, err := readMix(f.mix)
		if err != nil {
			return &usageError{err}
		}
		if mix, err = mixOf(pods); err != nil {
			return &usageError{fmt.Errorf("%s: %w", f.mix, err)}
		}
	}
	c := newCluster(machines, mix)
	placed := make([]placedPod, 0, len(arrivals))
	for _, p := range arrivals {
		// An interrupt leaves no partial output file.
		if err := cmd.Context().Err(); err != nil {
			return err
		}
		// One at a time, as in the experiments: the engine never sees the next arrival.
		placed = append(placed, c.arrive(p))
	}
	if err := writePlaced(f.out, placed); err != nil {
		return err
	}
	return c.summary(cmd.OutOrStdout())
}
