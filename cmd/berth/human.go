package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/wire"
)

// span formats a length of time with at most two units, as exact as people need: seconds
// below 10 minutes, minutes below 10 hours. A negative length, as from a server whose clock
// is ahead, counts as 0.
func span(d time.Duration) string {
	switch d = max(d, 0); {
	case d < time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 10*time.Minute:
		return fmt.Sprintf("%dm%ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 10*time.Hour:
		return fmt.Sprintf("%dh%dm", int(d.Hours()), int(d.Minutes())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours())/24)
	}
}

// since formats the time from t to now, "-" for nil or zero.
func since(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return span(now.Sub(*t))
}

// ago formats a time relative to now for a sentence: "5m ago" or "in 5m". A future time is
// rounded to the second, so that a deadline of 2h that was set a moment before does not
// read 1h59m.
func ago(t time.Time, now time.Time) string {
	if t.After(now) {
		return "in " + span(t.Sub(now).Round(time.Second))
	}
	return span(now.Sub(t)) + " ago"
}

// between formats how long an attempt or a job ran: up to now without an end, "-" without a
// start.
func between(from, to *time.Time, now time.Time) string {
	switch {
	case from == nil || from.IsZero():
		return "-"
	case to == nil || to.IsZero():
		return span(now.Sub(*from))
	default:
		return span(to.Sub(*from))
	}
}

// bytesOf formats an amount of bytes with binary units (1 KiB is 1024 B) and one decimal.
func bytesOf(n int64) string {
	units := []string{"KiB", "MiB", "GiB", "TiB", "PiB"}
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), ""
	for _, u := range units {
		if f < 1<<10 {
			break
		}
		f, unit = f/(1<<10), u
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

// pairs formats labels as KEY=VALUE, sorted by key: the order of a map would change between
// runs.
func pairs(m map[string]string) string {
	out := make([]string, 0, len(m))
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// handle returns the short form of a job's id that tables and messages show; commands accept
// it as a JOB. A server of an earlier version and the answer to a submit name none: then it
// is the beginning of the id, see shortID.
func handle(j wire.Job) string {
	if j.Handle != "" {
		return j.Handle
	}
	return shortID(j.ID)
}

// shortID returns the beginning of an id, for jobs whose handle is not known; commands
// accept it as a JOB. An id begins with the time of submission in milliseconds (UUIDv7), so a
// shorter prefix would rarely identify one job.
func shortID(id berth.JobID) string {
	const shown = 18
	if len(id) > shown {
		return string(id[:shown])
	}
	return string(id)
}

// orDash returns "-" for an empty text: an empty cell would shift the columns for awk and
// cut.
func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// plural joins a number and its noun.
func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
