package scheduler

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/convert"
	"berth/internal/control/runtimes"
	"berth/placement"
)

// mirror keeps a placement.Snapshot in step with the database. Only one goroutine may use it.
type mirror struct {
	db       *db.DB
	log      *slog.Logger
	metrics  *Metrics
	marks    *marks
	snapshot *placement.Snapshot
	runs     *runtimes.Book
	cursor   db.Cursor
	now      time.Time // the database's clock at the last read
	readAt   time.Time // our clock then
	unknown  map[string]bool
	policy   placement.Policy
	starting map[berth.JobID]berth.Start // their commit is under way
	tenants  map[berth.TenantID]db.TenantRow
	tenantAt time.Time // our clock when tenants were read
	pools    []placement.Pool
	windows  []placement.Window
	loaded   time.Time // when everything was last read

	// The feed is complete up to cursor; ahead is the newest transaction there
	// was at aheadAt, which it has not reached yet.
	ahead   db.Cursor
	aheadAt time.Time
}

// load reads everything.
func (m *mirror) load(ctx context.Context) error {
	c, err := m.db.Queue.Load(ctx)
	if err != nil {
		return err
	}
	m.snapshot, m.runs, m.unknown, m.starting = placement.SnapshotFor(m.policy), m.runs.Fresh(), map[string]bool{},
		map[berth.JobID]berth.Start{}
	m.loaded = time.Now()
	if err := m.apply(ctx, c); err != nil {
		return err
	}
	return m.readTenants(ctx)
}

// read adds the changed rows and the hinted rows. It reports whether the feed waits
// for open transactions.
func (m *mirror) read(ctx context.Context, hinted db.Hinted) (behind bool, err error) {
	c, err := m.db.Queue.Feed(ctx, m.cursor, hinted)
	if err != nil {
		return false, err
	}
	if err := m.apply(ctx, c); err != nil {
		return false, err
	}
	if m.cursor >= m.ahead {
		m.ahead, m.aheadAt = c.End, time.Now()
	}
	behind = m.cursor < c.End
	if behind {
		m.metrics.lag.Set(time.Since(m.aheadAt).Seconds())
	} else {
		m.metrics.lag.Set(0)
	}
	return behind, nil
}

// apply applies rows of the feed to the snapshot. It reads two things that rows only refer to:
// the requests of new classes, and the expected run times of changed jobs.
func (m *mirror) apply(ctx context.Context, c db.Changes) error {
	if err := m.define(ctx, c.Jobs); err != nil {
		return err
	}
	expected, err := m.runs.Read(ctx, c.Jobs)
	if err != nil {
		return err
	}
	// Before Apply: a start that these rows contain must not also be counted as assumed.
	m.recognize(&c)
	convert.Apply(m.snapshot, c, m.marks.of, func(id berth.JobID) bool { _, ok := m.starting[id]; return ok })
	m.runs.Tell(m.snapshot, expected)
	m.cursor, m.now, m.readAt = c.Next, c.Now, time.Now()
	m.metrics.queue.Set(float64(m.snapshot.Jobs()))
	m.metrics.machines.Set(float64(m.snapshot.Machines()))
	return nil
}

// tenantsEvery is the greatest age of the tenants' rows: their use changes slowly,
// and a change of a quota comes with a hint.
const tenantsEvery = 500 * time.Millisecond

// readTenants replaces the tenants, the rules of pools and the maintenance windows in the snapshot by
// the present rows.
func (m *mirror) readTenants(ctx context.Context) error {
	list, err := m.db.Tenants.Rows(ctx)
	if err != nil {
		return err
	}
	rules, err := m.db.Pools.Rules(ctx)
	if err != nil {
		return err
	}
	windows, err := m.db.Maintenance.Windows(ctx)
	if err != nil {
		return err
	}
	m.tenantAt = time.Now()
	m.tenants = convert.Tenants(m.snapshot, list, m.tenants)
	m.pools = convert.Pools(m.snapshot, rules)
	m.windows = convert.Windows(m.snapshot, windows)
	return nil
}

// assume counts starts in the snapshot while their commit is under way.
func (m *mirror) assume(starts []berth.Start) {
	m.snapshot.Assume(starts)
	for _, s := range starts {
		m.starting[s.Job] = s
		if j, ok := m.snapshot.Job(s.Job); ok {
			m.snapshot.UpsertRunning(convert.Starting(j, s, m.clock()))
		}
	}
}

// drop reverts assume, for starts that recognize has not ended: these jobs still wait.
// The rows of the machines are read again before the next plan.
func (m *mirror) drop(starts []berth.Start) {
	for _, s := range starts {
		if _, ok := m.starting[s.Job]; !ok {
			continue
		}
		delete(m.starting, s.Job)
		m.snapshot.Drop([]berth.Start{s})
		if _, waits := m.snapshot.Job(s.Job); waits {
			m.snapshot.RemoveRunning(s.Job)
		}
	}
}

// recognize keeps a start from counting twice, as assumed and as used, when its rows
// arrive before its commit returns. A start with its job and all its machines among
// the rows is no longer assumed. Machines without their jobs' rows are skipped, and
// read again when the commit has returned.
func (m *mirror) recognize(c *db.Changes) {
	if len(m.starting) == 0 {
		return
	}
	came := make(map[berth.MachineID]bool, len(c.Machines))
	for _, row := range c.Machines {
		came[row.ID] = true
	}
	waits := map[berth.JobID]bool{} // it was not committed
	for _, row := range c.Jobs {
		s, ok := m.starting[row.ID]
		switch {
		case !ok:
		case row.Attempt < s.Attempt:
			waits[row.ID] = true
		case !slices.ContainsFunc(s.Ranks, func(g berth.Grant) bool { return !came[g.Machine] }):
			delete(m.starting, row.ID)
			m.snapshot.Drop([]berth.Start{s})
		}
	}
	unsure := map[berth.MachineID]bool{}
	for id, s := range m.starting {
		for _, g := range s.Ranks {
			unsure[g.Machine] = unsure[g.Machine] || !waits[id]
		}
	}
	c.Machines = slices.DeleteFunc(slices.Clone(c.Machines), func(row db.PoolMachine) bool { return unsure[row.ID] })
}

// define reads the requests of classes that the snapshot does not define yet.
func (m *mirror) define(ctx context.Context, jobs []db.QueueJob) error {
	missing := convert.Missing(m.snapshot, jobs)
	if len(missing) == 0 {
		return nil
	}
	requests, err := m.db.Queue.Requests(ctx, missing)
	if err != nil {
		return err
	}
	for _, class := range missing {
		r, ok := requests[class]
		if ok {
			m.snapshot.DefineClass(class, r)
		} else if !m.unknown[class] {
			m.unknown[class] = true
			m.log.Error("job class has no resource request, its jobs cannot be placed", "class", class)
		}
	}
	return nil
}

// clock returns the database's time, extrapolated from the last read.
func (m *mirror) clock() time.Time { return m.now.Add(time.Since(m.readAt)) }

// remark copies changed marks into the snapshot.
func (m *mirror) remark() {
	for _, id := range m.marks.changes() {
		if p, ok := m.snapshot.Machine(id); ok {
			p.Blocked = m.marks.of(id)
			m.snapshot.UpsertMachine(p)
		}
	}
}

// reload reads all rows again and compares the new rows with the rows of the feed. A row
// that differs although the feed has passed it was missed, which should never happen.
func (m *mirror) reload(ctx context.Context) error {
	if _, err := m.read(ctx, db.Hinted{}); err != nil {
		return err
	}
	old, cursor := m.snapshot, m.cursor
	c, err := m.db.Queue.Load(ctx)
	if err != nil {
		return err
	}
	missed, err := m.missed(ctx, old, cursor, c)
	if err != nil {
		return err
	}
	if len(missed) > 0 {
		m.metrics.drift.Add(float64(len(missed)))
		m.log.Warn("mirror missed changes, corrected", "rows", len(missed), "some", missed[:min(len(missed), 10)])
	}
	m.snapshot, m.runs, m.loaded = placement.SnapshotFor(m.policy), m.runs.Fresh(), time.Now()
	if err := m.apply(ctx, c); err != nil {
		return err
	}
	m.snapshot.UseMix(old.Mix()) // it contains more requests than the present queue
	return m.readTenants(ctx)
}

// missed returns the rows that differ from the old snapshot although they changed before the
// cursor. Later changes are not the feed's fault, and are left out.
func (m *mirror) missed(ctx context.Context, old *placement.Snapshot, cursor db.Cursor,
	c db.Changes) ([]string, error) {
	var missed []string
	jobs := make(map[berth.JobID]bool, len(c.Jobs))
	for _, row := range c.Jobs {
		if row.State.HoldsCapacity() {
			if had, ok := old.Running(row.ID); row.XID < uint64(cursor) && (!ok || had.Version != row.Version) {
				missed = append(missed, string(row.ID))
			}
			continue
		}
		jobs[row.ID] = true
		if had, ok := old.Job(row.ID); row.XID < uint64(cursor) && (!ok || !sameJob(had, convert.Job(row))) {
			missed = append(missed, string(row.ID))
		}
	}
	for _, row := range c.Machines {
		if had, ok := old.Machine(row.ID); row.XID < uint64(cursor) &&
			(!ok || had.Used != row.Used || had.Total != row.Total || had.State != row.State ||
				had.Epoch != row.Epoch ||
				had.EngineSilentSince.IsZero() != (row.EngineSilentSince == nil)) {
			missed = append(missed, string(row.ID))
		}
	}
	// Jobs that no longer wait: the feed should have removed these, unless they changed
	// after the cursor.
	var gone []berth.JobID
	old.EachJob(func(j placement.Job) {
		if !jobs[j.ID] {
			gone = append(gone, j.ID)
		}
	})
	if len(gone) == 0 {
		return missed, nil
	}
	found, err := m.db.Queue.Feed(ctx, c.Next, db.Hinted{Jobs: gone})
	if err != nil {
		return nil, fmt.Errorf("compare: %w", err)
	}
	for _, row := range found.Jobs {
		if row.XID < uint64(cursor) && !convert.Waits(row) {
			missed = append(missed, string(row.ID))
		}
	}
	return missed, nil
}

// sameJob compares the parts of a waiting job that placement reads from its row.
func sameJob(a, b placement.Job) bool {
	return a.Version == b.Version && a.Class == b.Class && a.Attempt == b.Attempt && a.Priority == b.Priority &&
		a.Held == b.Held &&
		a.EligibleAt.Equal(b.EligibleAt) && a.QueueDeadline.Equal(b.QueueDeadline) && slices.Equal(a.Avoid, b.Avoid)
}

// marks are the machines that get no work for reasons outside of their own rows. The reconciler
// writes the marks, the placer reads them.
type marks struct {
	mu      sync.Mutex
	why     map[berth.MachineID]string
	changed map[berth.MachineID]bool
}

// set replaces all marks.
func (m *marks) set(why map[berth.MachineID]string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.changed == nil {
		m.changed = map[berth.MachineID]bool{}
	}
	for id := range m.why {
		if why[id] != m.why[id] {
			m.changed[id] = true
		}
	}
	for id := range why {
		if why[id] != m.why[id] {
			m.changed[id] = true
		}
	}
	m.why = why
}

// of returns the reason against a machine, "" for none.
func (m *marks) of(id berth.MachineID) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.why[id]
}

// changes returns the machines with a changed mark since the last call.
func (m *marks) changes() []berth.MachineID {
	m.mu.Lock()
	defer m.mu.Unlock()
	var ids []berth.MachineID
	for id := range m.changed {
		ids = append(ids, id)
	}
	clear(m.changed)
	return ids
}
