package db_test

import (
	"strings"
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
)

// stopped returns the reason for which the scaler ends a launch, or "".
func (s *stage) stopped(m berth.MachineID) string {
	s.t.Helper()
	list, _, err := s.db.Scaling.Fleet(s.t.Context(), s.term())
	if err != nil {
		s.t.Fatal(err)
	}
	for _, l := range list {
		if l.Machine == m && l.StopAt.IsZero() == (l.StopActor == db.ScalerActor) {
			s.t.Errorf("stop at %s by %s", l.StopAt, l.StopActor)
		}
		if l.Machine == m {
			return l.StopReason
		}
	}
	s.t.Fatalf("machine %s is not in the fleet", m)
	return ""
}

func TestMachinesThatTakeNoWorkForLongAreEnded(t *testing.T) {
	t.Parallel()
	const lost = `UPDATE machines SET state = 'lost' WHERE id = 'm0'`
	const silent = `UPDATE machines SET engine_silent_since = now() - interval '16 min' WHERE id = 'm0'`
	for _, c := range []struct {
		name, change, age, more string
		work                    bool
		want                    string
	}{
		{"lost", lost, "16 min", "", false, "lost"},
		{"lost with work", lost, "16 min", "", true, "lost"},
		{"lost a moment ago", lost, "14 min", "", false, ""},
		{"lost before a restore", lost, "16 min", `UPDATE cluster SET incarnation = incarnation + 1`, false, ""},
		{"lost, with unknown containers", lost, "16 min", `UPDATE machines SET pending_kills = '{7}'`, false, ""},
		{"lost, of another host", lost, "16 min", `UPDATE machines SET joined_token = 'other'`, false, ""},
		{"lost, of an admin", lost, "16 min", `UPDATE launches SET actor = 'operator:x'`, false, "-"},
		{"silent engine", silent, "1 h", "", false, "empty"},
		{"silent engine with work", silent, "1 h", "", true, ""},
		{"closed after failures", `SELECT set_config('berth.actor', 'leader', false);
			UPDATE machines SET state = 'draining', reason = 'failed often', drain_reason = 'failed often' WHERE id = 'm0'`, "16 min", "", false, "failed often"},
		{"closed by an admin", `SELECT set_config('berth.actor', 'operator:x', false);
			UPDATE machines SET state = 'draining', reason = 'x', drain_reason = 'x' WHERE id = 'm0'`, "16 min", "", false, ""},
		{"healthy", `SELECT 1`, "1 h", "", false, ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			s := newFleet(t)
			s.serves("m0")
			if c.work {
				s.place(s.submit(nil), "m0")
			}
			mustExecAll(t, s, c.change)
			mustExec(t, s.pool, `ALTER TABLE machines DISABLE TRIGGER USER`)
			mustExec(t, s.pool, `UPDATE machines SET state_at = now() - $1::interval WHERE id = 'm0'`, c.age)
			mustExec(t, s.pool, `ALTER TABLE machines ENABLE TRIGGER USER`)
			if c.more != "" {
				mustExec(t, s.pool, c.more)
			}
			if c.want == "-" {
				if _, _, err := s.db.Scaling.Fleet(t.Context(), s.term()); err != nil {
					t.Fatal(err)
				}
				if n := one[int](s, `SELECT count(*) FROM launches WHERE stop_at IS NOT NULL`); n != 0 {
					t.Error("the machine of an admin is ended")
				}
				return
			}
			if got := s.stopped("m0"); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
				t.Errorf("stopped for %q, want %q", got, c.want)
			}
		})
	}
}

// mustExecAll runs statements in one session.
func mustExecAll(t *testing.T, s *stage, sql string) {
	t.Helper()
	tx, err := s.beside().Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(sql, ";") {
		if _, err := tx.Exec(t.Context(), part); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := tx.Exec(t.Context(), `SELECT set_config('berth.actor', '', false)`); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func TestMachinesOfATenantThatHasReachedDrainAreEnded(t *testing.T) {
	t.Parallel()
	s := newFleet(t)
	limit := func(usd float64) {
		t.Helper()
		setBurst(t, s.db, "default", spec.Burst{Allow: []string{"lab/eu-1"}, Spend: &spec.BurstSpend{Limit: usd, StopNew: 1}})
	}
	mustExec(t, s.pool, `INSERT INTO tenants (id, parent) VALUES ('below', 'default')`)
	limit(100)
	for m, tenant := range map[string]string{"m0": "default", "v1": "below"} {
		mustExec(t, s.pool, `INSERT INTO launches (machine, n, pool, provider, region, type, market, incarnation, token, actor, tenant, price, reserved)
			VALUES ($1, 1, 'p', 'lab', 'eu-1', 'x', 'on_demand', 1, $1, 'scaler', $2, 2, 2000000)`, m, tenant)
	}
	for _, change := range []string{
		`state = 'sent', sends = 1, request_hash = 'h', sent_at = now(), last_sent_at = now()`,
		`state = 'running', instance = 'i'`, `state = 'serving', joined_at = now()`,
	} {
		mustExec(t, s.pool, `UPDATE launches SET `+change+` WHERE machine = 'm0'`)
	}
	s.place(s.submit(nil), "m0") // work does not keep the machine
	mustExec(t, s.pool, `INSERT INTO launches (machine, n, pool, provider, region, type, market, incarnation, token, actor)
		VALUES ('hand', 1, 'p', 'lab', 'eu-1', 'x', 'on_demand', 1, 'hand', 'operator:x')`)
	for _, m := range []berth.MachineID{"m0", "v1"} {
		if why := s.stopped(m); why != "" {
			t.Errorf("%s is ended below the limit: %s", m, why)
		}
	}
	limit(4)
	for _, m := range []berth.MachineID{"m0", "v1"} {
		if why := s.stopped(m); !strings.Contains(why, "spend of tenant default") {
			t.Errorf("%s: %q", m, why)
		}
	}
	if n := one[int](s, `SELECT count(*) FROM launches WHERE stop_at IS NOT NULL`); n != 2 {
		t.Errorf("%d launches are ended", n)
	}
}
