package autoscale_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/activities/control"
	"berth/db"
	"berth/db/dbtest"
	"berth/db/dbtest/bursttest"
	"berth/internal/control/autoscale"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/lib/sealer"
	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// paidFirst is a provider that verifies, at each call of Create, that the money of the launch and the call itself are
// in the rows.
type paidFirst struct {
	*faultcloud.Cloud
	t     *testing.T
	db    *db.DB
	calls int
}

func (p *paidFirst) Create(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	p.calls++
	var paid, sent bool
	err := p.db.Pool().QueryRow(ctx, `
		SELECT tenant <> '' AND price > 0 AND reserved >= launch_cost(price, created_at, created_at + interval '1 hour'),
			state = 'sent' AND sends > refusals AND request_hash = @hash
		FROM launches
		WHERE token = @token`, pgx.NamedArgs{"token": l.Token, "hash": l.Hash()}).Scan(&paid, &sent)
	if err != nil || !paid || !sent {
		p.t.Errorf("machine %s: create is called; its money is reserved: %t, the call is recorded: %t; %v", l.Machine, paid, sent, err)
	}
	return p.Cloud.Create(ctx, l)
}

// market is a scaler over a real database, for forty tenants with random policies, two clouds and a machine on
// premises.
type market struct {
	t         *testing.T
	db        *db.DB
	r         *rand.Rand
	tree      *bursttest.Tree
	facts     *autoscale.Facts
	loop      *autoscale.Loop
	steps     *control.MachineSteps
	providers []*paidFirst
	term      db.Term
	log       bytes.Buffer
	ahead     time.Duration
	jobs      int
}

func newMarket(t *testing.T, seed uint64) *market {
	t.Helper()
	m := &market{t: t, db: dbtest.DB(t, db.Options{}), r: rand.New(rand.NewPCG(seed, 0)), facts: full()}
	m.tree = bursttest.Create(t, m.db, m.r, &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Second)})
	m.facts.Tenants = []placement.Tenant{{ID: "root", Weight: 1}}
	for _, id := range m.tree.Tenants {
		m.facts.Tenants = append(m.facts.Tenants, placement.Tenant{ID: id, Parent: m.tree.Parents[id], Weight: 1})
	}
	accounts := cloud.Accounts{URL: "http://berth.test", Providers: map[string]cloud.Account{}}
	clock := func(at time.Time) time.Time { return at.Add(m.ahead) }
	for name, regions := range map[string][]string{"lab": {"eu-1", "eu-2", "us-1"}, "far": {"eu-1"}} {
		p := &paidFirst{Cloud: faultcloud.New(filepath.Join(t.TempDir(), name), func() time.Time { return clock(time.Now()) }), t: t, db: m.db}
		m.providers = append(m.providers, p)
		accounts.Providers[name] = cloud.Account{Provider: p, Regions: regions}
		m.sell(name, regions)
	}
	keys := filepath.Join(t.TempDir(), "keys")
	if err := sealer.Make(keys); err != nil {
		t.Fatal(err)
	}
	vault, err := sealer.Load(keys)
	if err != nil {
		t.Fatal(err)
	}
	m.steps = control.NewMachines(control.MachineDeps{Launches: m.db.Launches, Machines: m.db.Machines, Sealer: vault, Accounts: accounts, Clock: clock})
	m.loop = autoscale.New(autoscale.Options{DB: m.db, Accounts: accounts, Policy: placement.Policy{Order: placement.FIFO},
		Logger: slog.New(slog.NewTextHandler(&m.log, nil))})
	var ok bool
	if m.term, ok, err = m.db.Leader.OpenLease(db.LeaseLeader, "test").Acquire(t.Context(), time.Hour); err != nil || !ok {
		t.Fatal(ok, err)
	}
	return m
}

// sell gives each region of a provider machines in both markets, at random prices. The price of one is unknown.
func (m *market) sell(provider string, regions []string) {
	m.t.Helper()
	var list []cloud.Offer
	for _, region := range regions {
		for _, kind := range []cloud.Market{cloud.OnDemand, cloud.Spot} {
			o := offered("big", []float64{0.7654321, 1, 2, 3, 6}[m.r.IntN(5)]).Offer
			o.Region, o.Market, o.Source, o.AsOf = region, kind, "example value", time.Now()
			unknown := o
			unknown.Type, unknown.Price = "unknown", 0
			list = append(list, o, unknown)
		}
	}
	if err := m.db.Offers.Replace(m.t.Context(), provider, list, "user:test"); err != nil {
		m.t.Fatal(err)
	}
}

// mirror returns a copy of the mirror.
func (m *market) mirror(context.Context, map[berth.TenantID]bool) (autoscale.Mirror, error) {
	x := m.facts.Mirror
	x.At = time.Now()
	return x, nil
}

// demand changes the waiting jobs at random.
func (m *market) demand() {
	kept := m.facts.Waiting[:0]
	for _, j := range m.facts.Waiting {
		if m.r.IntN(3) > 0 {
			kept = append(kept, j)
		}
	}
	m.facts.Waiting = kept
	for range 5 + m.r.IntN(20) {
		m.jobs++
		wait(m.facts, string(berth.NewJobID(time.Now())), m.tree.Tenants[m.r.IntN(len(m.tree.Tenants))], 1+m.r.IntN(2))
		j := &m.facts.Waiting[len(m.facts.Waiting)-1]
		j.Remaining = time.Duration(10+m.r.IntN(170)) * time.Minute
		j.SubmittedAt = time.Now().Add(-time.Hour + time.Duration(m.jobs)*time.Second)
		j.EligibleAt = j.SubmittedAt
	}
}

// pass makes a pass of the scaler and a step of each launch, and ends some machines.
func (m *market) pass() {
	m.t.Helper()
	ctx := m.t.Context()
	if err := m.loop.Pass(autoscale.InTerm(ctx, m.loop, m.term, m.mirror)); err != nil {
		m.t.Fatal(err)
	}
	m.ahead += 2 * time.Minute
	list, _, err := m.db.Launches.List(ctx, db.LaunchFilter{}, db.Paging{Limit: 1000})
	if err != nil {
		m.t.Fatal(err)
	}
	for _, l := range list {
		if m.r.IntN(4) == 0 {
			_, err := m.db.Launches.Change(ctx, cloud.Ref{Machine: l.Machine}, func(r cloud.Record, now time.Time) (cloud.Record, error) {
				return r.WithStop(cloud.Stop{Actor: "user:test", Reason: "enough"}, now)
			})
			if err != nil {
				m.t.Fatal(err)
			}
		}
		if _, err := m.steps.Step(ctx, wire.MachineInput{Machine: l.Machine}); err != nil {
			m.t.Fatal(err)
		}
	}
	if _, err := m.db.Spend.Settle(ctx); err != nil {
		m.t.Fatal(err)
	}
}

// The production scaler and the store serve forty tenants: no launch is without the permission of each tenant above,
// outside its residency or above its price, no tenant exceeds its money or the one above, and money is reserved
// before each call of a cloud. The scaler itself asks for nothing that a policy forbids.
func TestTheScalerLaunchesWhatEachPolicyAbovePermits(t *testing.T) {
	t.Parallel()
	// A draw may hardly launch anything, and proves little then.
	for draws := 1; ; draws++ {
		calls, tenants, places := servesMarket(t, rand.Uint64())
		if calls > 0 && len(tenants) > 1 && len(places) > 1 {
			return
		}
		if draws == 5 {
			t.Fatal(fmt.Sprint("too little was launched for a proof: ", tenants, places))
		}
	}
}

// servesMarket runs the scaler in the market of a seed and checks the rules. It returns the calls of the clouds, and
// the tenants and regions with launches.
func servesMarket(t *testing.T, seed uint64) (calls int, tenants, places map[string]bool) {
	t.Helper()
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	m := newMarket(t, seed)
	for range 12 {
		m.demand()
		m.pass()
		faults, err := m.tree.Audit(t.Context(), m.db)
		if err != nil {
			t.Fatal(err)
		}
		if len(faults) > 0 {
			t.Fatalf("broken rules:\n%s", strings.Join(faults, "\n"))
		}
	}
	for _, line := range strings.Split(m.log.String(), "\n") {
		if strings.Contains(line, "launch of the scaler refused") && strings.Contains(line, " may not launch ") &&
			!strings.Contains(line, "may not launch a machine") {
			t.Errorf("the scaler asked for a launch that a policy forbids: %s", line)
		}
	}
	tenants, places = map[string]bool{}, map[string]bool{}
	for _, p := range m.providers {
		calls += p.calls
	}
	rows, err := m.db.Pool().Query(t.Context(), `SELECT tenant, provider || '/' || region FROM launches WHERE sends > 0`)
	if err != nil {
		t.Fatal(err)
	}
	var tenant, place string
	if _, err := pgx.ForEachRow(rows, []any{&tenant, &place}, func() error {
		tenants[tenant], places[place] = true, true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	t.Logf("%d create calls for %d tenants in %d regions, %d jobs, %d refusals for a limit", calls, len(tenants), len(places), m.jobs,
		strings.Count(m.log.String(), "may not launch a machine"))
	return calls, tenants, places
}
