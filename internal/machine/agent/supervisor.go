package agent

import (
	"context"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
	"berth/internal/machine/fetch"
)

// Supervisor owns the containers of this machine: one rank each, from claim to
// gone. It outlives sessions. All methods may be called
// concurrently.
type Supervisor struct {
	cfg     Config
	log     *slog.Logger
	control *control
	fence   *fence
	cache   *cache
	images  *images
	holds   *holdings // of both
	sources *fetch.Sources
	vault   vaultDir
	health  *engineHealth
	beat    beat            // of all periodic work
	ctx     context.Context // ends when the agent stops; containers stay
	stop    context.CancelCauseFunc
	all     sync.WaitGroup // one for each rank

	adopted     chan struct{} // closed when the first session's verdict is carried out
	adoptedOnce sync.Once

	mu    sync.Mutex
	ranks map[berth.AllocationID]*rank
	gone  map[berth.AllocationID]bool // confirmed gone here, to be told
	// Containers by name that the server knows nothing of: watched, and left.
	quarantine map[berth.AllocationID]string
	engine     node.RuntimeInfo

	gpus      map[string]berth.GPU // as last seen, by UUID
	gpusDirty bool
	telling   telling // of the holdings

	wake  chan struct{} // a report is, or will be, due
	turns chan struct{} // see turn
}

func newSupervisor(cfg Config, c *control, f *fence, kept *cache, has *images, log *slog.Logger) *Supervisor {
	ctx, stop := context.WithCancelCause(context.Background())
	s := &Supervisor{
		cfg: cfg, log: log, control: c, fence: f, cache: kept, images: has, holds: kept.holds, vault: openVaultDir(cfg.StateDir, inMemory), ctx: ctx, stop: stop,
		sources: fetch.Open(fetch.Options{Policy: cfg.InputNetworks, Roots: cfg.InputRoots, Volumes: cfg.Volumes, Own: []string{cfg.StateDir}}),
		health:  &engineHealth{runtime: cfg.Runtime, patience: cfg.Timing.ProbePatience, log: log},
		beat:    newBeat(),
		adopted: make(chan struct{}),
		ranks:   map[berth.AllocationID]*rank{},
		gone:    map[berth.AllocationID]bool{},
		gpus:    map[string]berth.GPU{},
		wake:    make(chan struct{}, 1),
		turns:   make(chan struct{}, abreast),
	}
	s.holds.changed = s.poke
	return s
}

// abreast is how many containers the engine makes or starts at a time. It does
// not get faster with more of them: they wait for each other in its networks and
// storage, and whatever else is asked of it waits with them.
const abreast = 8

// turn waits until the engine has time for one more container to be made or
// started. done gives the turn back.
func (s *Supervisor) turn(ctx context.Context) (done func(), err error) {
	select {
	case s.turns <- struct{}{}:
		return func() { <-s.turns }, nil
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// close lets go of every container and waits for the ranks' goroutines.
func (s *Supervisor) close() {
	s.stop(errAgentStops)
	s.log.Info("agent stops, containers stay")
	s.all.Wait()
	s.sources.Close()
}

func (s *Supervisor) waitAdopted(ctx context.Context) error {
	select {
	case <-s.adopted:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// takeUp begins a rank that may be ours: its claim tells. s.mu is held.
func (s *Supervisor) takeUp(alloc berth.AllocationID, job berth.JobID, attempt int) {
	s.start(newRank(s, alloc, job, 0, attempt))
}

// start runs a rank; s.mu is held.
func (s *Supervisor) start(r *rank) {
	s.ranks[r.alloc] = r
	s.all.Go(func() { r.run() })
}

// finished takes a rank off the books: nothing of it is left here.
func (s *Supervisor) finished(r *rank) {
	s.mu.Lock()
	if s.ranks[r.alloc] == r {
		delete(s.ranks, r.alloc)
	}
	s.gone[r.alloc] = true
	s.mu.Unlock()
	s.poke()
}

// findContainers lists what carries our labels.
func (s *Supervisor) findContainers(ctx context.Context) ([]node.Container, error) {
	return s.cfg.Runtime.List(ctx, map[string]string{
		berth.LabelCluster: s.control.clusterID(),
		berth.LabelMachine: string(s.cfg.Machine),
	})
}

// seen is the full list for a registration: what the engine has, and what this
// process is about to make. What is not claimed yet will be, or not, on the new
// session's terms.
func (s *Supervisor) seen(found []node.Container) []berth.ContainerSeen {
	list := make([]berth.ContainerSeen, 0, len(found))
	listed := map[berth.AllocationID]bool{}
	for _, c := range found {
		if seen, ok := readLabels(c); ok && !listed[seen.Alloc] {
			listed[seen.Alloc] = true
			list = append(list, seen)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, r := range s.ranks {
		if p, _, _ := r.present(); !listed[id] && p.Phase != berth.PhaseNone {
			list = append(list, berth.ContainerSeen{Alloc: id, Job: r.job, Rank: p.Rank, Attempt: r.attempt})
		}
	}
	return list
}

func readLabels(c node.Container) (berth.ContainerSeen, bool) {
	alloc, err1 := strconv.ParseInt(c.Labels[berth.LabelAlloc], 10, 64)
	number, err2 := strconv.Atoi(c.Labels[berth.LabelRank])
	attempt, err3 := strconv.Atoi(c.Labels[berth.LabelAttempt])
	job, err4 := berth.ParseJobID(c.Labels[berth.LabelJob])
	ok := err1 == nil && err2 == nil && err3 == nil && err4 == nil
	return berth.ContainerSeen{
		Alloc: berth.AllocationID(alloc), Job: job, Rank: number, Attempt: attempt,
		Running: c.State == node.ContainerRunning,
	}, ok
}

// adopt carries out a registration's verdict: what must go is killed, the rest
// is watched.
func (s *Supervisor) adopt(found []node.Container, kill, quarantine []berth.AllocationID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quarantine = map[berth.AllocationID]string{}
	condemned := map[berth.AllocationID]bool{}
	for _, id := range kill {
		condemned[id] = true
		if r := s.ranks[id]; r != nil {
			r.abandon()
		}
	}
	for _, c := range found {
		seen, ok := readLabels(c)
		if !ok {
			s.log.Error("container has Berth's labels but names no allocation, leaving it alone", "container", c.Name)
			continue
		}
		if slices.Contains(quarantine, seen.Alloc) {
			s.log.Error("server does not know a container, leaving it running", "container", c.Name)
			s.quarantine[seen.Alloc] = c.Name
			if r := s.ranks[seen.Alloc]; r != nil {
				delete(s.ranks, seen.Alloc) // at once: the id may be another job's by now
				r.disown()
			}
			continue
		}
		if s.ranks[seen.Alloc] != nil {
			continue
		}
		r := newRank(s, seen.Alloc, seen.Job, seen.Rank, seen.Attempt)
		r.adopts, r.named, r.network = true, true, c.Labels[berth.LabelNetwork]
		if condemned[seen.Alloc] {
			s.log.Warn("container is nobody's work any more and goes", "container", c.Name)
			r.abandon()
		} else {
			s.log.Info("container adopted", "container", c.Name, "state", c.State)
		}
		s.start(r)
	}
	s.adoptedOnce.Do(func() { close(s.adopted) })
}

func (s *Supervisor) noteEngine(info node.RuntimeInfo) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.engine = info
}

// keepsContainers reports whether containers outlive the engine.
func (s *Supervisor) keepsContainers() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.engine.LiveRestore
}

// poke wakes the reporter.
func (s *Supervisor) poke() {
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// batch is what one call reports.
type batch struct {
	reports  []berth.RankReport
	versions []int64
	gone     []berth.AllocationID
	gpus     []berth.GPU
	cache    *holding // nil: as told before
}

// request is the call that reports it.
func (b batch) request() berth.SyncRequest {
	r := berth.SyncRequest{Reports: b.reports, Gone: b.gone, GPUs: b.gpus, Brief: true}
	if b.cache != nil {
		r.Cache = &berth.CacheReport{Holds: b.cache.list}
	}
	return r
}

// maxReports bounds one call.
const maxReports = 256

// nextReports waits until something is due and returns it all.
func (s *Supervisor) nextReports(ctx context.Context) (batch, error) {
	for {
		b, due := s.collect(time.Now())
		if len(b.reports)+len(b.gone)+len(b.gpus) > 0 || b.cache != nil {
			return b, nil
		}
		wait := time.Minute
		if !due.IsZero() {
			wait = time.Until(due)
		}
		timer := time.NewTimer(wait)
		select {
		case <-s.wake:
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return batch{}, ctx.Err()
		}
		timer.Stop()
	}
}

// together is how much sooner than due a report is sent along with one that is due:
// the reports of one beat differ by the time that members take to write them.
const together = 50 * time.Millisecond

// collect takes what is due now, and tells when the next report will be.
func (s *Supervisor) collect(now time.Time) (b batch, due time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	due = s.earliest()
	if !due.IsZero() && !due.After(now) {
		due = time.Time{}
		for _, r := range s.ranks {
			report, version, at := r.present()
			if !at.IsZero() && !at.After(now.Add(together)) && len(b.reports) < maxReports {
				b.reports = append(b.reports, report)
				b.versions = append(b.versions, version)
			}
		}
	}
	for id := range s.gone {
		b.gone = append(b.gone, id)
	}
	if s.gpusDirty {
		for _, g := range s.gpus {
			b.gpus = append(b.gpus, g)
		}
		s.gpusDirty = false
	}
	if at := s.tellsCache(&b, now); !at.IsZero() && (due.IsZero() || at.Before(due)) {
		due = at
	}
	return b, due
}

// earliest returns when the first report is due; zero: none will be. s.mu is held.
func (s *Supervisor) earliest() (due time.Time) {
	for _, r := range s.ranks {
		if at := r.dueAt(); !at.IsZero() && (due.IsZero() || at.Before(due)) {
			due = at
		}
	}
	return due
}

// delivered notes what the server has taken. What its database refuses is told
// again after a while, or when there is something else to tell: it holds up no
// other rank.
func (s *Supervisor) delivered(b batch, refused []berth.Refused) {
	s.mu.Lock()
	defer s.mu.Unlock()
	no := map[berth.AllocationID]bool{}
	for _, f := range refused {
		no[f.Alloc] = true
		s.log.Error("server refused a member report", "alloc", f.Alloc, "why", f.Detail)
	}
	for i, p := range b.reports {
		switch r := s.ranks[p.Alloc]; {
		case r == nil:
		case no[p.Alloc]:
			r.postpone(s.cfg.Timing.RefusedPause)
		default:
			r.reported(p, b.versions[i])
		}
	}
	for _, id := range b.gone {
		delete(s.gone, id)
	}
	s.toldCache(b)
}

// undelivered keeps what has no version of its own; reports stay due.
func (s *Supervisor) undelivered(b batch) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gpusDirty = s.gpusDirty || len(b.gpus) > 0
}

// reportAgain makes every rank's present state due, and what the machine holds: a
// new session may know less than the one before.
func (s *Supervisor) reportAgain() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.telling = telling{}
	for _, r := range s.ranks {
		r.reportAgain()
	}
	s.poke()
}
