package scale_test

import (
	"context"
	"fmt"
	"math"
	"time"

	"berth"
	"berth/e2e/rig"
)

// Bounds of the figures, as the project has set them for two cores.
const (
	idleServersMust  = 0.125 // cores of control plane, Temporal and PostgreSQL for 300 idle machines: half of the earlier use
	idleAgentsMust   = 0.045 // cores of 300 idle agents: half of the earlier use
	agentMemoryMust  = 25.0  // MiB of an idle agent
	serverMSMust     = 0.03  // ms of CPU a second in the servers for each running job
	agentMSMust      = 0.07  // the same in the agents
	restOverFirst    = 0.8   // rate of the last starts over that of the first
	besideOverEmpty  = 2.0   // submit to start with running jobs, divided by the same without
	shownRunningMust = 5.0   // s for which a job may be shown as running after its process has ended
	goodputMust      = 0.8   // of the peak rate
	smallMust        = 3.0   // a small tenant's submits under overload over quiet, p99
	recoverWithin    = 30 * time.Second
)

// firstJobs is how many starts the rate of the first is taken from.
const firstJobs = 500

// measureJoin joins the machines.
func (c *cell) measureJoin(n int) {
	c.t.Helper()
	began := time.Now()
	if err := c.Join(c.t.Context(), n); err != nil {
		c.t.Fatalf("join %d machines: %v", n, err)
	}
	c.table.Add(rig.Figure{Name: fmt.Sprintf("%d machines join", n), Value: time.Since(began).Seconds(), Unit: "s"})
	c.say("%d machines joined after %s", n, time.Since(began).Round(time.Second))
}

// window measures CPU for a while in which the harness does nothing, once the
// servers are level.
func (c *cell) window(d time.Duration) (before, after rig.Reading, note string) {
	note = c.level()
	before = c.Read()
	pause(c.t.Context(), d)
	return before, c.Read(), note
}

// idle is the CPU in cores of the groups while no job runs.
type idle map[rig.Group]float64

func (c *cell) measureIdle(machines int, d time.Duration) idle {
	before, after, level := c.window(d)
	of := idle{}
	servers := 0.0
	for _, g := range rig.Groups {
		of[g] = after.Cores(g, before)
	}
	for _, g := range rig.Servers {
		servers += of[g]
	}
	full := machines >= 300
	c.table.Add(rig.Figure{Name: fmt.Sprintf("CPU of the servers, %d idle machines", machines), Value: servers, Unit: "cores", Must: onlyIf(full, idleServersMust),
		Note: fmt.Sprintf("control plane %.3f, Temporal %.3f, PostgreSQL %.3f; others on the host %.2f; %s", of[rig.ControlPlane], of[rig.Temporal], of[rig.PostgreSQL], after.Others(before), level)})
	c.table.Add(rig.Figure{Name: fmt.Sprintf("CPU of %d idle agents", machines), Value: of[rig.Agents], Unit: "cores", Must: onlyIf(full, idleAgentsMust)})
	memory := c.Memory(rig.Agents)
	c.table.Add(rig.Figure{Name: "memory of an idle agent, mean", Value: rig.Mean(memory), Unit: "MiB", Must: rig.Limit(agentMemoryMust)})
	c.table.Remark("memory, idle: control plane %.0f MiB, Temporal %.0f MiB", rig.Mean(c.Memory(rig.ControlPlane)), rig.Mean(c.Memory(rig.Temporal)))
	c.say("idle: servers %.3f cores, agents %.3f cores and %.1f MiB each", servers, of[rig.Agents], rig.Mean(memory))
	return of
}

// onlyIf returns a bound that applies to the full size only.
func onlyIf(full bool, v float64) *float64 {
	if !full {
		return nil
	}
	return rig.Limit(v)
}

// measureSingles adds the wait of single jobs, and compares it with earlier
// ones if there are any.
func (c *cell) measureSingles(beside string, n int, empty []time.Duration) []time.Duration {
	c.t.Helper()
	took := c.oneByOne(n)
	for _, q := range []struct {
		name string
		part float64
	}{{"p50", 0.5}, {"p99", 0.99}} {
		now := rig.Quantile(took, q.part)
		f := rig.Figure{Name: fmt.Sprintf("submit to start of a single job, %s, %s", q.name, beside), Value: rig.MS(now), Unit: "ms"}
		if empty != nil {
			was := rig.Quantile(empty, q.part)
			f.Value, f.Unit, f.Must = float64(now)/float64(was), "x empty", rig.Limit(besideOverEmpty)
			f.Note = fmt.Sprintf("%.0f ms; empty %.0f ms", rig.MS(now), rig.MS(was))
		}
		c.table.Add(f)
	}
	c.say("single jobs %s: p50 %.0f ms, p99 %.0f ms", beside, rig.MS(rig.Quantile(took, 0.5)), rig.MS(rig.Quantile(took, 0.99)))
	return took
}

// long holds the parts' common knowledge of the long jobs.
type long struct {
	parents []berth.JobID
	running int     // jobs that should run
	first   float64 // rate of the very first starts; 0: not measured
}

// measureLong raises the number of long jobs to total, and measures the starts.
func (c *cell) measureLong(l *long, total int, limit time.Duration, bare float64) {
	c.t.Helper()
	n := total - l.running
	w := c.StartWatch(time.Second, rig.Short{})
	submitted := c.now()
	parent := c.submitArray(longName, n, "sleep", "12h")
	have := c.awaitRunning(parent, n, limit)
	seen := w.Stop()
	l.parents, l.running = append(l.parents, parent), total
	starts := c.starts(parent)
	name := fmt.Sprintf("starts of %d long jobs, %d in all", n, total)
	rate, rest := math.NaN(), math.NaN()
	if edge := min(firstJobs, n/2); len(starts) > edge {
		rate = float64(edge) / starts[edge-1].Sub(submitted).Seconds()
		end := c.now() // where not all have started, the rest is as slow as the wait for it
		if have == n {
			end = starts[len(starts)-1]
		}
		rest = float64(len(starts)-edge) / end.Sub(starts[edge-1]).Seconds()
	}
	if l.first == 0 {
		l.first = rate
	}
	note := fmt.Sprintf("first %.1f/s, rest %.1f/s", rate, rest)
	if bare > 0 {
		note += fmt.Sprintf("; over bare workflows %.2f", rest/bare)
	}
	if have < n {
		note += fmt.Sprintf("; %d NEVER RAN within %s", n-have, limit)
	}
	c.table.Add(rig.Figure{Name: name + ": rate of the rest over the first", Value: rest / l.first, Unit: "ratio", High: true, Must: rig.Limit(restOverFirst), Note: note})
	c.table.Add(rig.Figure{Name: name + ": jobs that never ran", Value: float64(n - have), Must: rig.Limit(0)})
	c.addSilence(name, seen)
	c.say("%s: %s; oldest lease %.1f s", name, note, seen.OldestLease.Seconds())
}

// addSilence adds the machines that fell silent while something was done.
func (c *cell) addSilence(during string, seen rig.Seen) {
	c.table.Add(rig.Figure{Name: during + ": machines silent at once, most", Value: float64(seen.Silent), Must: rig.Limit(0),
		Note: fmt.Sprintf("oldest lease %.1f s", seen.OldestLease.Seconds())})
	for _, err := range seen.Errors {
		c.table.Remark("%s: %v", during, err)
	}
}

// measureSteady measures the cost of running jobs while nothing changes.
func (c *cell) measureSteady(of idle, jobs int, d time.Duration) {
	before, after, level := c.window(d)
	servers, agents := 0.0, (after.Cores(rig.Agents, before)-of[rig.Agents])*1000/float64(jobs)
	note := ""
	for _, g := range rig.Servers {
		each := (after.Cores(g, before) - of[g]) * 1000 / float64(jobs)
		servers += each
		note += fmt.Sprintf("%s %.3f, ", g, each)
	}
	name := fmt.Sprintf("CPU a second for each of %d running jobs", jobs)
	c.table.Add(rig.Figure{Name: name + ", servers", Value: servers, Unit: "ms", Must: rig.Limit(serverMSMust), Note: note + fmt.Sprintf("beyond idle, %s; others on the host %.2f cores", level, after.Others(before))})
	c.table.Add(rig.Figure{Name: name + ", agents", Value: agents, Unit: "ms", Must: rig.Limit(agentMSMust), Note: "beyond idle"})
	c.table.Remark("memory, %d running: control plane %.0f MiB, Temporal %.0f MiB, an agent %.1f MiB", jobs,
		rig.Mean(c.Memory(rig.ControlPlane)), rig.Mean(c.Memory(rig.Temporal)), rig.Mean(c.Memory(rig.Agents)))
	c.say("%d running: %.3f ms a second each in the servers, %.3f ms in the agents", jobs, servers, agents)
}

// measureFlood submits an array of short jobs, and cancels it after a while.
func (c *cell) measureFlood(n int, d, limit time.Duration) {
	c.t.Helper()
	w := c.StartWatch(time.Second, rig.Short{Name: shortName, Runs: shortRuns})
	from := c.now()
	parent := c.submitArray(shortName, n, "sleep", shortRuns.String())
	_, left := c.settle(shortName, d)
	to := c.now()
	settled := c.settledBetween(shortName, from, to)
	begun := len(c.starts(parent))
	if left > 0 {
		c.cancel(parent, limit)
	}
	took, left := c.settle(shortName, limit)
	seen := w.Stop()
	name := fmt.Sprintf("flood of %d short jobs", n)
	c.table.Add(rig.Figure{Name: name + ": ended process shown as running, longest", Value: seen.ShownRunning.Seconds(), Unit: "s", Must: rig.Limit(shownRunningMust),
		Note: fmt.Sprintf("%d started and %d settled in %.0f s, %.1f/s", begun, settled, to.Sub(from).Seconds(), float64(settled)/to.Sub(from).Seconds())})
	c.table.Add(rig.Figure{Name: name + ": jobs that do not settle", Value: float64(left), Must: rig.Limit(0), Note: fmt.Sprintf("all had settled %.0f s after the end of the flood", took.Seconds())})
	c.addSilence(name, seen)
	c.say("%s: shown as running for up to %.1f s; %d settled in %.0f s", name, seen.ShownRunning.Seconds(), settled, to.Sub(from).Seconds())
}

// cancel cancels a job. A control plane that is busy may need more than one call;
// one that does not answer at all is a figure, so that the table is whole.
func (c *cell) cancel(id berth.JobID, limit time.Duration) {
	began := time.Now()
	if err := rig.AwaitEvery(c.t.Context(), time.Second, limit, func(ctx context.Context) error {
		_, err := c.API.Cancel(ctx, id)
		return err
	}); err != nil {
		c.table.Add(rig.Figure{Name: "a cancel is accepted", Value: math.NaN(), Must: rig.Limit(0), Note: err.Error()})
		return
	}
	if took := time.Since(began); took > time.Second {
		c.table.Remark("a cancel was accepted after %.1f s", took.Seconds())
	}
}

// cancelLong cancels the long jobs and waits for their end.
func (c *cell) cancelLong(l *long, limit time.Duration) {
	c.t.Helper()
	w := c.StartWatch(time.Second, rig.Short{})
	for _, id := range l.parents {
		c.cancel(id, limit)
	}
	took, left := c.settle(longName, limit)
	seen := w.Stop()
	c.table.Add(rig.Figure{Name: fmt.Sprintf("cancel of %d running jobs: jobs that do not settle", l.running), Value: float64(left), Must: rig.Limit(0), Note: fmt.Sprintf("after %.0f s", took.Seconds())})
	c.addSilence(fmt.Sprintf("cancel of %d running jobs", l.running), seen)
	c.say("cancel of %d running jobs: %d left after %.0f s", l.running, left, took.Seconds())
	l.parents, l.running = nil, 0
}

// say prints progress: a run takes minutes.
func (c *cell) say(format string, args ...any) {
	fmt.Printf("%s  "+format+"\n", append([]any{time.Now().Format(time.TimeOnly)}, args...)...)
}
