package api_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// hours is a schedule with whole hours as its times.
func hours(name string) spec.Schedule {
	return spec.Schedule{Name: name, Cron: "@hourly", Job: &spec.Job{Image: "busybox"}}
}

func TestASchedulesWholeLife(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	alice := s.as("alice")
	made, created, err := alice.CreateSchedule(t.Context(), hours("hours"))
	if err != nil || !created || len(made.Next) != 5 || made.Overlap != spec.OverlapSkip || made.CatchUp.Std() != time.Hour || made.TimeZone != "UTC" || made.Job.Name != "hours" {
		t.Fatalf("made %+v, created %t, %v", made, created, err)
	}
	if until := time.Until(made.Next[0]); until > time.Hour || made.Next[0].Minute() != 0 {
		t.Errorf("next is %s", made.Next[0])
	}
	if again, created, err := alice.CreateSchedule(t.Context(), hours("hours")); err != nil || created || again.ID != made.ID {
		t.Errorf("made again: %t, %v", created, err)
	}
	other := hours("hours")
	other.Overlap = spec.OverlapAllow
	if _, _, err := alice.CreateSchedule(t.Context(), other); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("another of that name: %v", err)
	}

	fire, err := alice.RunSchedule(t.Context(), "hours", "")
	if err != nil || fire.Status != wire.FireSubmitted || fire.Job == nil || fire.Source != wire.FireByHand {
		t.Fatalf("run: %+v, %v", fire, err)
	}
	job, err := alice.Job(t.Context(), *fire.Job)
	if err != nil || job.Tenant != "a" || job.Name != "hours" {
		t.Errorf("its job is %+v, %v", job, err)
	}
	if busy, err := alice.RunSchedule(t.Context(), "hours", ""); err != nil || busy.Status != wire.FireSkipped || !strings.Contains(busy.Reason.Message, string(*fire.Job)) {
		t.Errorf("run while it lives: %+v, %v", busy, err)
	}
	if beside, err := alice.RunSchedule(t.Context(), "hours", spec.OverlapAllow); err != nil || beside.Status != wire.FireSubmitted {
		t.Errorf("run beside it: %+v, %v", beside, err)
	}

	if paused, err := alice.PauseSchedule(t.Context(), "hours", "holidays"); err != nil || !paused.Paused || paused.Note != "holidays" || len(paused.Next) != 0 {
		t.Errorf("paused: %+v, %v", paused, err)
	}
	if resumed, err := alice.ResumeSchedule(t.Context(), "hours", ""); err != nil || resumed.Paused || resumed.Note != "" || len(resumed.Next) != 5 || len(resumed.Fires) != 3 {
		t.Errorf("resumed: %+v, %v", resumed, err)
	}
	list, err := alice.Schedules(t.Context())
	if err != nil || len(list.Items) != 1 || len(list.Items[0].Fires) != 1 || len(list.Items[0].Next) == 0 {
		t.Errorf("list is %+v, %v", list, err)
	}
	if list, err := s.as("bob").Schedules(t.Context()); err != nil || len(list.Items) != 0 {
		t.Errorf("bob's list is %+v, %v", list, err)
	}
	if err := alice.DeleteSchedule(t.Context(), "hours"); err != nil {
		t.Error(err)
	}
	if _, err := alice.Schedule(t.Context(), "hours", 1); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("deleted: %v", err)
	}
	if _, err := alice.Job(t.Context(), job.ID); err != nil {
		t.Errorf("its job went with it: %v", err)
	}
}

func TestABackfillIsCountedAndBounded(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	alice := s.as("alice")
	if _, _, err := alice.CreateSchedule(t.Context(), hours("hours")); err != nil {
		t.Fatal(err)
	}
	span := func(from, to string) spec.Backfill {
		b := spec.Backfill{}
		var err error
		if b.From, err = spec.ParseInstant(from); err != nil {
			t.Fatal(err)
		}
		last, err := spec.ParseInstant(to)
		if err != nil {
			t.Fatal(err)
		}
		b.To = &last
		return b
	}
	day := span("2026-01-01T00:00:00Z", "2026-01-01T23:59:59Z")
	if r, err := alice.BackfillSchedule(t.Context(), "hours", day); err != nil || r.Times != 24 || r.Fires != 24 {
		t.Errorf("a day: %+v, %v", r, err)
	}
	longer := span("2025-12-31T22:00:00Z", "2026-01-01T12:00:00Z")
	if r, err := alice.BackfillSchedule(t.Context(), "hours", longer); err != nil || r.Times != 15 || r.Fires != 2 {
		t.Errorf("a range over its begin: %+v, %v", r, err)
	}
	for what, b := range map[string]spec.Backfill{
		"a year":        span("2025-01-01T00:00:00Z", "2025-12-31T00:00:00Z"),
		"the future":    span("2026-01-01T00:00:00Z", "2099-01-01T00:00:00Z"),
		"the wrong way": span("2026-01-02T00:00:00Z", "2026-01-01T00:00:00Z"),
	} {
		if _, err := alice.BackfillSchedule(t.Context(), "hours", b); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("%s: %v", what, err)
		}
	}
	x, err := alice.Schedule(t.Context(), "hours", 1000)
	if err != nil || len(x.Fires) != 26 || x.Fires[0].Status != wire.FireDue || x.Fires[0].Source != wire.FireByBackfill {
		t.Errorf("%d fires, %v", len(x.Fires), err)
	}
}

func TestAScheduleThatCannotBeIsRefusedWithEveryFault(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	for _, c := range []struct{ says, body, fields string }{
		{"two clocks", `{"name": "x", "cron": "@hourly", "every": "1h", "job": {"image": "b"}}`, "cron"},
		{"no clock, no work", `{"name": "x"}`, "cron job"},
		{"a cron line that nobody reads", `{"name": "x", "cron": "at noon", "job": {"image": "b"}}`, "cron"},
		{"a zone that is none", `{"name": "x", "cron": "@daily", "time_zone": "Mars", "job": {"image": "b"}}`, "time_zone"},
		{"a day that never comes", `{"name": "x", "cron": "0 0 31 4 *", "job": {"image": "b"}}`, "cron"},
		{"a time that has passed", `{"name": "x", "at": "2020-01-01T00:00:00Z", "job": {"image": "b"}}`, "at"},
		{"a time that is none", `{"name": "x", "at": "tomorrow", "job": {"image": "b"}}`, "at"},
		{"too often", `{"name": "x", "every": "500ms", "job": {"image": "b"}}`, "every"},
		{"a zone of nothing", `{"name": "x", "every": "1h", "time_zone": "UTC", "job": {"image": "b"}}`, "time_zone"},
		{"jitter beyond the interval", `{"name": "x", "every": "1m", "jitter": "2m", "job": {"image": "b"}}`, "jitter"},
		{"an overlap that is none", `{"name": "x", "cron": "@daily", "overlap": "maybe", "job": {"image": "b"}}`, "overlap"},
		{"a name that is none", `{"name": "X Y", "cron": "@daily", "job": {"image": "b", "name": "b"}}`, "name"},
		{"faults of its job", `{"name": "x", "cron": "@daily", "job": {"resources": {"gpus": 1.5}, "workdir": "./src", "colour": "red"}}`,
			"job.colour job.image job.resources.gpus job.workdir"},
		{"faults of its steps", `{"name": "x", "cron": "@daily", "pipeline": {"jobs": {"a": {"image": "b", "placement": {"constraint": "1 +"}}, "b": {"image": "b", "needs": ["c"]}}}}`,
			"pipeline.jobs.a.placement.constraint pipeline.jobs.b.needs[0]"},
		{"a secret that is not there", `{"name": "x", "cron": "@daily", "job": {"image": "b", "secrets": ["NOPE"]}}`, "job.secrets[0]"},
		{"a field that is none", `{"name": "x", "cron": "@daily", "job": {"image": "b"}, "tenant": "b"}`, "tenant"},
	} {
		a := s.call("alice", "POST", "/v1/schedules", c.body)
		got := map[string]bool{}
		for _, e := range a.problem.Errors {
			got[e.Field] = true
		}
		for _, f := range strings.Fields(c.fields) {
			if !got[f] {
				t.Errorf("%s: nothing is said of %s: %s", c.says, f, a.body)
			}
		}
		if a.status != http.StatusUnprocessableEntity || a.problem.Code != berth.SlugInvalidSpec || len(got) != len(strings.Fields(c.fields)) {
			t.Errorf("%s: %d %s", c.says, a.status, a.body)
		}
	}
	s.machine("m1", 2, 1024, 0)
	a := s.call("alice", "POST", "/v1/schedules", `{"name": "x", "cron": "@daily", "job": {"image": "b", "resources": {"gpus": 8}}}`)
	if a.status != http.StatusUnprocessableEntity || a.problem.Code != berth.SlugUnsatisfiable {
		t.Errorf("what no machine could hold: %d %s", a.status, a.body)
	}
}

// A job that was valid when the schedule was created may be invalid when it fires:
// the fire reports this.
func TestAFireIsJudgedAsAnySubmission(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	alice := s.as("alice")
	greedy := hours("greedy")
	greedy.Job.Resources.GPUs = 8000
	if _, _, err := alice.CreateSchedule(t.Context(), greedy); err != nil { // no machine has joined yet
		t.Fatal(err)
	}
	s.machine("m1", 2, 1024, 0)
	fire, err := alice.RunSchedule(t.Context(), "greedy", "")
	if err != nil || fire.Status != wire.FireRefused || fire.Reason.Code != berth.SlugUnsatisfiable || !strings.Contains(fire.Reason.Message, "resources.gpus") {
		b, _ := json.Marshal(fire)
		t.Errorf("fire is %s, %v", b, err)
	}
	if list, err := alice.Jobs(t.Context(), client.JobsQuery{Name: "greedy"}); err != nil || len(list.Items) != 0 {
		t.Errorf("jobs are %+v, %v", list, err)
	}
}
