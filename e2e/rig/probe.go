package rig

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"syscall"
	"time"
)

// Probe measures the latencies of a caller that makes few calls, by a helper in a control group of its own: a busy test
// process would add its own delays. It may be used concurrently.
type Probe struct {
	plan   ProbePlan
	helper *Helper

	mu    sync.Mutex
	calls []Probed // the call of number n at n-1
	lags  []lag
	due   time.Time // when the last call was due
	fault error     // of the first event that was not understood
}

// Probed is one call of a probe.
type Probed struct {
	Kind   string
	Due    time.Time
	Took   time.Duration // from when it was due to the end of its answer, or until now while it is open
	Open   bool          // it has not been answered
	Status int
	Fault  string // why an answered call was no success; empty: it was one
}

// lag is the overshoot of the canary's naps in the second before a time.
type lag struct {
	until time.Time
	naps  []time.Duration
}

// StartProbe starts a probe. The binary's TestMain must run RunProbe as the helper ProbeHelper. With Options.Apart the
// probe gets a control group of its own.
func (s *Stack) StartProbe(plan ProbePlan) (*Probe, error) {
	p, err := startProbe(plan)
	if err == nil {
		s.services.add(fmt.Sprintf("%s-%d", probeService, p.helper.PID), p.helper.PID)
	}
	return p, err
}

func startProbe(plan ProbePlan) (*Probe, error) {
	p := &Probe{plan: plan, helper: &Helper{}}
	if err := p.helper.start(ProbeHelper, plan, &lines{f: p.read}); err != nil {
		return nil, err
	}
	return p, nil
}

// read takes an event.
func (p *Probe) read(line []byte) {
	var e probeEvent
	err := json.Unmarshal(line, &e)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil:
		p.fail(fmt.Errorf("%w: %.200s", err, line))
	case e.Due != 0 && e.Number == len(p.calls)+1:
		p.due = time.Unix(0, e.Due)
		kind := p.plan.Round[(e.Number-1)%len(p.plan.Round)].Kind
		p.calls = append(p.calls, Probed{Kind: kind, Due: p.due, Open: true})
	case e.Due == 0 && e.Number > 0 && e.Number <= len(p.calls):
		c := &p.calls[e.Number-1]
		c.Open, c.Took, c.Status, c.Fault = false, e.Took, e.Status, e.Fault
	case e.Number != 0:
		p.fail(fmt.Errorf("call %d is not expected", e.Number))
	case e.Until != 0:
		p.lags = append(p.lags, lag{until: time.Unix(0, e.Until), naps: e.Lag})
	}
}

func (p *Probe) fail(err error) {
	if p.fault == nil {
		p.fault = fmt.Errorf("event of a probe: %w", err)
	}
}

// Between returns the calls that were due in a span of time, in that order, including calls that are still open.
func (p *Probe) Between(from, to time.Time) []Probed {
	p.mu.Lock()
	defer p.mu.Unlock()
	var list []Probed
	for _, c := range p.calls {
		if c.Due.Before(from) || !c.Due.Before(to) {
			continue
		}
		if c.Open {
			c.Took = time.Since(c.Due)
		}
		list = append(list, c)
	}
	return list
}

// Lag returns how much longer each nap of the canary took than it should, in a span of time.
func (p *Probe) Lag(from, to time.Time) []time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	var all []time.Duration
	for _, l := range p.lags {
		if !l.until.Before(from) && l.until.Before(to) {
			all = append(all, l.naps...)
		}
	}
	return all
}

// Await waits until all calls that are due before a time have been answered.
func (p *Probe) Await(ctx context.Context, until time.Time) error {
	return Await(ctx, callLimit+Patience, func(context.Context) error {
		select {
		case <-p.helper.exited:
			return fatal{errors.Join(errors.New("the probe ended"), p.helper.end())}
		default:
		}
		open := 0
		for _, c := range p.Between(time.Time{}, until) {
			if c.Open {
				open++
			}
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		switch {
		case p.fault != nil:
			return fatal{p.fault}
		case p.due.Before(until):
			return fmt.Errorf("the last call was due at %s, before %s", p.due, until)
		case open > 0:
			return fmt.Errorf("%d calls are open", open)
		}
		return nil
	})
}

// Stop ends the probe once the calls under way have been answered.
func (p *Probe) Stop() error {
	_ = syscall.Kill(p.helper.PID, syscall.SIGTERM) // ESRCH: it has just ended
	err := p.helper.end()
	p.mu.Lock()
	defer p.mu.Unlock()
	return errors.Join(err, p.fault)
}
