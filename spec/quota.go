package spec

import (
	"fmt"
	"time"

	"berth"
)

// Borrow selects the jobs of a tenant that may run beyond its guarantee, while other
// tenants leave capacity unused.
type Borrow string

// The values of Borrow.
const (
	BorrowAny         Borrow = "any"         // every job
	BorrowPreemptible Borrow = "preemptible" // jobs that can be preempted
	BorrowNone        Borrow = "none"        // nothing: the guarantee is a limit
)

// Quota bounds the use of a tenant together with all tenants below it. An unset setting
// sets no bound.
type Quota struct {
	Tenant     berth.TenantID `json:"tenant"`
	Guarantee  *Amounts       `json:"guarantee,omitempty" doc:"capacity that the tenant can take back from borrowers"`
	Limit      *Amounts       `json:"limit,omitempty" doc:"most that the tenant may hold"`
	Borrow     Borrow         `json:"borrow,omitempty" doc:"beyond the guarantee: any (default), preemptible, none"`
	MaxRunning *int           `json:"max_running,omitempty" doc:"jobs that hold capacity at once"`
	MaxQueued  *int           `json:"max_queued,omitempty" doc:"jobs that wait at once; submitting more is refused"`
	Budget     *GPUBudget     `json:"budget,omitempty"`
	Images     []string       `json:"images,omitempty" doc:"registries and repositories of images; default: all"`

	ImageSignatures []SignatureRule `json:"image_signatures,omitempty" doc:"signatures that images must have"`

	AnyUser *bool `json:"any_user,omitempty" doc:"jobs may run as the image's user or any other, root included"`

	SubmitRPS   *float64  `json:"submit_rps,omitempty" doc:"jobs and pipelines submitted per second, over all replicas"`
	MaxPriority *Priority `json:"max_priority,omitempty" doc:"greatest priority of new jobs; existing jobs keep theirs"`

	Storage *StorageLimits `json:"storage,omitempty"`

	Version int64      `json:"version,omitempty" doc:"grows with each change; if given in a change, it must be current"`
	Use     *TenantUse `json:"use,omitempty" doc:"read-only"`
	Stored  *Stored    `json:"stored,omitempty" doc:"reported, never set: with all tenants below it"`
}

// Later returns pointers to the settings that clients of older versions do not
// know, by JSON name. A change that omits such a setting keeps it, and null removes it. A
// change that omits any other setting removes it. Each setting is stored in the column of
// the table tenants with the same name. A new setting of Quota belongs in Later, so
// that older clients do not remove it.
func (q *Quota) Later() map[string]any {
	return map[string]any{
		"submit_rps": &q.SubmitRPS, "max_priority": &q.MaxPriority, "storage": &q.Storage, "images": &q.Images,
		"image_signatures": &q.ImageSignatures, "any_user": &q.AnyUser,
	}
}

// StorageLimits bound the data that a tenant and all tenants below it store. A nil
// field sets no limit.
type StorageLimits struct {
	Uploads     *MiB `json:"uploads,omitempty" doc:"archives of code and folders, as compressed"`
	Logs        *MiB `json:"logs,omitempty" doc:"logs of jobs"`
	Outputs     *MiB `json:"outputs,omitempty" doc:"outputs of jobs, as compressed"`
	Checkpoints *MiB `json:"checkpoints,omitempty" doc:"checkpoints that a job can resume from, or that are incomplete"`
	Total       *MiB `json:"total,omitempty" doc:"uploads, logs, outputs and checkpoints together"`
	Secrets     *int `json:"secrets,omitempty" doc:"number of secrets"`
}

// Stored is an amount of stored data by kind, in bytes, and a number of secrets.
type Stored struct {
	Uploads     int64 `json:"uploads_bytes"`
	Logs        int64 `json:"logs_bytes"`
	Outputs     int64 `json:"outputs_bytes"`
	Checkpoints int64 `json:"checkpoints_bytes"`
	Total       int64 `json:"total_bytes"`
	Secrets     int64 `json:"secrets"`
}

// GPUBudget bounds the GPU time of each period. Periods follow one another without gaps,
// from the time at which the budget was set.
type GPUBudget struct {
	GPUHours float64    `json:"gpu_hours"`
	Period   Duration   `json:"period"`
	Since    *time.Time `json:"since,omitempty" doc:"read-only: start of the present period"`
}

// Validate returns all faults of the request at once, or nil.
func (q Quota) Validate() []berth.FieldError {
	v := &validation{}
	if q.Borrow != "" {
		v.oneOf("borrow", string(q.Borrow), string(BorrowAny), string(BorrowPreemptible), string(BorrowNone))
	}
	positive := func(field string, n *int) {
		v.require(n == nil || *n >= 1 && *n <= 10_000_000, field, "is out of range",
			"1 to 10000000; default: no limit")
	}
	positive("max_running", q.MaxRunning)
	positive("max_queued", q.MaxQueued)
	if r := q.SubmitRPS; r != nil {
		v.require(*r >= 0.001 && *r <= 100_000, "submit_rps", fmt.Sprintf("%g is out of range", *r),
			"0.001 to 100000; or leave it out")
	}
	if p := q.MaxPriority; p != nil {
		v.require(*p >= 0 && *p <= 1000, "max_priority", fmt.Sprintf("%d is out of range", int(*p)),
			"low, normal, high, or 0 to 1000")
	}
	if s := q.Storage; s != nil {
		v.require(s.Secrets == nil || *s.Secrets >= 0 && *s.Secrets <= 1_000_000, "storage.secrets",
			"is out of range", "0 to 1000000; default: no limit")
	}
	v.require(q.Images == nil || len(q.Images) > 0, "images", "is empty, which would allow no image",
		"at least one registry or repository; leave it out, or set null, to allow all")
	v.faults = append(v.faults, CheckImageEntries("images", q.Images)...)
	v.require(q.ImageSignatures == nil || len(q.ImageSignatures) > 0, "image_signatures", "is empty",
		"at least one rule; leave it out, or set null, to demand no signatures")
	v.faults = append(v.faults, CheckSignatureRules("image_signatures", q.ImageSignatures)...)
	if q.Guarantee != nil && q.Limit != nil {
		within(v, "guarantee.cpus", q.Guarantee.CPUs, q.Limit.CPUs)
		within(v, "guarantee.memory", q.Guarantee.Memory, q.Limit.Memory)
		within(v, "guarantee.gpus", q.Guarantee.GPUs, q.Limit.GPUs)
	}
	if b := q.Budget; b != nil {
		v.require(b.GPUHours > 0 && b.GPUHours <= 1e9,
			"budget.gpu_hours", fmt.Sprintf("%g is out of range", b.GPUHours), "above 0, at most 1000000000")
		v.require(b.Period.Std() >= time.Minute && b.Period.Std() <= 10*8760*time.Hour,
			"budget.period", fmt.Sprintf("%s is out of range", b.Period), "1m to 87600h")
	}
	return v.faults
}

// within checks that an amount is at most its limit, if both are set.
func within[T interface {
	~int64
	String() string
}](v *validation, field string, amount, limit *T) {
	if amount != nil && limit != nil {
		v.require(*amount <= *limit, field, fmt.Sprintf("%s is more than the limit", *amount),
			"at most "+(*limit).String())
	}
}

// Exceeds returns a fault for each resource of which all members of the request together
// ask for more than Limit. Such a job could never start. It returns nil without a limit.
func (q Quota) Exceeds(r Request) []berth.FieldError {
	if q.Limit == nil {
		return nil
	}
	v := &validation{}
	c := r.Total()
	asks := "asks for"
	if r.Members > 1 {
		asks = fmt.Sprintf("%d members ask for", r.Members)
	}
	over := func(field, asked, limit string, ok bool) {
		v.require(ok, field, fmt.Sprintf("%s %s; the quota of tenant %s is %s", asks, asked, q.Tenant, limit), "")
	}
	if l := q.Limit.CPUs; l != nil {
		over("resources.cpus", unit(MilliCPU(c.CPUMilli).String(), "CPU"), l.String(), c.CPUMilli <= int64(*l))
	}
	if l := q.Limit.Memory; l != nil {
		over("resources.memory", MiB(c.MemoryMiB).String(), l.String(), c.MemoryMiB <= int64(*l))
	}
	if l := q.Limit.GPUs; l != nil {
		over("resources.gpus", unit(MilliGPU(c.GPUMilli).String(), "GPU"), l.String(), c.GPUMilli <= int64(*l))
	}
	return v.faults
}

// unit appends a unit to an amount, in the plural unless the amount is 1.
func unit(amount, name string) string {
	if amount == "1" {
		return "1 " + name
	}
	return amount + " " + name + "s"
}
