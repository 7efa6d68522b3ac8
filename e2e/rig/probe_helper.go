package rig

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"sync"
	"time"

	"berth"
	"berth/internal/check"
)

// ProbeHelper names the helper that measures latencies. Its work is RunProbe.
const ProbeHelper = "probe"

// ProbePlan is the configuration of a probe. Its calls are due at fixed times, whether or not earlier ones were
// answered.
type ProbePlan struct {
	URL    string         `json:"url"`
	Token  string         `json:"token"`
	From   string         `json:"from"`  // loopback address that it calls from; empty: the kernel's choice
	Rate   float64        `json:"rate"`  // calls a second
	Round  []ProbeCall    `json:"round"` // made in turn
	Ledger string         `json:"ledger"`
	Tenant berth.TenantID `json:"tenant"` // of the jobs in the ledger
}

// ProbeCall is one call of a probe's round.
type ProbeCall struct {
	Kind    string      `json:"kind"`
	Method  string      `json:"method"`
	Path    string      `json:"path"`
	Header  http.Header `json:"header"`
	Body    []byte      `json:"body"`
	Keyed   bool        `json:"keyed"`    // sends an idempotency key, new each time; its jobs are added to the ledger
	NewConn bool        `json:"new_conn"` // opens a connection of its own
}

// probeEvent is a line of a probe's output: a call is due, a call was answered, or the lags of the canary.
type probeEvent struct {
	Number int             `json:"number,omitempty"` // of the call, from 1
	Due    int64           `json:"due,omitempty"`    // nanoseconds since 1970; set when the call is sent
	Took   time.Duration   `json:"took,omitempty"`   // from when it was due to the end of its answer
	Status int             `json:"status,omitempty"`
	Fault  string          `json:"fault,omitempty"` // why it was no success
	Until  int64           `json:"until,omitempty"` // end of the time in which the canary measured them
	Lag    []time.Duration `json:"lag,omitempty"`
}

// RunProbe is the helper. It writes its events to standard output while it runs, and has no report.
func RunProbe(ctx context.Context, config json.RawMessage) (any, error) {
	r := probeRun{out: json.NewEncoder(os.Stdout)}
	if err := json.Unmarshal(config, &r.plan); err != nil {
		return nil, err
	}
	if r.plan.Rate <= 0 || len(r.plan.Round) == 0 {
		return nil, errors.New("a probe needs a rate and a round")
	}
	if r.plan.Ledger != "" {
		var err error
		if r.ledger, err = OpenLedger(r.plan.Ledger); err != nil {
			return nil, err
		}
		defer r.ledger.Close()
	}
	r.caller = r.newCaller()
	defer r.caller.Close()
	var all sync.WaitGroup
	all.Go(func() { r.canary(ctx) })
	began := time.Now()
	for i := 0; ; i++ {
		due := began.Add(time.Duration(float64(i) / r.plan.Rate * float64(time.Second)))
		if !SleepUntil(ctx, due) {
			break
		}
		r.emit(probeEvent{Number: i + 1, Due: due.UnixNano()})
		all.Go(func() { r.call(i, due) })
	}
	all.Wait()
	return nil, r.err
}

// probeRun is a probe at work.
type probeRun struct {
	plan   ProbePlan
	caller *Caller
	ledger *Ledger // nil: none

	mu  sync.Mutex
	out *json.Encoder
	err error // of the first event or line of the ledger that was not written
}

func (r *probeRun) newCaller() *Caller { return NewCaller(r.plan.URL, r.plan.Token, r.plan.From) }

// call makes one call. Its latency counts from when it was due, so that a delay before the send is not lost.
func (r *probeRun) call(i int, due time.Time) {
	c, caller := r.plan.Round[i%len(r.plan.Round)], r.caller
	if c.NewConn {
		caller = r.newCaller()
		defer caller.Close()
	}
	header, key := c.Header.Clone(), ""
	if c.Keyed {
		if header == nil {
			header = http.Header{}
		}
		key = berth.NewSecret()
		header.Set("Idempotency-Key", key)
	}
	a := caller.Call(context.Background(), c.Method, c.Path, header, c.Body)
	e := probeEvent{Number: i + 1, Took: time.Since(due), Status: a.Status}
	err := a.Err
	if err == nil && a.Good() && key != "" {
		err = r.record(key, a.Body)
	}
	if err != nil || !a.Good() {
		e.Fault = fmt.Sprintf("%s: status %d, %v, %.200s", c.Kind, a.Status, err, a.Body)
	}
	r.emit(e)
}

// record adds an accepted job to the ledger.
func (r *probeRun) record(key string, answer []byte) error {
	var job struct {
		ID berth.JobID `json:"id"`
	}
	if err := json.Unmarshal(answer, &job); err != nil {
		return err
	}
	if r.ledger == nil {
		return nil
	}
	return r.ledger.Add(check.Accepted{Tenant: r.plan.Tenant, Key: key, Job: job.ID})
}

func (r *probeRun) emit(e probeEvent) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := r.out.Encode(e); err != nil && r.err == nil {
		r.err = err
	}
}

// The canary sleeps for canaryNap, again and again, and reports about once a second how much longer each nap took. A
// process that waits for a CPU oversleeps, and its calls are late by as much.
const (
	canaryNap  = 10 * time.Millisecond
	canaryNaps = 100
)

func (r *probeRun) canary(ctx context.Context) {
	var lag []time.Duration
	for {
		at := time.Now().Add(canaryNap)
		if !SleepUntil(ctx, at) {
			return
		}
		now := time.Now()
		if lag = append(lag, now.Sub(at)); len(lag) == canaryNaps {
			r.emit(probeEvent{Until: now.UnixNano(), Lag: lag})
			lag = lag[:0]
		}
	}
}

// SleepUntil returns false if the context ended first.
func SleepUntil(ctx context.Context, at time.Time) bool {
	timer := time.NewTimer(time.Until(at))
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}

// lines calls a function for each line that is written to it.
type lines struct {
	f    func(line []byte)
	rest []byte // of a line whose end has not been written yet
}

var _ io.Writer = (*lines)(nil)

// Write takes text in pieces of any size.
func (l *lines) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		i := bytes.IndexByte(l.rest, '\n')
		if i < 0 {
			return len(text), nil
		}
		l.f(l.rest[:i])
		l.rest = l.rest[i+1:]
	}
}
