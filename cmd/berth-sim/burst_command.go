package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"berth/internal/control/scaler"
)

// mostWait is the mean wait that experiment A allows, in hours.
const mostWait = 0.0516

// burstFlags holds the flags of berth-sim burst.
type burstFlags struct {
	seeds, trace, policy string
}

// burstCommand returns berth-sim burst, which plays the experiments on cloud machines.
func burstCommand() *cobra.Command {
	f := &burstFlags{}
	cmd := &cobra.Command{
		Use:   "burst a|b|c",
		Short: "Play experiments on machines of a cloud, with published policies for comparison",
		Long: `Burst plays one of three experiments, and compares the decisions of Berth
(internal/control/scaler) with published policies. docs/design/simulation.md has the results.

a   Burst or wait (Starburst, USENIX ATC '24): 500 jobs on 4 machines of 8 GPUs; a GPU of the cloud costs $2.50 an hour.
    The jobs are drawn by --seeds, not read from a trace; 13 is the published seed. With several seeds, the table shows
    means, and the cost over that of Starburst with its 95 % interval.
b   Spot machines under a deadline (Can't Be Late, USENIX NSDI '24): 48 hours of work. --trace is the observed
    availability: zone,instance,gap_seconds,available. The rule of the rows named berth runs in this simulator only:
    job files have no deadline.
c   Sizes of machines and idle time: all jobs of --trace run on the cloud: timestamp,duration,num_gpus,cluster.

COST is in US dollars: of a trace of jobs in a and c, of one job in b. WAIT is the mean time before a job starts in a
and c, and without a machine in b. LAUNCHES are jobs sent to the cloud in a, and starts of machines in b and c. IDLE is
the share of GPU hours on premises without a job in a, of paid time that goes into restarts in b, and of paid GPU time
without a job in c.

To try the scaler on the jobs of a cluster of your own, run "berth-sim snapshot", and then "berth-sim replay" with
--burst TENANT=FILE.

--policy selects rows of the table by name, separated by commas; without it the table has all rows.`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 || !slices.Contains([]string{"a", "b", "c"}, args[0]) {
				return &usageError{fmt.Errorf("experiment %q: allowed is one of a, b, c", strings.Join(args, " "))}
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), cmd.OutOrStdout(), args[0]) },
	}
	cmd.Flags().StringVar(&f.seeds, "seeds", "13", "seeds of experiment a: a number, or a range such as 21-60")
	cmd.Flags().StringVar(&f.trace, "trace", "", "trace of experiment b or c (CSV, or CSV.gz)")
	cmd.Flags().StringVar(&f.policy, "policy", "", "names of policies, separated by commas")
	return cmd
}

func (f *burstFlags) run(ctx context.Context, w io.Writer, experiment string) error {
	if (experiment == "a") != (f.trace == "") {
		return &usageError{errors.New("--trace names the trace of experiments b and c; experiment a has none")}
	}
	out := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	var err error
	switch experiment {
	case "a":
		err = f.waits(ctx, out)
	case "b":
		err = f.deadlines(ctx, out)
	default:
		err = f.shapes(ctx, out)
	}
	if err != nil {
		return err
	}
	return out.Flush()
}

// chosen returns the policies of a table, in its order.
func (f *burstFlags) chosen(all []string) ([]string, error) {
	if f.policy == "" {
		return all, nil
	}
	var list []string
	for _, name := range strings.Split(f.policy, ",") {
		if !slices.Contains(all, name) {
			return nil, &usageError{fmt.Errorf("--policy %q: allowed are %s", name, strings.Join(all, ", "))}
		}
		list = append(list, name)
	}
	return list, nil
}

// maxSeeds bounds the seeds of one run, against typing errors.
const maxSeeds = 1000

// parseSeeds reads a seed or a range of seeds.
func parseSeeds(s string) ([]uint32, error) {
	from, to, isRange := strings.Cut(s, "-")
	if !isRange {
		to = from
	}
	a, errA := strconv.ParseUint(from, 10, 32)
	b, errB := strconv.ParseUint(to, 10, 32)
	if errA != nil || errB != nil || a > b || b-a >= maxSeeds {
		return nil, &usageError{fmt.Errorf(
			"--seeds %q: allowed are a number or a range such as 21-60, of at most %d seeds", s, maxSeeds)}
	}
	var list []uint32
	for seed := a; seed <= b; seed++ {
		list = append(list, uint32(seed))
	}
	return list, nil
}

// waitPolicies are the rows of experiment a.
var waitPolicies = []string{"no-wait", "constant-wait", "starburst", "starburst-unknown", "plan-budget",
	"berth", "berth-unknown"}

// playWait plays a policy of experiment a.
func playWait(ctx context.Context, name string, seed uint32) (waitResult, error) {
	jobs := waitTrace(seed)
	if rule, ok := waitRules[name]; ok {
		return rule.play(jobs), nil
	}
	known := name == "berth"
	return playBurst(ctx, jobs, known, burstPolicyOf(known), futuresOf(known))
}

// burstPolicyOf returns the production policy of experiment a, for jobs of known or unknown run time.
func burstPolicyOf(known bool) scaler.BurstPolicy {
	if known {
		return scaler.BurstPolicy{HourOfWait: knownHourOfWait}
	}
	return scaler.BurstPolicy{HourOfWait: unknownHourOfWait}
}

// futuresOf returns the number of futures of a production decision.
func futuresOf(known bool) int {
	if known {
		return 1
	}
	return unknownFutures
}

// waits prints experiment a.
func (f *burstFlags) waits(ctx context.Context, out io.Writer) error {
	seeds, err := parseSeeds(f.seeds)
	if err != nil {
		return err
	}
	names, err := f.chosen(waitPolicies)
	if err != nil {
		return err
	}
	base := map[bool][]waitResult{}
	for known, name := range map[bool]string{true: "starburst", false: "starburst-unknown"} {
		if base[known], err = playSeeds(ctx, name, seeds); err != nil {
			return err
		}
	}
	fmt.Fprintln(out, "POLICY\tCOST\tWAIT\tLAUNCHES\tIDLE\tOVER STARBURST") //nolint:errcheck // Flush reports it
	for _, name := range names {
		list, err := playSeeds(ctx, name, seeds)
		if err != nil {
			return err
		}
		var sum waitResult
		for _, r := range list {
			sum.cost, sum.wait = sum.cost+r.cost, sum.wait+r.wait
			sum.idle, sum.launches = sum.idle+r.idle, sum.launches+r.launches
		}
		n := float64(len(list))
		ratio, margin := ratioOf(list, base[!strings.HasSuffix(name, "-unknown")])
		//nolint:errcheck // Flush reports it
		fmt.Fprintf(out, "%s\t$%.2f\t%.4f h\t%.1f\t%.1f %%\t%.3f ± %.3f\n", name, sum.cost/n, sum.wait/n,
			float64(sum.launches)/n, 100*sum.idle/n, ratio, margin)
	}
	return nil
}

// playSeeds plays a policy on all seeds, in parallel.
func playSeeds(ctx context.Context, name string, seeds []uint32) ([]waitResult, error) {
	results, errs := make([]waitResult, len(seeds)), make([]error, len(seeds))
	turns := make(chan struct{}, runtime.GOMAXPROCS(0))
	var group sync.WaitGroup
	for i, seed := range seeds {
		group.Go(func() {
			turns <- struct{}{}
			defer func() { <-turns }()
			results[i], errs[i] = playWait(ctx, name, seed)
		})
	}
	group.Wait()
	return results, errors.Join(errs...)
}

// ratioOf returns the ratio of two mean costs over the same seeds, and half the width of its 95 % interval.
func ratioOf(list, base []waitResult) (ratio, margin float64) {
	var a, b, squares float64
	for i := range list {
		a, b = a+list[i].cost, b+base[i].cost
	}
	ratio = a / b
	for i := range list {
		d := list[i].cost - ratio*base[i].cost
		squares += d * d
	}
	n := float64(len(list))
	if n < 2 {
		return ratio, 0
	}
	return ratio, student(len(list)-1) * math.Sqrt(squares/(n-1)/n) / (b / n)
}

// deadlines prints experiment b.
func (f *burstFlags) deadlines(ctx context.Context, out io.Writer) error {
	rows, err := readSpot(f.trace)
	if err != nil {
		return &usageError{err}
	}
	names, err := f.chosen(append(slices.Sorted(maps.Keys(spotPolicies)), "bound"))
	if err != nil {
		return err
	}
	//nolint:errcheck // Flush reports it
	fmt.Fprintln(out, "CELL\tPOLICY\tZONES\tCOST\tWAIT\tLAUNCHES\tIDLE\tLATE\tTRIES")
	for _, c := range spotCells {
		for zones, groups := range [][][]spotRow{eachZone(rows), byInstance(rows)} {
			windows, err := spotWindows(groups, c.deadline, spotSeed)
			if err != nil {
				return &usageError{err}
			}
			for _, name := range names {
				if err := ctx.Err(); err != nil {
					return err
				}
				//nolint:errcheck // Flush reports it
				fmt.Fprintf(out, "%s\t%s\t%s\t%s\n", cellName(c.deadline, c.restart), name,
					[]string{"one", "all"}[zones], spotColumnsOf(windows, c.deadline, c.restart, name))
			}
		}
	}
	return nil
}

// spotColumnsOf returns the figures of a policy in a cell of experiment b. The bound is a cost alone.
func spotColumnsOf(windows []spotWindow, deadline, restart time.Duration, name string) string {
	policy, ok := spotPolicies[name]
	if !ok {
		return fmt.Sprintf("$%.2f\t-\t-\t-\t-\t-", meanSpotBound(windows, deadline))
	}
	m := meanSpot(windows, deadline, restart, policy)
	return fmt.Sprintf("$%.2f\t%.2f h\t%.1f\t%.1f %%\t%d\t%.1f", m.cost, m.wait, m.launches, 100*m.idle, m.late,
		m.tries)
}
