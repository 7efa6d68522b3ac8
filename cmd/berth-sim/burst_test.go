package main

import (
	"context"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth/internal/lib/golden"
)

// shortPhilly is a trace of experiment c that is small enough to follow by hand.
const shortPhilly = `timestamp,duration,num_gpus,gpu_time,cluster
2017-09-04 10:00:00,3600,8,28800,x
2017-09-04 10:01:00,1800,1,1800,x
2017-09-04 10:02:00,1800,2,3600,x
2017-09-04 10:50:00,600,1,600,x
2017-09-04 14:00:00,7200,4,28800,x
2017-09-04 14:00:00,60,1,60,x
`

// The tables of all experiments begin with the same figures.
func TestBurstPrintsItsTables(t *testing.T) {
	t.Parallel()
	trace := filepath.Join(t.TempDir(), "philly.csv")
	if err := os.WriteFile(trace, []byte(shortPhilly), 0o600); err != nil {
		t.Fatal(err)
	}
	var got strings.Builder
	for _, args := range [][]string{
		{"burst", "a", "--policy", "no-wait,starburst,plan-budget,berth"},
		{"burst", "a", "--seeds", "1-3", "--policy", "constant-wait,starburst-unknown,plan-budget"},
		{"burst", "b", "--trace", "testdata/spot.csv.gz"},
		{"burst", "c", "--trace", trace},
	} {
		printed := mustSimulate(t, args...)
		if header, _, _ := strings.Cut(printed, "\n"); !strings.Contains(strings.Join(strings.Fields(header), " "), "COST WAIT LAUNCHES IDLE") {
			t.Errorf("%v has the columns %s", args, header)
		}
		fmt.Fprintf(&got, "%s\n", printed)
	}
	golden.Check(t, "testdata/burst.txt", got.String())
}

// A spot machine costs its price for as long as it runs. A job that loses it waits, and pays another start.
func TestBurstCountsTheMachinesOfADeadline(t *testing.T) {
	t.Parallel()
	const deadline, restart = 60 * time.Hour, 12 * time.Minute
	steps := int(deadline/spotStep) + 2
	w := spotWindow{make([]bool, steps)}
	for i := range steps {
		w[0][i] = i%12 != 11 // a machine for 110 of each 120 minutes
	}
	r := playSpot(w, deadline, restart, spotPolicies["greedy"])
	// In each two hours a job pays 110 minutes and works 98. It needs 48 hours: 29 such turns, and 38 minutes more.
	turns := int(spotWork / (98 * time.Minute))
	rest := spotWork - time.Duration(turns)*98*time.Minute
	want := spotResult{launches: turns + 1, waited: time.Duration(turns) * spotStep, worked: spotWork,
		paid: time.Duration(turns)*110*time.Minute + rest + restart}
	want.cost, want.ended = want.paid.Hours()*spotPrice, want.paid+want.waited
	if math.Abs(r.cost-want.cost) > 1e-9 {
		t.Errorf("the cost is $%.4f, want $%.4f", r.cost, want.cost)
	}
	if r.cost = want.cost; r != want {
		t.Errorf("the result is %+v, want %+v", r, want)
	}
	m := meanSpot([]spotWindow{w, w}, deadline, restart, spotPolicies["greedy"])
	if idle := 1 - want.worked.Hours()/want.paid.Hours(); m.launches != float64(want.launches) || math.Abs(m.idle-idle) > 1e-9 ||
		math.Abs(m.wait-want.waited.Hours()) > 1e-9 || m.late != 0 {
		t.Errorf("the means are %+v, want %d launches, an idle share of %.4f, a wait of %s", m, want.launches, idle, want.waited)
	}
}

// wantCheaper returns an error unless the costs are below those of base, at the upper end of the 95 % interval, and the
// mean wait is not longer.
func wantCheaper(list, base []waitResult) error {
	ratio, margin := ratioOf(list, base)
	var wait, most float64
	for i := range list {
		wait, most = wait+list[i].wait/float64(len(list)), most+base[i].wait/float64(len(base))
	}
	if ratio+margin > 1 || wait > most {
		return fmt.Errorf("the cost is %.3f ± %.3f of Starburst's at a mean wait of %.4f h: allowed are 1 at the upper end and %.4f h",
			ratio, margin, wait, most)
	}
	return nil
}

func TestTheJudgeOfBurstSeesBothBreaches(t *testing.T) {
	t.Parallel()
	base := []waitResult{{cost: 100, wait: 1}, {cost: 110, wait: 2}, {cost: 90, wait: 3}}
	changed := func(f func(i int, r *waitResult)) []waitResult {
		list := make([]waitResult, len(base))
		for i := range base {
			list[i] = base[i]
			f(i, &list[i])
		}
		return list
	}
	for _, c := range []struct {
		name   string
		list   []waitResult
		passes bool
	}{
		{"cheaper", changed(func(_ int, r *waitResult) { r.cost *= 0.9 }), true},
		{"cheaper, and slower", changed(func(_ int, r *waitResult) { r.cost, r.wait = r.cost*0.9, r.wait*1.01 }), false},
		{"more expensive", changed(func(_ int, r *waitResult) { r.cost *= 1.01 }), false},
		{"cheaper by chance", changed(func(i int, r *waitResult) { r.cost += []float64{-20, -10, 20}[i] }), false},
	} {
		if err := wantCheaper(c.list, base); (err == nil) != c.passes {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}

// BenchmarkBurst judges experiment a on the seeds 21 to 60, on which no number was chosen. It takes a minute or more, so
// it is no test: make bench-burst runs it.
func BenchmarkBurst(b *testing.B) {
	seeds, err := parseSeeds("21-60")
	if err != nil {
		b.Fatal(err)
	}
	for b.Loop() {
		for _, c := range []struct{ name, base string }{{"berth", "starburst"}, {"berth-unknown", "starburst-unknown"}} {
			list, err := playSeeds(context.Background(), c.name, seeds)
			if err != nil {
				b.Fatal(err)
			}
			base, err := playSeeds(context.Background(), c.base, seeds)
			if err != nil {
				b.Fatal(err)
			}
			ratio, margin := ratioOf(list, base)
			b.Logf("%s: %.3f ± %.3f of the cost of %s, at most %.3f", c.name, ratio, margin, c.base, ratio+margin)
			if err := wantCheaper(list, base); err != nil {
				b.Errorf("%s: %v", c.name, err)
			}
		}
	}
}
