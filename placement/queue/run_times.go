package queue

import (
	"slices"
	"time"

	"berth"
	"berth/placement/cluster"
)

// RunTimes predicts run times from jobs that have ended. A prediction is the distribution of
// the run times of similar jobs, from the most similar ones of which there are enough:
//
//	near    same tenant, name and GPUs, submitted within minutes of the job
//	name    same tenant and name
//	data    same tenant, content to read (image, code, inputs) and request
//	shape   same tenant and GPUs
//	tenant  same tenant
//	all     any job
//
// The nil RunTimes predicts nothing. Concurrent use is safe without Add.
type RunTimes struct {
	groups map[group]*past
}

// Like has the properties by which jobs are similar.
type Like struct {
	Tenant      berth.TenantID
	Name        string // "": no name counts
	Data        string // content that the job reads, its image included; "": no content counts
	Class       string
	GPUs        float64 // sum over all members; see cluster.GPUsOf
	SubmittedAt time.Time
}

// Level is a kind of similarity, the closest first.
type Level int

// The levels of similarity.
const (
	Near Level = iota
	SameName
	SameData
	SameShape
	SameTenant
	AllJobs
	levels
)

// levelNames holds the names of the levels in the API.
var levelNames = [...]string{Near: "near", SameName: "name", SameData: "data", SameShape: "shape",
	SameTenant: "tenant", AllJobs: "all"}

// String returns the name of the level in the API.
func (l Level) String() string {
	if l >= 0 && int(l) < len(levelNames) {
		return levelNames[l]
	}
	panic("placement: no such level of similarity")
}

// Parameters of RunTimes, chosen on the tuning half of the traces (docs/design/simulation.md).
const (
	// enough is the number of run times from which a level predicts.
	enough = 3
	// maxRuns is the number of run times kept per group, the latest ones.
	maxRuns = 256
	// nearby is the greatest distance in submission of jobs that are near.
	nearby = 30 * time.Minute
	// parts is the number of equally likely parts into which a distribution is divided.
	parts = 8
)

// group identifies the jobs that are similar at a level.
type group struct {
	level Level
	a, b  string
	gpus  float64
}

// group returns the job's group of a level; ok is false for a level that does not apply.
func (k Like) group(l Level) (g group, ok bool) {
	switch tenant := string(k.Tenant); l {
	case Near:
		return group{level: l, a: tenant, b: k.Name, gpus: k.GPUs}, true
	case SameName:
		return group{level: l, a: tenant, b: k.Name}, k.Name != ""
	case SameData:
		return group{level: l, a: tenant, b: k.Data + "\n" + k.Class}, k.Data != ""
	case SameShape:
		return group{level: l, a: tenant, gpus: k.GPUs}, true
	case SameTenant:
		return group{level: l, a: tenant}, true
	default:
		return group{level: l}, true
	}
}

// past holds the latest run times of a group.
type past struct {
	order  []sample        // oldest first
	sorted []time.Duration // of order
}

// sample is one run time.
type sample struct {
	submitted time.Time
	ran       time.Duration
}

// NewRunTimes returns a RunTimes without jobs.
func NewRunTimes() *RunTimes { return &RunTimes{groups: map[group]*past{}} }

// Add records the run time of a job that has ended, over all its attempts. The caller adds
// jobs in the order of their ends.
func (h *RunTimes) Add(k Like, ran time.Duration) {
	for l := range levels {
		g, ok := k.group(l)
		if !ok {
			continue
		}
		r := h.groups[g]
		if r == nil {
			r = &past{}
			h.groups[g] = r
		}
		r.add(sample{k.SubmittedAt, ran})
	}
}

// add inserts a run time and drops the oldest of more than maxRuns.
func (r *past) add(e sample) {
	if len(r.order) == maxRuns {
		i, _ := slices.BinarySearch(r.sorted, r.order[0].ran)
		r.sorted = slices.Delete(r.sorted, i, i+1)
		r.order = slices.Delete(r.order, 0, 1)
	}
	r.insert(e)
}

func (r *past) insert(e sample) {
	i, _ := slices.BinarySearch(r.sorted, e.ran)
	r.order, r.sorted = append(r.order, e), slices.Insert(r.sorted, i, e.ran)
}

// Prediction is the distribution of a job's total run time.
type Prediction struct {
	Level   Level
	Samples int             // number of run times that it rests on; 0: nothing is known
	sorted  []time.Duration // the run times, all greater than ran
	ran     time.Duration
}

// Of predicts the total run time of a job that has run for ran so far: from the jobs of the
// closest level that ran longer than that. If too few have, although some have ended, the job is
// expected to run as long again as it has.
func (h *RunTimes) Of(k Like, ran time.Duration) Prediction {
	if h == nil {
		return Prediction{}
	}
	for l := range levels {
		g, ok := k.group(l)
		r := h.groups[g]
		if !ok || r == nil {
			continue
		}
		list := r.sorted
		if l == Near {
			list = r.near(k.SubmittedAt)
		}
		i, _ := slices.BinarySearch(list, ran+1)
		if list = list[i:]; len(list) >= enough {
			return Prediction{Level: l, Samples: len(list), sorted: list, ran: ran}
		}
	}
	if all := h.groups[group{level: AllJobs}]; all == nil || len(all.order) < enough {
		return Prediction{} // a moment after a job's start, twice that moment says nothing
	}
	return Prediction{Level: AllJobs, ran: ran}
}

// near returns the sorted run times of the jobs submitted near a time.
func (r *past) near(at time.Time) []time.Duration {
	var list []time.Duration
	for _, e := range r.order {
		if d := e.submitted.Sub(at); max(d, -d) <= nearby {
			list = append(list, e.ran)
		}
	}
	slices.Sort(list)
	return list
}

// Quantile returns the total run time below which the job ends with probability q, 0 if
// nothing is known.
func (p Prediction) Quantile(q float64) time.Duration {
	n := len(p.sorted)
	switch {
	case n > 0:
		return p.sorted[min(n-1, int(q*float64(n)))]
	case p.ran > 0:
		// Without any longer run, the job is taken to run as long again as it has, for any
		// probability.
		return 2 * p.ran
	}
	return 0
}

// Known reports whether anything is known about the run time.
func (p Prediction) Known() bool { return len(p.sorted) > 0 || p.ran > 0 }

// Confidence is the degree to which a prediction can be trusted.
type Confidence string

// The degrees of confidence.
const (
	High   Confidence = "high"   // many jobs of one name, which ran about equally long
	Medium Confidence = "medium" // jobs of one name or with the same content
	Low    Confidence = "low"    // few jobs, or jobs that have little in common
)

// Numbers of run times for High, and the greatest ratio of their 90th percentile to their median.
const (
	highSamples = 10
	highSpread  = 2
)

// Confidence judges the prediction; "" if nothing is known.
func (p Prediction) Confidence() Confidence {
	switch {
	case p.Samples == 0:
		return ""
	case p.Level > SameData:
		return Low
	case p.Level <= SameName && p.Samples >= highSamples && p.Quantile(0.9) <= highSpread*p.Quantile(0.5):
		return High
	}
	return Medium
}

// likeOf describes a waiting job.
func likeOf(e *Entry) Like {
	return Like{e.Tenant, e.LikeName, e.LikeData, e.Job.Class, cluster.GPUsOf(e.Class.All), e.SubmittedAt}
}

// Waiting predicts the total run time of a waiting job.
func (h *RunTimes) Waiting(e *Entry) Prediction {
	return h.Of(likeOf(e), e.Done)
}

// Running predicts the total run time of a running job.
func (h *RunTimes) Running(r *cluster.Holder, now time.Time) Prediction {
	return h.Of(likeRunning(r), ranSoFar(r, now))
}

func likeRunning(r *cluster.Holder) Like {
	return Like{r.Tenant, r.LikeName, r.LikeData, r.Class, cluster.GPUsOf(r.Capacity), r.SubmittedAt}
}

// ranSoFar returns the run time of a running job over all attempts.
func ranSoFar(r *cluster.Holder, now time.Time) time.Duration {
	return r.Done + max(0, now.Sub(r.StartedAt))
}

// Parts returns times that divide the distribution into equally likely parts, each the mean
// of its part; nil if nothing is known. The expected capacity that jobs release over time is
// the sum of their parts: among many jobs some end long before their median, and a few long
// ones hold most of the capacity.
func (p Prediction) Parts() []time.Duration {
	n := len(p.sorted)
	if n == 0 {
		if p.ran == 0 {
			return nil
		}
		return []time.Duration{2 * p.ran}
	}
	k := min(parts, n)
	list := make([]time.Duration, k)
	for i := range list {
		list[i] = meanOf(p.sorted[i*n/k : (i+1)*n/k])
	}
	return list
}

// Mean returns the mean of the distribution, 0 if nothing is known.
func (p Prediction) Mean() time.Duration {
	if len(p.sorted) == 0 {
		return 2 * p.ran
	}
	return meanOf(p.sorted)
}

// meanOf returns the mean of at least one duration.
func meanOf(list []time.Duration) time.Duration {
	sum := 0.0
	for _, d := range list {
		sum += float64(d)
	}
	return time.Duration(sum / float64(len(list)))
}
