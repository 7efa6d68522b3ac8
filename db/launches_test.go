package db_test

import (
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/cloud"
)

const insertLaunch = `INSERT INTO launches (machine, n, pool, provider, region, type, market, incarnation, token, actor, state)
	VALUES ($1, $2, 'p', 'test', 'r', 'x', 'spot', 1, $3, 'user:test', $4)`

func TestTheDatabaseHoldsTheLifeOfALaunch(t *testing.T) {
	t.Parallel()
	pool := open(t)
	mustExec(t, pool, insertLaunch, "m", 1, "t1", "requested")
	refuses(t, pool, "23505", insertLaunch, "m", 3, "t3", "requested")
	refuses(t, pool, "BT015", insertLaunch, "o", 1, "t4", "running")
	refuses(t, pool, "23505", insertLaunch, "m", 2, "t2", "requested") // the first is not settled
	refuses(t, pool, "23505", insertLaunch, "o", 1, "t1", "requested") // the token of another launch
	refuses(t, pool, "BT015", `UPDATE launches SET state = 'running', instance = 'i'`)
	refuses(t, pool, "BT015", `UPDATE launches SET token = 'other'`)
	refuses(t, pool, "BT015", `UPDATE launches SET type = 'bigger'`)
	refuses(t, pool, "23514", `UPDATE launches SET state = 'sent', sends = 1`) // a send without a hash
	mustExec(t, pool, `UPDATE launches SET state = 'sent', sends = 1, request_hash = 'h', request = 'r', sent_at = now(), last_sent_at = now()`)
	refuses(t, pool, "BT015", `UPDATE launches SET request_hash = 'other'`)
	refuses(t, pool, "BT015", `UPDATE launches SET request = 'other'`)
	refuses(t, pool, "BT015", `UPDATE launches SET sends = 0`)
	refuses(t, pool, "23514", `UPDATE launches SET refusals = 2`)
	refuses(t, pool, "23514", `UPDATE launches SET state = 'running'`) // without an instance
	mustExec(t, pool, `UPDATE launches SET state = 'running', instance = 'i', request = NULL`)
	refuses(t, pool, "BT015", `UPDATE launches SET instance = 'j'`)
	refuses(t, pool, "BT015", `UPDATE launches SET sends = 2`)
	refuses(t, pool, "BT015", `UPDATE launches SET state = 'gone', due_at = NULL`)
	mustExec(t, pool, `UPDATE launches SET state = 'terminating'`)
	refuses(t, pool, "23514", `UPDATE launches SET state = 'gone', due_at = NULL`)
	refuses(t, pool, "23514", `UPDATE launches SET state = 'gone', due_at = NULL, ended_first_at = now(), ended_last_at = now() + interval '59 s'`)
	mustExec(t, pool, `UPDATE launches SET state = 'gone', due_at = NULL, ended_first_at = now(), ended_last_at = now() + interval '60 s'`)
	refuses(t, pool, "BT015", insertLaunch, "m", 1, "t2", "requested")
	mustExec(t, pool, insertLaunch, "m", 2, "t2", "requested")
	refuses(t, pool, "BT015", `UPDATE launches SET state = 'terminating' WHERE n = 1`)
}

// launchOf requests one launch.
func launchOf(d *db.DB, t *testing.T, id berth.MachineID, key string) ([]cloud.Record, error) {
	t.Helper()
	return d.Launches.Request(t.Context(), cloud.Request{Pool: "p", Provider: "test", Price: 2.5,
		Offering: cloud.Offering{Region: "r", Type: "x", Market: cloud.Spot}}, []berth.MachineID{id}, key, "user:test")
}

func TestARepeatedRequestReturnsTheFirstLaunch(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	first, err := launchOf(d, t, "m", "key")
	if err != nil {
		t.Fatal(err)
	}
	again, err := launchOf(d, t, "m", "key")
	if err != nil || again[0].Token != first[0].Token || again[0].N != 1 {
		t.Errorf("repeated: %+v, %v", again, err)
	}
	for _, key := range []string{"other", ""} {
		if _, err := launchOf(d, t, "m", key); berth.CodeOf(err) != berth.CodeConflict {
			t.Errorf("key %q: %v", key, err)
		}
	}
	id, err := d.Cluster.ID(t.Context())
	if want := cloud.Token(id, "1", "m", 1); err != nil || first[0].Token != want {
		t.Errorf("token %s, want %s", first[0].Token, want)
	}
	list, next, err := d.Launches.List(t.Context(), db.LaunchFilter{}, db.Paging{})
	if err != nil || next != "" || len(list) != 1 || list[0].Price != 2.5 || list[0].State != "requested" {
		t.Errorf("list %+v, %q, %v", list, next, err)
	}
}

func TestALaunchOfAMachineInServiceIsRefused(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	if _, err := launchOf(s.db, t, "m1", ""); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("launch of m1: %v", err)
	}
}

func TestAStopMakesALaunchDueAndStaysDue(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	list, err := launchOf(d, t, "m", "")
	if err != nil {
		t.Fatal(err)
	}
	overdue := func() int {
		t.Helper()
		ids, err := d.Launches.Overdue(t.Context(), 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		return len(ids)
	}
	if err := d.Launches.Due(t.Context(), list[0], time.Hour); err != nil || overdue() != 0 {
		t.Fatalf("%d overdue, %v", overdue(), err)
	}
	hints := d.Hub().Subscribe(db.TopicLaunch, "m")
	defer hints.Close()
	_, err = d.Launches.Change(t.Context(), list[0].Ref(), func(r cloud.Record, now time.Time) (cloud.Record, error) {
		return r.WithStop(cloud.Stop{Actor: "user:test"}, now)
	})
	if err != nil || overdue() != 1 {
		t.Errorf("%d overdue, %v", overdue(), err)
	}
	select {
	case <-hints.C:
	default:
		t.Error("the stop sent no hint")
	}
	// A step that began before the stop returns its pause.
	if err := d.Launches.Due(t.Context(), list[0], time.Hour); err != nil || overdue() != 1 {
		t.Errorf("%d overdue, %v", overdue(), err)
	}
}

// While the listing after a restore fails, a launch says that it waits. An end that is requested since does not wait.
func TestALaunchSaysThatItWaitsForAListing(t *testing.T) {
	t.Parallel()
	d, ctx := dbtest.DB(t, db.Options{}), t.Context()
	list, err := launchOf(d, t, "m", "")
	if err != nil {
		t.Fatal(err)
	}
	run(t, d.Pool(), "m", "1 hour")
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'terminating', reason = 'enough', stop_at = now(), stop_actor = 'operator:a',
		stop_incarnation = 1`)
	wants := func(when, reason string, act cloud.Act) {
		t.Helper()
		l, err := d.Launches.Get(ctx, list[0].Ref())
		if err != nil || l.Reason != reason {
			t.Errorf("%s: reason %q, %v; want %q", when, l.Reason, err, reason)
		}
		r, now, err := d.Launches.Current(ctx, "m")
		if s := cloud.Next(r, cloud.DefaultLimits, now); err != nil || s.Act != act {
			t.Errorf("%s: %+v, %v; want %s", when, s, err, act)
		}
	}
	const waits = "enough; waits for the first complete list of the cloud after the restore"
	wants("before a restore", "enough", cloud.ActTerminate)
	mustExec(t, d.Pool(), `UPDATE cluster SET incarnation = 2`)
	wants("after it", waits, cloud.ActFind)
	_, err = d.Launches.Change(ctx, list[0].Ref(), func(r cloud.Record, now time.Time) (cloud.Record, error) {
		return r.WithStop(cloud.Stop{Actor: "operator:a"}, now)
	})
	if err != nil {
		t.Fatal(err)
	}
	wants("an admin's request", "enough", cloud.ActTerminate)
	mustExec(t, d.Pool(), `UPDATE cluster SET incarnation = 3`)
	wants("after another restore", waits, cloud.ActFind)
	mustExec(t, d.Pool(), `UPDATE launches SET stop_incarnation = 3, stop_actor = 'scaler'`)
	wants("the scaler's request", waits, cloud.ActFind)
	if err := d.Launches.Listed(ctx, "test", 3); err != nil {
		t.Fatal(err)
	}
	wants("after the listing", "enough", cloud.ActTerminate)
}
