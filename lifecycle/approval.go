package lifecycle

import (
	"fmt"
	"slices"
	"strings"

	"berth/spec"
	"berth/wire"
)

// MemoryTolerance is the share by which a machine's memory may grow past its approval. Kernels
// and firmware reserve other amounts from one boot to the next.
const MemoryTolerance = 0.05

// maxDifferences bounds the differences that a reason names.
const maxDifferences = 3

// JoinTerms are the terms of the join token with which a machine joined.
type JoinTerms struct {
	Approves bool                `json:"approves,omitempty"` // no other approval is needed
	Most     *spec.MachineBounds `json:"most,omitempty"`     // greatest capacity; nil: no limit
}

// Approval is the state of a machine's approval at a registration.
type Approval struct {
	Needed   bool            // the machine's pool demands an approval
	Approved *wire.Equipment // nil: the machine was not approved since it joined
	Terms    JoinTerms

	// Returned is set if the restored database did not know the machine, which demands an approval.
	Returned bool
}

// Judge decides whether a machine with the given equipment may get work. It returns the reason
// for which the machine must wait for an operator, or none, and whether its join token approves
// the equipment now.
func (a Approval) Judge(seen wire.Equipment) (held string, approves bool) {
	over := exceeds(a.Terms.Most, seen)
	if !a.Needed && !a.Returned && over == nil {
		return "", false
	}
	if a.Approved != nil {
		if diff := differences(*a.Approved, seen); diff != nil {
			return "differs from its approved equipment: " + listed(diff), false
		}
		return "", false
	}
	if over != nil {
		return "reports more than its join token allows: " + listed(over), false
	}
	if a.Returned {
		return "the restored database does not know the machine: waits for approval", false
	}
	if a.Needed && !a.Terms.Approves {
		return "waits for approval", false
	}
	return "", a.Needed
}

// listed joins differences, and counts those past the first few.
func listed(parts []string) string {
	if more := len(parts) - maxDifferences; more > 0 {
		return fmt.Sprintf("%s, and %d more", strings.Join(parts[:maxDifferences], ", "), more)
	}
	return strings.Join(parts, ", ")
}

// differences names each part of the equipment that an operator has not approved. Less capacity
// than approved is no difference: a machine with a lost device attracts no additional work.
func differences(approved, seen wire.Equipment) (list []string) {
	known := map[string]wire.EquipmentGPU{}
	for _, g := range approved.GPUs {
		known[g.UUID] = g
	}
	for _, g := range seen.GPUs {
		switch before, ok := known[g.UUID]; {
		case !ok:
			list = append(list, fmt.Sprintf("GPU %s (%s) is new", g.UUID, g.Model))
		case before.Model != g.Model || g.MemoryMiB > grown(before.MemoryMiB):
			list = append(list, fmt.Sprintf("GPU %s is %s with %s, was %s with %s", g.UUID, g.Model,
				spec.MiB(g.MemoryMiB), before.Model, spec.MiB(before.MemoryMiB)))
		}
	}
	if seen.CPUMilli > approved.CPUMilli {
		list = append(list, fmt.Sprintf("%s CPUs, were %s", spec.MilliCPU(seen.CPUMilli),
			spec.MilliCPU(approved.CPUMilli)))
	}
	if seen.MemoryMiB > grown(approved.MemoryMiB) {
		list = append(list, fmt.Sprintf("memory %s, was %s", spec.MiB(seen.MemoryMiB),
			spec.MiB(approved.MemoryMiB)))
	}
	for _, t := range []struct{ name, was, is string }{
		{"pool", approved.Pool, seen.Pool}, {"region", approved.Region, seen.Region},
		{"site", approved.Site, seen.Site},
	} {
		if t.was != t.is {
			list = append(list, fmt.Sprintf("%s %q, was %q", t.name, t.is, t.was))
		}
	}
	var keys []string
	for k := range approved.Labels {
		keys = append(keys, k)
	}
	for k := range seen.Labels {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range slices.Compact(keys) {
		was, before := approved.Labels[k]
		is, now := seen.Labels[k]
		if before && !now && passing(k) || !before && implied(approved, k) {
			continue
		}
		if was != is || before != now {
			list = append(list, fmt.Sprintf("label %s=%q, was %q", k, is, was))
		}
	}
	return list
}

// passing reports whether an agent sets a label by the present condition of its host. Without the
// label, the machine gets less work.
func passing(key string) bool {
	return spec.IsVolumeLabel(key) || spec.IsEgressLabel(key)
}

// implied reports whether the approval of a shared folder covers a new label: an upgraded agent can
// mount the folder too, which gives jobs no other data than a copy.
func implied(approved wire.Equipment, key string) bool {
	v, ok := spec.MountOf(key)
	return ok && approved.Labels[v.Label()] == spec.HasVolume
}

// exceeds names each resource of the equipment that is over its limit. 0 means no limit.
func exceeds(most *spec.MachineBounds, seen wire.Equipment) (list []string) {
	if most == nil {
		return nil
	}
	if cpus := spec.MilliCPU(seen.CPUMilli); most.CPUs > 0 && cpus > most.CPUs {
		list = append(list, fmt.Sprintf("%s CPUs (limit %s)", cpus, most.CPUs))
	}
	if memory := spec.MiB(seen.MemoryMiB); most.Memory > 0 && memory > most.Memory {
		list = append(list, fmt.Sprintf("memory %s (limit %s)", memory, most.Memory))
	}
	if most.GPUs > 0 && len(seen.GPUs) > most.GPUs {
		list = append(list, fmt.Sprintf("%d GPUs (limit %d)", len(seen.GPUs), most.GPUs))
	}
	return list
}

// grown returns an amount plus the tolerance.
func grown(mib int64) int64 { return mib + int64(float64(mib)*MemoryTolerance) }
