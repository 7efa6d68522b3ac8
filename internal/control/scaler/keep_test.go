package scaler_test

import (
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"berth"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
)

// checkLeast checks that a pool has its least number of machines, or that the decision names the number and the reason.
func checkLeast(t *rapid.T, in scaler.Input, d scaler.Decision) {
	alive := len(d.Launches) + len(d.Undrain) + d.Missing
	for _, m := range in.Machines {
		if m.State == scaler.Ready || m.State == scaler.Launching || m.State == scaler.Silent {
			alive++
		}
	}
	if alive < in.Policy.Min || (d.Missing > 0) != (d.MissingWhy != "") {
		t.Fatalf("%d machines, %d of them missing because of %q: the least number is %d", alive, d.Missing, d.MissingWhy, in.Policy.Min)
	}
	if n := slices.IndexFunc(d.Launches, func(l scaler.Launch) bool { return len(l.Jobs) == 0 }); n >= 0 && alive > in.Policy.Min && d.Missing == 0 {
		t.Fatalf("launch %+v without a job, and %d machines: the least number is %d", d.Launches[n], alive, in.Policy.Min)
	}
}

func TestALeastNumberOfMachinesIsKept(t *testing.T) {
	t.Parallel()
	one, eight := offer(1, 2, cloud.OnDemand, "a"), offer(8, 15, cloud.OnDemand, "a")
	half := one
	half.Breaker = scaler.Breaker{}.Failed(now.Add(-time.Hour))
	ready := func(id string) scaler.Machine { return machine(id, one, scaler.Ready, time.Hour) }
	in := func(id string, s scaler.MachineState) scaler.Machine { return machine(id, one, s, time.Hour) }
	for _, c := range []struct {
		name     string
		min      int
		change   func(*scaler.Input)
		launches []string
		drain    []berth.MachineID
		undrain  []berth.MachineID
		missing  int
		why      scaler.NoteCode
	}{
		{name: "without jobs, of the cheapest offer", min: 2, launches: []string{"g1", "g1"}},
		{name: "of the types of the policy", min: 1, change: func(in *scaler.Input) { in.Policy.MinTypes = []string{"g8"} }, launches: []string{"g8"}},
		{name: "in the order of zones", min: 1, change: func(in *scaler.Input) {
			in.Offers = []scaler.Offer{half, offer(8, half.Price, cloud.OnDemand, "b")}
		}, launches: []string{"g8"}},
		{name: "machines that live count", min: 3, change: func(x *scaler.Input) {
			x.Machines = []scaler.Machine{ready("m"), in("n", scaler.Launching), in("o", scaler.Silent)}
		}},
		{name: "machines that leave do not", min: 2, change: func(x *scaler.Input) {
			x.Machines = []scaler.Machine{ready("m"), in("n", scaler.Leaving)}
		}, launches: []string{"g1"}},
		{name: "machines of other types do not, and are drained", min: 1, change: func(x *scaler.Input) {
			x.Policy.MinTypes = []string{"g8"}
			x.Machines = []scaler.Machine{ready("m"), machine("n", eight, scaler.Ready, time.Hour)}
		}, drain: []berth.MachineID{"m"}},
		{name: "an idling machine returns first", min: 2, change: func(x *scaler.Input) {
			x.Machines = []scaler.Machine{ready("m"), in("n", scaler.Idling), in("o", scaler.Idling)}
		}, undrain: []berth.MachineID{"n"}},
		{name: "a silent machine may be lost, so no other one goes", min: 1, change: func(x *scaler.Input) {
			x.Machines = []scaler.Machine{ready("m"), in("o", scaler.Silent)}
		}},
		{name: "a machine for a job counts", min: 1, change: func(x *scaler.Input) { x.Jobs = []scaler.Job{job("a", 1, 8)} }, launches: []string{"g8"}},
		{name: "one try after a failure", min: 2, change: func(x *scaler.Input) { x.Offers = []scaler.Offer{half} },
			launches: []string{"g1"}, missing: 1, why: scaler.NoteClosed},
		{name: "not above the highest number", min: 4, change: func(x *scaler.Input) { x.Policy.Max = 3 },
			launches: []string{"g1", "g1", "g1"}, missing: 1, why: scaler.NoteMax},
		{name: "not beyond the growth", min: 4, change: func(x *scaler.Input) { x.Policy.Growth, x.Policy.GrowthPer = 1, time.Hour },
			launches: []string{"g1"}, missing: 3, why: scaler.NoteGrowth},
		{name: "not beyond the money", min: 4, change: func(x *scaler.Input) { x.Policy.Budget = 5 },
			launches: []string{"g1", "g1"}, missing: 2, why: scaler.NoteBudget},
		{name: "not above the price", min: 1, change: func(x *scaler.Input) { x.Policy.MaxPrice = 1 }, missing: 1, why: scaler.NotePrice},
		{name: "not in another region", min: 1, change: func(x *scaler.Input) { x.Policy.Allow = nil }, missing: 1, why: scaler.NoteForbid},
		{name: "not on spot machines", min: 1, change: func(x *scaler.Input) { x.Offers = []scaler.Offer{offer(1, 1, cloud.Spot, "a")} },
			missing: 1, why: scaler.NoteForbid},
		{name: "not of a type without an offer", min: 1, change: func(x *scaler.Input) { x.Policy.MinTypes = []string{"g2"} }, missing: 1, why: scaler.NoteFits},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := scaler.Input{Now: now, Offers: []scaler.Offer{eight, one}, Policy: policy(), Planner: planner()}
			in.Policy.Min = c.min
			if c.change != nil {
				c.change(&in)
			}
			d := scaler.Decide(in)
			var types []string
			for _, l := range d.Launches {
				types = append(types, l.Offer.Type)
			}
			if !slices.Equal(types, c.launches) || !slices.Equal(d.Drain, c.drain) || !slices.Equal(d.Undrain, c.undrain) ||
				d.Missing != c.missing || d.MissingWhy != c.why {
				t.Errorf("launches %v, drains %v, undrains %v, missing %d %q: want %v, %v, %v, %d %q", types, d.Drain, d.Undrain, d.Missing,
					d.MissingWhy, c.launches, c.drain, c.undrain, c.missing, c.why)
			}
		})
	}
}
