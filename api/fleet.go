package api

import (
	"context"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/db"
	"berth/placement"
)

// fleet answers whether a request could ever be held, by the code that places.
// Good news is remembered: machines seldom go for good, and a submit must not
// wait for a look at all of them. Bad news never is: the machine that could
// hold the job may have joined this moment.
type fleet struct {
	db *db.DB

	mu   sync.Mutex
	fits map[string]time.Time // by class: until when it is known to fit
}

const (
	fleetMemory = time.Minute
	fleetRoom   = 10_000
)

// satisfiable returns an error of slug unsatisfiable if no machine could hold
// the request even if it were empty. Before the first machine has joined
// everything is accepted.
func (f *fleet) satisfiable(ctx context.Context, r berth.Request) error {
	class, now := r.Class(), time.Now()
	f.mu.Lock()
	known := now.Before(f.fits[class])
	f.mu.Unlock()
	if known {
		return nil
	}
	s, err := loadSnapshot(ctx, f.db)
	if err != nil {
		return err
	}
	if err := unsatisfiable(placement.Explain(s.Snapshot, r)); err != nil || s.Machines() == 0 {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fits == nil || len(f.fits) >= fleetRoom {
		f.fits = map[string]time.Time{}
	}
	f.fits[class] = now.Add(fleetMemory)
	return nil
}

// resourceFields are the resources of which too much can be asked, and the
// fields that ask for them. What a machine is, such as its region or labels, may
// change with the next one that joins: such a job may wait.
var resourceFields = map[string]string{
	"cpus": "resources.cpus", "memory": "resources.memory", "disk": "resources.disk",
	"gpus": "resources.gpus", "gpu_type": "resources.gpu_type", "gpu_memory": "resources.gpu_memory",
	"machine": "resources", "members": "members",
}

func unsatisfiable(e placement.Explanation) error {
	var faults []berth.FieldError
	for _, l := range e.Lacking {
		if field, ok := resourceFields[l.Resource]; ok {
			lack := berth.Shortfall(l)
			_, detail, _ := strings.Cut(lack.String(), ": ")
			faults = append(faults, berth.FieldError{Field: field, Detail: detail, Allowed: lack.Allowed()})
		}
	}
	if faults == nil {
		return nil
	}
	var parts []string
	for i, l := range faults {
		if i < 3 {
			parts = append(parts, l.Field+": "+l.Detail)
		}
	}
	return &berth.Error{Code: berth.CodeCapacity, Slug: berth.SlugUnsatisfiable, Fields: faults,
		Message: "no machine could ever hold this job: " + strings.Join(parts, "; ")}
}

// snapshot is the machines as they are now, for one question.
type snapshot struct {
	*placement.Snapshot
	now time.Time
}

func loadSnapshot(ctx context.Context, d *db.DB) (snapshot, error) {
	changes, err := d.LoadMachines(ctx)
	if err != nil {
		return snapshot{}, err
	}
	s := snapshot{placement.NewSnapshot(), changes.Now}
	for _, m := range changes.Machines {
		s.UpsertMachine(machineForPlacement(m))
	}
	return s, nil
}

func machineForPlacement(m db.PoolMachine) placement.Machine {
	p := placement.Machine{ID: m.ID, Epoch: m.Epoch, State: m.State, Pool: m.Pool, Region: m.Region, Site: m.Site, Labels: m.Labels, Total: m.Total, Used: m.Used, Fences: m.Fences}
	for _, g := range m.GPUs {
		p.GPUs = append(p.GPUs, placement.Device{Index: g.Index, Model: g.Model, MemoryMiB: g.MemoryMiB, Healthy: g.Healthy, UsedMilli: g.UsedMilli})
	}
	return p
}

// maxEndings is how far the estimate of a start looks: this many reservations
// that must end.
const maxEndings = 64

// estimate is when the request finds room if what has a time limit uses all of
// it and nothing new comes first; nil if that is not known. It uses the
// snapshot up.
func (s snapshot) estimate(ctx context.Context, d *db.DB, r berth.Request) (*time.Time, error) {
	if roomFor(placement.Explain(s.Snapshot, r), r) {
		return &s.now, nil
	}
	endings, err := d.Endings(ctx, maxEndings)
	if err != nil {
		return nil, err
	}
	for _, e := range endings {
		m, ok := s.Machine(e.Machine)
		if !ok {
			continue
		}
		m.Used = m.Used.Sub(e.Capacity)
		m.GPUs = slices.Clone(m.GPUs)
		for _, g := range e.GPUs {
			for i := range m.GPUs {
				if m.GPUs[i].Index == g.Index {
					m.GPUs[i].UsedMilli -= g.Milli
				}
			}
		}
		s.UpsertMachine(m)
		if roomFor(placement.Explain(s.Snapshot, r), r) {
			at := e.At
			if at.Before(s.now) {
				at = s.now
			}
			return &at, nil
		}
	}
	return nil, nil
}

// roomFor reports whether all members have room at once.
func roomFor(e placement.Explanation, r berth.Request) bool {
	if e.Members != nil {
		return e.Members.Now >= r.Members
	}
	return e.FitNow > 0
}
