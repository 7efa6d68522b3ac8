package chaos_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/e2e/rig"
	"berth/spec"
)

// Flags of make proof-idle.
var (
	idleMachines = flag.Int("idle-machines", 0, "machines of the proof of idle machines; 0: no proof")
	idleTime     = flag.Duration("idle-time", 5*time.Minute, "time for which the tenant's policy keeps an empty machine")
)

// idleSpread is the time within which the work of the machines ends.
const idleSpread = time.Minute

// TestIdleMachinesEndInTime launches a few machines for jobs, and measures the time from the end of the last work of each
// to the call that terminates it. In contrast to TestLaunchesUnderKills all pauses have their length in production, and
// no process is killed.
func TestIdleMachinesEndInTime(t *testing.T) {
	if *idleMachines == 0 {
		return
	}
	t.Parallel()
	p := startProof(t, 1, *idleTime)
	tenant := p.tenants[0]
	cpus, memory := spec.MilliCPU(2000), spec.MiB(64)
	for n := range *idleMachines {
		name := fmt.Sprintf("work-%d", n+1)
		job, _, err := tenant.api.Submit(t.Context(), spec.Job{Name: name, Image: "testprog", Command: []string{"trap-term", "143"},
			Resources: spec.Resources{CPUs: &cpus, Memory: &memory}}, name)
		p.must(err)
		tenant.open = append(tenant.open, job.ID)
	}
	began := time.Now()
	p.must(awaitFor(proofLimit, lastLook, "every job runs", func() error { return p.boardAll(t.Context()) }))
	t.Logf("%d jobs run after %s", len(tenant.open), since(began))
	for _, id := range slices.Clone(tenant.open) {
		time.Sleep(time.Duration(rand.Int64N(int64(idleSpread))) / time.Duration(*idleMachines))
		p.must(p.cancel(id))
	}
	p.must(awaitFor(proofLimit, lastLook, "every launch is gone", func() error {
		_, live, err := p.launches(t.Context())
		if err := p.farewell(); err != nil {
			return err
		}
		if err == nil && len(live) > 0 {
			err = fmt.Errorf("%d are not, such as %+v", len(live), live[0])
		}
		return err
	}))
	p.reportIdle()
}

// boardAll starts an agent on each new machine. It returns nil once every job runs.
func (p *proof) boardAll(ctx context.Context) error {
	_, live, err := p.launches(ctx)
	if err != nil {
		return err
	}
	for _, l := range live {
		if l.State != "running" || p.guests[l.Machine] != nil {
			continue
		}
		agent, err := p.board(l.Machine)
		if err != nil {
			return err
		}
		p.guests[l.Machine] = &guest{agent: agent, stays: true}
	}
	var running int
	err = p.database.QueryRow(ctx, `SELECT count(*) FROM jobs WHERE state = 'running'`).Scan(&running)
	if err == nil && running < *idleMachines {
		err = fmt.Errorf("%d jobs run, on %d machines", running, len(p.guests))
	}
	return err
}

// reportIdle prints the times of the proof of idle machines, and fails the test for each broken promise.
func (p *proof) reportIdle() {
	p.t.Helper()
	found, err := p.gather(p.t.Context())
	p.must(err)
	v := found.judge()
	for _, err := range v.faults {
		p.fail(err)
	}
	machines := map[berth.MachineID]bool{}
	for _, l := range found.rows {
		if l.IdleAt != nil {
			machines[l.Machine] = true
		}
	}
	if len(machines) != *idleMachines || len(v.idle) != *idleMachines {
		p.fail(fmt.Errorf("the scaler ended %d machines after their work, with %d calls: want %d", len(machines), len(v.idle), *idleMachines))
	}
	p.reportIdlePhases(found)
	seconds := func(d time.Duration) float64 { return d.Seconds() }
	var t rig.Table
	t.Add(rig.Figure{Name: "idle machine to terminate, least", Value: seconds(rig.Quantile(v.idle, 0)), Unit: "s"})
	t.Add(rig.Figure{Name: "idle machine to terminate, p50", Value: seconds(rig.Quantile(v.idle, 0.5)), Unit: "s"})
	t.Add(rig.Figure{Name: "idle machine to terminate, worst", Value: seconds(rig.Quantile(v.idle, 1)), Unit: "s",
		Must: rig.Limit(seconds(*idleTime + time.Minute)), Note: fmt.Sprintf("%d machines, idle_after %s, no faster clock", len(v.idle), *idleTime)})
	t.Print(os.Stdout)
	if early := rig.Quantile(v.idle, 0); early < *idleTime {
		p.fail(fmt.Errorf("a machine was terminated %s after its work: the policy keeps it for %s", early, *idleTime))
	}
	if n := t.Missed(); n > 0 {
		p.fail(fmt.Errorf("%d figures miss their limit", n))
	}
}

// reportIdlePhases prints how long each machine spent on the way from the end of its work to the call.
func (p *proof) reportIdlePhases(found evidence) {
	p.t.Helper()
	called := map[string]time.Time{}
	for _, c := range found.calls {
		if id := string(c.Machine); c.Call == "terminate" && called[id].IsZero() {
			called[id] = c.At
		}
	}
	rows, err := p.database.Query(p.t.Context(), `
		SELECT l.machine, l.empty_since - idle.at, drained.at - l.empty_since, l.stop_at - drained.at, l.stop_at
		FROM launches l
		CROSS JOIN LATERAL (SELECT max(a.released_at) AS at FROM allocations a WHERE a.machine_id = l.machine) idle
		CROSS JOIN LATERAL (
			SELECT max(e.at) AS at
			FROM machine_events e
			WHERE e.machine_id = l.machine AND e.state = 'draining' AND e.actor = 'scaler') drained
		WHERE l.stop_actor = 'scaler'
		ORDER BY l.machine`)
	p.must(err)
	var machine string
	var seen, kept, idled time.Duration
	var stop time.Time
	_, err = pgx.ForEachRow(rows, []any{&machine, &seen, &kept, &idled, &stop}, func() error {
		p.t.Logf("%s: seen empty after %.1f s, kept for %.1f s, drained for %.1f s, terminated after %.1f s",
			machine, seen.Seconds(), kept.Seconds(), idled.Seconds(), called[machine].Sub(stop).Seconds())
		return nil
	})
	p.must(err)
}
