package placement_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/internal/lib/golden"
	"berth/placement"
	"berth/spec"
)

// TestConversations replays testdata/*.txt: commands after ">", what the engine
// decided below them. Lines with "#" state what a case is to show.
func TestConversations(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no conversations: %v", err)
	}
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txt"), func(t *testing.T) {
			t.Parallel()
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := converse(t, string(b))
			golden.Check(t, file, got)
		})
	}
}

func converse(t *testing.T, text string) string {
	t.Helper()
	c := &conversation{t: t, s: placement.NewSnapshot(), planner: placement.Planner{}, ran: map[berth.JobID]placement.Job{}}
	var out strings.Builder
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "> "):
			out.WriteString(line + "\n" + c.do(strings.Fields(line[2:])))
		case strings.HasPrefix(line, "#"), line == "":
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// conversation is a snapshot that is spoken to, with the rows a database would
// hold beside it.
type conversation struct {
	t       *testing.T
	s       *placement.Snapshot
	planner placement.Planner
	mix     []placement.Asked
	plan    placement.Plan
	now     time.Duration
	jobs    int

	ran         map[berth.JobID]placement.Job
	nominations []placement.Nomination
}

func (c *conversation) do(words []string) string {
	c.t.Helper()
	args := map[string]string{}
	var plain []string
	for _, w := range words[1:] {
		if k, v, ok := strings.Cut(w, "="); ok && !strings.ContainsAny(k, "\"'.") || strings.HasPrefix(w, "label.") && ok {
			args[k] = v
		} else {
			plain = append(plain, w)
		}
	}
	switch words[0] {
	case "machine":
		c.s.UpsertMachine(c.machine(plain[0], args))
	case "gone":
		c.s.RemoveMachine(berth.MachineID(plain[0]))
	case "job":
		c.job(plain[0], args)
	case "cache":
		var holds []spec.CachedData
		for k, v := range args {
			holds = append(holds, spec.CachedData{Key: dataNamed(k), MiB: c.mib(v)})
		}
		c.s.SetCache(berth.MachineID(plain[0]), holds)
	case "withdraw":
		c.s.RemoveJob(berth.JobID(plain[0]))
	case "wait":
		d, err := time.ParseDuration(plain[0])
		c.must(err)
		c.now += d
	case "mix":
		c.mix = append(c.mix, placement.Asked{Request: c.request(args), Count: float64(c.number(plain[0]))})
		mix, err := placement.GivenMix(c.mix)
		c.must(err)
		c.s.UseMix(mix)
	case "pack":
		c.planner.Pack = map[string]placement.Pack{"bestfit": placement.BestFit, "worth": placement.LeastFragmentation}[plain[0]]
	case "limit":
		c.planner.MaxStarts = int(c.number(plain[0]))
	case "plan":
		c.plan = c.planner.Plan(c.s, epoch.Add(c.now))
		return show(c.plan, c.now)
	case "policy":
		c.policy(args)
	case "tenant":
		c.tenant(plain[0], args)
	case "ends":
		c.stop(plain[0], false)
	case "stops":
		c.stop(plain[0], true)
	case "checkpoint":
		r, _ := c.s.Running(berth.JobID(plain[0]))
		r.Checkpoint = epoch.Add(c.now)
		c.s.UpsertRunning(r)
	case "estimates":
		c.planner.Estimate = plain[0] == "on"
	case "commit":
		c.commit()
	case "why":
		w, ok := c.planner.Why(c.s, berth.JobID(plain[0]), epoch.Add(c.now))
		if !ok {
			c.t.Fatalf("%s does not wait", plain[0])
		}
		return showWhy(w)
	case "explain":
		return showExplanation(placement.Explain(c.s, c.request(args)))
	default:
		c.t.Fatalf("no command %q", words[0])
	}
	return ""
}

func (c *conversation) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *conversation) number(s string) int64 {
	c.t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	c.must(err)
	return n
}

func (c *conversation) milli(s string) int64 {
	c.t.Helper()
	f, err := strconv.ParseFloat(s, 64)
	c.must(err)
	return int64(f*1000 + 0.5)
}

func (c *conversation) mib(s string) int64 {
	c.t.Helper()
	m, err := spec.ParseMiB(s)
	c.must(err)
	return int64(m)
}

// machine m1 cpu=4 mem=8GiB gpus=2xA100/40GiB state=ready used=1 label.zone=a;
// what is not named stays as it was.
func (c *conversation) machine(name string, args map[string]string) placement.Machine {
	c.t.Helper()
	m, ok := c.s.Machine(berth.MachineID(name))
	if !ok {
		m = placement.Machine{ID: berth.MachineID(name), Epoch: 1, State: berth.MachineReady, Labels: map[string]string{},
			Total: berth.Capacity{CPUMilli: 8000, MemoryMiB: 32 << 10, DiskMiB: 100 << 10}}
	}
	m.GPUs = slices.Clone(m.GPUs)
	for _, k := range sorted(args) {
		v := args[k]
		switch {
		case k == "cpu":
			m.Total.CPUMilli = c.milli(v)
		case k == "mem":
			m.Total.MemoryMiB = c.mib(v)
		case k == "disk":
			m.Total.DiskMiB = c.mib(v)
		case k == "state":
			m.State = berth.MachineState(v)
		case k == "blocked":
			m.Blocked = v
		case k == "engine":
			m.EngineSilentSince = time.Time{}
			if v == "silent" {
				m.EngineSilentSince = epoch.Add(c.now)
			}
		case k == "fences":
			m.Fences = v == "yes"
		case k == "epoch":
			m.Epoch = c.number(v)
		case k == "region":
			m.Region = v
		case k == "site":
			m.Site = v
		case k == "pool":
			m.Pool = v
		case strings.HasPrefix(k, "label."):
			m.Labels[k[6:]] = v
		case k == "gpus":
			m.GPUs = nil
			for part := range strings.SplitSeq(v, ",") {
				n, model, _ := strings.Cut(part, "x")
				model, memory, _ := strings.Cut(model, "/")
				for range c.number(n) {
					m.GPUs = append(m.GPUs, placement.Device{Index: len(m.GPUs), Model: model, MemoryMiB: c.mib(memory), Healthy: true})
				}
			}
			m.Total.GPUMilli = int64(len(m.GPUs)) * 1000
		case k == "sick":
			m.GPUs[c.number(v)].Healthy = false
		default:
			c.t.Fatalf("machine has no %q", k)
		}
	}
	return m
}

// request cpu=1 mem=1GiB gpus=1 type=A100|H100 gpumem=40GiB members=2 ...
func (c *conversation) request(args map[string]string) spec.Request {
	c.t.Helper()
	r := spec.Request{CPUMilli: 1000, MemoryMiB: 1024, Members: 1, Execution: spec.AtLeastOnce}
	for k, v := range args {
		switch {
		case k == "cpu":
			r.CPUMilli = c.milli(v)
		case k == "mem":
			r.MemoryMiB = c.mib(v)
		case k == "disk":
			r.DiskMiB = c.mib(v)
		case k == "gpus":
			if g := spec.MilliGPU(c.milli(v)); g.IsShare() {
				r.GPUs, r.GPUMilli = 1, int64(g)
			} else {
				r.GPUs, r.GPUMilli = g.Devices(), 1000
			}
		case k == "type":
			r.GPUTypes = strings.Split(v, "|")
		case k == "gpumem":
			r.GPUMemoryMiB = c.mib(v)
		case k == "members":
			r.Members = int(c.number(v))
		case k == "region":
			r.Regions = strings.Split(v, "|")
		case k == "site":
			r.Site = v
		case k == "where":
			r.Constraint = strings.ReplaceAll(v, "~", " ")
		case k == "execution":
			r.Execution = spec.Execution(v)
		case k == "strategy":
			r.Strategy = v
		case k == "same":
			r.SameLabel = v
		case k == "not":
			for m := range strings.SplitSeq(v, "|") {
				r.Avoid = append(r.Avoid, berth.MachineID(m))
			}
		case strings.HasPrefix(k, "label."):
			if r.Labels == nil {
				r.Labels = map[string]string{}
			}
			r.Labels[k[6:]] = v
		}
	}
	return r
}

func (c *conversation) job(name string, args map[string]string) {
	c.t.Helper()
	r := c.request(args)
	c.s.DefineClass(r.Class(), r)
	j, ok := c.s.Job(berth.JobID(name))
	if !ok {
		c.jobs++
		j = placement.Job{ID: berth.JobID(name), Version: 2, Priority: 500, Preemptible: true,
			SubmittedAt: epoch.Add(c.now + time.Duration(c.jobs)*time.Millisecond), EligibleAt: epoch.Add(c.now)}
	}
	j.Class = r.Class()
	for k, v := range args {
		switch k {
		case "priority":
			j.Priority = int(c.number(v))
		case "attempt":
			j.Attempt = int(c.number(v))
		case "held":
			j.Held = v == "yes"
		case "tenant":
			j.Tenant = berth.TenantID(v)
		case "preemptible":
			j.Preemptible = v == "yes"
		case "limit":
			j.TimeLimit = c.duration(v)
		case "takes":
			j.Remaining = c.duration(v)
		case "expected":
			j.Expected = c.duration(v)
		case "done":
			j.Done = c.duration(v)
		case "unaged":
			j.Unaged = c.duration(v)
		case "data":
			j.Data = nil
			for d := range strings.SplitSeq(v, "|") {
				j.Data = append(j.Data, dataNamed(d))
			}
		case "avoid":
			for m := range strings.SplitSeq(v, "|") {
				j.Avoid = append(j.Avoid, berth.MachineID(m))
			}
		case "after", "before":
			d, err := time.ParseDuration(v)
			c.must(err)
			if k == "after" {
				j.EligibleAt = epoch.Add(d)
			} else {
				j.QueueDeadline = epoch.Add(d)
			}
		}
	}
	c.s.UpsertJob(j)
}

// dataNamed is the key of content that a conversation calls by a name.
func dataNamed(name string) spec.DataKey {
	return spec.Input{From: name}.SourceKey("default")
}

// commit makes the latest plan true, as the database would.
func (c *conversation) commit() {
	c.preempt()
	for _, start := range c.plan.Start {
		j, _ := c.s.Job(start.Job)
		c.run(start, j)
		c.s.RemoveJob(start.Job)
		for _, g := range start.Ranks {
			m, _ := c.s.Machine(g.Machine)
			c.s.UpsertMachine(occupy(m, g))
		}
	}
	for _, f := range c.plan.Fail {
		c.s.RemoveJob(f.Job)
	}
}

func occupy(m placement.Machine, g berth.Grant) placement.Machine {
	m.Used = m.Used.Add(g.Capacity)
	m.GPUs = slices.Clone(m.GPUs)
	for _, d := range g.GPUs {
		for i := range m.GPUs {
			if m.GPUs[i].Index == d.Index {
				m.GPUs[i].UsedMilli += d.Milli
			}
		}
	}
	return m
}

func show(p placement.Plan, now time.Duration) string {
	var b strings.Builder
	for _, s := range p.Start {
		fmt.Fprintf(&b, "  start %s attempt %d:", s.Job, s.Attempt)
		for i, g := range s.Ranks {
			if i > 0 {
				b.WriteByte(',')
			}
			fmt.Fprintf(&b, " %s", g.Machine)
			for _, d := range g.GPUs {
				fmt.Fprintf(&b, " gpu%d", d.Index)
				if d.Milli < 1000 {
					fmt.Fprintf(&b, "*%s", spec.MilliGPU(d.Milli))
				}
			}
		}
		b.WriteByte('\n')
	}
	for _, m := range p.Near {
		fmt.Fprintf(&b, "  near %s: %s holds %s, instead of %s\n", m.Job, m.Machine, spec.MiB(m.MiB), m.Instead)
	}
	for _, f := range p.Fail {
		fmt.Fprintf(&b, "  fail %s: %s\n", f.Job, f.Reason.Code)
	}
	b.WriteString(showPolicy(p, now))
	if p.More {
		b.WriteString("  more\n")
	}
	if b.Len() == 0 {
		return "  nothing\n"
	}
	return b.String()
}

func showExplanation(e placement.Explanation) string {
	var b strings.Builder
	fmt.Fprintf(&b, "  %s\n", e.Summary)
	for _, c := range e.Clauses {
		fmt.Fprintf(&b, "  - %s: %d alone, %d after the others\n", c.Name, c.Alone, c.After)
	}
	fmt.Fprintf(&b, "  now %d, ever %d", e.FitNow, e.FitEver)
	if e.Members != nil {
		fmt.Fprintf(&b, ", members %d of %d now, %d ever", e.Members.Now, e.Members.Asked, e.Members.Ever)
	}
	b.WriteByte('\n')
	for _, l := range e.Lacking {
		fmt.Fprintf(&b, "  unsatisfiable %s: asked %s, largest %s\n", l.Resource, l.Asked, l.Largest)
	}
	return b.String()
}
