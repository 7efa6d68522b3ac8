package spec

import (
	"fmt"
	"strings"
	"time"

	"berth"
)

// Bounds of schedules.
const (
	MaxSchedules     = 500         // schedules of one tenant
	MaxBackfill      = 1000        // fires of one backfill
	MinScheduleEvery = time.Second // the clock's resolution
	maxScheduleYears = 5 * 8760 * time.Hour
)

// Defaults of a schedule.
const (
	// DefaultCatchUp is the greatest lateness of a fire, after a period in which schedules
	// could not fire. It is longer than an upgrade takes, and short enough that a nightly
	// job does not start at noon.
	DefaultCatchUp = time.Hour
	// DefaultCatchUpOnce is the greatest lateness for a schedule that fires once. It is
	// long, since no later time makes up for a missed one.
	DefaultCatchUpOnce = 365 * 24 * time.Hour
)

// Overlap is the action of a fire while an earlier job of the schedule has not ended, or
// waits to be submitted.
type Overlap string

// The overlap policies.
const (
	OverlapSkip   Overlap = "skip"         // the fire creates no job
	OverlapBuffer Overlap = "buffer_one"   // the fire waits for the end of earlier jobs; one fire may wait
	OverlapAllow  Overlap = "allow"        // the fire creates one more job
	OverlapCancel Overlap = "cancel_other" // the fire cancels earlier jobs and creates a job
)

// Overlaps lists all overlap policies.
var Overlaps = []Overlap{OverlapSkip, OverlapBuffer, OverlapAllow, OverlapCancel}

// Schedule is the content of a schedule's file: its times and its work. Exactly
// one of Cron, Every and At defines the times, and exactly one of Job and Pipeline the
// work.
type Schedule struct {
	Kind     string    `json:"kind,omitempty" doc:"schedule"`
	Name     string    `json:"name" doc:"name, unique in the tenant"`
	Cron     string    `json:"cron,omitempty" doc:"minute, hour, day, month, weekday; or @hourly, @daily, ..."`
	Every    Duration  `json:"every,omitempty" doc:"in place of cron: interval, counted from 1970-01-01 UTC"`
	At       *Instant  `json:"at,omitempty" doc:"in place of cron: one time"`
	TimeZone string    `json:"time_zone,omitempty" doc:"time zone of cron, such as Europe/Berlin; default UTC"`
	Jitter   Duration  `json:"jitter,omitempty" doc:"longest random delay of each fire"`
	Overlap  Overlap   `json:"overlap,omitempty" doc:"skip (default), buffer_one, allow or cancel_other"`
	CatchUp  Duration  `json:"catch_up,omitempty" zero:"10s to 8760h" doc:"greatest lateness; default 1h, with at 1y"`
	Paused   bool      `json:"paused,omitempty" doc:"create the schedule as paused"`
	Job      *Job      `json:"job,omitempty" doc:"job to submit"`
	Pipeline *Pipeline `json:"pipeline,omitempty" doc:"pipeline to submit, instead of a job"`
}

// KindSchedule is the kind of a schedule's file.
const KindSchedule = "schedule"

// WithDefaults returns the schedule with a value in every unset field that has a default,
// also in its job or pipeline. Their default name is the schedule's. WithDefaults is
// idempotent and does not change s.
func (s Schedule) WithDefaults() Schedule {
	if s.Kind == "" {
		s.Kind = KindSchedule
	}
	if s.Cron != "" && s.TimeZone == "" {
		s.TimeZone = "UTC"
	}
	if s.Overlap == "" {
		s.Overlap = OverlapSkip
	}
	if s.CatchUp == 0 {
		s.CatchUp = Duration(DefaultCatchUp)
		if s.At != nil {
			s.CatchUp = Duration(DefaultCatchUpOnce)
		}
	}
	if s.At != nil {
		s.At = &Instant{s.At.UTC().Truncate(time.Second)}
	}
	if s.Job != nil {
		job := *s.Job
		if job.Name == "" {
			job.Name = s.Name
		}
		job = job.WithDefaults()
		s.Job = &job
	}
	if s.Pipeline != nil {
		p := *s.Pipeline
		if p.Name == "" {
			p.Name = s.Name
		}
		if p.Kind == "" {
			p.Kind = string(berth.KindPipeline)
		}
		p = p.WithDefaults()
		s.Pipeline = &p
	}
	return s
}

// Validate checks a schedule after WithDefaults and returns all faults at once, or nil. It
// does not parse cron and the time zone: internal/control/calendar does so.
func (s Schedule) Validate() []berth.FieldError {
	v := &validation{}
	v.oneOf("kind", s.Kind, KindSchedule)
	v.require(isName(s.Name), "name", fmt.Sprintf("%q is not a valid name", s.Name),
		"1 to 63 of a-z, 0-9 and '-', not at either end")
	when := 0
	for _, set := range []bool{s.Cron != "", s.Every != 0, s.At != nil} {
		if set {
			when++
		}
	}
	v.require(when == 1, "cron", fmt.Sprintf("expected exactly one of cron, every and at, got %d", when), "")
	v.require(s.Every == 0 || s.Every.Std() >= MinScheduleEvery && s.Every.Std()%time.Second == 0 &&
		s.Every.Std() <= maxScheduleYears, "every", fmt.Sprintf("%s is out of range", s.Every),
		"whole seconds, from 1s to 43800h")
	v.require(s.At == nil || s.At.Year() >= 2000 && s.At.Year() < 2100, "at", "is out of range",
		"a time from 2000 to 2099")
	v.require(s.TimeZone == "" || s.Cron != "", "time_zone", "has no effect without cron",
		"leave it out; at contains its own, and every counts from 1970-01-01T00:00:00Z")
	v.require(s.Jitter >= 0 && s.Jitter.Std() <= 24*time.Hour && (s.Every == 0 || s.Jitter < s.Every),
		"jitter", fmt.Sprintf("%s is out of range", s.Jitter), "0 to 24h, and less than every")
	v.require(s.CatchUp.Std() >= 10*time.Second && s.CatchUp.Std() <= DefaultCatchUpOnce,
		"catch_up", fmt.Sprintf("%s is out of range", s.CatchUp), "10s to 8760h")
	v.overlap("overlap", s.Overlap)
	waits := s.Job != nil && len(s.Job.Needs) > 0 || s.Pipeline != nil && len(s.Pipeline.Needs) > 0
	v.require(!waits, "needs", "is not available in schedules, whose jobs would all wait for the same jobs",
		"leave it out")
	v.require((s.Job == nil) != (s.Pipeline == nil), "job", "expected exactly one of job and pipeline", "")
	if s.Job != nil {
		v.within("job.", s.Job.Validate())
	}
	if s.Pipeline != nil {
		v.within("pipeline.", s.Pipeline.Validate())
	}
	return v.faults
}

// overlap checks an overlap policy.
func (v *validation) overlap(field string, o Overlap) {
	names := make([]string, len(Overlaps))
	for i, x := range Overlaps {
		names[i] = string(x)
	}
	v.oneOf(field, string(o), names...)
}

// within adds the faults of a part, with a prefix before their fields.
func (v *validation) within(prefix string, faults []berth.FieldError) {
	for _, f := range faults {
		f.Field = prefix + f.Field
		v.faults = append(v.faults, f)
	}
}

// Webhooks returns the webhooks of the schedule's job or pipeline.
func (s Schedule) Webhooks() []Notify {
	switch {
	case s.Job != nil:
		return s.Job.Notify
	case s.Pipeline != nil:
		return s.Pipeline.Notify
	default:
		return nil
	}
}

// NamesSecrets reports whether the schedule's job or pipeline names secrets.
func (s Schedule) NamesSecrets() bool {
	if s.Job != nil && len(s.Job.AllSecrets()) > 0 {
		return true
	}
	if s.Pipeline != nil {
		for _, step := range s.Pipeline.All() {
			if len(step.AllSecrets()) > 0 {
				return true
			}
		}
	}
	return false
}

// ScheduleNote is the body of a pause and of a resume.
type ScheduleNote struct {
	Note string `json:"note,omitempty" doc:"why"`
}

// Validate returns all faults of the request at once, or nil.
func (n ScheduleNote) Validate() []berth.FieldError {
	v := &validation{}
	v.require(len(n.Note) <= 500 && !strings.ContainsRune(n.Note, 0), "note", "is too long, or has a NUL",
		"at most 500 bytes")
	return v.faults
}

// ScheduleRun is the body of a call that fires a schedule now.
type ScheduleRun struct {
	Overlap Overlap `json:"overlap,omitempty" doc:"in place of the schedule's"`
}

// Validate returns all faults of the request at once, or nil.
func (r ScheduleRun) Validate() []berth.FieldError {
	v := &validation{}
	if r.Overlap != "" {
		v.overlap("overlap", r.Overlap)
	}
	return v.faults
}

// Backfill is the body of a call that fires a schedule for past times.
type Backfill struct {
	From    Instant  `json:"from" doc:"the first time"`
	To      *Instant `json:"to,omitempty" doc:"the last time; default now, and not in the future"`
	Overlap Overlap  `json:"overlap,omitempty" doc:"in place of the schedule's; default allow"`
}

// Validate returns all faults of the request at once, or nil.
func (b Backfill) Validate(now time.Time) []berth.FieldError {
	v := &validation{}
	v.require(b.From.Year() >= 2000, "from", "is missing or out of range", "a time since 2000")
	v.require(!b.From.After(now), "from", "is in the future", "a time that has passed")
	v.require(b.To == nil || !b.To.Before(b.From.Time) && !b.To.After(now), "to", "is before from, or in the future",
		"a time between from and now")
	if b.Overlap != "" {
		v.overlap("overlap", b.Overlap)
	}
	return v.faults
}
