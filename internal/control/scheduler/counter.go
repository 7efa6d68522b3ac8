package scheduler

import (
	"context"
	"sync/atomic"
	"time"

	"berth/db"
)

// countLimit bounds one count: a statement without an answer must not stop all further counts. A count that takes
// longer would be too old for a verdict.
const countLimit = db.BeaconTTL

// counter counts the silent machines, and holds verdicts while their number freezes them. No verdict follows without
// a recent count (see db.Fleet.Uncounted). So the counter has a goroutine of its own: a pass of the reaper waits for
// locks of jobs, and takes long if there is much to do or the database is slow.
type counter struct {
	*Scheduler
	term   db.Term
	done   atomic.Bool // a count of this term is on record
	frozen bool        // as last logged
	held   bool        // as last logged
	thaw   thaw
}

// run counts the silent machines each second until the term ends. A failed count does not end the term: the next one
// may succeed.
func (c *counter) run(ctx context.Context) error {
	for {
		if err := c.count(ctx); err != nil && ctx.Err() == nil {
			c.Logger.Error("cannot count silent machines, will retry", "err", err)
		}
		if !sleep(ctx, countEvery) {
			return ctx.Err()
		}
	}
}

// count counts the silent machines. If their number freezes all verdicts, it logs an error and holds the verdicts
// for a grace: the machines do not return at one moment. It also holds them after a time without counts.
func (c *counter) count(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, countLimit)
	defer cancel()
	fleet, err := c.DB.Machines.Fleet(ctx, c.Silence)
	if err != nil {
		return err
	}
	c.Metrics.silent.Set(float64(fleet.Silent))
	frozen := fleet.Frozen()
	c.Metrics.frozen.Set(0)
	if frozen {
		c.Metrics.frozen.Set(1)
	}
	c.logFreeze(fleet)
	uncounted := fleet.Uncounted()
	if c.thaw.pass(time.Now(), frozen, c.Grace) || uncounted > 0 {
		if err := c.DB.Machines.HoldVerdicts(ctx, c.term, c.Grace); err != nil {
			return err
		}
	}
	if uncounted > 0 {
		c.Logger.Warn("verdicts held: silent machines were not counted in time", "since_last_count", uncounted,
			"grace", c.Grace)
	}
	if err := c.DB.Machines.RecordCount(ctx, c.term, fleet); err != nil {
		return err
	}
	c.done.Store(true)
	return nil
}

// logFreeze logs when verdicts freeze, when the freeze ends and when verdicts are possible again.
func (c *counter) logFreeze(fleet db.Fleet) {
	attrs := []any{"silent", fleet.Silent, "machines", fleet.Machines}
	frozen, held := fleet.Frozen(), fleet.Frozen() || fleet.Held
	switch {
	case frozen && !c.frozen:
		c.Logger.Error("verdicts frozen: more than a third of the machines is silent", attrs...)
	case !frozen && c.frozen && held:
		c.Logger.Warn("verdicts no longer frozen, will resume after the grace", append(attrs, "grace", c.Grace)...)
	case !held && c.held:
		c.Logger.Warn("verdicts resumed", attrs...)
	}
	c.frozen, c.held = frozen, held
}

// holds is the number of graces that verdicts may be held between freezes that follow each other.
const holds = 3

// thaw adds up the time in which verdicts were held and not frozen. A machine whose link flaps can freeze
// verdicts again and again. Without a bound, verdicts on machines that are dead would never be passed: each
// freeze holds them for another grace.
type thaw struct {
	since time.Time     // end of the last freeze, or the term's first pass; zero during a freeze and before that pass
	spent time.Duration // sum of the pauses between freezes, each a grace at most
}

// pass records a pass at the time now, and reports whether a freeze may hold verdicts beyond its end. Once verdicts
// were held for holds graces between freezes, machines whose network is back have had the time to call.
func (w *thaw) pass(now time.Time, frozen bool, grace time.Duration) (hold bool) {
	switch {
	case frozen && !w.since.IsZero():
		pause := now.Sub(w.since)
		if w.spent += pause; pause > grace {
			w.spent = 0 // verdicts were possible meanwhile
		}
		w.since = time.Time{}
	case !frozen && w.since.IsZero():
		w.since = now
	}
	return frozen && w.spent < holds*grace
}
