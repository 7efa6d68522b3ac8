package agent

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/internal/lib/failpoint"
	"berth/internal/machine/cgroupstats"
	"berth/spec"
	"berth/wire"
)

// hangWatch carries out spec.stall for a running member:
//
//	state       entered                                          does
//	----------  -----------------------------------------------  ---------------------------------
//	lives       at the start; at a sign of life                  a gang's member reports the sign
//	quiet       no sign of life for stall.after, or from the     a gang's member reports that it is
//	              start on for stall.start_limit                 quiet, again and again, and goes on
//	hangs       quiet, of a job with one member; by the order    collects evidence, sends it
//	              stalled, which all members of a gang get
//	is stopped  the evidence is complete and, in a gang,         the stop plan sends the signals
//	              Timing.HangPause is over
//
// No signal is sent before the evidence is complete, since a signal changes the picture. The
// pause gives the machines of other members the time to collect theirs, before this member's end
// closes their connections.
//
// Methods without a comment are of the member's goroutine.
type hangWatch struct {
	*core
	control *control
	orders  *orders
	signs   *progressWatcher
	gpus    node.GPUs
	helpers *sync.WaitGroup

	quiet bool // as reported last
	seq   int64
	news  chan wire.StallReport // holds the newest report that was not sent; nil before the first
	mute  context.CancelFunc    // ends the reports; nil before the first

	hangs     bool          // for good
	collected chan struct{} // closed when the evidence is complete; nil before the verdict
	sent      chan struct{} // closed when the evidence is stored, or will not be
	pauseOver time.Time
}

const (
	collectLimit = 3 * time.Second  // for the evidence
	sendLimit    = 10 * time.Second // that a seal waits for the evidence
	stateLook    = time.Second / 2  // between two looks at the states of processes
	quietLimit   = 3 * time.Second  // for one try of a report of signs: a newer one may be waiting
	quietRetry   = time.Second      // between two tries
)

// decide reports whether the member must be stopped now because its job hangs. It reads the
// signs of life, and starts the reports and the collection that follow from them. begun is set
// if an earlier process has begun to stop it for this cause.
func (h *hangWatch) decide(now time.Time, o berth.Orders, begun bool) (stop bool) {
	p := h.claim.Spec.Stall
	if p == nil {
		return false
	}
	quietFor := h.signs.quietFor(now) // it looks for signs
	quiet := quietFor >= p.Limit(h.signs.shown).Std()
	if h.claim.gang() {
		h.note(quiet)
		h.hangs = h.hangs || o.Stalled
	} else {
		h.hangs = h.hangs || quiet
	}
	switch {
	case begun:
		return true // its evidence would show the signals
	case !h.hangs:
		return false
	}
	if h.collected == nil {
		h.collect(now)
	}
	if h.collects() {
		return false
	}
	if h.pauseOver.IsZero() {
		h.pauseOver = now
		if h.claim.gang() {
			h.pauseOver = now.Add(h.timing.HangPause)
		}
	}
	// Another order to stop means that a peer's end is no news to the gang.
	return !now.Before(h.pauseOver) || stops(o)
}

// collects reports whether the evidence is being collected: no other cause may stop the member
// meanwhile.
func (h *hangWatch) collects() bool {
	if h.collected == nil {
		return false
	}
	select {
	case <-h.collected:
		return false
	default:
		return true
	}
}

// next returns when decide must be called again; zero: no time of its own.
func (h *hangWatch) next() time.Time { return h.pauseOver }

// says returns the message of the verdict.
func (h *hangWatch) says() string {
	p, whose := h.claim.Spec.Stall, ""
	if h.claim.gang() {
		whose = " of any member"
	}
	limit := "stall.after"
	if !h.signs.shown {
		limit = "stall.start_limit"
	}
	return "no " + p.SignsText() + whose + " for " + p.Limit(h.signs.shown).String() + " (" + limit + ")"
}

// grace returns the time between SIGTERM and SIGKILL. Members of a gang hang in communication
// with each other, and would use up a long stop_grace for nothing.
func (h *hangWatch) grace() time.Duration {
	if h.claim.gang() {
		return min(h.claim.grace(), berth.GangGrace)
	}
	return h.claim.grace()
}

// note reports a change between quiet and alive. A member begins alive.
func (h *hangWatch) note(quiet bool) {
	if quiet == h.quiet {
		return
	}
	h.quiet = quiet
	h.seq++
	report := wire.StallReport{Alloc: h.alloc, Job: h.job, Attempt: h.attempt, Seq: h.seq, Quiet: quiet}
	if h.news == nil {
		h.news = make(chan wire.StallReport, 1)
		ctx, mute := context.WithCancel(h.ctx)
		h.mute = mute
		h.helpers.Go(func() { h.report(ctx) })
	}
	select {
	case <-h.news: // it was not sent, and is old now
	default:
	}
	h.news <- report // the member's goroutine is the only sender
}

// end ends the reports, once the container has ended.
func (h *hangWatch) end() {
	if h.mute != nil {
		h.mute()
	}
}

// report sends the newest report until ctx ends. It runs in a goroutine of its own. A report that the
// member is quiet is repeated, since the server forgets it otherwise. A server of the version before
// has no such call, and judges no gang: it is asked again later, since it may be upgraded. During an
// upgrade, a newer replica may have stored that the member is quiet, and would condemn a live gang by
// it: then the sign of life is sent again soon.
func (h *hangWatch) report(ctx context.Context) {
	condemns := false // a server has perhaps stored that the member is quiet
	for {
		var r wire.StallReport
		select {
		case r = <-h.news:
		case <-ctx.Done():
			return
		}
		for {
			err := h.send(ctx, quietLimit, r)
			switch {
			case r.Quiet:
				condemns = condemns || !refused(err) // the answer may be lost
			case err == nil:
				condemns = false
			}
			pause := quietRetry
			switch {
			case err == nil && r.Quiet:
				pause = h.timing.QuietRepeat
			case err == nil || refused(err) && berth.CodeOf(err) != berth.CodeNotFound:
				pause = 0
			case refused(err) && !condemns:
				pause = h.timing.CacheRefused
				h.log.Info("server does not judge hung gangs, will ask again", "err", err)
			case refused(err) && r.Quiet: // a newer replica has the word, and would forget it
				pause = h.timing.QuietRepeat
			}
			if pause == 0 {
				break
			}
			timer := time.NewTimer(pause)
			select {
			case <-timer.C:
			case r = <-h.news:
				timer.Stop()
			case <-ctx.Done():
				timer.Stop()
				return
			}
		}
	}
}

// send sends a report under the terms of the present session.
func (h *hangWatch) send(ctx context.Context, timeout time.Duration, r wire.StallReport) error {
	return h.control.withTerms(ctx, func(epoch int64) error {
		r.AgentBoot, r.Epoch = h.control.boot, epoch
		return h.control.call(ctx, timeout, "stall", r, nil)
	})
}

// collect starts to collect the evidence, and to send it.
func (h *hangWatch) collect(now time.Time) {
	h.log.Warn("job hangs, collecting evidence", "why", h.says())
	h.signs.read() // the step of the moment
	e := failure.HangEvidence{
		Rank: h.number, At: now.UTC(), QuietSeconds: h.signs.quietFor(now).Seconds(),
		CPULimit: float64(h.claim.CPUMilli) / 1000,
	}
	if p := h.reports.progress(); p != nil {
		age := now.Sub(p.At).Seconds()
		e.Step, e.StepSeconds = &p.Step, &age
	}
	if cores, over, ok := h.signs.cpuMean(now); ok {
		e.CPU, e.CPUSeconds = &cores, over.Seconds()
	}
	var gauge cgroupstats.Gauge
	if g := h.signs.gauge; g != nil {
		gauge = *g
	}
	h.collected, h.sent = make(chan struct{}), make(chan struct{})
	h.helpers.Go(func() {
		defer close(h.sent)
		before, _ := gauge.Processes()
		if len(before) > 0 {
			_ = sleep(h.ctx, stateLook)
		}
		e.Processes, e.More = gauge.Processes()
		markChanged(e.Processes, before)
		e.Lines = hangLines(h.signs.shipper.linesSoFar())
		e.GPUs = h.devices()
		close(h.collected)
		h.orders.nudge()
		h.deliver(e)
	})
}

// markChanged marks the processes whose state differs from that of an earlier look.
func markChanged(now, before []failure.HangProcess) {
	for i, p := range now {
		at := slices.IndexFunc(before, func(b failure.HangProcess) bool { return b.PID == p.PID })
		now[i].Changed = at < 0 || before[at].State != p.State
	}
}

// devices measures the member's GPUs. A driver that does not answer costs their part only.
func (h *hangWatch) devices() []failure.HangGPU {
	meter, ok := h.gpus.(node.GPUMeter)
	if !ok || len(h.claim.GPUs) == 0 {
		return nil
	}
	ctx, cancel := context.WithTimeout(h.ctx, collectLimit)
	defer cancel()
	use, err := meter.Use(ctx, h.claim.GPUs)
	if err != nil {
		h.log.Warn("cannot measure GPUs of a hung job", "err", err)
	}
	var list []failure.HangGPU
	for _, u := range use[:min(len(use), failure.MaxHangGPUs)] {
		g := failure.HangGPU{
			UUID: u.UUID, MemoryBusy: u.MemoryBusy, Watts: u.Watts, LimitWatts: u.LimitWatts, Works: u.Works(),
		}
		if u.Utilization >= 0 {
			g.Busy = &u.Utilization
		}
		list = append(list, g)
	}
	return list
}

// deliver sends the evidence until the server has stored or refused it.
func (h *hangWatch) deliver(e failure.HangEvidence) {
	r := wire.StallReport{Alloc: h.alloc, Job: h.job, Attempt: h.attempt, Evidence: &e}
	_ = failpoint.Hit("agent.evidence.before")
	for wait := h.timing.backoff(); ; {
		err := h.send(h.ctx, callTimeout, r)
		if err == nil {
			_ = failpoint.Hit("agent.evidence.after")
		}
		if err == nil || h.ctx.Err() != nil {
			return
		}
		if refused(err) {
			h.log.Warn("evidence of a hang not stored", "err", err, "evidence", e.Text())
			return
		}
		if wait.wait(h.ctx) != nil {
			return
		}
	}
}

// finish waits until the evidence is stored, which must precede the seal: the attempt is settled
// by it. A control plane that does not take it delays the seal for sendLimit at most.
func (h *hangWatch) finish(ctx context.Context) {
	timer := time.NewTimer(sendLimit)
	defer timer.Stop()
	select {
	case <-h.sent:
	case <-timer.C:
	case <-ctx.Done():
	}
}

// hangLines cuts the last lines of a log to the bounds of the evidence.
func hangLines(lines []string) []string {
	lines = lines[max(0, len(lines)-failure.MaxHangLines):]
	cut := make([]string, len(lines))
	for i, l := range lines {
		l = strings.ToValidUTF8(strings.ReplaceAll(l, "\x00", ""), "?")
		cut[i] = strings.ToValidUTF8(l[:min(len(l), failure.MaxHangLine)], "")
	}
	return cut
}

// cpuSpan is the time over which the CPU use of a hung member is measured.
const cpuSpan = time.Minute

// noteCPU keeps a reading of the CPU counter for cpuMean.
func (w *progressWatcher) noteCPU(now time.Time, used time.Duration) {
	w.cpuReadings = append(w.cpuReadings, cpuReading{now, used.Seconds()})
	for len(w.cpuReadings) > 2 && now.Sub(w.cpuReadings[1].at) >= cpuSpan {
		w.cpuReadings = w.cpuReadings[1:]
	}
}

// cpuMean returns the mean of the cores in use over the last cpuSpan, or over the time with
// readings if that is shorter; false without two readings.
func (w *progressWatcher) cpuMean(now time.Time) (cores float64, over time.Duration, ok bool) {
	if len(w.cpuReadings) < 2 {
		return 0, 0, false
	}
	first, last := w.cpuReadings[0], w.cpuReadings[len(w.cpuReadings)-1]
	over = last.at.Sub(first.at)
	if over <= 0 {
		return 0, 0, false
	}
	return max(0, last.seconds-first.seconds) / over.Seconds(), over, true
}

// counts reports whether a sign of life is one of the job's. With stall_timeout all signs are.
func (w *progressWatcher) counts(s spec.StallSign) bool {
	p := w.claim.Spec.Stall
	return p == nil || p.Counts(s)
}

// sign notes a sign of life, if it is one of the job's.
func (w *progressWatcher) sign(s spec.StallSign, at time.Time) {
	if w.counts(s) {
		w.last, w.shown = at, true
	}
}
