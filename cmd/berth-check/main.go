package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"berth/db"
	"berth/internal/check"
	"berth/internal/lib/buildinfo"
)

// Exit statuses, as documented in the help text. A breach differs from an error, so that a
// monitor does not take an unreachable database for a broken history.
const (
	exitClean    = 0
	exitBreaches = 1
	exitUsage    = 2
	exitUnread   = 3
)

func main() {
	// The first signal cancels the run, which exits with exitUnread; a second one ends the
	// process at once, since stop restores the default handling of signals.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}

// errBreaches reports that the history breaks an invariant. The breaches are already
// printed.
var errBreaches = errors.New("breaches were found")

// unread marks an error of reading: the database, an input file or the output could not be
// used. All other errors are wrong usage.
type unread struct{ error }

// Unwrap returns the marked error.
func (u unread) Unwrap() error { return u.error }

// run executes the program with all of its surroundings as arguments, for tests, and
// returns the exit status.
func run(ctx context.Context, args []string, lookup func(string) (string, bool), out, errs io.Writer) int {
	cmd := command(lookup)
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errs)
	err := cmd.ExecuteContext(ctx)
	_, failed := errors.AsType[unread](err)
	switch {
	case err == nil:
		return exitClean
	case errors.Is(err, errBreaches):
		return exitBreaches
	}
	fmt.Fprintln(errs, "berth-check:", err)
	if failed {
		return exitUnread
	}
	return exitUsage
}

// settings are the flags.
type settings struct {
	databaseURL string        // --database-url, else BERTH_DATABASE_URL
	events      []string      // paths of files of container events
	accepted    []string      // paths of files of accepted submits
	output      string        // text or json
	since       time.Duration // age of the oldest work to verify; 0: no limit
	options     check.Options
}

// command returns the command of berth-check; lookup reads the environment.
func command(lookup func(string) (string, bool)) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "berth-check",
		Short: "Verify that a database's history keeps Berth's promises",
		Long: `Verify that a database's history keeps Berth's promises.
It only reads, from one snapshot, and takes no lock.

Exit status: 0 no breach, 1 breaches, 2 wrong usage, 3 something could not be read.`,
		Version: buildinfo.Version(), Args: cobra.NoArgs, SilenceUsage: true, SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if url, ok := lookup("BERTH_DATABASE_URL"); ok && s.databaseURL == "" {
				s.databaseURL = url
			}
			return s.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.databaseURL, "database-url", "", "PostgreSQL, a standby too; environment BERTH_DATABASE_URL")
	f.StringArrayVar(&s.events, "docker-events", nil,
		"file of container events, as docker events --format '{{json .}}' writes them; repeatable")
	f.StringArrayVar(&s.accepted, "accepted", nil,
		`file of submits that clients saw accepted, one {"tenant":...,"key":...,"job":...} a line; repeatable`)
	f.BoolVar(&s.options.Settled, "settled", false,
		"everything should have come to its end: jobs terminal, reservations zero, no container left")
	f.DurationVar(&s.since, "since", 0, "leave out what ended longer ago than this; 0: nothing")
	f.DurationVar(&s.options.Patience, "patience", 10*time.Minute,
		"how much longer than its budget a job may take to make progress; negative: no longer")
	f.DurationVar(&s.options.Skew, "skew", 2*time.Second, "by how much clocks may differ or step")
	f.StringVarP(&s.output, "output", "o", "text", "text or json")
	return cmd
}

// run reads the inputs, verifies the history and prints the result. Breaches are printed
// before errBreaches is returned. Wrong settings fail before anything is read.
func (s settings) run(ctx context.Context, out io.Writer) error {
	switch {
	case s.databaseURL == "":
		return errors.New("--database-url is not set")
	case s.output != "text" && s.output != "json":
		return fmt.Errorf("--output %q: allowed are text, json", s.output)
	case s.since < 0 || s.options.Skew < 0:
		return errors.New("--since and --skew must not be negative")
	}
	if s.since > 0 {
		s.options.Since = time.Now().Add(-s.since)
	}
	// The files first: a snapshot that stays open keeps the database from cleaning up old
	// rows.
	events, err := readFiles(s.events, check.ReadContainerEvents)
	if err != nil {
		return unread{err}
	}
	accepted, err := readFiles(s.accepted, check.ReadAccepted)
	if err != nil {
		return unread{err}
	}
	h, err := db.OpenHistory(ctx, s.databaseURL)
	if err != nil {
		return unread{err}
	}
	result, err := check.Run(ctx, h, events, accepted, s.options)
	if err := errors.Join(err, h.Close()); err != nil {
		return unread{err}
	}
	if err := s.print(out, result); err != nil {
		return unread{err}
	}
	if len(result.Breaches) > 0 {
		return errBreaches
	}
	return nil
}

// readFiles reads every file and concatenates their records. An error names the file. The
// records stay in memory; files may overlap in time.
func readFiles[T any](paths []string, read func(io.Reader) ([]T, error)) ([]T, error) {
	var all []T
	for _, path := range paths {
		f, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		list, err := read(f)
		if err := errors.Join(err, f.Close()); err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, list...)
	}
	return all, nil
}

// print writes the result. JSON is one document for programs; text has each breach with the
// sentence of its invariant and the rows that prove the breach.
func (s settings) print(out io.Writer, r check.Result) error {
	if s.output == "json" {
		e := json.NewEncoder(out)
		e.SetIndent("", "  ")
		return e.Encode(r)
	}
	var b strings.Builder
	for _, x := range r.Breaches {
		fmt.Fprintf(&b, "%s\n  %s\n", x, x.Sentence)
		for _, row := range x.Rows {
			fmt.Fprintf(&b, "  %s\n", row)
		}
	}
	fmt.Fprintf(&b, "%d breaches; looked at %d jobs and %d machines\n", len(r.Breaches), r.Jobs, r.Machines)
	_, err := io.WriteString(out, b.String())
	return err
}
