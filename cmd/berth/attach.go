package main

import (
	"github.com/spf13/cobra"

	"berth/api/client"
)

// attachedLines is the number of earlier lines that "berth attach" prints first, as tail -f does.
const attachedLines = 10

// newAttach builds "berth attach" over GET /v1/jobs/{id}/logs. Containers of jobs have neither a standard input nor
// a terminal, and no client attaches to their output, since one that does not read would stop them (adr/0105). So
// attach follows the log.
func newAttach(a *app) *cobra.Command {
	q := client.LogsQuery{Follow: true, Tail: attachedLines}
	cmd := &cobra.Command{
		Use:   "attach JOB",
		Short: "Follow the output of a job from its last lines on",
		Long: "Attach prints the last lines of a job's output and follows it until the job ends. On a terminal it\n" +
			"also draws the unfinished line, such as a progress bar. Ctrl-C detaches; the job continues.\n\n" +
			"A job has no standard input, and attach sends it neither input nor signals: berth exec runs a shell\n" +
			"next to its process. berth logs -f prints the output from its beginning.",
		Example:           "  berth attach digits\n  berth attach digits --member 3",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(liveJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Member < 0 {
				return usagef("--member %d is out of range; allowed: 0 or more", q.Member)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			job, err := a.job(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			// An ended job has nothing to follow; berth logs prints its whole output.
			if job.Status.Terminal() {
				return usagef("%s has ended; its output: berth logs %s", named(job), handle(job))
			}
			tree := newLogTree(a, c)
			if cmd.Flags().Changed("member") {
				tree.member = q.Member
			}
			return a.failed(cmd.Context(), printLogs(cmd.Context(), tree, newLogPrinter(a), job, q))
		},
	}
	cmd.Flags().IntVar(&q.Member, "member", 0, "gang member, from 0 (default: all members)")
	return cmd
}
