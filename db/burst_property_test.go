package db_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/db/dbtest/bursttest"
	"berth/internal/control/cloud"
)

// live moves a launch through a random life, of less than the hour that it has reserved.
func live(ctx context.Context, d *db.DB, m string, fate int) error {
	steps := [][]string{
		{`state = 'failed', due_at = NULL`},
		{`state = 'unresolved'`},
		{},
		{sendNow, `state = 'running', instance = 'i'`},
		{sendNow, `state = 'running', instance = 'i'`, `state = 'terminating', ended_first_at = now(), ended_last_at = now() + interval '60 s'`,
			`state = 'gone', due_at = NULL`},
		{sendNow, `state = 'unresolved'`, `state = 'failed', due_at = NULL`},
	}
	for _, s := range steps[fate] {
		if _, err := d.Pool().Exec(ctx, `UPDATE launches SET `+s+` WHERE machine = $1`, m); err != nil {
			return fmt.Errorf("%s: %w", s, err)
		}
	}
	return nil
}

const sendNow = `state = 'sent', sends = 1, request_hash = 'h', sent_at = now() - interval '50 minutes', last_sent_at = now()`

// Launches of forty tenants at once, with machines that fail, live and end: no launch is without permission or
// above its price, and the money of no tenant is exceeded in any snapshot.
func TestFortyTenantsStayWithinTheirPolicies(t *testing.T) {
	t.Parallel()
	// The policies of a draw may permit nothing, or all.
	for draws := 1; ; draws++ {
		launched, forbidden, limited := launchForTenants(t, rand.Uint64())
		t.Logf("%d launched, %d forbidden, %d beyond a limit", launched, forbidden, limited)
		if launched > 0 && forbidden > 0 && limited > 0 {
			return
		}
		if draws == 5 {
			t.Fatal("a case did not occur")
		}
	}
}

// launchForTenants requests launches for forty tenants with the policies of a seed, and checks the rules. It returns
// the numbers of launches, of refusals by a policy and of refusals for a limit.
func launchForTenants(t *testing.T, seed uint64) (all, refused, beyond int) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	d := dbtest.DB(t, db.Options{})
	f := bursttest.Create(t, d, rand.New(rand.NewPCG(seed, 0)), nil)
	ctx, done := t.Context(), make(chan struct{})
	var workers sync.WaitGroup
	var launched, forbidden, limited [6]int
	for w := range launched {
		workers.Go(func() {
			r := rand.New(rand.NewPCG(seed, uint64(w+1)))
			for i := range 60 {
				m := fmt.Sprintf("m%d-%d", w, i)
				request := cloud.Request{Pool: "p", Provider: []string{"lab", "lab", "far"}[r.IntN(3)],
					Offering: cloud.Offering{Region: []string{"eu-1", "eu-2", "us-1"}[r.IntN(3)], Type: "x",
						Market: []cloud.Market{cloud.OnDemand, cloud.Spot}[r.IntN(2)]},
					Price: []float64{0, 0.7654321, 1, 1, 2, 3, 6}[r.IntN(7)], Tenant: f.Tenants[r.IntN(len(f.Tenants))],
					Estimate: time.Duration(r.IntN(150)) * time.Minute}
				_, err := d.Launches.Request(ctx, request, []berth.MachineID{berth.MachineID(m)}, m, "leader")
				switch {
				case err == nil:
					launched[w]++
					err = live(ctx, d, m, r.IntN(6))
				case berth.IsSlug(err, db.SlugBurstForbidden):
					forbidden[w]++
					err = nil
				case berth.IsSlug(err, db.SlugBurstLimit):
					limited[w]++
					err = nil
				}
				if err == nil && r.IntN(8) == 0 {
					_, err = d.Spend.Settle(ctx)
				}
				if err != nil {
					t.Errorf("machine %s: %v", m, err)
					return
				}
			}
		})
	}
	go func() {
		workers.Wait()
		close(done)
	}()
	for open := true; open; {
		select {
		case <-done:
			open = false // and one last audit
		default:
		}
		faults, err := f.Audit(ctx, d)
		if err != nil {
			t.Fatal(err)
		}
		if len(faults) > 0 {
			t.Fatalf("broken rules:\n%s", strings.Join(faults, "\n"))
		}
	}
	sum := func(list [6]int) (n int) {
		for _, x := range list {
			n += x
		}
		return n
	}
	return sum(launched), sum(forbidden), sum(limited)
}
