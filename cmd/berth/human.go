package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
)

// span is a length of time in the two units that matter.
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

// since is how long ago t was, "-" for no time.
func since(t *time.Time, now time.Time) string {
	if t == nil || t.IsZero() {
		return "-"
	}
	return span(now.Sub(*t))
}

// ago is since in a sentence.
func ago(t time.Time, now time.Time) string {
	if t.After(now) {
		return "in " + span(t.Sub(now).Round(time.Second))
	}
	return span(now.Sub(t)) + " ago"
}

// between is how long something ran, up to now if it still does.
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

func pairs(m map[string]string) string {
	out := make([]string, 0, len(m))
	for k, v := range m {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return strings.Join(out, ",")
}

// shortID is the part of an id that tables show. Ids begin with the time of
// submission in milliseconds, so less would rarely name one job.
func shortID(id berth.JobID) string {
	const shown = 18
	if len(id) > shown {
		return string(id[:shown])
	}
	return string(id)
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func plural(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}
