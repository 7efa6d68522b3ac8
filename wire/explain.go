package wire

import (
	"fmt"
	"strings"
	"time"

	"berth"
	"berth/spec"
)

// Fit compares the machines with a request, clause by clause.
type Fit struct {
	Machines   int         `json:"machines"`
	FitNow     int         `json:"fit_now" doc:"have room for one member now"`
	FitEver    int         `json:"fit_ever" doc:"would have room if nothing ran on them"`
	MembersNow *int        `json:"members_now,omitempty" doc:"number of members of a gang that have room at once"`
	Clauses    []FitClause `json:"clauses,omitempty" doc:"clauses that exclude at least one machine, in order"`

	Candidates []berth.MachineID `json:"candidates,omitempty" doc:"machines that fit now, the best first"`
	Lacking    []Shortfall       `json:"lacking,omitempty" doc:"resources that no machine has"`
	Data       []DataAt          `json:"data,omitempty" doc:"machines with its code, inputs or image, most first"`
	Scarce     *ScarceGPUs       `json:"scarce,omitempty" doc:"GPUs kept for other jobs; absent: none"`
	Blocks     *ScarceBlocks     `json:"scarce_blocks,omitempty" doc:"machines kept for larger jobs; absent: none"`
	Summary    string            `json:"summary"`
}

// ScarceGPUs are GPUs that a job could use, but that are kept for jobs that can use no others.
// The job prefers other GPUs while some are free.
type ScarceGPUs struct {
	GPUTypes  []string `json:"gpu_types"`
	Requested float64  `json:"requested" doc:"part of the requested GPUs that only these can serve, 0 to 1"`
	Free      float64  `json:"free" doc:"part of the free GPUs that these are, 0 to 1"`
}

// ScarceBlocks are machines that a job could use, but that are kept for jobs that need several GPUs
// of one machine. The job prefers other machines while some have free GPUs.
type ScarceBlocks struct {
	GPUs      int     `json:"gpus" doc:"free GPUs of such a machine, at least"`
	Requested float64 `json:"requested" doc:"part of the requested GPUs, by jobs for as many or more, 0 to 1"`
	Free      float64 `json:"free" doc:"part of the free GPUs that are together on such machines, 0 to 1"`
}

// DataAt is the amount of a job's data on a machine, by the machine's last report. It
// counts the machine's cache and the images that the tenant's jobs have used there.
type DataAt struct {
	Machine berth.MachineID `json:"machine"`
	Bytes   int64           `json:"bytes"`
	Chosen  bool            `json:"chosen,omitempty" doc:"chosen for its data, among equally good machines"`
}

// String describes the data for users.
func (d DataAt) String() string {
	text := fmt.Sprintf("%s already has %s of the image and inputs", d.Machine, berth.BytesText(d.Bytes))
	if d.Chosen {
		text += "; the job would start there for this reason"
	}
	return text
}

// FitClause is one condition of a request, with the number of machines that it rules out.
type FitClause struct {
	Name  string `json:"name"`
	Alone int    `json:"alone" doc:"machines that fail it"`
	After int    `json:"after" doc:"machines that fail it and passed every clause before it"`
	Text  string `json:"text"`
}

// Shortfall is a resource of which no machine has the requested amount.
type Shortfall struct {
	Resource string `json:"resource"`
	Asked    string `json:"asked"`
	Largest  string `json:"largest"`
}

// String describes the shortfall: the requested amount and the largest one, or the
// requested kind and the existing kinds.
func (s Shortfall) String() string {
	return s.Resource + ": " + s.Detail()
}

// Detail describes the shortfall without the name of the resource.
func (s Shortfall) Detail() string {
	switch s.Resource {
	case "gpu_type":
		there := "available: " + s.Largest
		if s.Largest == "none" {
			there = "no machine has a GPU"
		}
		return fmt.Sprintf("no machine has %s %s (%s)", article(s.Asked), s.Asked, there)
	case "gpus":
		if s.Largest == "0" {
			return s.Asked + " requested, but no machine has a GPU that the job can use"
		}
		return fmt.Sprintf("%s requested, but the largest machine has %s", s.Asked, s.Largest)
	case "gpu_memory":
		return fmt.Sprintf("%s requested, but the largest GPU has %s", s.Asked, s.Largest)
	case "region", "site":
		return fmt.Sprintf("no machine is in %s %s (available: %s)", s.Resource, s.Asked, s.Largest)
	case "avoid_machines":
		return fmt.Sprintf("the job avoids all machines (%s)", s.Asked)
	case "pool_tenants", "taints", "floors":
		return s.Largest
	case "members":
		return fmt.Sprintf("%s requested, but the machines hold at most %s", s.Asked, s.Largest)
	case "cpus", "memory", "disk":
		return fmt.Sprintf("%s requested, but the largest machine has %s", s.Asked, s.Largest)
	default:
		return fmt.Sprintf("%s requested, but %s", s.Asked, s.Largest)
	}
}

// Allowed describes requests of the resource that would fit; "" if there are none or if a
// description of the resource alone cannot name them.
func article(model string) string {
	if model != "" && strings.ContainsRune("AEFHILMNORSX8", rune(model[0])) {
		return "an"
	}
	return "a"
}

// HardwareFit is one hardware that a job may take, with the reasons that keep the job from it.
type HardwareFit struct {
	Number    int            `json:"number" doc:"0: resources of the job file; from 1: its alternatives"`
	Resources spec.Resources `json:"resources" doc:"resources of each member"`
	InForce   bool           `json:"in_force,omitempty" doc:"the hardware that the job had last, at first resources"`
	After     spec.Duration  `json:"after,omitempty" doc:"wait before the job may take it"`
	OpensAt   *time.Time     `json:"opens_at,omitempty" doc:"when the job may take it; absent: it may, or a plan"`
	Blockers  []Blocker      `json:"blockers,omitempty" doc:"reasons besides the wait why the job does not take it now"`
	Room      string         `json:"room" doc:"how the machines stand to it, for people"`
}

// Plan predicts the placement of a job that would be submitted now.
type Plan struct {
	Spec           spec.Job   `json:"spec" doc:"with defaults filled in"`
	StartsNow      bool       `json:"starts_now" doc:"there is room for it, which the jobs ahead have not taken"`
	Ahead          int        `json:"ahead" doc:"waiting jobs that are looked at before it"`
	Queue          int        `json:"queue" doc:"jobs that wait for room, this one included if it would"`
	EstimatedStart *time.Time `json:"estimated_start,omitempty" doc:"expected start; absent: unknown"`
	Reserved       bool       `json:"reserved,omitempty" doc:"its start would be reserved: no later job delays it"`
	EstimatedBy    EstimateBy `json:"estimated_by,omitempty" doc:"source of estimated_start: limits or run_times"`
	RunTime        *RunTime   `json:"run_time,omitempty" doc:"predicted, if without time_limit; absent: unknown"`
	CostPerHour    *float64   `json:"cost_per_hour,omitempty" doc:"USD, on the best candidate; absent: unknown"`
	RunsAs         string     `json:"runs_as,omitempty" doc:"user of its containers: image, tenant or UID:GID"`
	Blockers       []Blocker  `json:"blockers,omitempty" doc:"all that would keep it from starting"`
	Priority       []Term     `json:"priority,omitempty" doc:"terms of its order in the queue, the weightiest first"`
	Fit            Fit        `json:"fit"`

	Alternatives []HardwareFit `json:"alternatives,omitempty" doc:"each hardware of a job with alternatives, in order"`

	Offers     []PlanOffer `json:"offers,omitempty" doc:"places for it: machines that exist, then offers of clouds"`
	OffersNote string      `json:"offers_note,omitempty" doc:"reason why no offers are listed, or the number left out"`
}

// Explanation is the status of a job with the reasons for it, and with all blockers of its
// start at once.
type Explanation struct {
	Job            berth.JobID `json:"job"`
	Status         berth.State `json:"status"`
	Summary        string      `json:"summary"`
	Blockers       []Blocker   `json:"blockers" doc:"all that keeps it from starting; empty if nothing does"`
	Ahead          *int        `json:"ahead,omitempty" doc:"waiting jobs before it in the queue"`
	Position       *int        `json:"position,omitempty" doc:"place in the queue, from 1; absent: not queued"`
	Queue          *int        `json:"queue,omitempty" doc:"jobs in the queue: those that may start and have no room"`
	Priority       []Term      `json:"priority,omitempty" doc:"terms of its order in the queue, the weightiest first"`
	EstimatedStart *time.Time  `json:"estimated_start,omitempty" doc:"expected start; absent: unknown"`
	Reserved       bool        `json:"reserved,omitempty" doc:"its start is reserved: no later job delays it"`
	EstimatedBy    EstimateBy  `json:"estimated_by,omitempty" doc:"source of estimated_start: limits or run_times"`
	RunTime        *RunTime    `json:"run_time,omitempty" doc:"predicted, if without time_limit; absent: unknown"`
	Fit            *Fit        `json:"fit,omitempty" doc:"how the machines stand to it, while it waits"`

	Alternatives []HardwareFit `json:"alternatives,omitempty" doc:"each hardware of a job with alternatives, in order"`

	Cloud *CloudNote `json:"cloud,omitempty" doc:"its machines of clouds; absent: none, nor a policy for them"`

	Holders      []Holder `json:"holders,omitempty" doc:"no_room: your jobs that hold the room, the first to end first"`
	OtherHolders int      `json:"other_holders,omitempty" doc:"no_room: number of other jobs that hold the room"`

	Offers     []PlanOffer `json:"offers,omitempty" doc:"places for it: machines that exist, then offers of clouds"`
	OffersNote string      `json:"offers_note,omitempty" doc:"reason why no offers are listed, or the number left out"`
}

// Holder is a running job that holds capacity which a waiting job could use.
type Holder struct {
	Job        berth.JobID       `json:"job"`
	Handle     string            `json:"handle,omitempty" doc:"short form of the job id"`
	Name       string            `json:"name"`
	ArrayIndex *int              `json:"array_index,omitempty"`
	Tenant     berth.TenantID    `json:"tenant"`
	Machines   []berth.MachineID `json:"machines" doc:"machines that it occupies and the waiting job could use"`
	EndsBy     *time.Time        `json:"ends_by,omitempty" doc:"latest end by its time_limit; absent: no time_limit"`
}

// Blocker is one reason why a job does not start.
type Blocker struct {
	Code    string        `json:"code" doc:"stable code; docs/design/policy.md lists them"`
	Quota   string        `json:"quota,omitempty" doc:"with code quota: limit, max_running, borrow or budget"`
	Message string        `json:"message"`
	Hint    string        `json:"hint,omitempty" doc:"a change that would help"`
	Jobs    []berth.JobID `json:"jobs,omitempty" doc:"stopping: the jobs that make room; overdue: the job it waits for"`

	// Machines are those of engine_silent, egress_open and maintenance. Of no_room they are up to three
	// machines that could run the job when idle, if no such machine accepts jobs.
	Machines []berth.MachineID `json:"machines,omitempty" doc:"machines that the blocker is about"`
}

// Term is one value that the position of a job in the queue depends on.
type Term struct {
	Name  string `json:"name" doc:"band, overdue, share, guarantee, service, priority, age, submitted_at or id"`
	Value string `json:"value"`
	Text  string `json:"text,omitempty" doc:"the same for people"`
}
