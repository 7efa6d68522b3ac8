package scaler_test

import (
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
	"berth/placement"
	"berth/spec"
)

var now = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func planner() placement.Planner {
	return placement.Planner{Policy: placement.Policy{Order: placement.FIFO}}
}

// offer returns an offer of a machine with GPUs in aws/eu-west-1.
func offer(gpus int, price float64, market cloud.Market, zone string) scaler.Offer {
	return scaler.Offer{Provider: "aws", Offer: cloud.Offer{CPUs: 8 * gpus, MemoryMiB: int64(gpus) << 15, GPUs: gpus, GPUType: "H100", Price: price,
		Offering: cloud.Offering{Region: "eu-west-1", Zone: zone, Type: fmt.Sprintf("g%d", gpus), Market: market}}}
}

// job returns a waiting gang.
func job(id string, members, gpus int) scaler.Job {
	return scaler.Job{
		Job:     placement.Job{ID: berth.JobID(id), Version: 1, SubmittedAt: now, EligibleAt: now},
		Request: spec.Request{Members: members, GPUs: gpus, GPUMilli: 1000, Execution: spec.AtLeastOnce},
	}
}

// machine returns an empty machine of the pool.
func machine(id string, o scaler.Offer, state scaler.MachineState, empty time.Duration) scaler.Machine {
	return scaler.Machine{Row: scaler.MachineOf(o.Offer, berth.MachineID(id)), State: state, Type: o.Type, Price: o.Price, Launched: now.Add(-24 * time.Hour),
		EmptySince: now.Add(-empty)}
}

// unmet returns an offer whose last machine did not meet the security floors.
func unmet(o scaler.Offer) scaler.Offer {
	row := scaler.MachineOf(o.Offer, "known")
	row.Unmet = "old"
	o.Known = &row
	return o
}

func policy() scaler.Policy {
	return scaler.Policy{Allow: []string{"aws/eu-west-1"}, Max: 10, Idle: 5 * time.Minute}
}

// codes returns the codes of the notes.
func codes(d scaler.Decision) (list []scaler.NoteCode) {
	for _, n := range d.Notes {
		list = append(list, n.Code)
	}
	return list
}

func TestDecide(t *testing.T) {
	t.Parallel()
	one, eight := offer(1, 2, cloud.OnDemand, "a"), offer(8, 15, cloud.OnDemand, "a")
	closed := one
	closed.Breaker = scaler.Breaker{}.Failed(now.Add(-time.Minute))
	half := one
	half.Breaker = scaler.Breaker{}.Failed(now.Add(-time.Hour))
	for _, c := range []struct {
		name     string
		change   func(*scaler.Input)
		launches []string // types
		drain    []berth.MachineID
		undrain  []berth.MachineID
		codes    []scaler.NoteCode
	}{
		{"the cheapest machine that fits", func(in *scaler.Input) { in.Jobs = []scaler.Job{job("a", 1, 1), job("b", 1, 8)} },
			[]string{"g1", "g8"}, nil, nil, []scaler.NoteCode{scaler.NoteLaunched, scaler.NoteLaunched}},
		{"the remaining GPU has room for the next job", func(in *scaler.Input) { in.Jobs = []scaler.Job{job("b", 1, 7), job("a", 1, 1)} },
			[]string{"g8"}, nil, nil, []scaler.NoteCode{scaler.NoteLaunched, scaler.NoteCovered}},
		{"a gang gets all its machines", func(in *scaler.Input) { in.Jobs = []scaler.Job{job("a", 3, 8)} },
			[]string{"g8", "g8", "g8"}, nil, nil, []scaler.NoteCode{scaler.NoteLaunched}},
		{"no job that does not tolerate the taints of the pool", func(in *scaler.Input) {
			tolerant := job("b", 1, 1)
			tolerant.Request.Tolerations = []string{"team"}
			in.Jobs, in.Taints = []scaler.Job{job("a", 1, 8), tolerant}, []string{"team=ml:no_schedule"}
		}, []string{"g1"}, nil, nil, []scaler.NoteCode{scaler.NoteFits, scaler.NoteLaunched}},
		{"no machine below the floors for an untrusted tenant", func(in *scaler.Input) {
			in.Jobs, in.Untrusted, in.Offers = []scaler.Job{job("a", 1, 8), job("b", 1, 1)}, true, []scaler.Offer{one, unmet(eight)}
			in.Machines = []scaler.Machine{machine("m1", unmet(one), scaler.Ready, 0)}
			in.Machines[0].Row.Unmet = "old"
		}, []string{"g1"}, nil, nil, []scaler.NoteCode{scaler.NoteFits, scaler.NoteLaunched}},
		{"but for a trusted one", func(in *scaler.Input) {
			in.Jobs, in.Offers = []scaler.Job{job("a", 1, 8)}, []scaler.Offer{unmet(eight)}
		}, []string{"g8"}, nil, nil, []scaler.NoteCode{scaler.NoteLaunched}},
		{"or none", func(in *scaler.Input) { in.Jobs, in.Policy.Max = []scaler.Job{job("a", 3, 8)}, 2 },
			nil, nil, nil, []scaler.NoteCode{scaler.NoteMax}},
		{"no permission", func(in *scaler.Input) {
			in.Jobs, in.Policy.Allow = []scaler.Job{job("a", 1, 1)}, []string{"aws/eu-west-2"}
		},
			nil, nil, nil, []scaler.NoteCode{scaler.NoteForbid}},
		{"too expensive", func(in *scaler.Input) { in.Jobs, in.Policy.MaxPrice = []scaler.Job{job("a", 1, 8)}, 14 },
			nil, nil, nil, []scaler.NoteCode{scaler.NotePrice}},
		{"larger than all", func(in *scaler.Input) { in.Jobs = []scaler.Job{job("a", 1, 16)} },
			nil, nil, nil, []scaler.NoteCode{scaler.NoteFits}},
		{"closed", func(in *scaler.Input) { in.Jobs, in.Offers = []scaler.Job{job("a", 1, 1)}, []scaler.Offer{closed} },
			nil, nil, nil, []scaler.NoteCode{scaler.NoteClosed}},
		{"half open: one try", func(in *scaler.Input) {
			in.Jobs, in.Offers = []scaler.Job{job("a", 1, 1), job("b", 1, 1)}, []scaler.Offer{half}
		}, []string{"g1"}, nil, nil, []scaler.NoteCode{scaler.NoteLaunched, scaler.NoteClosed}},
		{"growth", func(in *scaler.Input) {
			in.Jobs = []scaler.Job{job("a", 1, 8), job("b", 1, 8)}
			in.Policy.Growth, in.Policy.GrowthPer = 2, 10*time.Minute
			in.Launched = []time.Time{now.Add(-9 * time.Minute), now.Add(-11 * time.Minute)}
		}, []string{"g8"}, nil, nil, []scaler.NoteCode{scaler.NoteLaunched, scaler.NoteGrowth}},
		{"budget", func(in *scaler.Input) {
			in.Jobs = []scaler.Job{job("a", 1, 8), job("b", 1, 8)}
			in.Policy.Budget, in.Spent = 100, 71
		}, []string{"g8"}, nil, nil, []scaler.NoteCode{scaler.NoteLaunched, scaler.NoteBudget}},
		{"a machine that boots has room", func(in *scaler.Input) {
			in.Jobs, in.Machines = []scaler.Job{job("a", 1, 4)}, []scaler.Machine{machine("m", eight, scaler.Launching, 0)}
		}, nil, nil, nil, []scaler.NoteCode{scaler.NoteCovered}},
		{"an idling machine returns", func(in *scaler.Input) {
			in.Jobs = []scaler.Job{job("a", 1, 4)}
			in.Machines = []scaler.Machine{machine("m", eight, scaler.Idling, time.Hour), machine("n", eight, scaler.Idling, time.Hour)}
		}, nil, nil, []berth.MachineID{"m"}, []scaler.NoteCode{scaler.NoteCovered}},
		{"empty machines go, the expensive first, down to the least number", func(in *scaler.Input) {
			in.Policy.Min = 1
			in.Machines = []scaler.Machine{machine("m", one, scaler.Ready, time.Hour), machine("n", eight, scaler.Ready, time.Hour),
				machine("o", eight, scaler.Ready, 4*time.Minute), machine("p", one, scaler.Launching, 0)}
		}, nil, []berth.MachineID{"n", "m"}, nil, nil},
		{"a cheap machine is kept for longer", func(in *scaler.Input) {
			in.Policy.IdleCost = 2
			in.Machines = []scaler.Machine{machine("m", one, scaler.Ready, 59*time.Minute), machine("n", eight, scaler.Ready, 59*time.Minute)}
		}, nil, []berth.MachineID{"n"}, nil, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := scaler.Input{Now: now, Offers: []scaler.Offer{eight, one}, Policy: policy(), Planner: planner()}
			c.change(&in)
			d := scaler.Decide(in)
			var types []string
			for _, l := range d.Launches {
				types = append(types, l.Offer.Type)
			}
			if !slices.Equal(types, c.launches) || !slices.Equal(d.Drain, c.drain) || !slices.Equal(d.Undrain, c.undrain) || !slices.Equal(codes(d), c.codes) {
				t.Errorf("launches %v, drains %v, undrains %v, notes %v: wanted are %v, %v, %v, %v",
					types, d.Drain, d.Undrain, codes(d), c.launches, c.drain, c.undrain, c.codes)
			}
		})
	}
}

func TestSpotRules(t *testing.T) {
	t.Parallel()
	offers := []scaler.Offer{offer(1, 2, cloud.OnDemand, "a"), offer(1, 1, cloud.Spot, "a")}
	for _, c := range []struct {
		rule scaler.SpotRule
		may  bool
		want cloud.Market // "": no launch
	}{
		{"", true, cloud.OnDemand}, {scaler.SpotNever, true, cloud.OnDemand}, {scaler.SpotPrefer, true, cloud.Spot},
		{scaler.SpotPrefer, false, cloud.OnDemand}, {scaler.SpotOnly, true, cloud.Spot}, {scaler.SpotOnly, false, ""},
	} {
		p := policy()
		p.Spot = c.rule
		j := job("a", 1, 1)
		j.Spot = c.may
		d := scaler.Decide(scaler.Input{Now: now, Jobs: []scaler.Job{j}, Offers: offers, Policy: p, Planner: planner()})
		got := cloud.Market("")
		if len(d.Launches) > 0 {
			got = d.Launches[0].Offer.Market
		}
		if got != c.want {
			t.Errorf("rule %q, job on spot machines %v: market %q, wanted is %q", c.rule, c.may, got, c.want)
		}
	}
}

// drawInput draws a pool with jobs.
func drawInput(t *rapid.T) scaler.Input {
	sizes := rapid.SampledFrom([]int{1, 2, 4, 8})
	in := scaler.Input{Now: now, Planner: planner()}
	for i := range rapid.IntRange(0, 5).Draw(t, "offers") {
		o := offer(sizes.Draw(t, "size"), rapid.Float64Range(0, 30).Draw(t, "price"),
			rapid.SampledFrom([]cloud.Market{cloud.OnDemand, cloud.Spot}).Draw(t, "market"), fmt.Sprint("z", i))
		o.Region = rapid.SampledFrom([]string{"eu-west-1", "us-east-1"}).Draw(t, "region")
		if rapid.Bool().Draw(t, "failed") {
			o.Breaker = o.Breaker.Failed(now.Add(-time.Duration(rapid.IntRange(0, 10).Draw(t, "minutes")) * time.Minute))
		}
		in.Offers = append(in.Offers, o)
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "machines") {
		m := machine(fmt.Sprint("m", i), offer(sizes.Draw(t, "size"), rapid.Float64Range(1, 30).Draw(t, "price"), cloud.OnDemand, "a"),
			rapid.SampledFrom([]scaler.MachineState{scaler.Launching, scaler.Ready, scaler.Silent, scaler.Idling, scaler.Leaving}).Draw(t, "state"),
			time.Duration(rapid.IntRange(0, 30).Draw(t, "empty"))*time.Minute)
		if m.State == scaler.Ready && rapid.Bool().Draw(t, "busy") {
			m.Row.Used, m.EmptySince = m.Row.Total, time.Time{}
			for i := range m.Row.GPUs {
				m.Row.GPUs[i].UsedMilli = 1000
			}
		}
		in.Machines = append(in.Machines, m)
	}
	for i := range rapid.IntRange(0, 6).Draw(t, "jobs") {
		j := job(fmt.Sprint("j", i), rapid.IntRange(1, 4).Draw(t, "members"), sizes.Draw(t, "gpus"))
		j.Spot, j.Run = rapid.Bool().Draw(t, "spot"), time.Duration(rapid.IntRange(0, 10).Draw(t, "hours"))*time.Hour
		in.Jobs = append(in.Jobs, j)
	}
	for range rapid.IntRange(0, 3).Draw(t, "launched") {
		in.Launched = append(in.Launched, now.Add(-time.Duration(rapid.IntRange(0, 20).Draw(t, "ago"))*time.Minute))
	}
	in.Spent = rapid.Float64Range(0, 100).Draw(t, "spent")
	in.Policy = scaler.Policy{
		Allow: rapid.SampledFrom([][]string{nil, {"aws/eu-west-1"}, {"aws/eu-west-1", "aws/us-east-1"}}).Draw(t, "allow"),
		Spot:  rapid.SampledFrom([]scaler.SpotRule{"", scaler.SpotNever, scaler.SpotPrefer, scaler.SpotOnly}).Draw(t, "rule"),
		Min:   rapid.IntRange(0, 3).Draw(t, "min"), Max: rapid.IntRange(0, 12).Draw(t, "max"),
		MaxPrice: rapid.SampledFrom([]float64{0, 10, 20}).Draw(t, "highest"), Growth: rapid.IntRange(0, 5).Draw(t, "growth"),
		GrowthPer: 10 * time.Minute, Budget: rapid.SampledFrom([]float64{0, 50, 200}).Draw(t, "budget"),
		Idle: 5 * time.Minute, IdleCost: rapid.SampledFrom([]float64{0, 2}).Draw(t, "idle"),
	}
	return in
}

// Whatever the pool looks like, no decision breaks a bound of its policy.
func TestDecideKeepsItsBounds(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		d := scaler.Decide(in)
		if again := scaler.Decide(in); !reflect.DeepEqual(d, again) {
			t.Fatalf("the same input gave two decisions: %+v and %+v", d, again)
		}
		checkLaunches(t, in, d)
		checkDrains(t, in, d)
		if len(d.Notes) != len(in.Jobs) {
			t.Fatalf("%d notes on %d jobs", len(d.Notes), len(in.Jobs))
		}
	})
}

func checkLaunches(t *rapid.T, in scaler.Input, d scaler.Decision) {
	p := in.Policy
	if n := len(d.Launches); n > 0 && len(in.Machines)+n > p.Max {
		t.Fatalf("%d machines and %d launches: allowed are %d", len(in.Machines), n, p.Max)
	}
	recent := 0
	for _, at := range in.Launched {
		if now.Sub(at) < p.GrowthPer {
			recent++
		}
	}
	if n := len(d.Launches); n > 0 && p.Growth > 0 && recent+n > p.Growth {
		t.Fatalf("%d launches after %d: allowed are %d", n, recent, p.Growth)
	}
	spent := in.Spent
	of, tries := map[berth.JobID]int{}, map[string]int{}
	for _, l := range d.Launches {
		spent += l.Cost
		for _, id := range l.Jobs { // none: for the least number of machines
			of[id]++
		}
		tries[l.Offer.Zone]++
		switch o := l.Offer; {
		case !slices.Contains(p.Allow, "aws/"+o.Region):
			t.Fatalf("a launch in %s: allowed are %v", o.Region, p.Allow)
		case o.Price <= 0 || p.MaxPrice > 0 && o.Price > p.MaxPrice:
			t.Fatalf("a machine at $%g: allowed are $%g", o.Price, p.MaxPrice)
		case o.Breaker.Step > 0 && (now.Before(o.Breaker.Until) || tries[o.Zone] > 1):
			t.Fatalf("%d launches by %+v", tries[o.Zone], o.Breaker)
		case o.Market == cloud.Spot && p.Spot != scaler.SpotPrefer && p.Spot != scaler.SpotOnly:
			t.Fatalf("a spot machine by the rule %q", p.Spot)
		case l.Cost < o.Price:
			t.Fatalf("$%g reserved for a machine at $%g an hour", l.Cost, o.Price)
		}
	}
	if len(d.Launches) > 0 && p.Budget > 0 && spent > p.Budget {
		t.Fatalf("$%g spent and reserved: allowed are $%g", spent, p.Budget)
	}
	for i, n := range d.Notes {
		if (n.Code == scaler.NoteLaunched) != (of[n.Job] > 0) {
			t.Fatalf("note %q on a job with %d launches", n.Code, of[n.Job])
		}
		// A gang is whole: the machines have room for all its members, unless one machine tries an offer.
		if j := in.Jobs[i]; of[n.Job] > 0 && !probes(d, n.Job) {
			gpus := 0
			for _, m := range in.Machines {
				if m.State == scaler.Ready || m.State == scaler.Launching || slices.Contains(d.Undrain, m.Row.ID) {
					gpus += len(m.Row.GPUs) / j.Request.GPUs
				}
			}
			for _, l := range d.Launches {
				gpus += l.Offer.GPUs / j.Request.GPUs
			}
			if gpus < j.Request.Members {
				t.Fatalf("a gang of %d members got machines for %d", j.Request.Members, gpus)
			}
		}
	}
}

// probes reports whether a machine for a job tries an offer that has failed.
func probes(d scaler.Decision, id berth.JobID) bool {
	return slices.ContainsFunc(d.Launches, func(l scaler.Launch) bool { return slices.Contains(l.Jobs, id) && l.Offer.Breaker.Step > 0 })
}

func checkDrains(t *rapid.T, in scaler.Input, d scaler.Decision) {
	live := len(d.Undrain) + len(d.Launches)
	for _, m := range in.Machines {
		if m.State == scaler.Ready || m.State == scaler.Launching {
			live++
		}
		if slices.Contains(d.Drain, m.Row.ID) && (m.State != scaler.Ready || m.Row.Used != berth.Capacity{} || now.Sub(m.EmptySince) < in.Policy.Idle) {
			t.Fatalf("machine %+v drains", m)
		}
		if slices.Contains(d.Undrain, m.Row.ID) && m.State != scaler.Idling {
			t.Fatalf("machine %+v returns", m)
		}
	}
	if len(d.Drain) > 0 && live-len(d.Drain) < in.Policy.Min {
		t.Fatalf("%d machines are left: the least number is %d", live-len(d.Drain), in.Policy.Min)
	}
	checkLeast(t, in, d)
	if len(in.Jobs) == 0 && in.Policy.Min == 0 { // scale to zero
		for _, m := range in.Machines {
			if m.State == scaler.Ready && in.Policy.Expired(m, now) && !slices.Contains(d.Drain, m.Row.ID) {
				t.Fatalf("machine %+v stays", m)
			}
		}
	}
}

// A larger pool never gets fewer launches for a single job, and a higher budget, price or growth neither.
func TestDecideIsMonotone(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := drawInput(t)
		in.Jobs = in.Jobs[:min(1, len(in.Jobs))]
		less := len(scaler.Decide(in).Launches)
		in.Policy.Max += 5
		in.Policy.MaxPrice, in.Policy.Budget, in.Policy.Growth = 0, 0, 0
		if more := len(scaler.Decide(in).Launches); less > 0 && more == 0 {
			t.Fatalf("with wider bounds the job got %d machines instead of %d", more, less)
		}
	})
}

// After a failure a gang tries the offer with one machine. Without that, a queue of gangs would never try it again.
func TestAGangProbesWithOneMachine(t *testing.T) {
	t.Parallel()
	half := offer(8, 15, cloud.OnDemand, "a")
	half.Breaker = scaler.Breaker{}.Failed(now.Add(-time.Hour))
	in := scaler.Input{Now: now, Jobs: []scaler.Job{job("a", 3, 8), job("b", 2, 8)}, Offers: []scaler.Offer{half}, Policy: policy(), Planner: planner()}
	d := scaler.Decide(in)
	if len(d.Launches) != 1 || !slices.Equal(codes(d), []scaler.NoteCode{scaler.NoteLaunched, scaler.NoteClosed}) {
		t.Errorf("%d launches, notes %v: wanted is one try", len(d.Launches), codes(d))
	}
	in.Policy.Max = 2 // no room for the whole gang
	in.Jobs = in.Jobs[:1]
	if d := scaler.Decide(in); len(d.Launches) != 0 || d.Notes[0].Code != scaler.NoteMax {
		t.Errorf("%d launches, notes %v: a gang that is too large for the limit tries nothing", len(d.Launches), codes(d))
	}
}

// A gang of three with two machines that boot gets the third one, and its machines that are ready stay.
func TestAGangGetsTheMissingMachines(t *testing.T) {
	t.Parallel()
	eight := offer(8, 15, cloud.OnDemand, "a")
	in := scaler.Input{Now: now, Jobs: []scaler.Job{job("a", 3, 8)}, Offers: []scaler.Offer{eight}, Policy: policy(), Planner: planner(),
		Machines: []scaler.Machine{machine("m", eight, scaler.Launching, 0), machine("n", eight, scaler.Ready, time.Hour)}}
	in.Policy.Max = 3
	d := scaler.Decide(in)
	if len(d.Launches) != 1 || len(d.Drain) != 0 || d.Notes[0].Code != scaler.NoteLaunched {
		t.Errorf("%d launches, drains %v, notes %v: wanted is the third machine alone", len(d.Launches), d.Drain, codes(d))
	}
}
