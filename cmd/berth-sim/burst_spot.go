package main

import (
	"fmt"
	"math"
	"strings"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
)

// The setting of experiment B: Can't Be Late (Wu et al., USENIX NSDI '24). Prices are US dollars an hour.
//
// The rows named berth follow a rule that no berthd applies. scaler.Deadline needs a deadline of the job, and job files
// have none (docs/adr/0101). The failures of zones are counted by scaler.Breaker.Failed and Succeeded, which only this
// experiment calls: berthd stores a cloud.Breaker for each refusal of a cloud. scaler.Order, which sorts the zones,
// serves both.
const (
	spotWork   = 48 * time.Hour
	spotPrice  = 0.9731
	fullPrice  = 3.06
	spotStep   = 10 * time.Minute
	spotStarts = 40 // per row of the trace
	spotSeed   = 7
)

// spotCells are the deadlines and restart costs of the experiment.
var spotCells = []struct{ deadline, restart time.Duration }{
	{52 * time.Hour, 3 * time.Minute}, {52 * time.Hour, 12 * time.Minute},
	{60 * time.Hour, 3 * time.Minute}, {70 * time.Hour, 12 * time.Minute},
}

// spotRow is the observed availability of one instance type in one zone, a value per spotStep.
type spotRow struct {
	zone, instance string
	available      []bool
}

var spotColumns = []string{"zone", "instance", "gap_seconds", "available"}

// readSpot reads a trace of availability.
func readSpot(path string) (rows []spotRow, err error) {
	err = eachRow(path, spotColumns, func(t *table) error {
		gap, err := t.decimal("gap_seconds", 1, maxSeconds)
		if err != nil {
			return err
		}
		if gap != spotStep.Seconds() {
			return fmt.Errorf("gap_seconds %g: allowed is %g", gap, spotStep.Seconds())
		}
		r := spotRow{zone: t.text("zone"), instance: t.text("instance")}
		for i, c := range t.text("available") {
			if c != '0' && c != '1' {
				return fmt.Errorf("available has %q at %d: allowed are 0 and 1", c, i)
			}
			r.available = append(r.available, c == '1')
		}
		rows = append(rows, r)
		return nil
	})
	return rows, err
}

// spotWindow is one draw of the experiment: the availability of each zone from the job's start.
type spotWindow [][]bool

// spotWindows draws the starts of a deadline, spotStarts for each group of zones.
func spotWindows(groups [][]spotRow, deadline time.Duration, seed uint32) ([]spotWindow, error) {
	r := newPythonRandom(seed)
	steps := int(deadline/spotStep) + 2
	var list []spotWindow
	for _, g := range groups {
		for range spotStarts {
			least := len(g[0].available)
			for _, row := range g {
				least = min(least, len(row.available))
			}
			if least <= steps {
				return nil, fmt.Errorf("%s %s has %d steps: needed are more than %d", g[0].zone, g[0].instance, least,
					steps)
			}
			start := r.below(least - steps)
			w := make(spotWindow, len(g))
			for i, row := range g {
				w[i] = row.available[start : start+steps]
			}
			list = append(list, w)
		}
	}
	return list, nil
}

// eachZone makes a group of each row.
func eachZone(rows []spotRow) (groups [][]spotRow) {
	for _, r := range rows {
		groups = append(groups, []spotRow{r})
	}
	return groups
}

// byInstance groups the zones of equal instance types.
func byInstance(rows []spotRow) (groups [][]spotRow) {
	at := map[string]int{}
	for _, r := range rows {
		i, ok := at[r.instance]
		if !ok {
			i = len(groups)
			at[r.instance] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], r)
	}
	return groups
}

// spotState is a job of experiment B in progress.
type spotState struct {
	scaler.Deadline
	window  spotWindow
	tick    int
	zone    int // of the spot machine that the job runs on
	openFor int // steps in a row in which some zone has had a machine, with the present one
	zones   []scaler.Zone
	tries   int
}

// spotPolicy returns the market of the next step. A policy that returns spot has set s.zone.
type spotPolicy func(s *spotState) cloud.Market

// spotPolicies are the policies by name: the published ones, which know in each step where machines can be had, and
// the rule of scaler.Deadline, which only this simulator uses. "berth-trying" applies that rule to several zones, and
// finds machines by trying, with a breaker per zone.
var spotPolicies = map[string]spotPolicy{
	"greedy":       informed(greedy),
	"uniform":      informed(func(d scaler.Deadline) cloud.Market { return uniform(d, false) }),
	"eager":        informed(func(d scaler.Deadline) cloud.Market { return uniform(d, true) }),
	"berth":        informed(scaler.Deadline.Choose),
	"berth-trying": tried,
}

// open returns the first zone with a machine now, the present one first, or -1.
func (s *spotState) open() int {
	if s.Running == cloud.Spot && s.window[s.zone][s.tick] {
		return s.zone
	}
	for i, z := range s.window {
		if z[s.tick] {
			return i
		}
	}
	return -1
}

// informed turns a choice into a policy that knows where machines can be had.
func informed(choose func(scaler.Deadline) cloud.Market) spotPolicy {
	return func(s *spotState) cloud.Market {
		zone := s.open()
		d := s.Deadline
		if d.Open = zone >= 0; d.Open {
			d.OpenFor = time.Duration(s.openFor-1) * spotStep
		}
		m := choose(d)
		if m == cloud.Spot {
			s.move(zone)
		}
		return m
	}
}

// move makes a zone the present one. A spot machine in another zone is another start.
func (s *spotState) move(zone int) {
	if s.Running == cloud.Spot && s.zone != zone {
		s.Running = ""
	}
	s.zone = zone
}

// tried applies the rule of scaler.Deadline, and finds a machine by trying the zones in the order of scaler.Order.
func tried(s *spotState) cloud.Market {
	now := origin.Add(time.Duration(s.tick) * spotStep)
	if s.zones == nil {
		for i := range s.window {
			s.zones = append(s.zones, scaler.Zone{Name: fmt.Sprint(i), Price: spotPrice})
		}
	}
	d := s.Deadline
	d.Open, d.OpenFor = true, scaler.Settled
	if m := d.Choose(); m != cloud.Spot || d.Running == cloud.Spot {
		return m
	}
	for _, z := range scaler.Order(s.zones, now) {
		var i int
		for i = range s.zones {
			if s.zones[i].Name == z.Name {
				break
			}
		}
		s.tries++
		if s.window[i][s.tick] {
			s.zones[i].Breaker, s.zones[i].Won = z.Breaker.Succeeded(), now
			s.move(i)
			return cloud.Spot
		}
		s.zones[i].Breaker = z.Breaker.Tried().Failed(now)
	}
	d.Open = false
	return d.Choose()
}

// lose ends the spot machine if its zone has none in the present step.
func (s *spotState) lose() {
	if s.Running != cloud.Spot || s.window[s.zone][s.tick] {
		return
	}
	s.Running = ""
	if s.zones != nil {
		z := &s.zones[s.zone]
		z.Breaker = z.Breaker.Failed(origin.Add(time.Duration(s.tick) * spotStep))
	}
}

// greedy waits for spot machines until only on demand is in time.
func greedy(d scaler.Deadline) cloud.Market {
	choice := cloud.Market("")
	if d.Open {
		choice = cloud.Spot
	}
	return inTime(d, choice)
}

// uniform keeps the job's progress uniform. It leaves a machine on demand only when the job is ahead by two
// restarts; the eager variant leaves it for any spot machine.
func uniform(d scaler.Deadline, eager bool) cloud.Market {
	passed, done := d.AllTime-d.Left, d.AllWork-d.Work
	pace := float64(d.AllWork) / float64(d.AllTime)
	ahead := float64(passed+2*d.Restart)*pace < float64(done)
	if !eager {
		ahead = float64(passed+2*d.Restart)*pace <= float64(done)
	}
	choice := cloud.Market("")
	switch {
	case d.Running == cloud.OnDemand && !ahead && (!eager || !d.Open):
		choice = cloud.OnDemand
	case d.Open:
		choice = cloud.Spot
	case d.Running != cloud.OnDemand && float64(done) < float64(passed)*pace:
		choice = cloud.OnDemand
	}
	return inTime(d, choice)
}

// inTime goes on demand where the choice could make the job late.
func inTime(d scaler.Deadline, choice cloud.Market) cloud.Market {
	work := d.Work
	if choice == cloud.Spot {
		start := d.Restart
		if d.Running == cloud.Spot {
			start = d.Pending
		}
		work -= max(0, d.Step-start)
	}
	if choice != cloud.OnDemand && work+d.Restart > d.Left-d.Step {
		return cloud.OnDemand
	}
	return choice
}

// spotResult is the outcome of one job.
type spotResult struct {
	cost         float64
	ended        time.Duration
	waited       time.Duration // without a machine
	paid, worked time.Duration // of machines; starts are paid and do no work
	launches     int
	tries        int
}

// playSpot runs one job. A job that does not end with its window counts as late.
func playSpot(w spotWindow, deadline, restart time.Duration, policy spotPolicy) spotResult {
	s := &spotState{window: w, Deadline: scaler.Deadline{Work: spotWork, Left: deadline, AllWork: spotWork,
		AllTime: deadline, Restart: restart, Step: spotStep}}
	var r spotResult
	for ; s.Work > 0 && s.tick < len(w[0]); s.tick++ {
		s.lose()
		if s.open() >= 0 {
			s.openFor++
		} else {
			s.openFor = 0
		}
		if m := policy(s); m != s.Running {
			s.Running, s.Pending = m, restart
			if m != "" {
				r.launches++
			}
		}
		used := spotStep
		if s.Running != "" {
			used = min(spotStep, s.Pending+s.Work)
			start := min(used, s.Pending)
			s.Pending -= start
			s.Work -= used - start
			r.paid, r.worked = r.paid+used, r.worked+used-start
		} else {
			r.waited += used
		}
		switch s.Running {
		case cloud.Spot:
			r.cost += used.Hours() * spotPrice
		case cloud.OnDemand:
			r.cost += used.Hours() * fullPrice
		}
		s.Left -= spotStep
		r.ended += used
	}
	r.tries = s.tries
	if s.Work > 0 {
		r.ended = math.MaxInt64
	}
	return r
}

// spotBound returns the least cost of any policy without restarts.
func spotBound(w spotWindow, deadline time.Duration) float64 {
	open := time.Duration(0)
	for i := range int(deadline / spotStep) {
		for _, z := range w {
			if z[i] {
				open += spotStep
				break
			}
		}
	}
	open = min(open, spotWork)
	return open.Hours()*spotPrice + (spotWork-open).Hours()*fullPrice
}

// spotMean is a cell of the table: means of all jobs, and the number of jobs that were late.
type spotMean struct {
	cost            float64 // US dollars
	wait            float64 // hours without a machine
	launches, tries float64
	idle            float64 // share of the paid time of all jobs that went into starts
	late            int
}

// meanSpot plays a policy on all windows.
func meanSpot(windows []spotWindow, deadline, restart time.Duration, policy spotPolicy) (m spotMean) {
	var paid, worked time.Duration
	n := float64(len(windows))
	for _, w := range windows {
		r := playSpot(w, deadline, restart, policy)
		m.cost += r.cost / n
		m.wait += r.waited.Hours() / n
		m.launches += float64(r.launches) / n
		m.tries += float64(r.tries) / n
		paid, worked = paid+r.paid, worked+r.worked
		if r.ended > deadline {
			m.late++
		}
	}
	m.idle = 1 - worked.Hours()/paid.Hours()
	return m
}

// meanSpotBound returns the mean of spotBound over all windows.
func meanSpotBound(windows []spotWindow, deadline time.Duration) (cost float64) {
	for _, w := range windows {
		cost += spotBound(w, deadline) / float64(len(windows))
	}
	return cost
}

// cellName returns the deadline and the restart cost, such as "52 h, 3 min".
func cellName(deadline, restart time.Duration) string {
	return strings.TrimSpace(fmt.Sprintf("%.0f h, %.0f min", deadline.Hours(), restart.Minutes()))
}
