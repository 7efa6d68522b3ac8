package main

import (
	"errors"
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"
)

// queueFlags holds the flags of berth-sim queue.
type queueFlags struct {
	trace, policy, out string // paths of the CSV files, and the name of the policy
	machines, gpus     int    // number of machines, and of GPUs per machine
}

// queueCommand returns berth-sim queue, which runs a trace under one policy.
func queueCommand() *cobra.Command {
	f := &queueFlags{}
	cmd := &cobra.Command{
		Use:   "queue --trace TRACE.csv --policy NAME --out OUT.csv",
		Short: "Run a trace of jobs on equal machines in virtual time",
		Long: `Queue plays a trace event by event: jobs come, the engine starts and displaces them, they end.

A job with at most the GPUs of one machine runs on one machine; a larger job runs on whole machines, on all at once.
Each start, resume and move adds its start cost to the job's work; a preempted job resumes from its progress.

TRACE   job_id,num_gpu,submit_time,iterations,model_name,iteration_time (Muri's; ms; start costs by model and GPUs), or
        timestamp,duration,num_gpus,cluster (Philly's; s; a start costs 10 s; the tenant is the cluster).
        Further columns are ignored.
OUT     job_id,start,end,nodes: seconds since the trace's start, such as 7,0,61.5,0:8;1:4;
        a row for each uninterrupted stretch

Policies:
` + policyHelp() + `

Printed are the mean and the 99th percentile of completion times, from submission to end, and the preemptions.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return f.run(cmd) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.trace, "trace", "", "the jobs (CSV, or CSV.gz)")
	flags.IntVar(&f.machines, "machines", 8, "how many machines there are")
	flags.IntVar(&f.gpus, "gpus", 8, "how many GPUs each has")
	flags.StringVar(&f.policy, "policy", "", "the rule, by name (see above)")
	flags.StringVar(&f.out, "out", "", "where to write what ran when and where (CSV)")
	return cmd
}

// Bounds of a simulated cluster, against typing errors that fill the memory.
const (
	maxMachines = 100_000
	maxNodeGPUs = 64
)

// validate returns the policy that the flags name, or a usageError that joins all faults,
// so that one run shows every flag to correct.
func (f *queueFlags) validate() (queuePolicy, error) {
	var errs []error
	for _, x := range []struct{ name, value, is string }{
		{"trace", f.trace, "it names a CSV file"}, {"out", f.out, "it names a CSV file"},
	} {
		if x.value == "" {
			errs = append(errs, fmt.Errorf("--%s is missing: %s", x.name, x.is))
		}
	}
	if f.machines < 1 || f.machines > maxMachines {
		errs = append(errs, fmt.Errorf("--machines %d: allowed are 1 to %d", f.machines, maxMachines))
	}
	if f.gpus < 1 || f.gpus > maxNodeGPUs {
		errs = append(errs, fmt.Errorf("--gpus %d: allowed are 1 to %d", f.gpus, maxNodeGPUs))
	}
	p, err := policyNamed(f.policy)
	if err := errors.Join(append(errs, err)...); err != nil {
		return p, &usageError{err}
	}
	return p, nil
}

func (f *queueFlags) run(cmd *cobra.Command) error {
	p, err := f.validate()
	if err != nil {
		return err
	}
	jobs, err := readTrace(f.trace)
	if err != nil {
		return &usageError{err}
	}
	if err := spread(jobs, f.machines, f.gpus); err != nil {
		return &usageError{fmt.Errorf("%s: %w", f.trace, err)}
	}
	r, err := p.play(cmd.Context(), jobs, f.machines, f.gpus)
	if err != nil {
		return err
	}
	if err := writeRows(f.out, r.rows()); err != nil {
		return err
	}
	return f.summary(cmd.OutOrStdout(), r, p)
}

// summary prints the mean and the 99th percentile of completion times, the utilisation and
// the number of preemptions.
func (f *queueFlags) summary(w io.Writer, r *replay, p queuePolicy) error {
	times := make([]float64, 0, len(r.ended))
	sum, work, preemptions := 0.0, 0.0, 0
	// work counts GPU seconds of the jobs themselves, without start costs, so policies that
	// preempt often do not look busier for it.
	last := origin
	for _, t := range r.ended {
		jct := t.finished.Sub(origin.Add(t.submitted)).Seconds()
		times, sum = append(times, jct), sum+jct
		work += t.length.Seconds() * float64(t.gpus)
		// Each start after the first follows a preemption: nothing else stops a job.
		preemptions += t.starts - 1
		if t.finished.After(last) {
			last = t.finished
		}
	}
	slices.Sort(times)
	knows := "without knowing durations"
	if p.knows {
		knows = "knowing durations"
	}
	n := float64(len(times))
	_, err := fmt.Fprintf(w, `policy      %s, %s
jobs        %d
completion  mean %.1f s, p99 %.1f s
last end    %.1f s, utilisation %.2f %%
preemptions %d, %.2f a job
`, p.name, knows, len(times), sum/n, percentile(times, 0.99), last.Sub(origin).Seconds(),
		work/(last.Sub(origin).Seconds()*float64(f.machines*f.gpus))*100, preemptions, float64(preemptions)/n)
	return err
}
