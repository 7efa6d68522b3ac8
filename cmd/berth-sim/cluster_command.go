package main

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"berth"
)

// clusterFlags holds the flags of berth-sim cluster.
type clusterFlags struct{ plot string }

// clusterCommand returns berth-sim cluster, which runs a scenario.
func clusterCommand() *cobra.Command {
	f := &clusterFlags{}
	cmd := &cobra.Command{
		Use:   "cluster FILE.yaml",
		Short: "Run a described cluster in virtual time",
		Long: `Cluster simulates a file's machines, tenants and random streams of jobs in virtual time.
docs/design/simulation.md lists the fields of the file.

It prints the utilization while jobs arrived, the waits for the first start, how even the shares of
the tenants were, the preemptions, and the work that they lost.`,
		Args: oneFile,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd, args[0]) },
	}
	cmd.Flags().StringVar(&f.plot, "plot", "", "where to draw use and queue over time (SVG)")
	return cmd
}

// oneFile accepts one argument, the path of the scenario.
func oneFile(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &usageError{fmt.Errorf("%s: got %d arguments: it takes the name of one YAML file",
			cmd.CommandPath(), len(args))}
	}
	return nil
}

func (f *clusterFlags) run(cmd *cobra.Command, path string) error {
	src, err := os.ReadFile(path)
	if err != nil {
		return &usageError{err}
	}
	s, err := readScenario(path, src)
	if err != nil {
		return &usageError{err}
	}
	r := newReplay(s.fleet(), s.arrivals(), s.planner(), ticking{s.tick()})
	r.open(s.tenants())
	r.sampled = true
	if err := r.run(cmd.Context()); err != nil {
		// A job that fits on no machine is a fault of the file, so it exits as a usage
		// error.
		var stuck *stuckError
		if errors.As(err, &stuck) {
			return &usageError{fmt.Errorf("%s: %w", path, err)}
		}
		return err
	}
	if f.plot != "" {
		if err := writeFile(f.plot, r.plot(s)); err != nil {
			return err
		}
	}
	return r.report(cmd.OutOrStdout(), s)
}

// ticking plans at fixed intervals too, for decisions that only the passage of time
// changes: aging, decay of usage, waits before a preemption. 0: only at events.
type ticking struct{ every time.Duration }

func (ticking) ended(*task) {}

func (t ticking) next(now time.Time) time.Time {
	if t.every == 0 {
		return time.Time{}
	}
	return now.Truncate(t.every).Add(t.every)
}

// tick returns the interval between plans without an event, 0 if the policy does not depend
// on time. About 10,000 ticks at most cover the duration.
func (s *scenario) tick() time.Duration { return s.Policy.tick(s.Duration.Std()) }

func (p policySpec) tick(whole time.Duration) time.Duration {
	if p.Aging > 0 || p.HalfLife > 0 || p.PreemptAfter > 0 || p.MinRuntime > 0 || p.Overdue > 0 {
		return max(10*time.Second, whole/10_000).Truncate(time.Second)
	}
	return 0
}

// arrivals draws the jobs of all streams, in order of submission. Each stream has its own
// random source, so a change to one stream leaves the jobs of the others unchanged.
func (s *scenario) arrivals() []work {
	var list []work
	for i, j := range s.Jobs {
		random := rand.New(rand.NewPCG(uint64(s.Seed), uint64(i)))
		spec := j.spec()
		w := work{
			tenant: berth.TenantID(j.Tenant), request: j.request(), startCost: j.StartCost.Std(),
			priority: int(*spec.Priority),
			firm:     !*spec.Preemptible, timeLimit: j.TimeLimit.Std(), declared: j.Declared,
			checkpoint: j.Checkpoint.Std(),
		}
		at := j.From.Std()
		for n := 0; ; {
			// Exponential gaps make a Poisson process.
			at += time.Duration(random.ExpFloat64() * float64(j.Every))
			if at >= s.until(j) {
				break
			}
			for range max(1, j.Batch) {
				// A log-normal run time: exp(RunSpread * N(0,1)) has median 1.
				run := time.Duration(float64(j.Run) * math.Exp(j.RunSpread*random.NormFloat64()))
				w.id, w.submitted = fmt.Sprintf("%d-%06d", i, n), at.Truncate(time.Millisecond)
				w.length = max(run.Truncate(time.Millisecond), time.Second)
				// The time limit would stop the job then.
				if w.timeLimit > 0 {
					w.length = min(w.length, w.timeLimit)
				}
				list = append(list, w)
				n++
			}
		}
	}
	slices.SortStableFunc(list, func(a, b work) int { return int(sign(a.submitted - b.submitted)) })
	return list
}
