package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/internal/lib/archive"
	"berth/wire"
)

// newOutputs builds "berth outputs", which lists and downloads the files that jobs have
// stored. With a job in place of a subcommand it lists.
func newOutputs(a *app) *cobra.Command {
	list := newOutputsList(a)
	cmd := &cobra.Command{
		Use: "outputs JOB", Short: "List and download outputs of jobs", Args: list.Args,
		ValidArgsFunction: list.ValidArgsFunction, RunE: list.RunE,
	}
	cmd.AddCommand(list, newOutputsPull(a))
	return cmd
}

// newOutputsList builds "berth outputs list". CONTENT is the beginning of the content's
// address: equal content has an equal address, also across jobs. STEP names the step or
// element of an output, where the job is a pipeline or an array.
func newOutputsList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list JOB",
		Aliases: []string{"ls"},
		Short:   "List the stored outputs of a job",
		Long: "List prints the stored outputs of a job; for a pipeline or an array the outputs of all its steps or " +
			"elements.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(anyJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			_, _, list, err := findOutputs(cmd.Context(), a, args[0])
			if err != nil {
				return err
			}
			names := make([]string, len(list.Items))
			t := &table{screen: a.outTerm, head: []string{"NAME", "ATTEMPT", "MEMBER", "FILES", "SIZE",
				"AGE", "CONTENT"}}
			below := slices.ContainsFunc(list.Items, func(o wire.StoredOutput) bool { return o.Step != "" })
			if below {
				t.head = slices.Insert(t.head, 0, "STEP")
			}
			for i, o := range list.Items {
				names[i] = o.Name
				cells := []any{o.Name, fmt.Sprint(o.Attempt), fmt.Sprint(o.Member), fmt.Sprint(o.Files),
					berth.BytesText(o.Bytes), since(&o.CreatedAt, a.now()), o.Address.Short()}
				if below {
					cells = slices.Insert(cells, 0, any(o.Step))
				}
				t.add(cells...)
			}
			return a.show(view{body: list, names: names, table: func(bool) error {
				if len(names) == 0 {
					a.say("no outputs")
					return nil
				}
				return t.write(a.out)
			}})
		},
	}
}

// findOutputs resolves an argument to a job and lists its stored outputs, over GET
// /v1/jobs/{id}/outputs, the latest attempt first.
func findOutputs(
	ctx context.Context, a *app, name string,
) (*client.Client, wire.Job, wire.Page[wire.StoredOutput], error) {
	none := wire.Page[wire.StoredOutput]{}
	c, err := a.client()
	if err != nil {
		return nil, wire.Job{}, none, err
	}
	job, err := a.job(ctx, c, name)
	if err != nil {
		return nil, job, none, err
	}
	list, err := c.Outputs(ctx, job.ID)
	return c, job, list, a.failed(ctx, err)
}

// newOutputsPull builds "berth outputs pull". Outputs of several attempts are never mixed:
// only the latest attempt of a job that has stored any counts. The command stops at the
// first failure; complete outputs stay.
func newOutputsPull(a *app) *cobra.Command {
	var to string
	cmd := &cobra.Command{
		Use:   "pull JOB [NAME]",
		Short: "Download a job's outputs, or one of them, each into a folder of its name",
		Long: "Pull downloads the outputs of the latest attempt that stored any, each into a folder of its name\n" +
			"(NAME-1 for an output of member 1 of a gang). The outputs of a pipeline or an array are in one folder\n" +
			"for each step or element, such as train.fit or sweep[3]. An existing folder is never overwritten.",
		Args:              cobra.RangeArgs(1, 2),
		ValidArgsFunction: inTurn(a.completeJobs(anyJob), completeOutputs(a)),
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx := cmd.Context()
			c, job, list, err := findOutputs(ctx, a, args[0])
			if err != nil {
				return err
			}
			found := 0
			latest := map[berth.JobID]int{} // attempt, by job; the server lists it first
			for _, o := range list.Items {
				if _, seen := latest[o.Job]; !seen {
					latest[o.Job] = o.Attempt
				}
				if o.Attempt != latest[o.Job] || len(args) > 1 && o.Name != args[1] {
					continue
				}
				found++
				// An output without a job of its own belongs to the job of the list.
				id, folder := cmp.Or(o.Job, job.ID), filepath.Join(to, stepFolder(job, o.Step))
				if err := pullOutput(ctx, a, c, id, o, folder); err != nil {
					return err
				}
			}
			if found == 0 {
				return berth.Errorf(berth.CodeNotFound, "job %s has no such stored output", handle(job))
			}
			return nil
		},
	}
	cmd.Flags().StringVarP(&to, "dir", "d", ".", "target folder")
	return cmd
}

// stepFolder returns the folder for the outputs of a step or element: its path, which for an
// element of an array is only the index in brackets, so that the array's name comes before.
func stepFolder(parent wire.Job, step string) string {
	if strings.HasPrefix(step, "[") {
		return parent.Name + step
	}
	return step
}

// pullOutput downloads an output into a folder next to its target, and moves that folder to
// the target once the content is complete and its hash is verified. So a target that exists
// is complete, also after a crash.
func pullOutput(ctx context.Context, a *app, c *client.Client, id berth.JobID, o wire.StoredOutput, to string) error {
	name := o.Name
	if o.Member > 0 {
		name = fmt.Sprintf("%s-%d", o.Name, o.Member)
	}
	place := filepath.Join(to, name)
	// Lstat, so that a dangling link counts as existing too.
	if _, err := os.Lstat(place); err == nil {
		return &usageError{message: place + " already exists",
			hint: "move it away, or pull into another folder with --dir"}
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return usagef("%v", err)
	}
	// In the target's own folder: a rename cannot cross file systems.
	part, err := os.MkdirTemp(to, "."+name+".part-")
	if err != nil {
		return usagef("%v", err)
	}
	// After the rename below nothing is left under this name.
	defer os.RemoveAll(part)
	// The content comes from a job. os.Root keeps links and names in the archive from
	// reaching files outside of the folder.
	root, err := os.OpenRoot(part)
	if err != nil {
		return usagef("%v", err)
	}
	defer root.Close()
	in, err := c.Output(ctx, id, o)
	if err != nil {
		return a.failed(ctx, err)
	}
	defer in.Close()
	meter := &meter{Reader: in, app: a, name: name, total: o.Stored}
	sum, err := archive.Unpack(meter, root, archive.Output)
	meter.done()
	switch {
	// A transfer that broke off looks like a damaged archive. failed reports the former as
	// an unreachable server (exit code 7), which a script may try again.
	case err != nil && meter.read < o.Stored && !archive.IsRefused(err):
		return a.failed(ctx, errors.Join(io.ErrUnexpectedEOF, err))
	case err != nil:
		return fmt.Errorf("output %s: %w", name, err)
	case sum.Address != o.Address:
		return fmt.Errorf("output %s is damaged: its content is %s, expected %s", name, sum.Address, o.Address)
	}
	// MkdirTemp creates folders with mode 0700; an output gets the mode of any new folder.
	if err := errors.Join(os.Chmod(part, 0o755), os.Rename(part, place)); err != nil {
		return usagef("%v", err)
	}
	_, err = fmt.Fprintln(a.out, place)
	a.say("%s: %s, %s", name, plural(sum.Files, "entry", "entries"), berth.BytesText(sum.Bytes))
	return err
}

// meter is a reader that draws the state of a download on a terminal.
type meter struct {
	io.Reader
	app         *app
	name        string
	read, total int64     // bytes of the compressed archive
	drawn       time.Time // of the last line; zero: none was drawn
}

// Read draws at most ten times a second, since a terminal can be slower than the network.
func (m *meter) Read(p []byte) (int, error) {
	n, err := m.Reader.Read(p)
	m.read += int64(n)
	if now := time.Now(); m.app.errTerm.terminal && now.Sub(m.drawn) > 100*time.Millisecond {
		m.drawn = now
		m.draw()
	}
	return n, err
}

// draw replaces the present line. The last column stays free: a full line would wrap.
func (m *meter) draw() {
	const width = 24
	full := width
	if m.total > 0 {
		full = int(min(m.read, m.total) * width / m.total)
	}
	line := fmt.Sprintf("%s  %s%s  %s of %s", m.name, strings.Repeat("█", full), strings.Repeat("░", width-full),
		berth.BytesText(m.read), berth.BytesText(m.total))
	fmt.Fprint(m.app.err, eraseLine+m.app.errTerm.fit(line))
}

// done removes the line, so that the result begins in the first column.
func (m *meter) done() {
	if !m.drawn.IsZero() {
		fmt.Fprint(m.app.err, eraseLine)
	}
}
