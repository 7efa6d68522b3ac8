package runtimes_test

import (
	"slices"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/runtimes"
	"berth/placement"
)

func open(t *testing.T) *db.DB {
	t.Helper()
	d, err := db.Open(t.Context(), dbtest.URL(t), db.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(d.Close)
	return d
}

// ran adds jobs of a name that have succeeded after so many seconds.
func ran(t *testing.T, d *db.DB, name string, seconds ...float64) {
	t.Helper()
	for _, s := range seconds {
		_, err := d.Pool().Exec(t.Context(), `
			INSERT INTO jobs (id, tenant, name, class, priority, preemptible, state, grace_ms, lost_after_ms, actor, submitted_at, finished_at, ran_ms)
			VALUES (gen_random_uuid(), 'a', $1, 'c', 500, true, 'succeeded', 0, 0, 'test', clock_timestamp(), now(), (1000 * $2::float8)::bigint)`, name, s)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func row(name string, state berth.State) db.QueueJob {
	return db.QueueJob{ID: berth.NewJobID(time.Now()), Tenant: "a", Name: name, State: state}
}

func read(t *testing.T, b *runtimes.Book, rows ...db.QueueJob) []berth.JobID {
	t.Helper()
	changed, err := b.Read(t.Context(), rows)
	if err != nil {
		t.Fatal(err)
	}
	return changed
}

var shortest = placement.Policy{Order: placement.SRSF}

func TestTheMedianOfTheLatestFiveIsExpected(t *testing.T) {
	t.Parallel()
	d := open(t)
	ran(t, d, "one", 0.25)
	ran(t, d, "two", 90.25, 30.5)
	ran(t, d, "six", 9000, 100, 5000, 60, 70, 80)
	for name, want := range map[string]struct {
		expected time.Duration
		by       string
	}{
		"none": {0, ""},
		"one":  {250 * time.Millisecond, "as the latest job of this name did"},
		"two":  {time.Minute, "the median of the latest 2 jobs of this name"},
		"six":  {80 * time.Second, "the median of the latest 5 jobs of this name"},
	} {
		expected, by, err := runtimes.New(d, shortest, 0).Ask(t.Context(), db.Work{Tenant: "a", Name: name})
		if err != nil || expected != want.expected || by != want.by {
			t.Errorf("%s: %s, %q, %v; want %+v", name, expected, by, err, want)
		}
	}
}

// New works are read at once, and possibly changed ones periodically: many ends in
// one second cost one reading.
func TestWorksAreReadAgainNowAndThen(t *testing.T) {
	t.Parallel()
	d := open(t)
	ran(t, d, "x", 60)
	b := runtimes.New(d, shortest, time.Hour)
	first := row("x", berth.Queued)
	rows := []db.QueueJob{first}
	if read(t, b, rows...); rows[0].Expected != time.Minute {
		t.Errorf("a new job is expected to run %s", rows[0].Expected)
	}
	ran(t, d, "x", 120)
	ran(t, d, "y", 10)
	second, other := row("x", berth.Retrying), row("y", berth.Queued)
	rows = []db.QueueJob{row("x", berth.Succeeded), second, other}
	changed := read(t, b, rows...)
	if len(changed) > 0 && !slices.Equal(changed, []berth.JobID{other.ID}) || rows[1].Expected != time.Minute || rows[2].Expected != 10*time.Second {
		t.Errorf("within the hour: changed %v, rows %+v", changed, rows)
	}
	at := b.Fresh() // for the next leader
	rows = []db.QueueJob{first, second}
	if read(t, at, rows...); rows[0].Expected != 90*time.Second || rows[1].Expected != 90*time.Second {
		t.Errorf("afterwards: %+v", rows)
	}
}

// A Book forgets the jobs that are over, or have a limit, and with the last of
// them the name.
func TestABookForgetsWhatIsOver(t *testing.T) {
	t.Parallel()
	d := open(t)
	ran(t, d, "x", 60)
	b := runtimes.New(d, shortest, 0)
	first, second := row("x", berth.Queued), row("x", berth.Running)
	read(t, b, first, second)
	ran(t, d, "x", 180)
	first.State = berth.Succeeded
	if changed := read(t, b, first); !slices.Equal(changed, []berth.JobID{second.ID}) {
		t.Errorf("changed %v", changed)
	}
	if expected, _ := b.Of(second.ID); expected != 2*time.Minute {
		t.Errorf("expected %s", expected)
	}
	if expected, _ := b.Of(first.ID); expected != 0 {
		t.Errorf("a job that is over is expected to run %s", expected)
	}
	second.RunLimit = time.Minute
	read(t, b, second)
	ran(t, d, "x", 200)
	if changed := read(t, b, row("x", berth.Succeeded)); len(changed) > 0 {
		t.Errorf("nobody waits, and %v changed", changed)
	}
	if expected, _ := b.Of(second.ID); expected != 0 {
		t.Errorf("a job with a limit is expected to run %s", expected)
	}
}
