package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/internal/machine/cgroupstats"
	"berth/internal/machine/deadman"
	"berth/internal/machine/diskuse"
	"berth/spec"
)

const (
	// diskPatience bounds one measurement, of which each kind of files has an equal share: many files
	// of one kind do not hide the others. The result is then a lower bound. After that time a look
	// begins no further measurement.
	diskPatience = 10 * time.Second
	// diskRest is the number of times its own duration for which a measurement is not repeated, so
	// that a member with very many files costs at most a tenth of a core.
	diskRest = 9

	// A member with less use beyond its request is not ended for the machine's reserve: its end
	// would free next to nothing.
	leastExcessBytes  = 64 << 20
	leastExcessInodes = 10_000
)

// diskWatch enforces limits on disk space: of each job, its resources.disk, and of the machine, a
// reserve of bytes and inodes. One goroutine measures, one member at a time, and hands verdicts to
// the members' goroutines. docs/adr/0062 has the states of a shortage and the measured costs.
//
// Each look costs one call to the kernel for each file system. A member is measured only if it
// may have reached its limit since its last measurement, judged by the growth of the file systems
// as a whole, and at the latest after Timing.DiskRecheck: files that other programs delete meanwhile
// hide the growth of a member. Members without a limit are measured only
// while the reserve is near.
type diskWatch struct {
	runtime node.Runtime
	state   string // the agent's folder
	machine berth.MachineID
	reserve int // percent of a file system; 0: none
	recheck time.Duration
	health  *engineHealth
	pressed func() // called while less than twice the reserve is free; nil: none
	log     *slog.Logger

	mu    sync.Mutex
	users map[berth.AllocationID]*diskUser

	// Of the watching goroutine.
	victim *diskUser // whose end or removal is awaited; nil: no shortage
	floor  [2]diskuse.Use
	warned bool
}

// diskUser is the disk use of one member. It stays until the member's files are removed.
type diskUser struct {
	alloc   berth.AllocationID
	name    string // of the container
	limit   int64  // bytes; 0: none
	wake    func()
	ended   atomic.Bool // the container has ended, its files are still here
	verdict atomic.Pointer[diskVerdict]

	// Of the watching goroutine.
	pid    int
	at     time.Time // of the last measurement
	took   time.Duration
	before int64              // used on the file systems at that time, by all
	kinds  [kinds]diskuse.Use // by kind of files; see the constants below
	use    [2]diskuse.Use     // by place; see the constants below
	sure   int64              // bytes found by the last measurement, be it complete or not
	deep   bool               // its folders are nested too deep to be measured
}

// Indexes of the places in which a member has files.
const (
	inState = iota // the member's folder: workspace and checkpoints
	inLayer        // the writable layer of the container
)

// Indexes of the kinds of a member's files.
const (
	ofWorkspace = iota
	ofCheckpoint
	ofLayer
	ofUnnamed // files without a name, which may be in either place
	kinds
)

// diskVerdict is the reason to end a member.
type diskVerdict struct {
	cause failure.ExitCause
	says  string
}

func newDiskWatch(cfg *Config, health *engineHealth, log *slog.Logger) *diskWatch {
	return &diskWatch{
		runtime: cfg.Runtime, state: cfg.StateDir, machine: cfg.Machine, reserve: cfg.DiskReserve,
		recheck: cfg.Timing.DiskRecheck, health: health, log: log, users: map[berth.AllocationID]*diskUser{},
	}
}

// join adds a member whose container runs. wake is called after a verdict.
func (w *diskWatch) join(c *core, wake func()) *diskUser {
	u := &diskUser{alloc: c.alloc, name: c.name(), limit: int64(c.claim.Spec.Resources.Disk) << 20, wake: wake}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.users[u.alloc] = u
	return u
}

// leave removes a member, whose files are gone or are no longer this agent's. A member that has
// joined later with the same allocation stays. nil: the member has never joined.
func (w *diskWatch) leave(u *diskUser) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if u != nil && w.users[u.alloc] == u {
		delete(w.users, u.alloc)
	}
}

// present returns the members with files here.
func (w *diskWatch) present() []*diskUser {
	w.mu.Lock()
	defer w.mu.Unlock()
	list := make([]*diskUser, 0, len(w.users))
	for _, u := range w.users {
		list = append(list, u)
	}
	return list
}

// run looks periodically until ctx ends.
func (w *diskWatch) run(ctx context.Context, b beat, every time.Duration) {
	for b.sleep(ctx, every) == nil {
		w.look(ctx)
	}
}

// look measures the members that may have reached a limit, the one with the oldest measurement
// first, judges them, and relieves a shortage.
func (w *diskWatch) look(ctx context.Context) {
	users := w.present()
	if len(users) == 0 {
		return
	}
	spaces, err := w.spaces()
	if err != nil {
		w.log.Warn("cannot measure the file systems of jobs, will retry", "err", err)
		return
	}
	none := [2]diskuse.Use{}
	short, near := w.shortage(spaces, 1), w.shortage(spaces, 2)
	if near != none && w.pressed != nil {
		w.pressed()
	}
	used := spaces[inState].Total - spaces[inState].Free
	if spaces[inLayer].Device != spaces[inState].Device {
		used += spaces[inLayer].Total - spaces[inLayer].Free
	}
	slices.SortFunc(users, func(a, b *diskUser) int { return a.at.Compare(b.at) })
	for begun, i := time.Now(), 0; i < len(users) && time.Since(begun) < diskPatience && ctx.Err() == nil; i++ {
		u := users[i]
		if u.ends() || u.limit == 0 && near == none {
			continue
		}
		if w.due(u, time.Now(), used, short != none) {
			w.measure(ctx, u, spaces)
			w.judge(ctx, u, spaces)
			u.before = used
		}
	}
	if near == none {
		w.relieve(users, spaces, short) // without a shortage, as the members were not measured for one
		return
	}
	if spaces, err = w.spaces(); err != nil { // the measurements have taken their time
		w.log.Warn("cannot measure the file systems of jobs, will retry", "err", err)
		return
	}
	w.relieve(w.present(), spaces, w.shortage(spaces, 1))
}

// spaces returns the file systems of the agent's folder and of the engine's. An engine that names
// no folder is taken to use the agent's file system.
func (w *diskWatch) spaces() (s [2]diskuse.Space, err error) {
	if s[inState], err = diskuse.SpaceOf(w.state); err != nil {
		return s, err
	}
	s[inLayer] = s[inState]
	if root := w.health.dataRoot(); root != "" {
		if found, err := diskuse.SpaceOf(root); err == nil {
			s[inLayer] = found
		}
	}
	return s, nil
}

// engineSpace returns the file system of the engine's folder, where its images are.
func (w *diskWatch) engineSpace() (diskuse.Space, error) {
	root := w.health.dataRoot()
	if root == "" {
		return diskuse.Space{}, errors.New("the engine names no folder of its data")
	}
	return diskuse.SpaceOf(root)
}

// reservedMiB returns the reserve of the engine's file system, of which the machine offers the rest.
func (w *diskWatch) reservedMiB() int64 {
	spaces, err := w.spaces()
	if err != nil {
		return 0
	}
	return spaces[inLayer].Share(w.reserve).Bytes >> 20
}

// room returns the free bytes of the file system of the members' folders, and the bytes of its reserve.
func (w *diskWatch) room() (free, reserve int64, err error) {
	spaces, err := w.spaces()
	if err != nil {
		return 0, 0, err
	}
	s := spaces[inState]
	return s.Free, s.Share(w.reserve).Bytes, nil
}

// freeShare returns the free share of the fuller one of the file systems, rounded to thousandths;
// nil if the file systems cannot be measured.
func (w *diskWatch) freeShare() *float64 {
	spaces, err := w.spaces()
	if err != nil {
		w.log.Debug("cannot measure the file systems of jobs", "err", err)
		return nil
	}
	free := math.Floor(1000*min(spaces[inState].FreeShare(), spaces[inLayer].FreeShare())) / 1000
	return &free
}

// shortage returns how much of the reserve, or of a multiple of it, is used up.
func (w *diskWatch) shortage(s [2]diskuse.Space, times int) (missing [2]diskuse.Use) {
	for i := range s {
		missing[i] = s[i].Missing(s[i].Share(w.reserve * times))
	}
	return missing
}

// due reports whether the member needs a measurement. used is the space used by all.
func (w *diskWatch) due(u *diskUser, now time.Time, used int64, short bool) bool {
	age := now.Sub(u.at)
	switch {
	case u.at.IsZero():
		return true
	case age < diskRest*u.took:
		return false
	case short, age >= w.recheck:
		return true
	default:
		return u.limit > 0 && used-u.before >= u.limit-u.total().Bytes
	}
}

// judged returns the verdict on the member; nil: none.
func (u *diskUser) judged() *diskVerdict {
	if u == nil {
		return nil
	}
	return u.verdict.Load()
}

// ends reports whether the member has ended, or is about to.
func (u *diskUser) ends() bool { return u.ended.Load() || u.judged() != nil }

// total returns the member's whole use.
func (u *diskUser) total() diskuse.Use { return u.use[inState].Plus(u.use[inLayer]) }

// measure updates the member's use. What is found is a lower bound if the measurement is
// incomplete; then more, as found earlier, stays noted as the use.
func (w *diskWatch) measure(ctx context.Context, u *diskUser, spaces [2]diskuse.Space) {
	begun := time.Now()
	u.sure = 0
	var faults []error
	count := func(kind int, of func(context.Context) (diskuse.Use, error)) {
		limited, cancel := context.WithTimeout(ctx, diskPatience/kinds)
		defer cancel()
		found, err := of(limited)
		u.sure += found.Bytes
		if err = errors.Join(err, limited.Err()); err != nil && !errors.Is(err, node.ErrNoContainer) {
			found.Bytes = max(found.Bytes, u.kinds[kind].Bytes)
			found.Inodes = max(found.Inodes, u.kinds[kind].Inodes)
		}
		u.kinds[kind], faults = found, append(faults, err)
	}
	dir := scratchDir(w.state, u.name)
	count(ofWorkspace, func(ctx context.Context) (diskuse.Use, error) {
		return diskuse.Tree(ctx, deadman.GateFolder(filepath.Join(dir, "workspace")), u.limit)
	})
	count(ofCheckpoint, func(ctx context.Context) (diskuse.Use, error) {
		return diskuse.Tree(ctx, filepath.Join(dir, "checkpoint"), u.limit)
	})
	count(ofLayer, func(ctx context.Context) (diskuse.Use, error) {
		bytes, inodes, err := w.runtime.LayerUse(ctx, u.name, u.limit)
		return diskuse.Use{Bytes: bytes, Inodes: max(0, inodes)}, err
	})
	count(ofUnnamed, func(ctx context.Context) (diskuse.Use, error) {
		if u.pid == 0 {
			c, err := w.runtime.Inspect(ctx, u.name)
			if err != nil {
				return diskuse.Use{}, err
			}
			u.pid = c.PID
		}
		bytes, inodes := cgroupstats.Host{}.Open(u.pid).Deleted(ctx, spaces[inState].Device)
		return diskuse.Use{Bytes: bytes, Inodes: inodes}, nil
	})
	err := errors.Join(faults...)
	u.deep = errors.Is(err, diskuse.ErrTooDeep)
	if err != nil && ctx.Err() == nil && !errors.Is(err, node.ErrNoContainer) {
		w.log.Debug("disk use of a member measured in part", "container", u.name, "err", err)
	}
	u.use[inState] = u.kinds[ofWorkspace].Plus(u.kinds[ofCheckpoint])
	u.use[inLayer] = u.kinds[ofLayer].Plus(u.kinds[ofUnnamed])
	u.at, u.took = time.Now(), time.Since(begun)
}

// judge ends a member that has just been measured and is beyond its own limit. A measurement is no
// moment: it counts a folder twice that is moved meanwhile, and also a file that is deleted while
// it is open. Since the end is final, a second measurement must find the same.
func (w *diskWatch) judge(ctx context.Context, u *diskUser, spaces [2]diskuse.Space) {
	if u.beyond() == "" {
		return
	}
	w.measure(ctx, u, spaces)
	if says := u.beyond(); says != "" {
		w.end(u, failure.CauseDiskLimit, says)
	}
}

// beyond returns how the last measurement alone found the member beyond its limit; "": it did not.
func (u *diskUser) beyond() string {
	switch {
	case u.limit == 0:
		return ""
	case u.sure > u.limit:
		return fmt.Sprintf("used %s of disk space, more than its resources.disk of %s", mib(u.sure), mib(u.limit))
	case u.deep:
		return "its disk space cannot be measured: " + diskuse.ErrTooDeep.Error()
	default:
		return ""
	}
}

// end hands a verdict to the member.
func (w *diskWatch) end(u *diskUser, cause failure.ExitCause, says string) {
	u.verdict.Store(&diskVerdict{cause, says})
	u.wake()
}

// relieve ends the member with the most use beyond its request while the reserve is used up, one
// after the other. The next one is chosen once the files of the last one are removed, or when the
// space shrinks nevertheless.
func (w *diskWatch) relieve(users []*diskUser, spaces [2]diskuse.Space, short [2]diskuse.Use) {
	if short == ([2]diskuse.Use{}) {
		w.victim, w.warned = nil, false
		return
	}
	shrunk := w.shrunk(spaces)
	if slices.Contains(users, w.victim) && !shrunk {
		return
	}
	if shrunk { // to wait for the removal of more files is not enough
		users = slices.DeleteFunc(slices.Clone(users), (*diskUser).ends)
	}
	w.victim = nil
	worst, resource := worstUser(users, spaces, short)
	if worst == nil {
		if !w.warned {
			w.warned = true
			w.log.Warn("disk reserve of the machine is used up, and no job uses much beyond its resources.disk",
				"free_bytes", spaces[inState].Free, "free_inodes", spaces[inState].FreeInodes)
		}
		return
	}
	w.victim = worst
	for i, s := range spaces {
		reserve := s.Share(w.reserve)
		w.floor[i] = diskuse.Use{Bytes: s.Free - reserve.Bytes/10, Inodes: s.FreeInodes - reserve.Inodes/10}
	}
	if worst.ends() {
		return // its files are about to be removed
	}
	w.log.Warn("disk reserve of the machine is used up, ending the job with the most use beyond its request",
		"container", worst.name, "bytes", worst.total().Bytes, "inodes", worst.total().Inodes)
	w.end(worst, failure.CauseDiskReserve, fmt.Sprintf("machine %s had less than %d%% of its %s left, and this job "+
		"used the most beyond its request: %s, %d files", w.machine, w.reserve, resource, mib(worst.total().Bytes),
		worst.total().Inodes))
}

// shrunk reports whether a tenth of the reserve was used up since the last victim was chosen.
func (w *diskWatch) shrunk(spaces [2]diskuse.Space) bool {
	for i, s := range spaces {
		if w.victim != nil && (s.Free < w.floor[i].Bytes || s.FreeInodes < w.floor[i].Inodes) {
			return true
		}
	}
	return false
}

// worstUser returns the member with the most use beyond its request on the file systems that are
// short, and the name of the resource that is short; nil if no member uses much more than it
// requested.
func worstUser(users []*diskUser, spaces [2]diskuse.Space, short [2]diskuse.Use) (*diskUser, string) {
	for _, r := range []struct {
		name  string
		of    func(diskuse.Use) int64
		least int64
		limit func(*diskUser) int64
	}{
		{"disk space", func(u diskuse.Use) int64 { return u.Bytes }, leastExcessBytes,
			func(u *diskUser) int64 { return u.limit }},
		{"inodes", func(u diskuse.Use) int64 { return u.Inodes }, leastExcessInodes,
			func(*diskUser) int64 { return 0 }},
	} {
		var worst *diskUser
		most := r.least - 1
		for _, u := range users {
			excess, here := -r.limit(u), false
			for i := range spaces {
				if r.of(short[i]) > 0 {
					excess, here = excess+r.of(u.use[i]), true
				}
			}
			if here && u.deep {
				excess = 1 << 62
			}
			if here && excess > most {
				worst, most = u, excess
			}
		}
		if worst != nil {
			return worst, r.name
		}
	}
	return nil, ""
}

// mib formats bytes, rounded up to MiB.
func mib(bytes int64) string { return spec.MiB((bytes + 1<<20 - 1) >> 20).String() }
