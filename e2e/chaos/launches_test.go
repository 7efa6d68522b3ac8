package chaos_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/api/client"
	"berth/internal/control/cloud/faultcloud"
	"berth/spec"
	"berth/wire"
)

// launchesWanted is the number of launches of the proof; make proof-launches has 1,000.
var launchesWanted = flag.Int("launches", 0, "machines that the proof of launches launches at least; 0: no proof")

// Settings of the proof of launches.
const (
	tenfold    = 10                     // the delays of launches are a tenth
	openJobs   = 6                      // of each tenant that wait for a machine or use one
	longest    = 5 * time.Second        // life of a machine without an agent, after its instance was seen
	guestEvery = 20                     // one in that many launches gets an agent
	guestsMost = 3                      // agents at once
	idlers     = 6                      // more agents at the end, whose machines become idle
	idleAfter  = 5 * time.Second        // of the tenants' policies
	hitWait    = 8 * time.Second        // for a failpoint, before the next one is armed
	aftermath  = 20 * time.Second       // after the restart of a process: the server repeats the step of a dead one after 15 s
	sampled    = 250 * time.Millisecond // between two readings of the spend
	patient10  = 10 * time.Minute       // by the cloud's clock: an older instance must have its launch
	busyMost   = 3 * time.Minute        // real time by which other tests may delay this
	proofLimit = 45 * time.Minute       // of the whole proof, on however slow a machine
)

// proofCloud is the file of --cloud: a fifth of the creates take effect and then fail, and a new instance is listed
// up to a minute late, by the faster clock.
const proofCloud = `url: http://127.0.0.1:1
offers: %s
providers:
  chaos:
    kind: exec
    regions: [here]
    command: [%%s, --file=%%s, --lost=0.2, --lag-most=1m]
    env: ["BERTH_FAILPOINT_CLOCK=%s"]
`

// proofOffers are the machines that the cloud sells. The price has more digits than a cent.
const proofOffers = "provider,region,zone,type,market,cpus,memory_mib,gpus,gpu_type,price_per_hour,source,as_of\n" +
	"chaos,here,,small,on_demand,2,2048,0,,0.7654321,example value,2026-11-26\n"

// proof is a stack whose scaler launches machines for jobs of tenants.
type proof struct {
	*stack
	want    int
	idle    time.Duration // of the tenants' policies
	tenants []*proofTenant

	guests   map[berth.MachineID]*guest
	released map[berth.MachineID]time.Time // when the test has ended the work of the machine
	seen     map[berth.MachineID]time.Time // when the machine's instance was first seen by the test
	dwell    map[berth.MachineID]time.Duration

	confirmed map[berth.MachineID]bool // that an admin had to confirm absent

	clock    func(time.Time) time.Time // the faster one
	patience time.Duration             // patient10, and more beside other tests
	killing  time.Time                 // when the kills have begun
	mu       sync.Mutex
	kills    map[string]int // by failpoint, and "any moment"
	storms   []span         // from each kill until it delays no launch any longer
	samples  int
	fullest  float64 // greatest used share of a tenant's limit
}

// proofTenant is a tenant whose jobs wait for machines.
type proofTenant struct {
	id   berth.TenantID
	api  *client.Client
	open []berth.JobID
}

// guest is a machine with a real agent.
type guest struct {
	agent   *program
	stays   bool      // until the end of the proof
	busy    time.Time // since when the test knows work on it
	leaving bool      // its end was requested by the test
}

// TestLaunchesUnderKills launches machines for waiting jobs while workers and leaders are killed at every failpoint
// of the path. The cloud's own ledger shows that no launch has a second instance and that no machine is killed
// with its work; the rows show the money.
func TestLaunchesUnderKills(t *testing.T) {
	if *launchesWanted == 0 {
		return
	}
	t.Parallel()
	p := startProof(t, tenfold, idleAfter)
	ctx, stop := context.WithTimeout(t.Context(), proofLimit)
	defer stop()
	var beside sync.WaitGroup
	watching, rest := context.WithCancel(ctx)
	beside.Go(func() { p.sample(watching) })
	began := time.Now()
	err := p.drive(ctx)
	if err == nil {
		err = p.finish(t.Context()) // with a limit of its own
	}
	took := time.Since(began)
	rest()
	beside.Wait()
	if err != nil {
		p.fail(err)
		return
	}
	p.report(took)
}

// startProof starts the control plane with a clock of launches that is so many times faster, and creates the tenants
// with their policies, which keep an empty machine for the time idle.
func startProof(t *testing.T, faster int, idle time.Duration) *proof {
	t.Helper()
	p := &proof{
		stack: newStack(t), want: *launchesWanted, idle: idle, guests: map[berth.MachineID]*guest{},
		released: map[berth.MachineID]time.Time{}, seen: map[berth.MachineID]time.Time{},
		dwell: map[berth.MachineID]time.Duration{}, kills: map[string]int{}, confirmed: map[berth.MachineID]bool{},
	}
	if p.patience = patient10; !p.full() {
		p.patience += time.Duration(faster) * busyMost
	}
	origin := time.Now().UTC()
	p.clock = func(t time.Time) time.Time { return origin.Add(time.Duration(faster) * t.Sub(origin)) }
	clock := fmt.Sprintf("%s %d", origin.Format(time.RFC3339Nano), faster)
	prices := filepath.Join(p.dir, "offers.csv")
	if err := os.WriteFile(prices, []byte(proofOffers), 0o600); err != nil {
		t.Fatal(err)
	}
	p.cloudFile = fmt.Sprintf(proofCloud, prices, clock)
	p.env = []string{"BERTH_FAILPOINT_CLOCK=" + clock}
	p.silence = []string{"--suspect-after", "30s", "--lost-after", "10m"}
	t.Cleanup(p.end)
	for _, step := range []func() error{p.build, p.startServers, p.startPlane, p.makeTenants} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	return p
}

// full reports whether this is the whole proof, on a machine of its own, which measures times too.
func (p *proof) full() bool { return p.want >= 1000 }

// makeTenants creates four tenants below one, each with a limit. The last one can pay four machines at once.
func (p *proof) makeTenants() error {
	ctx := context.Background()
	err := await("the offers are loaded", func() error {
		page, err := p.api.Offers(ctx, "chaos", "")
		if err == nil && len(page.Items) == 0 {
			err = errors.New("there are none")
		}
		return err
	})
	if err != nil {
		return err
	}
	limits := map[berth.TenantID]float64{"org": 60 + float64(p.want)*0.06, "a": 0, "b": 0, "c": 30 + float64(p.want)*0.03, "d": 3.5}
	for _, id := range []berth.TenantID{"org", "a", "b", "c", "d"} {
		n := spec.NewTenant{ID: id}
		b := spec.Burst{Idle: spec.Duration(p.idle)}
		if id == "org" {
			b.Allow, b.When = []string{"chaos/here"}, &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Second)}
		} else {
			n.Parent = "org"
		}
		if limits[id] > 0 {
			b.Spend = &spec.BurstSpend{Period: spec.SpendMonth, Limit: limits[id]}
		}
		if _, err := p.api.CreateTenant(ctx, n); err != nil {
			return err
		}
		if _, err := p.api.SetBurst(ctx, id, b); err != nil {
			return err
		}
		if id == "org" {
			continue
		}
		token, err := p.api.CreateToken(ctx, spec.NewToken{Name: "proof", Tenant: id})
		if err != nil {
			return err
		}
		api := client.New("http://"+p.front.Address(), token.Secret)
		p.t.Cleanup(api.Close)
		p.tenants = append(p.tenants, &proofTenant{id: id, api: api})
	}
	return nil
}

// launchRow is a launch that is not settled.
type launchRow struct {
	Machine berth.MachineID
	N       int
	State   string
	Tenant  berth.TenantID
	Job     string // that waits for the machine or runs there; empty: none
	Held    int    // allocations on the machine
}

// drive submits jobs, gives some of the machines an agent, and ends each machine after a while, until enough
// machines were launched and every failpoint was hit.
func (p *proof) drive(ctx context.Context) error {
	var killer sync.WaitGroup
	over, cease := context.WithCancel(ctx)
	defer killer.Wait()
	defer cease()
	tick := time.NewTicker(300 * time.Millisecond)
	defer tick.Stop()
	for last := time.Now(); ; {
		all, live, err := p.launches(ctx)
		if err != nil {
			return err
		}
		if p.killing.IsZero() && all >= max(p.want/4, 10) {
			p.killing = time.Now()
			killer.Go(func() { p.killAll(over) })
		}
		if time.Since(last) > 30*time.Second {
			last = time.Now()
			p.t.Logf("%d launches, %d not settled, kills %v", all, len(live), p.killed())
		}
		if all >= p.want && p.hitAll() {
			return nil
		}
		if err := p.submitMore(); err != nil {
			return err
		}
		if err := p.endSome(live); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("%d launches in %s, kills %v: %w", all, proofLimit, p.killed(), ctx.Err())
		}
	}
}

// launches returns the number of all launches, and the launches that are not settled.
func (p *proof) launches(ctx context.Context) (all int, live []launchRow, err error) {
	err = p.database.QueryRow(ctx, `SELECT count(*) FROM launches`).Scan(&all)
	if err != nil {
		return 0, nil, err
	}
	rows, err := p.database.Query(ctx, `
		SELECT l.machine, l.n, l.state, l.tenant, coalesce((
			SELECT a.job FROM allocations a WHERE a.machine_id = l.machine AND counts(a.state) LIMIT 1), (
			SELECT b.job FROM burst_notes b WHERE l.machine = ANY (b.machines) LIMIT 1))::text,
			(SELECT count(*) FROM allocations a WHERE a.machine_id = l.machine AND counts(a.state))
		FROM launches l
		WHERE l.state NOT IN ('gone', 'failed')`)
	if err != nil {
		return 0, nil, err
	}
	live, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (l launchRow, err error) {
		var job *string
		err = row.Scan(&l.Machine, &l.N, &l.State, &l.Tenant, &job, &l.Held)
		if job != nil {
			l.Job = *job
		}
		return l, err
	})
	return all, live, err
}

// submitMore submits jobs that need a whole machine.
func (p *proof) submitMore() error {
	for _, tenant := range p.tenants {
		for len(tenant.open) < openJobs {
			cpus, memory, grace := spec.MilliCPU(2000), spec.MiB(64), spec.Duration(time.Minute)
			j := spec.Job{Name: "proof-" + berth.NewSecret()[:8], Image: "testprog", Command: []string{"trap-term", "143"},
				StopGrace: &grace, Resources: spec.Resources{CPUs: &cpus, Memory: &memory}}
			job, _, err := tenant.api.Submit(context.Background(), j, j.Name)
			if err != nil {
				return err
			}
			tenant.open = append(tenant.open, job.ID)
		}
	}
	return nil
}

// cancel cancels a job, which is then no longer open.
func (p *proof) cancel(id berth.JobID) error {
	for _, tenant := range p.tenants {
		tenant.open = slices.DeleteFunc(tenant.open, func(x berth.JobID) bool { return x == id })
	}
	if id == "" {
		return nil
	}
	return await("job "+string(id)+" is canceled", func() error {
		_, err := p.api.Cancel(context.Background(), id)
		if berth.CodeOf(err) == berth.CodeConflict {
			return nil // it has ended
		}
		return lasting(err)
	})
}

// endSome ends machines whose time is over.
func (p *proof) endSome(live []launchRow) error {
	for _, l := range live {
		switch l.State {
		case "running":
			if _, known := p.seen[l.Machine]; !known {
				p.seen[l.Machine], p.dwell[l.Machine] = time.Now(), time.Duration(rand.Int64N(int64(longest)))
				if err := p.invite(l); err != nil {
					return err
				}
			}
			if p.guests[l.Machine] != nil || time.Since(p.seen[l.Machine]) < p.dwell[l.Machine] {
				continue
			}
			if err := errors.Join(p.cancel(berth.JobID(l.Job)), p.release(l.Machine)); err != nil {
				return err
			}
		case "serving", "draining":
			if err := p.visit(l); err != nil {
				return err
			}
		}
	}
	return p.farewell()
}

// release requests the end of a machine without work.
func (p *proof) release(m berth.MachineID) error {
	if _, done := p.released[m]; done {
		return nil
	}
	p.released[m] = time.Now()
	return await("the end of machine "+string(m)+" is requested", func() error {
		_, err := p.api.Terminate(context.Background(), m, wire.TerminateRequest{Reason: "proof"})
		if berth.CodeOf(err) == berth.CodeConflict {
			return nil // it has ended
		}
		return lasting(err)
	})
}

// invite starts an agent on some of the new machines, with the join token that the cloud has received.
func (p *proof) invite(l launchRow) error {
	late := len(p.seen) > p.want*9/10
	every, most := guestEvery, guestsMost
	if late {
		every, most = 3, guestsMost+idlers
	}
	if len(p.agents["cloud"]) > 0 && len(p.seen)%every != 1 || len(p.guests) >= most || l.Tenant == "d" {
		return nil
	}
	agent, err := p.board(l.Machine)
	if err != nil {
		return err
	}
	// The first one and late ones stay, so that the scaler ends them for their idleness.
	p.guests[l.Machine] = &guest{agent: agent, stays: late || len(p.agents["cloud"]) == 1}
	return nil
}

// board starts an agent on a machine whose instance exists.
func (p *proof) board(m berth.MachineID, more ...string) (*program, error) {
	state, err := p.cloud.Read()
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(state.Instances, func(i faultcloud.Instance) bool { return i.Machine == m })
	if i < 0 {
		return nil, fatal{fmt.Errorf("machine %s is running, and the cloud has no instance of it", m)}
	}
	name := string(m)
	agent := &program{
		name: name, dir: p.dir, path: filepath.Join(p.bin, "berth-agent"),
		env: []string{"BERTH_JOIN_TOKEN=" + state.Instances[i].Join},
		args: append([]string{"--server", "http://" + p.front.Address(), "--machine", name, "--runtime", "fake", "--no-gpus", "--egress", "off",
			"--host-boot", "boot-of-" + name, "--state-dir", filepath.Join(p.dir, "agents", name), "--cpus", "2", "--memory", "2GiB",
			"--disk", "64GiB", "--sync-wait", syncWait.String(), "--deadman", "off"}, more...),
	}
	p.agents["cloud"] = append(p.agents["cloud"], agent)
	return agent, agent.up()
}

// visit ends a machine with an agent: its end is requested while its job runs, and the job is canceled later.
func (p *proof) visit(l launchRow) error {
	g := p.guests[l.Machine]
	switch {
	case g == nil || g.stays || l.Held == 0:
		return nil
	case g.busy.IsZero():
		g.busy = time.Now()
	case !g.leaving && time.Since(g.busy) > longest:
		g.leaving = true
		return await("the end of machine "+string(l.Machine)+" is requested", func() error {
			_, err := p.api.Terminate(context.Background(), l.Machine, wire.TerminateRequest{Reason: "proof"})
			return lasting(err)
		})
	case g.leaving && time.Since(g.busy) > 2*longest && p.released[l.Machine].IsZero():
		p.released[l.Machine] = time.Now()
		return p.cancel(berth.JobID(l.Job))
	}
	return nil
}

// farewell ends the agents of machines that the cloud has terminated.
func (p *proof) farewell() error {
	if len(p.guests) == 0 {
		return nil
	}
	state, err := p.cloud.Read()
	if err != nil {
		return err
	}
	for _, i := range state.Instances {
		if g := p.guests[i.Machine]; g != nil && i.State == "terminated" {
			if err := g.agent.end(syscall.SIGKILL); err != nil {
				return err
			}
			delete(p.guests, i.Machine)
		}
	}
	return nil
}
