package agent

import (
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"strconv"
	"sync"

	"berth"
	"berth/activities/node"
	"berth/internal/machine/fetch"
	"berth/internal/machine/mounts"
	"berth/wire"
)

// Supervisor schedules the members of this machine: it starts one goroutine for each allocation,
// and passes orders and verdicts on to the members. It outlives sessions. All methods may be
// called concurrently.
type Supervisor struct {
	cfg       Config
	log       *slog.Logger
	control   *control
	fence     *fence
	cache     *cache
	images    *images
	access    *imageAccess
	pulled    *pulledImages
	signed    *imageSignatures
	sources   *fetch.Sources
	vault     vaultDir
	accounts  *accountFiles
	manifests *manifestRoom // of all restores
	mounts    *mounts.Table // of shared folders
	kept      *keptFolders
	stuck     *stuckBoard

	mountable   sync.Once // the first registration with volumes
	cannotMount error

	health  *engineHealth
	gpus    *gpuHealth
	proof   *deviceProof
	outbox  *outbox
	stages  *stageBoard
	use     *useBoard
	host    *hostWatch
	walls   *walls
	disk    *diskWatch
	notices *noticeBoard // nil without a source
	turns   turns
	beat    beat            // of all periodic work
	ctx     context.Context // ends when the agent stops; containers stay
	stop    context.CancelCauseFunc
	all     sync.WaitGroup // one for each member

	adoption     chan struct{} // closed when the first session's verdict is carried out
	adoptionOnce sync.Once

	quarantine *quarantine
	sessions   *sessions // of users
	lines      *lineBoard

	mu      sync.Mutex // held while the set of members is read and changed
	members map[berth.AllocationID]*member
}

// newSupervisor returns a supervisor without members. Nothing runs before adopt.
func newSupervisor(
	cfg Config, c *control, f *fence, kept *cache, has *images, log *slog.Logger,
) *Supervisor {
	ctx, stop := context.WithCancelCause(context.Background())
	gpus := newGPUHealth(cfg.GPUs, log)
	s := &Supervisor{
		cfg: cfg, log: log, control: c, fence: f, cache: kept, images: has,
		access: openImageAccess(cfg, log), signed: newImageSignatures(cfg),
		vault:    openVaultDir(cfg.StateDir, inMemory),
		accounts: openAccounts(cfg.StateDir), manifests: newManifestRoom(),
		kept:   newKeptFolders(cfg.StateDir),
		mounts: mounts.New(filepath.Join(cfg.StateDir, "mounts")), stuck: newStuckBoard(),
		sources: fetch.Open(fetch.Options{
			Policy: cfg.InputNetworks, Roots: cfg.InputRoots, Resolver: cfg.InputResolver, Volumes: cfg.Volumes,
			Own: []string{cfg.StateDir}, Limits: cfg.InputLimits,
		}),
		health: &engineHealth{runtime: cfg.Runtime, patience: cfg.Timing.ProbePatience, log: log,
			returned: make(chan struct{}, 1)},
		gpus:    gpus,
		outbox:  newOutbox(cfg.Timing, kept.holds, gpus, log),
		stages:  newStageBoard(log),
		walls:   newWalls(cfg, c.clusterID, log),
		notices: openNotices(cfg, log),
		turns:   make(turns, abreast),
		beat:    newBeat(),
		ctx:     ctx, stop: stop,
		adoption: make(chan struct{}),
		members:  map[berth.AllocationID]*member{},
	}
	s.proof = newDeviceProof(&s.cfg, gpus, log, s.outbox.poke)
	s.disk = newDiskWatch(&s.cfg, s.health, log)
	s.pulled = openPulled(&s.cfg, s.disk.engineSpace, has.gone, log)
	s.disk.pressed = s.pulled.nudge
	s.use = newUseBoard(gpus, s.disk, log)
	s.host = newHostWatch(&s.cfg, s.health, gpus, log)
	s.quarantine = &quarantine{runtime: cfg.Runtime, outbox: s.outbox, log: log}
	s.sessions = newSessions(s, log)
	s.lines = newLineBoard(s, log)
	kept.holds.changed = s.outbox.poke
	if s.notices != nil {
		s.notices.signal, s.notices.deliver = s.nudgeAll, s.outbox.poke
	}
	s.outbox.notices = s.notices
	return s
}

// close ends the goroutines of all members and waits for their return. Containers stay.
func (s *Supervisor) close() {
	s.stop(errAgentStops)
	s.log.Info("agent stopping, containers keep running")
	s.sessions.close()
	s.all.Wait()
	s.sources.Close()
}

// waitAdopted waits for the first registered session, whose answer decides about the containers
// of earlier processes.
func (s *Supervisor) waitAdopted(ctx context.Context) error {
	select {
	case <-s.adoption:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// start runs a member. s.mu is held.
func (s *Supervisor) start(m *member) {
	s.members[m.alloc] = m
	s.outbox.add(m.alloc, m.reports)
	s.all.Go(m.run)
}

// finished removes a member that has left nothing on this machine.
func (s *Supervisor) finished(m *member) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.members[m.alloc] == m {
		delete(s.members, m.alloc)
	}
	s.kept.drop(m.alloc)
	s.outbox.drop(m.alloc, m.reports)
	s.outbox.addGone(m.alloc)
}

// hasMember reports whether a member of the allocation is on this machine.
func (s *Supervisor) hasMember(id berth.AllocationID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.members[id] != nil
}

// nudgeAll makes every member look at its orders and its devices again.
func (s *Supervisor) nudgeAll() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range s.members {
		m.orders.nudge()
	}
}

// watchGPUs reports changes of the devices' health at once and wakes the members, since a changed
// device may be in use by one.
func (s *Supervisor) watchGPUs(ctx context.Context) {
	s.gpus.watch(ctx, s.beat, s.cfg.Timing.HealthPoll, func() {
		s.nudgeAll()
		s.outbox.poke()
	})
}

// proveGPUs proves the devices that no member waits for, until ctx ends.
func (s *Supervisor) proveGPUs(ctx context.Context) {
	if s.waitAdopted(ctx) != nil {
		return
	}
	found, err := s.findContainers(ctx)
	if err != nil {
		s.log.Warn("cannot list containers before the first proof of GPUs", "err", err)
	}
	s.proof.watch(ctx, found)
}

// ownLabels are the labels of this machine's containers.
func (s *Supervisor) ownLabels() map[string]string {
	return map[string]string{
		berth.LabelCluster: s.control.clusterID(),
		berth.LabelMachine: string(s.cfg.Machine),
	}
}

// findContainers lists this machine's containers.
func (s *Supervisor) findContainers(ctx context.Context) ([]node.Container, error) {
	return s.cfg.Runtime.List(ctx, s.ownLabels())
}

// seen returns the full list for a registration: the engine's containers, and the
// ones that this process is about to create. Members without a claim are left out:
// they will claim, or not, on the new session's terms.
func (s *Supervisor) seen(found []node.Container) []wire.ContainerSeen {
	list := make([]wire.ContainerSeen, 0, len(found))
	listed := map[berth.AllocationID]bool{}
	for _, c := range found {
		if seen, ok := readLabels(c); ok && !listed[seen.Alloc] {
			listed[seen.Alloc] = true
			list = append(list, seen)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, m := range s.members {
		if p, _, _ := m.reports.present(); !listed[id] && p.Phase != berth.PhaseNone {
			list = append(list, wire.ContainerSeen{Alloc: id, Job: m.job, Rank: p.Rank, Attempt: m.attempt})
		}
	}
	return list
}

// readLabels returns the container's identity from its labels, and whether all labels are present
// and well-formed.
func readLabels(c node.Container) (wire.ContainerSeen, bool) {
	alloc, err1 := strconv.ParseInt(c.Labels[berth.LabelAlloc], 10, 64)
	number, err2 := strconv.Atoi(c.Labels[berth.LabelRank])
	attempt, err3 := strconv.Atoi(c.Labels[berth.LabelAttempt])
	job, err4 := berth.ParseJobID(c.Labels[berth.LabelJob])
	ok := err1 == nil && err2 == nil && err3 == nil && err4 == nil
	return wire.ContainerSeen{
		Alloc: berth.AllocationID(alloc), Job: job, Rank: number, Attempt: attempt,
		// What may run counts as running: the server then has no unknown container of this kind removed.
		Running: c.State == node.ContainerRunning || c.State == node.ContainerUnknown,
	}, ok
}

// adopted returns a member for a container that an earlier process created.
func (s *Supervisor) adopted(label wire.ContainerSeen, network string) *member {
	m := newMember(s, label.Alloc, label.Job, label.Rank, label.Attempt)
	m.adopts, m.known, m.network = true, true, network
	return m
}

// adopt carries out a registration's verdict: condemned containers are killed,
// unknown ones go into quarantine, and all others get a member.
func (s *Supervisor) adopt(found []node.Container, kill, quarantine []berth.AllocationID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.quarantine.reset()
	condemned := map[berth.AllocationID]bool{}
	for _, id := range kill {
		condemned[id] = true
		if m := s.members[id]; m != nil {
			m.abandon()
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
			s.quarantine.add(seen.Alloc, c)
			if m := s.members[seen.Alloc]; m != nil {
				delete(s.members, seen.Alloc) // at once: the id may be another job's by now
				s.outbox.drop(seen.Alloc, m.reports)
				m.disown()
			}
			continue
		}
		if s.members[seen.Alloc] != nil {
			continue
		}
		m := s.adopted(seen, c.Labels[berth.LabelNetwork])
		if condemned[seen.Alloc] {
			s.log.Warn("leftover container removed", "container", c.Name)
			m.abandon()
		} else {
			s.log.Info("container adopted", "container", c.Name, "state", c.State)
			s.proof.contains(seen.Alloc, c.ID)
		}
		s.start(m)
	}
	s.adoptionOnce.Do(func() { close(s.adoption) })
}
