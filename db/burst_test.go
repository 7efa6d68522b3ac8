package db_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/cloud"
	"berth/spec"
	"berth/wire"
)

// cheap is a request for a machine at $2 an hour on demand.
var cheap = cloud.Request{Pool: "p", Provider: "lab", Price: 2,
	Offering: cloud.Offering{Region: "eu-1", Type: "x", Market: cloud.OnDemand}}

// budgeted returns a database with tenants org, org/vision below it and lab, and a policy of org with that
// limit a month.
func budgeted(t *testing.T, limit float64) *db.DB {
	t.Helper()
	d := dbtest.DB(t, db.Options{})
	for _, n := range []spec.NewTenant{{ID: "org"}, {ID: "vision", Parent: "org"}, {ID: "speech", Parent: "org"}, {ID: "lone"}} {
		if err := d.Tenants.Create(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	setBurst(t, d, "org", spec.Burst{Allow: []string{"lab/eu-1"}, Spot: spec.SpotPrefer,
		Spend: &spec.BurstSpend{Limit: limit, StopNew: 1}})
	return d
}

func setBurst(t *testing.T, d *db.DB, tenant berth.TenantID, b spec.Burst) {
	t.Helper()
	if err := d.Burst.Set(t.Context(), tenant, b, "user:admin"); err != nil {
		t.Fatal(err)
	}
}

// launchFor requests one launch of a machine for a tenant.
func launchFor(ctx context.Context, d *db.DB, tenant berth.TenantID, r cloud.Request, m berth.MachineID, key string) error {
	r.Tenant = tenant
	_, err := d.Launches.Request(ctx, r, []berth.MachineID{m}, key, "leader")
	return err
}

// spentBy returns the spend of a tenant.
func spentBy(t *testing.T, d *db.DB, tenant berth.TenantID, at time.Time) db.Spent {
	t.Helper()
	all, err := d.Spend.Of(t.Context(), at)
	if err != nil {
		t.Fatal(err)
	}
	return all[tenant]
}

// wantRefusal reports an error unless err has the slug and names the text.
func wantRefusal(t *testing.T, err error, slug, text string) {
	t.Helper()
	if !berth.IsSlug(err, slug) || !strings.Contains(err.Error(), text) {
		t.Errorf("got %v, want %s with %q", err, slug, text)
	}
}

func TestALaunchNeedsThePermissionOfItsTenant(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 100), t.Context()
	setBurst(t, d, "vision", spec.Burst{MaxPricePerHour: 3, Spot: spec.SpotNever})
	wantRefusal(t, launchFor(ctx, d, "lone", cheap, "m", ""), db.SlugBurstForbidden, "neither it nor a tenant above it")
	wantRefusal(t, launchFor(ctx, d, "unknown", cheap, "m", ""), db.SlugBurstForbidden, "neither it nor a tenant above it")
	other := func(change func(r *cloud.Request)) cloud.Request {
		r := cheap
		change(&r)
		return r
	}
	elsewhere := other(func(r *cloud.Request) { r.Region = "us-1" })
	wantRefusal(t, launchFor(ctx, d, "vision", elsewhere, "m", ""), db.SlugBurstForbidden, "allowed are lab/eu-1")
	dear := other(func(r *cloud.Request) { r.Price = 3.5 })
	wantRefusal(t, launchFor(ctx, d, "vision", dear, "m", ""), db.SlugBurstForbidden, "above max_price_per_hour")
	spot := other(func(r *cloud.Request) { r.Market = cloud.Spot })
	wantRefusal(t, launchFor(ctx, d, "vision", spot, "m", ""), db.SlugBurstForbidden, "spot machines are not allowed")
	unknown := other(func(r *cloud.Request) { r.Price = 0 })
	wantRefusal(t, launchFor(ctx, d, "vision", unknown, "m", ""), db.SlugBurstForbidden, "unknown")
	for m, r := range map[berth.MachineID]cloud.Request{"dear": dear, "spot": spot} {
		if err := launchFor(ctx, d, "speech", r, m, ""); err != nil { // the policy of org alone
			t.Errorf("%s: %v", m, err)
		}
	}
	if err := launchFor(ctx, d, "", elsewhere, "own", ""); err != nil { // an admin's own
		t.Error(err)
	}
	if s := spentBy(t, d, "org", time.Now()); s.Reserved != 5.5 || s.Settled != 0 || s.Limit != 100 || s.Room != 94.5 {
		t.Errorf("spend of org: %+v", s)
	}
}

// A launch reserves money for its tenant and each tenant above it, once for each request id.
func TestALaunchReservesMoneyOnTheWholePath(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 7), t.Context()
	setBurst(t, d, "vision", spec.Burst{Spend: &spec.BurstSpend{Limit: 5, StopNew: 1, Period: spec.SpendDay}})
	long := cheap
	long.Estimate = 2 * time.Hour
	if err := launchFor(ctx, d, "vision", long, "m1", "key"); err != nil {
		t.Fatal(err)
	}
	if err := launchFor(ctx, d, "vision", long, "m1", "key"); err != nil {
		t.Errorf("repeated: %v", err)
	}
	for tenant, room := range map[berth.TenantID]float64{"vision": 1, "org": 3, "speech": 3} {
		if s := spentBy(t, d, tenant, time.Now()); s.Room != room {
			t.Errorf("%s: %+v, want room %g", tenant, s, room)
		}
	}
	wantRefusal(t, launchFor(ctx, d, "vision", cheap, "m2", ""), db.SlugBurstLimit, "tenant vision has used or reserved $4.00")
	if err := launchFor(ctx, d, "speech", cheap, "m3", ""); err != nil {
		t.Fatal(err)
	}
	wantRefusal(t, launchFor(ctx, d, "speech", cheap, "m4", ""), db.SlugBurstLimit, "tenant org has used or reserved $6.00")
	// A repeat is no new launch, also without money left.
	if err := launchFor(ctx, d, "speech", cheap, "m3", ""); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a second launch of m3: %v", err)
	}
	// A launch that fails returns its reservation; one of unknown outcome keeps it.
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'unresolved' WHERE machine = 'm1'`)
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'failed', due_at = NULL WHERE machine = 'm3'`)
	if s := spentBy(t, d, "org", time.Now()); s.Reserved != 4 || s.Settled != 0 || s.Room != 3 {
		t.Errorf("after a failure: %+v", s)
	}
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'failed', due_at = NULL WHERE machine = 'm1'`)
	if s := spentBy(t, d, "org", time.Now()); s.Reserved != 0 || s.Settled != 0 {
		t.Errorf("after the confirmation that no instance exists: %+v", s)
	}
}

func TestMachinesAndGrowthAreBounded(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 1000), t.Context()
	setBurst(t, d, "vision", spec.Burst{MaxMachines: 2})
	setBurst(t, d, "speech", spec.Burst{Grow: &spec.BurstGrow{Machines: 1, Per: spec.Duration(time.Hour)}})
	three := cheap
	three.Tenant = "vision"
	_, err := d.Launches.Request(ctx, three, []berth.MachineID{"a", "b", "c"}, "", "leader")
	wantRefusal(t, err, db.SlugBurstLimit, "max_machines is 2")
	if s := spentBy(t, d, "vision", time.Now()); s.Reserved != 0 {
		t.Errorf("a refused gang reserves %+v", s)
	}
	if err := launchFor(ctx, d, "speech", cheap, "d", ""); err != nil {
		t.Fatal(err)
	}
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'failed', due_at = NULL`) // without a call of the cloud
	if err := launchFor(ctx, d, "speech", cheap, "e", ""); err != nil {
		t.Errorf("a launch after one that was never sent: %v", err)
	}
	mustExec(t, d.Pool(), `
		UPDATE launches
		SET state = 'sent', sends = 1, request_hash = 'h', sent_at = now(), last_sent_at = now()
		WHERE machine = 'e'`)
	mustExec(t, d.Pool(), `
		UPDATE launches
		SET state = 'failed', due_at = NULL, refusals = 1, error_kind = 'capacity'
		WHERE machine = 'e'`)
	wantRefusal(t, launchFor(ctx, d, "speech", cheap, "f", ""), db.SlugBurstLimit, "grow allows 1")
}

// run moves a launch to the state running, with an instance that was requested a time ago.
func run(t *testing.T, pool *pgxpool.Pool, m, ago string) {
	t.Helper()
	mustExec(t, pool, `UPDATE launches SET state = 'sent', sends = 1, request_hash = 'h', sent_at = now() - $2::interval,
		last_sent_at = now() WHERE machine = $1`, m, ago)
	mustExec(t, pool, `UPDATE launches SET state = 'running', instance = 'i-' || machine WHERE machine = $1`, m)
}

// Costs move from the reservation to the days of the machine's life, and add up to the micro-dollar.
func TestCostsAreSettledByDay(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 1000), t.Context()
	pool := d.Pool()
	odd := cheap
	odd.Price = 1.234567
	if err := launchFor(ctx, d, "vision", odd, "m1", ""); err != nil {
		t.Fatal(err)
	}
	run(t, pool, "m1", "50 hours 7 seconds")
	for range 2 {
		if n, err := d.Spend.Settle(ctx); err != nil || n != 1 {
			t.Fatal(n, err)
		}
	}
	mustExec(t, pool, `UPDATE launches SET state = 'terminating', ended_first_at = now(), ended_last_at = now() + interval '60 s'`)
	mustExec(t, pool, `UPDATE launches SET state = 'gone', due_at = NULL`)
	if n, err := d.Spend.Settle(ctx); err != nil || n != 0 {
		t.Fatal(n, err)
	}
	var reserved, settled, cost, days, byDay int64
	if err := pool.QueryRow(ctx, `
		SELECT reserved, settled, launch_cost(price, sent_at, ended_first_at), (SELECT count(*) FROM spend),
			(SELECT sum(settled) FROM spend WHERE tenant = 'vision')
		FROM launches`).Scan(&reserved, &settled, &cost, &days, &byDay); err != nil {
		t.Fatal(err)
	}
	if reserved != 0 || settled != cost || byDay != cost || days < 3 || days > 4 || cost < 50*1234567 {
		t.Errorf("reserved %d, settled %d, by day %d in %d days, want %d", reserved, settled, byDay, days, cost)
	}
	if s := spentBy(t, d, "org", time.Now()); s.Settled <= 0 || s.Reserved != 0 {
		t.Errorf("spend %+v", s)
	}
	// The next month has none of these costs.
	if s := spentBy(t, d, "org", time.Now().AddDate(0, 2, 0)); s.Settled != 0 || s.Room != 1000 {
		t.Errorf("spend of another period: %+v", s)
	}
}

// A machine that lives on in the next period keeps the rest of its reservation there.
func TestAReservationGoesOnInTheNextPeriod(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 1000), t.Context()
	long := cheap
	long.Estimate = 10 * time.Hour
	if err := launchFor(ctx, d, "vision", long, "m1", ""); err != nil {
		t.Fatal(err)
	}
	run(t, d.Pool(), "m1", "1 hour")
	if _, err := d.Spend.Settle(ctx); err != nil {
		t.Fatal(err)
	}
	now := spentBy(t, d, "org", time.Now().AddDate(0, 0, -1))
	next := spentBy(t, d, "org", time.Now().AddDate(0, 2, 0))
	if total := now.Reserved + now.Settled; math.Abs(total-20) > 1e-6 || now.Settled < 2 || next.Settled != 0 || next.Reserved != now.Reserved {
		t.Errorf("now %+v, next %+v", now, next)
	}
}

// The triggers hold the money, whichever statement creates a launch.
func TestTheDatabaseHoldsReservations(t *testing.T) {
	t.Parallel()
	d := budgeted(t, 5)
	pool := d.Pool()
	const insert = `INSERT INTO launches (machine, n, pool, provider, region, type, market, incarnation, token, actor, tenant, price, reserved)
		VALUES ($1, 1, 'p', 'lab', 'r', 'x', 'spot', 1, $1, 'leader', $2, $3, $4)`
	refuses(t, pool, "BT016", insert, "a", "lone", 1.0, 1_000_000)   // no policy
	refuses(t, pool, "BT016", insert, "a", "vision", 0.0, 1_000_000) // an unknown price
	refuses(t, pool, "BT016", insert, "a", "vision", 1.0, 999_999)   // less than an hour
	refuses(t, pool, "BT016", insert, "a", "vision", 6.0, 6_000_000) // more than org's limit
	mustExec(t, pool, insert, "a", "vision", 5.0, 5_000_000)
	refuses(t, pool, "BT016", insert, "b", "speech", 0.000001, 1)
	mustExec(t, pool, insert, "b", "", 9.0, 9_000_000) // an admin's own
	for _, change := range []string{"tenant = 'speech'", "price = 1", "reserved = 0", "settled = 1"} {
		refuses(t, pool, "BT016", `UPDATE launches SET `+change+` WHERE machine = 'a'`)
	}
	mustExec(t, pool, `UPDATE launches SET settled_to = now() + interval '1 hour'`) // no instance
	if s := spentBy(t, d, "org", time.Now()); s.Reserved != 5 || s.Settled != 0 {
		t.Errorf("spend %+v", s)
	}
}

// Launches below one limit at once never reserve more than it has.
func TestLaunchesAtOnceShareTheLimit(t *testing.T) {
	t.Parallel()
	d := budgeted(t, 10) // five launches
	results := make(chan error)
	for i := range 20 {
		tenant := []berth.TenantID{"vision", "speech", "org"}[i%3]
		go func() {
			results <- launchFor(t.Context(), d, tenant, cheap, berth.MachineID(fmt.Sprintf("m%d", i)), "")
		}()
	}
	launched := 0
	for range 20 {
		switch err := <-results; {
		case err == nil:
			launched++
		case !berth.IsSlug(err, db.SlugBurstLimit):
			t.Error(err)
		}
	}
	if s := spentBy(t, d, "org", time.Now()); launched != 5 || s.Reserved != 10 || s.Room != 0 {
		t.Errorf("%d launched, spend %+v", launched, s)
	}
}

func TestPoliciesGoDownTheTree(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 100), t.Context()
	setBurst(t, d, "vision", spec.Burst{MaxMachines: 2})
	all, err := d.Burst.Policies(ctx)
	if err != nil || len(all) != 3 {
		t.Fatalf("%+v, %v", all, err)
	}
	if v := all["vision"]; v.MaxMachines != 2 || v.Spot != spec.SpotPrefer || v.Spend.Limit != 100 || len(v.Allow) != 1 {
		t.Errorf("vision: %+v", v)
	}
	if s := all["speech"]; s.MaxMachines != 0 || s.Spend.Limit != 100 {
		t.Errorf("speech: %+v", s)
	}
	err = d.Burst.Set(ctx, "speech", spec.Burst{Allow: []string{"lab/us-1"}}, "user:admin")
	e, ok := err.(*berth.Error)
	if !ok || e.Code != berth.CodeInvalid || len(e.Fields) != 1 || e.Fields[0].Field != "allow[0]" || e.Fields[0].Allowed != "lab/eu-1" {
		t.Errorf("a policy that widens: %v", err)
	}
	row, err := d.Burst.Get(ctx, "vision")
	if err != nil || row.Own.Version != 1 || row.Above.Spend.Limit != 100 || row.UpdatedBy != "user:admin" {
		t.Errorf("%+v, %v", row, err)
	}
	if err := d.Burst.Set(ctx, "vision", spec.Burst{MaxMachines: 3, Version: 2}, "user:admin"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("a change of another version: %v", err)
	}
	if err := d.Burst.Set(ctx, "vision", spec.Burst{MaxMachines: 3, Version: 1}, "user:admin"); err != nil {
		t.Error(err)
	}
	if err := d.Burst.Set(ctx, "unknown", spec.Burst{}, "user:admin"); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a policy of an unknown tenant: %v", err)
	}
	for _, want := range []berth.Code{"", berth.CodeNotFound} {
		if err := d.Burst.Delete(ctx, "vision"); berth.CodeOf(err) != want {
			t.Errorf("delete: %v, want %q", err, want)
		}
	}
}

func TestOffersAreReplacedAsAWhole(t *testing.T) {
	t.Parallel()
	d, ctx := dbtest.DB(t, db.Options{}), t.Context()
	day := time.Date(2026, 11, 26, 0, 0, 0, 0, time.UTC)
	small := cloud.Offer{Offering: cloud.Offering{Region: "r", Type: "small", Market: cloud.Spot}, CPUs: 4, MemoryMiB: 1024,
		Price: 0.5, Source: "list", AsOf: day}
	big := cloud.Offer{Offering: cloud.Offering{Region: "r", Zone: "z", Type: "big", Market: cloud.OnDemand}, CPUs: 64,
		MemoryMiB: 1 << 20, GPUs: 8, GPUType: "H100", Price: 30, Source: "list", AsOf: day}
	replace := func(provider string, all ...cloud.Offer) {
		t.Helper()
		if err := d.Offers.Replace(ctx, provider, all, "berthd"); err != nil {
			t.Fatal(err)
		}
	}
	replace("aws", small, big)
	replace("lab", small)
	own := wire.OfferPrice{Provider: "aws", Region: "r", Zone: "z", Type: "big", Market: "on_demand", Price: 20}
	if err := d.Offers.SetPrice(ctx, own); err != nil {
		t.Fatal(err)
	}
	own.Zone = ""
	if err := d.Offers.SetPrice(ctx, own); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("the price of an unknown offer: %v", err)
	}
	big.Price = 31
	replace("aws", big)
	all, err := d.Offers.All(ctx)
	big.Price = 20 // of the operator's contract
	if err != nil || len(all) != 2 || all[0] != (db.OfferRow{Offer: big, Provider: "aws"}) || all[1] != (db.OfferRow{Offer: small, Provider: "lab"}) {
		t.Errorf("%+v, %v", all, err)
	}
	replace("aws")
	if all, err := d.Offers.All(ctx); err != nil || len(all) != 1 {
		t.Errorf("%+v, %v", all, err)
	}
}

// A tenant whose machines exist stays, and its costs remain with the tenants above it.
func TestCostsOutliveTheirTenant(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 100), t.Context()
	for i, tenant := range []berth.TenantID{"vision", "org"} {
		m := fmt.Sprintf("m%d", i)
		if err := launchFor(ctx, d, tenant, cheap, berth.MachineID(m), ""); err != nil {
			t.Fatal(err)
		}
		run(t, d.Pool(), m, "1 hour")
	}
	if err := d.Tenants.Delete(ctx, "vision"); berth.CodeOf(err) != berth.CodeConflict || !strings.Contains(err.Error(), "1 cloud machine") {
		t.Fatalf("a tenant with a machine: %v", err)
	}
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'terminating'`)
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'failed', due_at = NULL`) // confirmed absent
	yesterday := time.Now().AddDate(0, 0, -1)                                    // so that the period contains the whole hour
	before := spentBy(t, d, "org", yesterday)
	if err := d.Tenants.Delete(ctx, "vision"); err != nil {
		t.Fatal(err)
	}
	if after := spentBy(t, d, "org", yesterday); before.Settled < 4 || after != before {
		t.Errorf("spend of org %+v, before %+v", after, before)
	}
}

// An instance that a restored database has lost gets the price of the offers, and its costs are counted.
func TestAnAdoptedInstanceHasThePriceOfItsOffer(t *testing.T) {
	t.Parallel()
	d, ctx := budgeted(t, 100), t.Context()
	o := cloud.Offering{Region: "eu-1", Type: "x", Market: cloud.Spot}
	if err := d.Offers.Replace(ctx, "lab", []cloud.Offer{{Offering: o, CPUs: 1, MemoryMiB: 1, Price: 3, AsOf: time.Now()}}, "berthd"); err != nil {
		t.Fatal(err)
	}
	for i, at := range []cloud.Offering{o, {Region: "eu-1", Type: "y", Market: cloud.Spot}} {
		m := berth.MachineID(fmt.Sprintf("lost%d", i))
		r, err := d.Launches.Adopt(ctx, "lab", cloud.Instance{Machine: m, N: 1, Pool: "p", Token: string(m), Offering: at})
		if want := []float64{3, 0}[i]; err != nil || r.Price != want || r.Tenant != "" {
			t.Errorf("adopted %+v, %v; want price %g", r, err, want)
		}
	}
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'unresolved'`)
	mustExec(t, d.Pool(), `UPDATE launches SET state = 'running', instance = 'i'`)
	if n, err := d.Spend.Settle(ctx); err != nil || n != 2 {
		t.Fatal(n, err)
	}
	var tenant string
	var settled, launches int64
	if err := d.Pool().QueryRow(ctx, `SELECT min(tenant), sum(settled), (SELECT sum(settled) FROM launches) FROM spend`).
		Scan(&tenant, &settled, &launches); err != nil || tenant != "" || settled <= 0 || settled != launches {
		t.Errorf("tenant %q, settled %d of %d, %v", tenant, settled, launches, err)
	}
	list, _, err := d.Spend.UsageByPool(ctx, db.UsageFilter{Period: spec.SpendMonth, At: time.Now()}, db.Paging{})
	if err != nil || len(list) != 1 || list[0].Pool != "p" || list[0].Machines != 2 || list[0].Settled != float64(settled)/1e6 {
		t.Errorf("by pool: %+v, %v; want %d micro-dollars", list, err, settled)
	}
}
