package autoscale

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/control/convert"
	"berth/internal/control/scaler"
	"berth/placement"
)

// Timing of a loop.
const (
	passEvery  = 5 * time.Second
	leastPause = time.Second // between the starts of two passes, however soon a machine is due
	learnEvery = time.Minute // read the run times of ended jobs
	mostGrowth = 24 * time.Hour
)

// Options are the dependencies of a Loop. DB and Accounts are required.
type Options struct {
	DB       *db.DB
	Accounts cloud.Accounts
	Policy   placement.Policy // of production
	Logger   *slog.Logger     // nil: nothing is logged
	Metrics  *Metrics         // nil: none are kept
	Every    time.Duration    // most between the starts of two passes; zero: 5 s
}

// Loop launches and ends machines while its process leads.
type Loop struct {
	Options
	writes writes

	runTimes  *placement.RunTimes
	learnedAt time.Time // our clock
	term      db.Term
	mirror    CopyMirror
	requests  int // number of requests in this term, part of their ids
	turn      int // number of the pass
	joined    map[string]Joined
	refused   map[string]string
	below     map[string]string // see lack
	due       time.Time         // see Outcome.Due, by our clock
}

// writes are the decisions that a Loop carries out. *db.Scaling implements it. Each method is one
// transaction under the leader's term. Drain, Undrain and Stop return false if the conditions of
// the decision no longer hold.
type writes interface {
	Request(ctx context.Context, term db.Term, r cloud.Request, machines []berth.MachineID,
		requestID string) ([]cloud.Record, error)
	Drain(ctx context.Context, term db.Term, id berth.MachineID) (bool, error)
	Undrain(ctx context.Context, term db.Term, id berth.MachineID) (bool, error)
	Stop(ctx context.Context, term db.Term, id berth.MachineID) (bool, error)
	Reopen(ctx context.Context, term db.Term, named []cloud.Breaker) ([]cloud.Breaker, error)
	WriteNotes(ctx context.Context, term db.Term, changed []db.BurstNote, gone []berth.JobID) error
}

// New returns a Loop that does nothing before Run.
func New(o Options) *Loop {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics()
	}
	if o.Every == 0 {
		o.Every = passEvery
	}
	return &Loop{Options: o, writes: withFailpoints(o.DB.Scaling)}
}

// Run makes passes until ctx ends, in the term of the leader. mirror returns a copy of the leader's mirror.
// A pass that fails is repeated; one whose term is over ends Run with the error.
func (l *Loop) Run(ctx context.Context, term db.Term, mirror CopyMirror) error {
	l.begin(term, mirror)
	timer := time.NewTimer(0)
	defer timer.Stop()
	defer l.Metrics.reset()
	for {
		began := time.Now()
		err := l.Pass(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case deposed(err):
			return err
		case err != nil:
			l.Logger.Warn("scaler pass failed, will retry", "err", err)
		}
		timer.Reset(l.pause(began))
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-timer.C:
		}
	}
}

// pause returns the time until the next pass after one that began at a time. An empty machine ends when it is due, and
// not up to a pass later.
func (l *Loop) pause(began time.Time) time.Duration {
	next := l.Every
	if due := l.due.Sub(began); !l.due.IsZero() {
		next = min(next, max(due, leastPause))
	}
	return time.Until(began.Add(next))
}

// begin prepares the passes of a term. The counter of requests starts at 0 in each term: ids contain
// the term, so they differ all the same.
func (l *Loop) begin(term db.Term, mirror CopyMirror) {
	l.term, l.mirror, l.requests, l.refused = term, mirror, 0, map[string]string{}
	l.below, l.due = map[string]string{}, time.Time{}
}

// deposed reports whether a write was refused because the term is over. Then another process leads, so
// the loop must end at once.
func deposed(err error) bool {
	e, ok := errors.AsType[*berth.Error](err)
	return ok && e.Slug == berth.SlugStaleEpoch
}

// Pass reads the facts, decides and carries out the decisions. Without policies, launches and notes, it
// ends after a few small reads.
func (l *Loop) Pass(ctx context.Context) error {
	l.turn++
	f := Facts{Turn: l.turn, Accounts: l.Accounts,
		Planner: placement.Planner{Pack: placement.LeastFragmentation, Policy: l.Policy}}
	var err error
	if f.Policies, err = l.DB.Burst.Policies(ctx); err != nil {
		return err
	}
	l.due = time.Time{}
	if f.Fleet, f.Now, err = l.DB.Scaling.Fleet(ctx, l.term); err != nil {
		return err
	}
	read := time.Now()
	if f.Notes, err = l.DB.Scaling.Notes(ctx); err != nil {
		return err
	}
	if err := l.show(ctx, f); err != nil {
		return err
	}
	if len(f.Policies) == 0 && len(f.Fleet) == 0 && len(f.Notes) == 0 {
		l.lack(Outcome{})
		return nil
	}
	if err := l.read(ctx, &f); err != nil {
		return err
	}
	out := Decide(f)
	if !out.Due.IsZero() {
		l.due = read.Add(out.Due.Sub(f.Now))
	}
	err = l.carryOut(ctx, f, &out)
	l.lack(out)
	return err
}

// read reads the other facts. They are read one after the other and may differ by moments. The writes
// check their conditions again under locks.
func (l *Loop) read(ctx context.Context, f *Facts) (err error) {
	bursts := make(map[berth.TenantID]bool, len(f.Policies))
	for t, policy := range f.Policies {
		bursts[t] = policy.When != nil
	}
	if f.Mirror, err = l.mirror(ctx, bursts); err != nil {
		return err
	}
	f.Joined = l.joined
	f.Joined = Learn(*f)
	l.joined = f.Joined
	admission, err := l.DB.Cluster.Admission(ctx)
	if err != nil {
		return err
	}
	f.Paused = admission.Paused
	if f.Offers, err = l.DB.Offers.All(ctx); err != nil {
		return err
	}
	if f.Breakers, err = l.DB.Scaling.Breakers(ctx); err != nil {
		return err
	}
	if f.Won, err = l.DB.Scaling.Won(ctx); err != nil {
		return err
	}
	if f.Spent, err = l.DB.Spend.Of(ctx, f.Now); err != nil {
		return err
	}
	if f.Adopted, err = l.DB.Scaling.Adopted(ctx); err != nil {
		return err
	}
	if f.Growth, err = l.DB.Scaling.Growth(ctx, f.Now.Add(-mostGrowth)); err != nil {
		return err
	}
	return l.readJobs(ctx, f)
}

// readJobs reads the facts about jobs that wait, or that will move.
func (l *Loop) readJobs(ctx context.Context, f *Facts) (err error) {
	if f.Leaving, err = l.DB.Scaling.Leaving(ctx, MoveAhead); err != nil {
		return err
	}
	var jobs []berth.JobID
	for _, j := range f.Waiting {
		if _, ok := f.Policies[j.Tenant]; ok {
			jobs = append(jobs, j.ID)
		}
	}
	for _, r := range Moving(*f) {
		if _, ok := f.Policies[r.Tenant]; ok {
			jobs = append(jobs, r.Job)
		}
	}
	if f.Saves, err = l.DB.Scaling.Saves(ctx, jobs); err != nil {
		return err
	}
	if time.Since(l.learnedAt) >= learnEvery {
		ended, err := l.DB.Attempts.Latest(ctx)
		if err != nil {
			return err
		}
		l.runTimes, l.learnedAt = convert.RunTimes(ended), time.Now()
	}
	f.RunTimes = l.runTimes
	return nil
}

// carryOut commits each decision separately: a refusal of one does not stop the others. Returns to
// service come first, launches last. Kept machines whose request is refused are added to out.Missing.
func (l *Loop) carryOut(ctx context.Context, f Facts, out *Outcome) error {
	for _, act := range []struct {
		kind string
		list []berth.MachineID
		do   func(context.Context, db.Term, berth.MachineID) (bool, error)
	}{
		{"undrain", out.Undrain, l.writes.Undrain},
		{"stop", out.Stop, l.writes.Stop},
		{"drain", out.Drain, l.writes.Drain},
	} {
		for _, id := range act.list {
			done, err := act.do(ctx, l.term, id)
			if err != nil {
				return err
			}
			if done {
				l.Metrics.decisions.WithLabelValues(act.kind).Inc()
				l.Logger.Info("scaler changed a machine", "machine", id, "act", act.kind)
			}
		}
	}
	for _, r := range out.Requests {
		if err := l.request(ctx, r, out); err != nil {
			return err
		}
	}
	return l.writeNotes(ctx, f.Notes, out.Notes)
}

// refusals are the codes of errors that concern one request. Other requests may still succeed.
var refusals = []berth.Code{berth.CodeConflict, berth.CodeCapacity, berth.CodeUnavailable, berth.CodeInvalid}

// request commits the launches of a request, and records their machines or the refusal in the notes of its
// jobs. A refusal is no error.
func (l *Loop) request(ctx context.Context, r Request, out *Outcome) error {
	l.requests++
	id := fmt.Sprintf("scaler/%d/%d", l.term.Epoch, l.requests)
	machines := make([]berth.MachineID, r.Machines)
	for i := range machines {
		machines[i] = MachineName(r.Pool, id, i)
	}
	_, err := l.writes.Request(ctx, l.term, r.Request, machines, id)
	code := berth.CodeOf(err)
	switch {
	case deposed(err):
		return err
	case err == nil:
		l.Metrics.decisions.WithLabelValues("launch").Add(float64(len(machines)))
		l.Logger.Info("scaler requested machines", "machines", machines, "tenant", r.Tenant, "provider", r.Provider,
			"offering", r.Offering.String(), "price_per_hour", r.Price, "jobs", r.Jobs)
	case slices.Contains(refusals, code):
		l.Metrics.decisions.WithLabelValues("refused").Inc()
		l.refuse(r, err)
		out.refuse(r, refusal(err))
	default:
		return err
	}
	notes := out.Notes
	for i := range notes {
		if !slices.Contains(r.Jobs, notes[i].Job) || notes[i].Code != string(scaler.NoteLaunched) {
			continue
		}
		if notes[i].Machines = machines; err != nil {
			notes[i].Machines, notes[i].Code = nil, string(refusal(err))
		}
	}
	return nil
}

// refuse logs a refusal, once for each kind of launch and text. A refusal usually repeats in each pass,
// and its text would fill the log.
func (l *Loop) refuse(r Request, err error) {
	key := r.Provider + "/" + r.Offering.String() + "/" + string(r.Tenant)
	if l.refused[key] == err.Error() {
		return
	}
	l.refused[key] = err.Error()
	l.Logger.Warn("launch of the scaler refused", "tenant", r.Tenant, "provider", r.Provider,
		"offering", r.Offering.String(), "err", err)
}

// lack shows the machines that are not in service, and logs each change of the machines that a pool misses once.
func (l *Loop) lack(out Outcome) {
	below := make(map[string]string, len(out.Missing))
	for _, m := range out.Missing {
		key, text := string(m.Tenant)+"/"+m.Pool, fmt.Sprint(m.Machines, m.Why)
		if below[key] = text; l.below[key] != text {
			l.Logger.Warn("fewer machines than min_machines", "tenant", m.Tenant, "pool", m.Pool, "missing", m.Machines,
				"reason", m.Why)
		}
	}
	l.below = below
	l.Metrics.missing.Set(float64(out.OutOfService))
}

// refusal returns the code of the note for a refused request. All other refusals are shown as offers
// that are closed for a while.
func refusal(err error) scaler.NoteCode {
	e, ok := errors.AsType[*berth.Error](err)
	switch {
	case ok && e.Slug == db.SlugBurstLimit:
		return scaler.NoteBudget
	case ok && e.Slug == db.SlugBurstForbidden:
		return scaler.NoteForbid
	}
	return scaler.NoteClosed
}

// MachineName returns the name of a machine of a request. No other request has the same name, since ids of
// requests contain the leader's term.
func MachineName(pool, requestID string, i int) berth.MachineID {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s\x00%s\x00%d", pool, requestID, i))
	return berth.MachineID(fmt.Sprintf("%.46s-%s", pool, hex.EncodeToString(sum[:6])))
}

// writeNotes stores the notes that have changed, and deletes the notes of jobs that were not examined.
// Most notes stay the same from pass to pass, so few rows are written.
func (l *Loop) writeNotes(ctx context.Context, old map[berth.JobID]db.BurstNote, notes []db.BurstNote) error {
	var changed []db.BurstNote
	present := make(map[berth.JobID]bool, len(notes))
	for _, n := range notes {
		present[n.Job] = true
		if was, ok := old[n.Job]; !ok || !same(was, n) {
			changed = append(changed, n)
		}
	}
	var gone []berth.JobID
	for id := range old {
		if !present[id] {
			gone = append(gone, id)
		}
	}
	if len(changed) == 0 && len(gone) == 0 {
		return nil
	}
	return l.writes.WriteNotes(ctx, l.term, changed, gone)
}

// same reports whether two notes show users the same.
func same(a, b db.BurstNote) bool {
	at := func(x, y *time.Time) bool { return (x == nil) == (y == nil) && (x == nil || x.Equal(*y)) }
	return a.Code == b.Code && slices.Equal(a.Machines, b.Machines) && at(a.Until, b.Until) && at(a.Start, b.Start) &&
		a.Cost == b.Cost
}

// show sets the metrics of the present state, and reopens breakers.
func (l *Loop) show(ctx context.Context, f Facts) error {
	counts, err := l.DB.Launches.Counts(ctx)
	if err != nil {
		return err
	}
	breakers, err := l.DB.Scaling.Breakers(ctx)
	if err != nil {
		return err
	}
	l.Metrics.show(counts, l.configured(breakers), f.Now)
	return l.reopen(ctx, breakers, f.Now)
}

// configured returns the breakers of the providers that are configured. Nothing is launched at another one, so its rows
// stay as they are, and no admin has anything to correct.
func (l *Loop) configured(list []db.ProbedBreaker) (out []db.ProbedBreaker) {
	for _, b := range list {
		provider, _, _ := strings.Cut(b.Key, "/")
		if _, ok := l.Accounts.Providers[provider]; ok {
			out = append(out, b)
		}
	}
	return out
}

// reopen lets one launch try each cloud again whose refused settings were changed since, or whose credentials were
// refused an hour ago. The next pass finds the breakers half open.
func (l *Loop) reopen(ctx context.Context, breakers []db.ProbedBreaker, now time.Time) error {
	var changed []cloud.Breaker
	for _, b := range breakers {
		if !b.Corrected(now) {
			continue // its files need not be read
		}
		if mark := l.Accounts.Marked(b.Breaker); mark != "" && (mark != b.Settings || b.Retried(now)) {
			changed = append(changed, cloud.Breaker{Scope: b.Scope, Key: b.Key, Settings: mark})
		}
	}
	if len(changed) == 0 {
		return nil
	}
	reopened, err := l.writes.Reopen(ctx, l.term, changed)
	for _, b := range reopened {
		l.Logger.Info("a cloud that has refused settings or credentials is tried again", "closed", b.What(),
			"reason", b.Reason)
	}
	return err
}
