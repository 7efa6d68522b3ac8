package calendar

import (
	"fmt"
	"strings"
	"time"
	_ "time/tzdata" // a server without a zone database reads the same zones

	"github.com/robfig/cron/v3"

	"berth"
	"berth/spec"
)

// Calendar computes the times at which a schedule fires. The zero value has no times.
type Calendar struct {
	cron  *cron.SpecSchedule // nil: by every, or at
	every time.Duration
	at    time.Time
}

const cronAllowed = "minute, hour, day of month, month, day of week, as in 30 3 * * 1-5; or @hourly, @daily, " +
	"@weekly, @monthly, @yearly"

// reader reads five fields, or a name. Times within a minute are for every.
var reader = cron.NewParser(cron.Minute | cron.Hour | cron.Dom | cron.Month | cron.Dow | cron.Descriptor)

// Read returns the calendar of a schedule, or the fault of its cron or its
// time_zone. The rest of the schedule must be valid.
func Read(s spec.Schedule) (Calendar, *berth.FieldError) {
	var c Calendar
	var fault *berth.FieldError
	switch {
	case s.Cron != "":
		c.cron, fault = readCron(s.Cron, s.TimeZone)
	case s.Every.Std() >= spec.MinScheduleEvery:
		c.every = s.Every.Std().Truncate(time.Second)
	case s.At != nil:
		c.at = s.At.UTC().Truncate(time.Second)
	}
	return c, fault
}

// Check returns the fault of a new schedule's times; nil if they are valid. A
// schedule that never fires after now has a fault, too.
func Check(s spec.Schedule, now time.Time) *berth.FieldError {
	c, fault := Read(s)
	switch {
	case fault != nil || !c.Next(now).IsZero():
		return fault
	case s.Cron != "":
		return &berth.FieldError{Field: "cron", Detail: fmt.Sprintf("%q never comes", s.Cron),
			Allowed: "a day that there is in some year"}
	case s.At != nil:
		return &berth.FieldError{Field: "at", Detail: s.At.Format(time.RFC3339) + " has passed",
			Allowed: "a time in the future"}
	default:
		return nil // validation elsewhere reports a schedule without either
	}
}

// readCron parses a cron line in a time zone of the IANA database. The zone has a field of its
// own, so a zone or an interval inside of the line is a fault.
func readCron(line, zone string) (*cron.SpecSchedule, *berth.FieldError) {
	location, err := time.LoadLocation(zone)
	if err != nil || zone == "" || zone == "Local" || len(zone) > 64 {
		return nil, &berth.FieldError{Field: "time_zone", Detail: fmt.Sprintf("%.64q is not known", zone),
			Allowed: "a name of the IANA time zone database, such as UTC or Europe/Berlin"}
	}
	fault := func(detail string) *berth.FieldError {
		return &berth.FieldError{Field: "cron", Detail: detail, Allowed: cronAllowed}
	}
	switch {
	case len(line) > 200:
		return nil, fault("is longer than 200 bytes")
	case strings.Contains(line, "="):
		return nil, fault(fmt.Sprintf("%q names a time zone: that is for the field time_zone", line))
	case strings.HasPrefix(line, "@every"):
		return nil, fault(fmt.Sprintf("%q is an interval: that is for the field every", line))
	}
	read, err := reader.Parse(line)
	if err != nil {
		return nil, fault(fmt.Sprintf("%q cannot be read: %v", line, err))
	}
	parsed, ok := read.(*cron.SpecSchedule)
	if !ok {
		return nil, fault(fmt.Sprintf("%q is no cron line", line))
	}
	parsed.Location = location
	return parsed, nil
}

// Next returns the first time after t, in UTC, or the zero time after the last one.
func (c Calendar) Next(t time.Time) time.Time {
	switch {
	case c.cron != nil:
		next := c.cron.Next(t)
		if next.IsZero() {
			return next
		}
		return next.UTC()
	case c.every > 0:
		return c.floor(t).Add(c.every)
	case c.at.After(t):
		return c.at
	default:
		return time.Time{}
	}
}

// floor returns the last time of an interval at or before t. Intervals are counted from the epoch, as
// Temporal counts them. Times before the epoch are rounded down as well.
func (c Calendar) floor(t time.Time) time.Time {
	every := int64(c.every / time.Second)
	at := t.Unix()
	past := at % every
	if past < 0 {
		past += every
	}
	return time.Unix(at-past, 0).UTC()
}

// Upcoming returns the next n times after t, or fewer if the calendar ends before.
func (c Calendar) Upcoming(t time.Time, n int) []time.Time {
	times := []time.Time{}
	for len(times) < n {
		if t = c.Next(t); t.IsZero() {
			break
		}
		times = append(times, t)
	}
	return times
}

// Between returns at most limit times between from and to, both included, and whether more exist.
func (c Calendar) Between(from, to time.Time, limit int) (times []time.Time, more bool) {
	for t := c.Next(from.Add(-time.Nanosecond)); !t.IsZero() && !t.After(to); t = c.Next(t) {
		if len(times) == limit {
			return times, true
		}
		times = append(times, t)
	}
	return times, false
}

// Last returns the latest times between from and to, both included, in order and at most limit.
func (c Calendar) Last(from, to time.Time, limit int) []time.Time {
	var times []time.Time
	for t := c.Next(from.Add(-time.Nanosecond)); !t.IsZero() && !t.After(to); t = c.Next(t) {
		if times = append(times, t); len(times) > 2*limit {
			times = append(times[:0], times[len(times)-limit:]...)
		}
	}
	return times[max(0, len(times)-limit):]
}
