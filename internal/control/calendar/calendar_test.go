package calendar_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth/internal/control/calendar"
	"berth/spec"
)

func at(t *testing.T, s string) time.Time {
	t.Helper()
	parsed, err := time.Parse(time.RFC3339, s)
	if err != nil {
		t.Fatal(err)
	}
	return parsed
}

func read(t *testing.T, s spec.Schedule) calendar.Calendar {
	t.Helper()
	c, fault := calendar.Read(s.WithDefaults())
	if fault != nil {
		t.Fatalf("%+v: %v", s, fault)
	}
	return c
}

func TestNextTimesAreThoseOfTheZone(t *testing.T) {
	t.Parallel()
	once := spec.Instant{Time: at(t, "2026-06-01T12:30:45.5+02:00")}
	for _, c := range []struct {
		says string
		spec spec.Schedule
		from string
		want []string
	}{
		{"a cron line in UTC", spec.Schedule{Cron: "30 3 * * 1-5"}, "2026-01-02T12:00:00Z",
			[]string{"2026-01-05T03:30:00Z", "2026-01-06T03:30:00Z", "2026-01-07T03:30:00Z"}},
		{"a day of the month or a day of the week", spec.Schedule{Cron: "0 0 13 * FRI"}, "2026-02-10T00:00:00Z",
			[]string{"2026-02-13T00:00:00Z", "2026-02-20T00:00:00Z", "2026-02-27T00:00:00Z"}},
		{"an hour that summer takes away is left out", spec.Schedule{Cron: "30 2 * * *", TimeZone: "Europe/Berlin"}, "2026-03-28T00:00:00Z",
			[]string{"2026-03-28T01:30:00Z", "2026-03-30T00:30:00Z", "2026-03-31T00:30:00Z"}},
		{"an hour that winter repeats fires twice", spec.Schedule{Cron: "30 2 * * *", TimeZone: "Europe/Berlin"}, "2026-10-24T23:00:00Z",
			[]string{"2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z", "2026-10-26T01:30:00Z"}},
		{"a leap day may be years away", spec.Schedule{Cron: "0 0 29 2 *"}, "2026-01-01T00:00:00Z",
			[]string{"2028-02-29T00:00:00Z", "2032-02-29T00:00:00Z", "2036-02-29T00:00:00Z"}},
		{"an interval counts from the epoch", spec.Schedule{Every: spec.Duration(6 * time.Hour)}, "2026-01-02T12:00:00Z",
			[]string{"2026-01-02T18:00:00Z", "2026-01-03T00:00:00Z", "2026-01-03T06:00:00Z"}},
		{"one time", spec.Schedule{At: &once}, "2026-01-02T12:00:00Z", []string{"2026-06-01T10:30:45Z"}},
		{"one time that has passed", spec.Schedule{At: &once}, "2026-06-01T10:30:45Z", []string{}},
	} {
		t.Run(c.says, func(t *testing.T) {
			t.Parallel()
			from := at(t, c.from)
			got := []string{}
			for _, x := range read(t, c.spec).Upcoming(from, 3) {
				got = append(got, x.Format(time.RFC3339))
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("next times (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRangesIncludeBothEnds(t *testing.T) {
	t.Parallel()
	c := read(t, spec.Schedule{Cron: "@hourly"})
	from, to := at(t, "2026-01-01T00:00:00Z"), at(t, "2026-01-01T05:00:00Z")
	if times, more := c.Between(from, to, 6); len(times) != 6 || more || !times[0].Equal(from) || !times[5].Equal(to) {
		t.Errorf("got %v, more %t", times, more)
	}
	if times, more := c.Between(from, to, 5); len(times) != 5 || !more {
		t.Errorf("of six times five are %v, more %t", times, more)
	}
	if times := c.Last(from, to, 2); len(times) != 2 || !times[0].Equal(at(t, "2026-01-01T04:00:00Z")) || !times[1].Equal(to) {
		t.Errorf("the last two are %v", times)
	}
	if times := c.Last(to, from, 2); len(times) != 0 {
		t.Errorf("an empty range has %v", times)
	}
}

func TestWhatCannotBeReadSaysWhy(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ cron, zone, field, want string }{
		{"* * *", "", "cron", "expected exactly 5 fields"},
		{"61 * * * *", "", "cron", "above maximum (59)"},
		{"0 0 30 2 *", "", "cron", "never comes"},
		{"CRON_TZ=Asia/Tokyo 0 0 * * *", "", "cron", "time_zone"},
		{"TZ=", "", "cron", "time_zone"},
		{"@every 5m", "", "cron", "every"},
		{"@reboot", "", "cron", "unrecognized descriptor"},
		{strings.Repeat("*", 300), "", "cron", "longer than 200"},
		{"*/0 * * * *", "", "cron", "step"},
		{"0 0 * * *", "Mars/Olympus", "time_zone", "is not known"},
		{"0 0 * * *", "Local", "time_zone", "is not known"},
		{"0 0 * * *", "../etc/passwd", "time_zone", "is not known"},
	} {
		fault := calendar.Check(spec.Schedule{Cron: c.cron, TimeZone: c.zone}.WithDefaults(), at(t, "2026-01-01T00:00:00Z"))
		if fault == nil || fault.Field != c.field || !strings.Contains(fault.Detail, c.want) || fault.Allowed == "" {
			t.Errorf("%q in %q: %+v", c.cron, c.zone, fault)
		}
	}
	past := spec.Instant{Time: at(t, "2026-01-01T00:00:00Z")}
	if fault := calendar.Check(spec.Schedule{At: &past}, past.Time); fault == nil || fault.Field != "at" {
		t.Errorf("a time that has passed: %+v", fault)
	}
}

// FuzzReading: an accepted schedule fires, at whole minutes, each time once and in order, at the
// same times however the range is cut.
func FuzzReading(f *testing.F) {
	for _, line := range []string{"0 0 * * *", "@daily", "*/5 1-3,7 ? JAN-MAR sun", "TZ=", "@", "1-0 * * * *",
		"*/99999999999 * * * *", "0 0 29 2 *", "0 0 30 2 *", "30 2 * * *", "CRON_TZ=UTC 0 0 * * *", "@every 1s"} {
		f.Add(line, "UTC")
	}
	f.Add("30 2 * * *", "Europe/Berlin")
	f.Add("*/7 * * * *", "Australia/Lord_Howe")
	f.Add("0 0 * * *", "../../etc/passwd")
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	f.Fuzz(func(t *testing.T, line, zone string) {
		if line == "" {
			return
		}
		s := spec.Schedule{Cron: line, TimeZone: zone}
		if calendar.Check(s, now) != nil {
			return
		}
		c, _ := calendar.Read(s)
		last := now
		for _, next := range c.Upcoming(now, 5) {
			if !next.After(last) || next.Nanosecond() != 0 || next.Second() != 0 {
				t.Errorf("%q comes at %s after %s", line, next, last)
			}
			if again := c.Next(next.Add(-time.Second)); !again.Equal(next) {
				t.Errorf("%q comes at %s, but the second before says %s", line, next, again)
			}
			last = next
		}
		if last.Equal(now) {
			t.Errorf("%q is accepted and never comes", line)
		}
		if of, at := c.Fields(); len(of) == 0 || at == "" {
			t.Errorf("%q has the fields %v in %s", line, of, at)
		}
	})
}
