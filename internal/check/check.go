package check

import (
	"encoding/json"
	"fmt"
	"time"

	"berth"
	"berth/db/history"
	"berth/wire"
)

// Options set how strictly a history is judged. The zero value suits a database in use.
type Options struct {
	// Settled also demands that everything has come to its end (invariant 20).
	Settled bool
	// Skew is the greatest difference or step of clocks: of the database against itself,
	// and of machines against the database. 0: 2 s.
	Skew time.Duration
	// Patience is added to every budget of time within which a job must make progress. 0:
	// 10 min; negative: none.
	Patience time.Duration
	// Since leaves out work that had ended before this time. Zero: no limit.
	Since time.Time
}

// withDefaults fills in the defaults. A negative Patience becomes 0.
func (o Options) withDefaults() Options {
	if o.Skew == 0 {
		o.Skew = 2 * time.Second
	}
	switch {
	case o.Patience == 0:
		o.Patience = 10 * time.Minute
	case o.Patience < 0:
		o.Patience = 0
	}
	return o
}

// Breach is one case in which an invariant does not hold, with its proof.
type Breach struct {
	Invariant int               `json:"invariant"`
	Sentence  string            `json:"sentence"` // of the invariant
	Job       berth.JobID       `json:"job,omitempty"`
	Attempt   int               `json:"attempt,omitempty"`
	Machine   berth.MachineID   `json:"machine,omitempty"`
	Detail    string            `json:"detail"` // the observed facts
	Rows      []json.RawMessage `json:"rows,omitempty"`
}

// String renders the breach on one line.
func (b Breach) String() string {
	s := fmt.Sprintf("invariant %d: %s", b.Invariant, b.Detail)
	if b.Job != "" {
		s += fmt.Sprintf(" (job %s", b.Job)
		if b.Attempt > 0 {
			s += fmt.Sprintf(", attempt %d", b.Attempt)
		}
		s += ")"
	}
	if b.Machine != "" {
		s += fmt.Sprintf(" (machine %s)", b.Machine)
	}
	return s
}

// Invariant is one promise and its checks, one for each kind of record. A function is nil
// where the promise does not concern that kind.
type Invariant struct {
	Number   int
	Sentence string
	Reads    string // the rows that decide, for people

	job     func(*jobCase)
	machine func(*machineCase)
	cluster func(*clusterCase)
	family  func(*familyCase)
	holding func(*holdingCase)
	launch  func(*launchCase)
}

// History is a whole history in memory.
type History struct {
	Cluster    history.Cluster
	Jobs       []history.Job
	Machines   []history.Machine
	Families   []history.Family
	Holdings   []history.Holding // by number of the ledger
	Launched   []history.Launched
	Containers []ContainerEvent // of every machine, in any order
	Accepted   []Accepted
	// Missing are jobs named by containers or accepted submits that have no row, not even
	// in the archive.
	Missing []berth.JobID
}

// Accepted is a submit that the server acknowledged to a client.
type Accepted struct {
	Tenant berth.TenantID `json:"tenant"`
	Key    string         `json:"key,omitempty"` // its idempotency key
	Job    berth.JobID    `json:"job"`
}

// Verify returns every breach of the history: breaches of jobs first, then of machines,
// then all others.
func Verify(h History, o Options) []Breach {
	v := newVerifier(h.Cluster, h.Containers, h.Accepted, o)
	for _, j := range h.Jobs {
		v.job(j)
	}
	for _, m := range h.Machines {
		v.machine(m)
	}
	for _, f := range h.Families {
		v.family(f)
	}
	for _, x := range h.Holdings {
		v.holding(x)
	}
	for _, l := range h.Launched {
		v.launched(l)
	}
	v.finish(h.Missing)
	return v.breaches
}

// verifier applies the invariants to one record after the other, and collects the
// breaches. It is not safe for concurrent use.
type verifier struct {
	o          Options
	now        time.Time
	clusterRow history.Cluster
	lives      map[berth.JobID][]life
	accepted   []Accepted
	accounts   *accounts
	paid       []history.Launch              // launches for which a tenant pays
	instances  map[[2]string]berth.MachineID // of launches that are not settled, by provider and id
	breaches   []Breach
}

func newVerifier(c history.Cluster, events []ContainerEvent, accepted []Accepted, o Options) *verifier {
	return &verifier{
		o: o.withDefaults(), now: c.ReadAt, clusterRow: c, lives: livesOf(c.ID, events), accepted: accepted,
		accounts: newAccounts(c.Tenants), instances: map[[2]string]berth.MachineID{},
	}
}

func (v *verifier) job(j history.Job) {
	for _, i := range Invariants {
		if i.job != nil {
			i.job(&jobCase{caseOf: caseOf{v: v, invariant: i, job: j.ID}, j: j, lives: v.lives[j.ID]})
		}
	}
}

func (v *verifier) machine(m history.Machine) {
	for _, i := range Invariants {
		if i.machine != nil {
			i.machine(&machineCase{caseOf: caseOf{v: v, invariant: i, machine: m.ID}, m: m})
		}
	}
}

func (v *verifier) family(f history.Family) {
	for _, i := range Invariants {
		if i.family != nil {
			i.family(&familyCase{caseOf: caseOf{v: v, invariant: i, job: f.ID}, f: f})
		}
	}
}

// holding replays one change of the ledger. Quotas are judged at the begin of an
// allocation: only a placement can break them.
func (v *verifier) holding(x history.Holding) {
	v.accounts.apply(x)
	for _, i := range Invariants {
		if i.holding != nil && x.Begins {
			i.holding(&holdingCase{
				caseOf: caseOf{v: v, invariant: i, job: x.Job, machine: x.Machine}, h: x, accounts: v.accounts,
			})
		}
	}
}

// launched judges the launches of one machine name.
func (v *verifier) launched(l history.Launched) {
	for _, x := range l.Launches {
		if x.Tenant != "" {
			v.paid = append(v.paid, x)
		}
	}
	for _, i := range Invariants {
		if i.launch != nil {
			i.launch(&launchCase{caseOf: caseOf{v: v, invariant: i, machine: l.Machine}, l: l})
		}
	}
}

// finish judges the records that belong to no single job or machine.
func (v *verifier) finish(missing []berth.JobID) {
	for _, i := range Invariants {
		if i.cluster != nil {
			i.cluster(&clusterCase{caseOf: caseOf{v: v, invariant: i}, c: v.clusterRow, lives: v.lives,
				accepted: v.accepted, missing: missing})
		}
	}
}

// caseOf is the judgement of one record by one invariant; breaches carry its job or
// machine.
type caseOf struct {
	v         *verifier
	invariant Invariant
	job       berth.JobID
	machine   berth.MachineID
}

// jobCase is one job with its containers.
type jobCase struct {
	caseOf
	j     history.Job
	lives []life // its containers, on every machine with an event file
}

type machineCase struct {
	caseOf
	m history.Machine
}

type familyCase struct {
	caseOf
	f history.Family
}

// launchCase is a machine name with its launches.
type launchCase struct {
	caseOf
	l history.Launched
}

// holdingCase is an allocation at its begin, with the holdings of all tenants from then
// on.
type holdingCase struct {
	caseOf
	h        history.Holding
	accounts *accounts
}

// clusterCase is the part of the history that belongs to no single job or machine.
type clusterCase struct {
	caseOf
	c        history.Cluster
	lives    map[berth.JobID][]life
	accepted []Accepted
	missing  []berth.JobID
}

// breach records that the invariant does not hold, with the rows as proof. The caller may
// complete the returned breach until the next call of breach.
func (c *caseOf) breach(rows []any, format string, args ...any) *Breach {
	b := Breach{Invariant: c.invariant.Number, Sentence: c.invariant.Sentence, Job: c.job, Machine: c.machine,
		Detail: fmt.Sprintf(format, args...)}
	for _, r := range rows {
		doc, err := json.Marshal(r)
		if err != nil {
			panic("record does not marshal: " + err.Error())
		}
		b.Rows = append(b.Rows, doc)
	}
	c.v.breaches = append(c.v.breaches, b)
	return &c.v.breaches[len(c.v.breaches)-1]
}

// of records a breach that concerns one allocation.
func (c *caseOf) of(a history.Allocation, rows []any, format string, args ...any) {
	b := c.breach(rows, format, args...)
	b.Job, b.Attempt, b.Machine = a.Job, a.Attempt, a.Machine
}

// rows are the proof of a breach.
func rows(r ...any) []any { return r }

// states are the job's changes of state, in order.
func (c *jobCase) states() []history.Event {
	var list []history.Event
	for _, e := range c.j.Events {
		if e.Kind == wire.EventState {
			list = append(list, e)
		}
	}
	return list
}

// ranks returns the allocations of one attempt, one per member, by rank.
func (c *jobCase) ranks(attempt int) []history.Allocation {
	var list []history.Allocation
	for _, a := range c.j.Allocations {
		if a.Attempt == attempt {
			list = append(list, a)
		}
	}
	return list
}
