package admission

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/cloud"
	"berth/internal/control/scaler"
	"berth/placement"
	"berth/spec"
	"berth/wire"
)

// fleet answers, by the placement code itself, whether some machine could ever hold a
// request. "Fits" answers are cached, and may come from a reading of the machines that is up to
// fleetAge old: machines seldom leave for good, and a submit must not wait for a look at all
// machines. "Does not fit" answers are not cached and come from a reading that began after the
// question, since a machine may just have joined.
//
//	"fits" of a class is from             an answer
//	the last fleetMemory                  fits
//	the fleetMemory before that one       fits; a goroutine of the owner of readings asks the machines again
//	earlier, or never                     waits for a reading of at most fleetAge
type fleet struct {
	db       *db.DB
	readings readings

	mu   sync.Mutex
	fits map[string]fit // by class
}

// fit is the time of a "fits" answer.
type fit struct {
	at    time.Time
	asked bool // a goroutine asks the machines again, or the owner has closed
}

const (
	fleetMemory = time.Minute
	fleetAge    = 2 * time.Second
	fleetRoom   = 10_000
)

// satisfiable returns an error of slug unsatisfiable if no machine could hold the request even
// when empty, neither one that has joined nor one of a cloud that the tenant's policy permits. Before the
// first machine has joined every request is accepted.
func (f *fleet) satisfiable(ctx context.Context, tenant berth.TenantID, r spec.Request) error {
	class, now := r.Class(), time.Now()
	if f.known(class, r, now) {
		return nil
	}
	lacks, empty, err := f.ask(ctx, class, r, now.Add(-fleetAge))
	if err == nil && (lacks != nil || empty) {
		lacks, empty, err = f.ask(ctx, class, r, now)
	}
	if err != nil || lacks == nil || empty {
		return err
	}
	fits, err := f.fitsCloud(ctx, tenant, r)
	if err == nil && !fits {
		err = lacks
	}
	return err
}

// known reports whether a class fits by an earlier answer, and has the answer renewed in the
// background once it is older than fleetMemory.
func (f *fleet) known(class string, r spec.Request, now time.Time) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	answer, ok := f.fits[class]
	age := now.Sub(answer.at)
	if !ok || age >= 2*fleetMemory {
		return false
	}
	if age >= fleetMemory && !answer.asked {
		answer.asked = true
		f.fits[class] = answer
		f.readings.owner.Go(func(ctx context.Context) { // ends after the next reading
			lacks, _, err := f.ask(ctx, class, r, now.Add(-fleetAge))
			if lacks != nil || err != nil {
				f.forget(class)
			}
		})
	}
	return true
}

// ask judges a request by a reading that began at since or later, and remembers that it fits. empty
// reports that the cluster has no machine.
func (f *fleet) ask(
	ctx context.Context, class string, r spec.Request, since time.Time,
) (lacks error, empty bool, err error) {
	at, err := f.readings.since(ctx, since)
	if err != nil || at.empty {
		return nil, err == nil, err
	}
	if lacks := at.lacks(r); lacks != nil {
		return lacks, false, nil
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.fits == nil || len(f.fits) >= fleetRoom {
		f.fits = map[string]fit{}
	}
	f.fits[class] = fit{at: at.began}
	return nil, false, nil
}

// forget makes the next question about a class wait for the machines.
func (f *fleet) forget(class string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.fits, class)
}

// maxCloudGang bounds the machines of each type on which a gang is tried.
const maxCloudGang = 256

// fitsCloud reports whether machines could hold the request that the tenant's burst policy permits to be
// launched for waiting jobs. The answer is not remembered, since policies and offers change.
func (f *fleet) fitsCloud(ctx context.Context, tenant berth.TenantID, r spec.Request) (bool, error) {
	policies, err := f.db.Burst.Policies(ctx)
	if err != nil {
		return false, err
	}
	policy, ok := policies[tenant]
	if !ok || policy.When == nil {
		return false, nil
	}
	rows, err := f.db.Offers.All(ctx)
	if err != nil {
		return false, err
	}
	s := placement.NewSnapshot()
	for i, o := range rows {
		spot := o.Market == cloud.Spot
		if policy.Refusal(o.Provider, o.Region, spot, o.Price) != "" || !r.MayUse(o.Region, spot, o.Price) {
			continue
		}
		for n := range min(max(r.Members, 1), maxCloudGang) {
			s.UpsertMachine(scaler.MachineOf(o.Offer, berth.MachineID(fmt.Sprintf("%d-%d", i, n))))
		}
	}
	return s.Machines() > 0 && unsatisfiable(placement.Explain(s, r)) == nil, nil
}

// resourceFields are the resources that a job can request beyond every machine's
// capacity, with their fields. Properties such as regions and labels are not among
// them: the next machine that joins may have them, so such a job may wait.
var resourceFields = map[string]string{
	"cpus": "resources.cpus", "memory": "resources.memory", "disk": "resources.disk",
	"gpus": "resources.gpus", "gpu_type": "resources.gpu_type", "gpu_memory": "resources.gpu_memory",
	"machine": "resources", "members": "members",
}

// unsatisfiable returns the error for a request, with one fault for each resource that no machine
// has. It returns nil if the user can change none of the lacking resources.
func unsatisfiable(e placement.Explanation) error {
	var faults []berth.FieldError
	for _, l := range e.Lacking {
		if field, ok := resourceFields[l.Resource]; ok {
			detail := wire.Shortfall(l).Detail()
			if e.Group != "" {
				detail = "group " + e.Group + ": " + detail
			}
			faults = append(faults, berth.FieldError{Field: field, Detail: detail})
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
		Message: "no machine can hold this job: " + strings.Join(parts, "; ")}
}
