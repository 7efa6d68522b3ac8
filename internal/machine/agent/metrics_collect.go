package agent

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"berth"
)

// Descriptions of the metrics that are read from the agent's state.
var (
	registeredDesc = prometheus.NewDesc("berth_agent_registered",
		"1 while the agent has a session with the control plane, else 0.", nil, nil)
	renewalDesc = prometheus.NewDesc("berth_agent_renewal_age_seconds",
		"Time since the last renewal of the machine's lease; before the first one, since the start of the agent.", nil,
		nil)
	allocationsDesc = prometheus.NewDesc("berth_agent_allocations",
		"Allocations that the agent works on, by phase: exited and sealed ones have ended.", []string{"phase"}, nil)
	endsDesc = prometheus.NewDesc("berth_agent_unreported_ends",
		"Ends of members that the control plane has not accepted yet.", nil, nil)
	overdueDesc = prometheus.NewDesc("berth_agent_report_overdue_seconds",
		"Delay of the report to the control plane that is overdue the longest; 0 if none is overdue.", nil, nil)
	silentDesc = prometheus.NewDesc("berth_agent_engine_silent_seconds",
		"Time since the container engine does not answer probes; 0 if it answers.", nil, nil)
	stuckDesc = prometheus.NewDesc("berth_agent_stuck_members",
		"Members whose containers the engine cannot end, as of a dead file server.", nil, nil)
	quarantinedDesc = prometheus.NewDesc("berth_agent_quarantined_containers",
		"Containers that the control plane does not know, which run on untouched.", nil, nil)
	gpusDesc = prometheus.NewDesc("berth_agent_gpus",
		"GPUs by state: healthy, unhealthy, or in_use by a program outside of Berth.", []string{"state"}, nil)
	sessionsDesc = prometheus.NewDesc("berth_agent_sessions",
		"Open sessions of users in containers of this machine.", nil, nil)
	clockDesc = prometheus.NewDesc("berth_agent_clock_offset_seconds",
		"Clock of the control plane less the clock of this machine, by the header Date of the last answer, to about a "+
			"second; no series before the first answer.", nil, nil)
)

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(to chan<- *prometheus.Desc) {
	for _, c := range m.counted() {
		c.Describe(to)
	}
	for _, d := range []*prometheus.Desc{
		registeredDesc, renewalDesc, allocationsDesc, endsDesc, overdueDesc, silentDesc, stuckDesc, quarantinedDesc,
		gpusDesc, sessionsDesc, clockDesc,
	} {
		to <- d
	}
}

// counted returns the metrics that are kept and not read from the agent.
func (m *Metrics) counted() []prometheus.Collector {
	return []prometheus.Collector{m.info, m.engine, m.server, m.objects, m.repeats, m.logged}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(to chan<- prometheus.Metric) {
	for _, c := range m.counted() {
		c.Collect(to)
	}
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	s := m.state()
	gauge(registeredDesc, s.registered)
	gauge(renewalDesc, s.renewed.Seconds())
	for _, phase := range reportedPhases {
		gauge(allocationsDesc, float64(s.work.phases[phase]), phaseLabel(phase))
	}
	gauge(endsDesc, float64(s.work.ends))
	gauge(overdueDesc, s.work.overdue.Seconds())
	gauge(silentDesc, s.silent.Seconds())
	gauge(stuckDesc, float64(s.stuck))
	gauge(quarantinedDesc, float64(s.quarantined))
	for state, n := range s.gpus {
		gauge(gpusDesc, float64(n), state)
	}
	gauge(sessionsDesc, float64(m.sessions.Load()))
	if offset := m.clock.Load(); offset != nil {
		gauge(clockDesc, offset.Seconds())
	}
}

// reportedPhases are the phases of allocations in their order.
var reportedPhases = []berth.Phase{
	berth.PhaseNone, berth.PhaseClaimed, berth.PhasePulling, berth.PhaseRestoring, berth.PhasePrepared,
	berth.PhaseRunning, berth.PhaseExited, berth.PhaseSealed,
}

// phaseLabel returns the value of the label phase.
func phaseLabel(p berth.Phase) string {
	if p == berth.PhaseNone {
		return "unclaimed"
	}
	return string(p)
}

// agentState is the state of an agent at one moment. The zero state, apart from renewed and gpus, is that
// of an agent that has not joined.
type agentState struct {
	registered  float64 // 1 with a session
	renewed     time.Duration
	silent      time.Duration
	work        workState
	gpus        map[string]int // by state
	stuck       int
	quarantined int
}

// state reads the state of the agent that runs. It takes locks that no call of the server or the engine is
// made under.
func (m *Metrics) state() agentState {
	s := agentState{renewed: time.Since(m.began), gpus: map[string]int{"healthy": 0, "unhealthy": 0, "in_use": 0}}
	a := m.agent.Load()
	if a == nil {
		return s
	}
	if age, ok := a.belt.leaseAge(); ok {
		s.renewed = age
	}
	a.mu.Lock()
	sup := a.sup
	a.mu.Unlock()
	if sup == nil {
		return s
	}
	if sup.control.isOpen() {
		s.registered = 1
	}
	s.work = sup.workState(time.Now())
	s.silent = sup.health.silentFor()
	s.stuck = sup.stuck.size()
	s.quarantined = sup.quarantine.size()
	sup.gpus.count(s.gpus)
	return s
}

// workState is the state of the members on a machine.
type workState struct {
	phases  map[berth.Phase]int
	ends    int           // that the server has yet to take
	overdue time.Duration // of the report that is overdue the longest
}

// workState returns the state of all members.
func (s *Supervisor) workState(now time.Time) workState {
	w := workState{phases: map[berth.Phase]int{}}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		p, _, due := m.reports.present()
		w.phases[p.Phase]++
		if due.IsZero() {
			continue
		}
		if p.Phase == berth.PhaseExited || p.Phase == berth.PhaseSealed {
			w.ends++
		}
		w.overdue = max(w.overdue, now.Sub(due))
	}
	return w
}

// leaseAge returns the time since the last renewal of the lease; ok is false without one.
func (b *belt) leaseAge() (age time.Duration, ok bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return time.Since(b.leased), !b.leased.IsZero()
}

// isOpen reports whether a session is open.
func (c *control) isOpen() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	select {
	case <-c.open:
		return true
	default:
		return false
	}
}

// size returns the number of stuck members.
func (b *stuckBoard) size() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.list)
}

// size returns the number of containers under quarantine.
func (q *quarantine) size() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.list)
}

// count adds the devices to their states.
func (h *gpuHealth) count(states map[string]int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id, g := range h.known {
		switch {
		case !g.Healthy:
			states["unhealthy"]++
		case h.held[id] != "":
			states["in_use"]++
		default:
			states["healthy"]++
		}
	}
}
