package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/internal/lib/jobfile"
	"berth/spec"
	"berth/wire"
)

// scheduleFlags are the times and settings of a schedule as flags; they take precedence
// over the schedule's file. Zero values mean that a flag was not given.
type scheduleFlags struct {
	name, cron, zone, at, overlap string
	every, in, catchUp, jitter    time.Duration
	paused                        bool
	setsPaused                    bool // --paused was given, perhaps as --paused=false
}

// register adds all flags of berth schedule create.
func (f *scheduleFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&f.name, "name", "", "schedule name (default: the name of its job or pipeline)")
	flags.StringVar(&f.cron, "cron", "",
		"minute, hour, day of month, month, day of week, as in '30 3 * * 1-5'; or @hourly, @daily, "+
			"@weekly, @monthly, @yearly")
	flags.StringVar(&f.zone, "time-zone", "", "time zone of --cron, such as Europe/Berlin (default UTC)")
	flags.DurationVar(&f.every, "every", 0, "fixed interval instead of --cron, such as 6h, counted from 1970")
	f.registerTime(cmd)
	flags.StringVar(&f.overlap, "overlap", "",
		"action while the last job still runs: skip (default), buffer_one, allow or cancel_other")
	flags.DurationVar(&f.catchUp, "catch-up", 0,
		"submit missed times up to this long after an outage (default 1h; 1 year for --at and --in)")
	flags.DurationVar(&f.jitter, "jitter", 0, "delay each submit by a random time of up to this")
	flags.BoolVar(&f.paused, "paused", false, "create the schedule paused; --paused=false overrides the file")
}

// registerTime adds the flags of a single time, which berth submit has too.
func (f *scheduleFlags) registerTime(cmd *cobra.Command) {
	cmd.Flags().StringVar(&f.at, "at", "", "submit once at this time, such as 2026-01-31T12:00:00Z")
	cmd.Flags().DurationVar(&f.in, "in", 0, "submit once after this time, such as 2h")
}

// apply overrides the fields of a file with the flags. now is the base of --in. A time
// given as a flag replaces the file's times as a whole: a schedule has exactly one of cron,
// every and at.
func (f *scheduleFlags) apply(s *spec.Schedule, now time.Time) error {
	timed := 0
	for _, set := range []bool{f.cron != "", f.every != 0, f.at != "", f.in != 0} {
		if set {
			timed++
		}
	}
	if timed > 1 {
		return usagef("--cron, --every, --at and --in exclude each other")
	}
	if timed == 1 {
		s.Cron, s.Every, s.At = f.cron, spec.Duration(f.every), nil
	}
	if f.in < 0 {
		return usagef("--in %s is negative", f.in)
	}
	if f.in > 0 {
		// Schedules have a resolution of one second.
		s.At = &spec.Instant{Time: now.Add(f.in).Truncate(time.Second)}
	}
	if f.at != "" {
		at, err := spec.ParseInstant(f.at)
		if err != nil {
			return usagef("--at: %v", err)
		}
		s.At = &at
	}
	set(&s.Name, f.name)
	set(&s.TimeZone, f.zone)
	set(&s.Overlap, spec.Overlap(f.overlap))
	set(&s.CatchUp, spec.Duration(f.catchUp))
	set(&s.Jitter, spec.Duration(f.jitter))
	if f.setsPaused {
		s.Paused = f.paused
	}
	return nil
}

// set overwrites *v unless the new value is zero, which means that the flag was not given.
func set[T comparable](v *T, with T) {
	var none T
	if with != none {
		*v = with
	}
}

// newScheduleCreate builds "berth schedule create" over POST /v1/schedules.
func newScheduleCreate(a *app) *cobra.Command {
	var flags scheduleFlags
	var over overrides
	cmd := &cobra.Command{
		Use:   "create FILE|-",
		Short: "Create a schedule from a job, pipeline or schedule file",
		Long: "Create takes a job file or a pipeline file with flags for the times, or a file with kind: schedule,\n" +
			"which has both. Local folders are uploaded now and kept as long as the schedule. Creating the same\n" +
			"schedule again changes nothing; a different one of the same name is refused. Apply changes one in place.",
		Example: "  berth schedule create train.yaml --cron '0 3 * * *' --time-zone Europe/Berlin\n" +
			"  berth schedule create train.yaml --in 2h\n  berth schedule create nightly.schedule.yaml",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			flags.setsPaused = cmd.Flags().Changed("paused")
			schedule, err := readSchedule(cmd.Context(), a, args[0], flags, over)
			if err != nil {
				return err
			}
			return createSchedule(cmd.Context(), a, schedule, baseFolder(args[0]))
		},
	}
	flags.register(cmd)
	over.register(cmd)
	return cmd
}

// readSchedule builds a schedule from a file, flags and overrides. The file may be of any
// kind: a schedule has both times and work; a job or a pipeline has the work only, and the
// flags must give the times. The kind is read from the file, so the user need not state it.
func readSchedule(
	ctx context.Context, a *app, name string, flags scheduleFlags, over overrides,
) (s spec.Schedule, err error) {
	src, shown, err := a.readFile(ctx, "file", name)
	if err != nil {
		return s, err
	}
	switch jobfile.Kind(shown, src) {
	case spec.KindSchedule:
		whole, err := parseSchedule(shown, src, over, func(s *spec.Schedule) error { return flags.apply(s, a.now()) })
		if err != nil {
			return s, err
		}
		return *whole, nil
	case string(berth.KindPipeline):
		// The schedule gets the name of its work, which --name may override.
		if s.Pipeline, err = parsePipeline(shown, src, over); err == nil {
			s.Name = s.Pipeline.Name
		}
	default:
		var file *jobfile.File
		if file, err = parseJob(shown, src, over); err == nil {
			s.Job, s.Name = &file.Spec, file.Spec.Name
		}
	}
	if err != nil {
		return s, err
	}
	if err := flags.apply(&s, a.now()); err != nil {
		return s, err
	}
	if s.Cron == "" && s.Every == 0 && s.At == nil {
		return s, &usageError{message: "no time given for submitting " + shown,
			hint: "add --cron, --every, --at or --in; or use a file with kind: schedule"}
	}
	return s, invalidSpec(s.WithDefaults().Validate())
}

// sendWork uploads the folders that a schedule's work names relative to base, and names the
// uploads in their place.
func sendWork(ctx context.Context, a *app, c *client.Client, schedule *spec.Schedule, base string) error {
	if schedule.Job != nil {
		job, err := sendFolders(ctx, a, c, *schedule.Job, base, "job.")
		if err != nil {
			return err
		}
		schedule.Job = &job
	}
	if schedule.Pipeline != nil {
		return sendSteps(ctx, a, c, *schedule.Pipeline, base, "pipeline.")
	}
	return nil
}

// createSchedule uploads the folders that the work names relative to base, and creates the
// schedule. Creating an equal schedule again is no error, so the command may be repeated;
// another schedule of the same name is a conflict (exit code 4).
func createSchedule(ctx context.Context, a *app, schedule spec.Schedule, base string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	if err := sendWork(ctx, a, c, &schedule, base); err != nil {
		return err
	}
	s, created, err := c.CreateSchedule(ctx, schedule)
	if err != nil {
		return a.failed(ctx, err)
	}
	if created {
		sayCreated(a, s)
	} else {
		a.say("schedule %s already exists with the same settings", s.Name)
	}
	return showSchedule(a, s)
}

// sayCreated reports a new schedule and the next command.
func sayCreated(a *app, s wire.Schedule) {
	if s.Paused {
		a.say("created schedule %s, paused; start it with: berth schedule resume %s", s.Name, s.Name)
		return
	}
	a.say("created schedule %s; show it with: berth schedule show %s", s.Name, s.Name)
}

// submitLater creates a schedule that submits a job or a pipeline once, for submit --at and
// --in. The schedule is named after its work and the time in UTC, so that a repeat with the
// same --at finds the existing schedule, and several times of one job do not collide.
func submitLater(ctx context.Context, a *app, w work, when scheduleFlags, flags submitFlags) error {
	// No job exists yet to wait for, and an idempotency key belongs to a submit.
	if flags.wait || flags.key != "" {
		return usagef("--wait and --idempotency-key are for jobs that are submitted now")
	}
	s := spec.Schedule{Pipeline: w.pipeline}
	name := ""
	switch {
	case w.schedule != nil:
		return usagef("--at and --in are for jobs and pipelines; a schedule has times of its own")
	case w.pipeline != nil:
		name = w.pipeline.Name
	default:
		s.Job, name = &w.job.Spec, w.job.Spec.Name
	}
	if err := when.apply(&s, a.now()); err != nil {
		return err
	}
	// Names have at most 63 characters, the time included.
	const room = 63 - len("-20060102-150405")
	name = strings.TrimRight(name[:min(len(name), room)], "-")
	s.Name = name + s.At.UTC().Format("-20060102-150405")
	return createSchedule(ctx, a, s, w.base)
}

// newScheduleRun builds "berth schedule run" over POST /v1/schedules/{name}/run. The client
// does not repeat this call after a lost answer, since a second one fires again.
func newScheduleRun(a *app) *cobra.Command {
	var overlap string
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Trigger a schedule now, in addition to its times",
		Long: "Run fires a schedule now, paused or not, and prints the id of the job, or why its overlap policy " +
			"created none.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSchedules,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			f, err := c.RunSchedule(cmd.Context(), args[0], spec.Overlap(overlap))
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showFire(a, f)
		},
	}
	cmd.Flags().StringVar(&overlap, "overlap", "",
		"override the schedule's overlap: skip, buffer_one, allow or cancel_other")
	return cmd
}

// showFire prints the result of a fire: the job's id, or an error if the fire created no
// job. A refused fire exits as a refused submit, a skipped or missed one with 4. A fire
// that waits for earlier jobs is no error; its reason is a message.
func showFire(a *app, f wire.Fire) error {
	id := ""
	if f.Job != nil {
		id = string(*f.Job)
	}
	if err := a.show(view{body: f, names: []string{id}, table: func(bool) error {
		if id == "" {
			return nil
		}
		_, err := fmt.Fprintln(a.out, id)
		return err
	}}); err != nil {
		return err
	}
	if f.Reason == nil {
		return nil
	}
	text := fmt.Sprintf("%s: %s", f.Status, reasonText(f.Reason))
	switch f.Status {
	case wire.FireRefused:
		// The reason's code is the slug of the submit's error, from which the exit code
		// follows.
		return &berth.Error{Code: berth.CodeCapacity, Slug: string(f.Reason.Code), Message: text}
	case wire.FireSkipped, wire.FireMissed:
		return berth.Errorf(berth.CodeConflict, "%s", text)
	default:
		a.say("%s", text)
		return nil
	}
}

// newScheduleBackfill builds "berth schedule backfill" over POST
// /v1/schedules/{name}/backfill. A time that has a job is left out, so the command may be
// repeated.
func newScheduleBackfill(a *app) *cobra.Command {
	var from, to, overlap string
	cmd := &cobra.Command{
		Use:   "backfill NAME --from TIME [--to TIME]",
		Short: "Submit for past times of a schedule, each once",
		Long: "Backfill submits a job for every time of the schedule in a range, both ends included, that has none\n" +
			"yet: times before its creation, during a pause, skipped or refused. A repeat submits nothing twice.",
		Example:           "  berth schedule backfill nightly --from 2026-01-01T00:00:00Z --to 2026-01-31T23:59:59Z",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSchedules,
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := backfillOf(from, to, overlap)
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			return backfillSchedule(cmd.Context(), a, c, args[0], b)
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "first time, such as 2026-01-01T00:00:00Z")
	cmd.Flags().StringVar(&to, "to", "", "last time (default: now)")
	cmd.Flags().StringVar(&overlap, "overlap", "",
		"override the schedule's overlap: skip, buffer_one, allow (default) or cancel_other")
	return cmd
}

// backfillOf parses the flags of a backfill. A missing --to stays nil: the server uses its
// own present time.
func backfillOf(from, to, overlap string) (b spec.Backfill, err error) {
	b.Overlap = spec.Overlap(overlap)
	if from == "" {
		return b, &usageError{message: "--from is required",
			hint: "give the first time, for example --from 2026-01-01T00:00:00Z"}
	}
	if b.From, err = spec.ParseInstant(from); err != nil {
		return b, usagef("--from: %v", err)
	}
	if to == "" {
		return b, nil
	}
	last, err := spec.ParseInstant(to)
	if err != nil {
		return b, usagef("--to: %v", err)
	}
	b.To = &last
	return b, nil
}

// backfillSchedule makes the call and prints the number of times in the range and of the
// fires that are submitted; -o name prints the schedule.
func backfillSchedule(ctx context.Context, a *app, c *client.Client, name string, b spec.Backfill) error {
	r, err := c.BackfillSchedule(ctx, name, b)
	if err != nil {
		return a.failed(ctx, err)
	}
	return a.show(view{body: r, names: []string{name}, table: func(bool) error {
		_, err := fmt.Fprintf(a.out, "%s in the range, %d submitted; show them with: berth schedule show %s\n",
			plural(r.Times, "time", "times"), r.Fires, name)
		return err
	}})
}
