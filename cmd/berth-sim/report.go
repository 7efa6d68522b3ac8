package main

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"berth"
	"berth/spec"
)

// sample is the state of the cluster from a time until the next sample.
type sample struct {
	at      time.Time
	used    berth.Capacity
	tenants map[berth.TenantID]berth.Capacity
	waiting int // jobs in the queue
}

// record appends a sample of the state. At one virtual time the last state counts: the
// steps before it lasted no time.
func (r *replay) record() {
	if !r.sampled {
		return
	}
	s := sample{at: r.now, tenants: map[berth.TenantID]berth.Capacity{}, waiting: r.snapshot.Jobs()}
	for _, t := range r.running {
		c := total(t.grants)
		s.used = s.used.Add(c)
		s.tenants[t.tenant] = s.tenants[t.tenant].Add(c)
	}
	if n := len(r.samples); n > 0 && r.samples[n-1].at.Equal(r.now) {
		r.samples[n-1] = s
		return
	}
	r.samples = append(r.samples, s)
}

// standing sums up how one tenant fared.
type standing struct {
	tenant berth.TenantID
	weight float64 // configured; 1 by default
	jobs   int
	waits  []float64 // seconds from submission to first start; sorted
	gave   int       // number of its preempted runs
	lost   float64   // hours of work lost by preemption, times GPUs or cores
	held   float64   // dominant share, mean over the scenario's duration
}

// standings returns one standing per tenant, over the time while jobs arrived: the tenants
// of the file in its order, then further tenants of jobs.
func (r *replay) standings(s *scenario) []*standing {
	by := map[berth.TenantID]*standing{}
	var list []*standing
	add := func(id berth.TenantID, weight float64) *standing {
		x := &standing{tenant: id, weight: weight}
		by[id] = x
		list = append(list, x)
		return x
	}
	for _, t := range s.Tenants {
		weight := t.Weight
		if weight == 0 {
			weight = 1
		}
		add(berth.TenantID(t.Name), weight)
	}
	for _, t := range r.ended {
		x := by[t.tenant]
		if x == nil {
			x = add(t.tenant, 1)
		}
		x.jobs++
		x.waits = append(x.waits, t.first.Sub(origin.Add(t.submitted)).Seconds())
		x.gave += t.starts - 1
		x.lost += r.lost[t.job].Hours() * units(t.request.Total(), r.owned)
	}
	r.each(s.Duration.Std(), func(p sample, seconds float64) {
		for id, c := range p.tenants {
			by[id].held += dominant(c, r.owned) * seconds / s.Duration.Std().Seconds()
		}
	})
	for _, x := range list {
		slices.Sort(x.waits)
	}
	return list
}

// units returns the number of GPUs of a job, or of cores on a cluster without GPUs. c is the sum of its members.
func units(c, owned berth.Capacity) float64 {
	milli := c.CPUMilli
	if owned.GPUMilli > 0 {
		milli = c.GPUMilli
	}
	return float64(milli) / 1000
}

// dominant returns the greatest of the shares in the cluster's resources, as in dominant
// resource fairness.
func dominant(c, owned berth.Capacity) float64 {
	return max(part(c.CPUMilli, owned.CPUMilli), part(c.MemoryMiB, owned.MemoryMiB), part(c.GPUMilli, owned.GPUMilli))
}

// part returns x/of, and 0 for a resource that the cluster lacks.
func part(x, of int64) float64 {
	if of == 0 {
		return 0
	}
	return float64(x) / float64(of)
}

// each visits the samples up to a time. Seconds is how long a sample lasted before that
// time: counting the run after the last arrival, until all jobs have ended, would lower
// every mean.
func (r *replay) each(until time.Duration, visit func(s sample, seconds float64)) {
	end := origin.Add(until)
	for i, s := range r.samples {
		next := end
		if i+1 < len(r.samples) && r.samples[i+1].at.Before(end) {
			next = r.samples[i+1].at
		}
		if next.After(s.at) {
			visit(s, next.Sub(s.at).Seconds())
		}
	}
}

// report prints utilisation, waits, fairness and a table of the tenants.
func (r *replay) report(w io.Writer, s *scenario) error {
	var cpu, memory, gpu, waiting float64
	whole := s.Duration.Std().Seconds()
	r.each(s.Duration.Std(), func(p sample, seconds float64) {
		// Each mean is weighted by time: samples last as long as nothing changes.
		cpu += part(p.used.CPUMilli, r.owned.CPUMilli) * seconds / whole
		memory += part(p.used.MemoryMiB, r.owned.MemoryMiB) * seconds / whole
		gpu += part(p.used.GPUMilli, r.owned.GPUMilli) * seconds / whole
		waiting += float64(p.waiting) * seconds / whole
	})
	list := r.standings(s)
	fmt.Fprintf(w, "jobs         %d in %s, the last one done after %s\n", len(r.ended), s.Duration,
		r.now.Sub(origin).Round(time.Second))
	fmt.Fprintf(w, "utilisation  CPU %.1f %%, memory %.1f %%, GPU %.1f %%\n", cpu*100, memory*100, gpu*100)
	fmt.Fprintf(w, "waiting      %.1f jobs on average\n", waiting)
	fmt.Fprintf(w, "fairness     %.3f (Jain's index of dominant share over weight; 1: even)\n\n", jain(list))
	unit := "core"
	if r.owned.GPUMilli > 0 {
		unit = "GPU"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "TENANT\tWEIGHT\tJOBS\tSHARE\tWAIT MEAN\tP50\tP99\tDISPLACED\tLOST %s h\n", unit)
	for _, x := range list {
		name := string(x.tenant)
		if name == "" {
			name = "-"
		}
		fmt.Fprintf(t, "%s\t%g\t%d\t%.1f %%\t%s\t%s\t%s\t%d\t%.2f\n", name, x.weight, x.jobs, x.held*100,
			span(mean(x.waits)), span(percentile(x.waits, 0.5)), span(percentile(x.waits, 0.99)), x.gave, x.lost)
	}
	return t.Flush()
}

// jain returns Jain's fairness index of the tenants' dominant shares over their weights: 1
// if all are equal, 1/n if one of n tenants has everything. Tenants without jobs do not
// count.
func jain(list []*standing) float64 {
	sum, squares, n := 0.0, 0.0, 0.0
	for _, x := range list {
		if x.jobs == 0 {
			continue
		}
		v := x.held / x.weight
		sum, squares, n = sum+v, squares+v*v, n+1
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (n * squares)
}

func mean(list []float64) float64 {
	sum := 0.0
	for _, x := range list {
		sum += x
	}
	return sum / float64(max(1, len(list)))
}

// span formats seconds as a duration, rounded to tenths below a minute.
func span(s float64) string {
	d := time.Duration(s * float64(time.Second))
	if d < time.Minute {
		return d.Round(100 * time.Millisecond).String()
	}
	return spec.Duration(d.Round(time.Second)).String()
}
