package controlplane

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"path/filepath"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/internal/lib/poll"
)

func TestASweepEndsALateInstanceAndAdoptsALostOne(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	lab := faultcloud.New(filepath.Join(t.TempDir(), "cloud"), time.Now)
	s := &sweeper{launches: d.Launches, log: slog.New(slog.DiscardHandler),
		now: func() time.Time { return time.Now().Add(cloud.SweepAge) }, accounts: cloud.Accounts{
			Providers: map[string]cloud.Account{"lab": {Provider: lab, Regions: []string{"r"}}}}}
	offering := cloud.Offering{Region: "r", Type: "x", Market: cloud.OnDemand}
	list, err := d.Launches.Request(t.Context(), cloud.Request{Pool: "p", Provider: "lab", Offering: offering},
		[]berth.MachineID{"late", "kept"}, "", "user:test")
	if err != nil {
		t.Fatal(err)
	}
	cluster, err := d.Cluster.ID(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	launches := []cloud.Launch{list[0].Launch(), list[1].Launch(), {Cluster: cluster, Pool: "p", Machine: "lost", N: 4,
		Token: cloud.Token(cluster, "0", "lost", 4), Offering: offering}}
	for _, l := range launches {
		if _, err := lab.Create(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	_, err = d.Launches.Change(t.Context(), list[0].Ref(), func(r cloud.Record, now time.Time) (cloud.Record, error) {
		r, err := r.WithStop(cloud.Stop{Actor: "user:test"}, now)
		if err != nil {
			return r, err
		}
		r, _ = r.Take(cloud.Next(r, cloud.DefaultLimits, now), cloud.DefaultLimits, now)
		return r, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		if err := s.sweep(t.Context(), "lab"); err != nil {
			t.Fatal(err)
		}
	}
	state, err := lab.Read()
	if err != nil {
		t.Fatal(err)
	}
	if len(state.Ends) != 1 || state.Instances[0].State != cloud.Terminated {
		t.Errorf("terminated %v", state.Ends)
	}
	adopted, _, err := d.Launches.Current(t.Context(), "lost")
	if err != nil || adopted.State != cloud.LaunchUnresolved || adopted.N != 4 || adopted.Token != launches[2].Token {
		t.Errorf("adopted %+v, %v", adopted, err)
	}
}

// After a restore, a launch waits for the listing that gives lost instances their rows again.
func TestNothingIsLaunchedBeforeAListingAfterARestore(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	d := dbtest.Open(t, url, db.Options{})
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	lab := faultcloud.New(filepath.Join(t.TempDir(), "cloud"), time.Now)
	s := &sweeper{launches: d.Launches, log: slog.New(slog.DiscardHandler), now: time.Now, accounts: cloud.Accounts{
		Providers: map[string]cloud.Account{"lab": {Provider: lab, Regions: []string{"r"}}}}}
	offering := cloud.Offering{Region: "r", Type: "x", Market: cloud.OnDemand}
	request := func(id berth.MachineID) (cloud.Launch, error) {
		list, err := d.Launches.Request(t.Context(), cloud.Request{Pool: "p", Provider: "lab", Offering: offering},
			[]berth.MachineID{id}, "key", "user:test")
		if err != nil {
			return cloud.Launch{}, err
		}
		return list[0].Launch(), nil
	}
	sweep := func() {
		t.Helper()
		if err := s.sweep(t.Context(), "lab"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := request("early"); err != nil {
		t.Errorf("before the first listing of a new cluster: %v", err)
	}
	sweep()
	l, err := request("lost")
	if err == nil {
		_, err = lab.Create(t.Context(), l)
	}
	if err == nil {
		_, err = pool.Exec(t.Context(), `DELETE FROM launches WHERE machine = 'lost'`) // the backup is older
	}
	if err == nil {
		_, err = pool.Exec(t.Context(), `UPDATE cluster SET incarnation = incarnation + 1`)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := request("lost"); berth.CodeOf(err) != berth.CodeUnavailable {
		t.Errorf("the repeat of a lost launch: %v", err)
	}
	sweep()
	if _, err := request("lost"); berth.CodeOf(err) != berth.CodeConflict {
		t.Errorf("the repeat after the instance was adopted: %v", err)
	}
	if _, err := request("other"); err != nil {
		t.Errorf("another launch after the listing: %v", err)
	}
}

func TestASweeperEndsWithoutItsDatabase(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	log := slog.New(slog.DiscardHandler)
	s := &sweeper{launches: d.Launches, log: log, now: time.Now, counts: newSweepCounts()}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	d.Close()
	if err := s.run(ctx, newLeased(d, sweepLease+"lab", sweepEvery, "sweep", log), "lab"); err != nil {
		t.Error(err)
	}
}

// noted is a provider that reports each list, and fails it unless its cloud can be called.
type noted struct {
	*faultcloud.Cloud
	unsent bool
	lists  chan struct{}
}

func (n noted) List(ctx context.Context, cluster string, regions []string) ([]cloud.Instance, error) {
	select {
	case n.lists <- struct{}{}:
	default:
	}
	if n.unsent {
		return nil, &cloud.Error{Kind: cloud.Throttle, Unsent: true, Err: errors.New("no credentials")}
	}
	return n.Cloud.List(ctx, cluster, regions)
}

// A replica that cannot call a cloud, or whose cloud file lacks the provider, does not keep the sweep from the others.
func TestAReplicaThatCannotListLeavesTheSweepToAnother(t *testing.T) {
	t.Parallel()
	url := dbtest.URL(t)
	log := slog.New(slog.DiscardHandler)
	lab := faultcloud.New(filepath.Join(t.TempDir(), "cloud"), time.Now)
	starts := func(providers map[string]noted) *prometheus.CounterVec {
		a := &assembly{ControlPlane: &ControlPlane{log: log}, db: dbtest.Open(t, url, db.Options{}),
			accounts: cloud.Accounts{Providers: map[string]cloud.Account{}}, sweeps: newSweepCounts()}
		a.opts.CloudFaster, a.opts.CloudClock = 1000, func(t time.Time) time.Time { return t }
		for name, p := range providers {
			a.accounts.Providers[name] = cloud.Account{Provider: p, Regions: []string{"r"}}
		}
		a.addSweeper()
		for _, run := range a.middle {
			go func() { _ = run(t.Context()) }()
		}
		return a.sweeps
	}
	waits := func(p noted, what string) {
		t.Helper()
		select {
		case <-p.lists:
		case <-time.After(time.Minute):
			t.Fatalf("%s lists nothing", what)
		}
	}
	provider := func(unsent bool) noted { return noted{Cloud: lab, unsent: unsent, lists: make(chan struct{}, 1)} }
	bad, good, other := provider(true), provider(false), provider(false)
	first := starts(map[string]noted{"lab": bad})
	waits(bad, "the first replica")
	second := starts(map[string]noted{"lab": good, "other": other})
	waits(good, "the replica that can call the cloud")
	waits(other, "the replica that alone has the provider")
	if !poll.Until(time.Minute, time.Millisecond, func() bool {
		one, two := counted(t, first), counted(t, second)
		return one["lab failed"] > 0 && two["lab done"] > 0 && two["other done"] > 0
	}) {
		t.Error("the sweeps are not counted")
	}
	one, two := counted(t, first), counted(t, second)
	if one["lab done"] > 0 || two["lab failed"]+two["other failed"] > 0 {
		t.Errorf("sweeps are counted by the wrong result: %v, %v", one, two)
	}
}

// counted returns the counts of sweeps by provider and result.
func counted(t *testing.T, counts *prometheus.CounterVec) map[string]float64 {
	t.Helper()
	r := prometheus.NewRegistry()
	r.MustRegister(counts)
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	all := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			all[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetCounter().GetValue()
		}
	}
	return all
}

// Both series of a provider exist before its first sweep: an increase over a series that begins with an event misses
// this event.
func TestSweepsAreCountedFromTheStart(t *testing.T) {
	t.Parallel()
	a := &assembly{ControlPlane: &ControlPlane{}, db: dbtest.DB(t, db.Options{}), sweeps: newSweepCounts(),
		accounts: cloud.Accounts{Providers: map[string]cloud.Account{"lab": {}, "other": {}}}}
	a.addSweeper()
	want := map[string]float64{"lab done": 0, "lab failed": 0, "other done": 0, "other failed": 0}
	if got := counted(t, a.sweeps); !maps.Equal(got, want) {
		t.Errorf("series %v, want %v", got, want)
	}
}
