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

// The exit statuses.
const (
	exitClean    = 0
	exitBreaches = 1
	exitUsage    = 2
	exitUnread   = 3
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop)
	os.Exit(run(ctx, os.Args[1:], os.LookupEnv, os.Stdout, os.Stderr))
}

// errBreaches says that the history does not hold.
var errBreaches = errors.New("breaches were found")

// unread is an error of reading, not of usage.
type unread struct{ error }

func (u unread) Unwrap() error { return u.error }

// run is the program; it returns its exit status.
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

type settings struct {
	databaseURL string
	events      []string
	accepted    []string
	output      string
	since       time.Duration
	options     check.Options
}

func command(lookup func(string) (string, bool)) *cobra.Command {
	var s settings
	cmd := &cobra.Command{
		Use:   "berth-check",
		Short: "Verify that a database's history keeps Berth's promises",
		Long: `Verify that a database's history keeps Berth's promises. It only reads, from one snapshot, and takes no lock.
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

// readFiles reads every file and concatenates their records.
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
