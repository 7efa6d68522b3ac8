// Package gcefake is an HTTP server that behaves as the API of Google Compute Engine does for the calls
// that Berth sends, with its faults. Tests reach it through Google's SDK.
//
// It follows the documents on request ids, operations, errors and states:
//
//   - insert and delete answer with an operation; missing capacity and quotas are errors inside of it;
//   - a repeated request id returns the first operation, even for another request, and even if the operation failed;
//   - a name is unique in a zone, and is free again when its instance is deleted;
//   - a new instance is listed only after Lag; a deleted instance is not listed, and its operations remain;
//   - capacity is limited by zone, type and market, and quotas by region.
//
// Time passes only by Advance. The one rule to know: it is a model of the documents, not of the cloud.
package gcefake

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"
)

// Project is the only project of a Cloud.
const Project = "berth-test"

// Options configure a Cloud.
type Options struct {
	// Insert is the time from an insert to the end of its operation, Boot that to RUNNING, and End that from
	// a delete to the end of instance and operation.
	Insert, Boot, End time.Duration
	// Lag is the time until reads show a change of an instance.
	Lag time.Duration
	// Dedupe is the time for which a request id is known; 0: without end.
	Dedupe time.Duration
	// Page is the highest number of items in one answer; 0 is 5, so that tests see several pages.
	Page int
	// Stock is the number of instances that fit, by Key; a key that is absent has no limit.
	Stock map[string]int
	// Quota is the number of instances that may run, by region; a region that is absent has no limit.
	Quota map[string]int
	// LinkNumbers lets the operation of a call that names an instance by its number link to the number, and
	// not to the name. The documents of GCE leave this open.
	LinkNumbers bool
	// Token is the only access token with permission; "": each has it.
	Token string
}

// Zones are the zones of a Cloud, of two regions.
var Zones = []string{"eu-test1-a", "eu-test1-b", "eu-test2-a"}

// Key returns the key of Options.Stock. A market is SPOT or STANDARD.
func Key(zone, machineType, market string) string { return zone + "/" + machineType + "/" + market }

// FaultKind is a kind of failure of one call.
type FaultKind string

// The kinds of faults.
const (
	Refuse   FaultKind = "refuse"   // answers with Status and Reason, without an effect
	Timeout  FaultKind = "timeout"  // never answers, without an effect
	Cut      FaultKind = "cut"      // closes the connection, without an effect
	Proxy    FaultKind = "proxy"    // answers with Status and a page of HTML, without an effect
	Garbage  FaultKind = "garbage"  // carries the call out, and answers with half a document
	CutAfter FaultKind = "cutafter" // carries the call out, and closes the connection
	// ExecuteAndTimeout carries the call out and never answers.
	ExecuteAndTimeout FaultKind = "executeandtimeout"
	// ErrorAfter carries the call out, and answers with Status and Reason.
	ErrorAfter FaultKind = "errorafter"
	// Ignore answers to a delete as if it had its effect, and so does its operation. The instance runs on.
	Ignore FaultKind = "ignore"
	// Inside accepts the call. Its operation ends with Status, Reason and Message, without an effect.
	Inside FaultKind = "inside"
)

// Fault is a failure of the next call of Action.
type Fault struct {
	Action  string // insert, get, delete, list, operation or operations; "": any
	Kind    FaultKind
	Status  int
	Reason  string
	Message string
}

// Instance is a machine of the fake.
type Instance struct {
	Number          uint64
	Name, Zone      string
	Type, Market    string
	RequestID       string
	Body            map[string]any // of the insert
	Labels          map[string]string
	Metadata        map[string]string
	Created         time.Time
	changes         []change
	neverWas        bool // its insert failed
	terminateAction string
}

// change is a status with the time at which it begins; "" is the end.
type change struct {
	at     time.Time
	status string
}

// at returns the status at a time; "": it does not exist.
func (i *Instance) at(t time.Time) (status string) {
	for _, c := range i.changes {
		if !c.at.After(t) {
			status = c.status
		}
	}
	return status
}

// operation is a change that GCE carries out.
type operation struct {
	name, kind, zone, target string
	number                   uint64 // of the target
	requestID                string
	begun, done              time.Time
	failure                  *refusal
}

// refusal is an error document, or the error of an operation.
type refusal struct {
	status  int
	reason  string
	message string
}

// Cloud is the server. Its methods may be called concurrently.
type Cloud struct {
	o Options

	mu         sync.Mutex
	now        time.Time
	instances  []*Instance
	operations []*operation
	faults     []Fault
	calls      map[string]int
	broken     map[string]string // by zone
	numbers    uint64
}

// New returns a cloud without instances. Its clock starts at the present time and stands still.
func New(o Options) *Cloud {
	if o.Page == 0 {
		o.Page = 5
	}
	return &Cloud{
		o: o, now: time.Now().UTC().Truncate(time.Second), calls: map[string]int{}, broken: map[string]string{},
		numbers: 1 << 60, // too large for the precision of a float64
	}
}

// Advance lets time pass.
func (c *Cloud) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// Inject adds a fault. Faults apply in order, each to one call.
func (c *Cloud) Inject(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.faults = append(c.faults, f)
}

// Calls returns the number of calls of an action.
func (c *Cloud) Calls(action string) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.calls[action]
}

// The ways in which a list lacks a zone.
const (
	Unreachable = "unreachable" // the zone is among the unreachable places
	Warning     = "warning"     // the zone has a warning, and some of its instances
	Absent      = "absent"      // the zone does not appear, its region does
	Whole       = ""            // it lacks nothing
)

// Break makes lists lack a zone in one of these ways.
func (c *Cloud) Break(zone, how string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.broken[zone] = how
}

// Instances returns copies of all instances ever created, in order of creation.
func (c *Cloud) Instances() []Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := []Instance{}
	for _, i := range c.instances {
		if !i.neverWas {
			one := *i
			one.Labels, one.Metadata = maps.Clone(i.Labels), maps.Clone(i.Metadata)
			all = append(all, one)
		}
	}
	return all
}

// Status returns the true status of an instance, without lag; "": it does not exist.
func (c *Cloud) Status(zone, name string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.existing(zone, name); i != nil {
		return i.at(c.now)
	}
	return ""
}

// Preempt ends a spot instance as GCE does when it needs the capacity: with the termination action
// DELETE there is no delete operation, only one of GCE itself.
func (c *Cloud) Preempt(zone, name string) { c.byGCE(zone, name, "compute.instances.preempted") }

// Record adds a completed operation of a type on an instance, which changes nothing else.
func (c *Cloud) Record(zone, name, kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.existing(zone, name); i != nil {
		c.operate(kind, i, "", 0)
	}
}

// byGCE ends an instance by an operation of GCE itself.
func (c *Cloud) byGCE(zone, name, kind string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := c.existing(zone, name)
	if i == nil {
		return
	}
	c.operate(kind, i, "", 0)
	last := ""
	if i.terminateAction != "DELETE" {
		last = "TERMINATED" // GCE's word for a stopped instance
	}
	c.stop(i, last)
}

// Stop stops an instance, as its own shutdown does.
func (c *Cloud) Stop(zone, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.existing(zone, name); i != nil {
		c.stop(i, "TERMINATED")
	}
}

// Unmark removes the metadata of an instance, as another user of the project may.
func (c *Cloud) Unmark(zone, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.existing(zone, name); i != nil {
		i.Metadata = map[string]string{}
	}
}

// Vanish removes an instance without any operation.
func (c *Cloud) Vanish(zone, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.existing(zone, name); i != nil {
		i.changes = []change{{i.Created, ""}}
	}
}

// existing returns the instance that has a name now.
func (c *Cloud) existing(zone, name string) *Instance {
	for _, i := range c.instances {
		if i.Zone == zone && i.Name == name && i.at(c.now) != "" {
			return i
		}
	}
	return nil
}

// shown returns the instance that reads show for a name or a number, with its status.
func (c *Cloud) shown(zone, name string) (*Instance, string) {
	for _, i := range slices.Backward(c.instances) {
		if i.Zone == zone && (i.Name == name || strconv.FormatUint(i.Number, 10) == name) {
			if status := c.show(i); status != "" {
				return i, status
			}
		}
	}
	return nil, ""
}

// show returns the status that reads show; "": none.
func (c *Cloud) show(i *Instance) string { return i.at(c.now.Add(-c.o.Lag)) }

// operate adds an operation on an instance.
func (c *Cloud) operate(kind string, i *Instance, requestID string, takes time.Duration) *operation {
	o := &operation{
		name: fmt.Sprintf("operation-%d", len(c.operations)+1), kind: kind, zone: i.Zone, target: i.Name,
		number: i.Number, requestID: requestID, begun: c.now, done: c.now.Add(takes),
	}
	c.operations = append(c.operations, o)
	return o
}

// stop lets an instance stop, and then have a last status.
func (c *Cloud) stop(i *Instance, last string) {
	// An instance that is ended while it boots never runs.
	i.changes = slices.DeleteFunc(i.changes, func(ch change) bool { return ch.at.After(c.now) })
	i.changes = append(i.changes, change{c.now, "STOPPING"}, change{c.now.Add(c.o.End), last})
}

// insert carries instances.insert out. fault is an error for the operation, or nil.
func (c *Cloud) insert(zone, requestID string, i *Instance, fault *refusal) (*operation, *refusal) {
	for _, o := range c.operations {
		known := c.o.Dedupe == 0 || c.now.Sub(o.begun) < c.o.Dedupe
		if requestID != "" && o.requestID == requestID && o.zone == zone && known {
			return o, nil
		}
	}
	if c.existing(zone, i.Name) != nil {
		return nil, &refusal{409, "alreadyExists", "The resource '" + i.Name + "' already exists"}
	}
	if fault == nil {
		fault = c.room(i)
	}
	c.numbers++
	i.Number, i.Zone, i.RequestID, i.Created = c.numbers, zone, requestID, c.now
	done := c.now.Add(c.o.Insert)
	i.changes = []change{{c.now, "PROVISIONING"}, {done, "STAGING"}, {done.Add(c.o.Boot), "RUNNING"}}
	if fault != nil {
		// GCE shows an instance while it tries to create it.
		i.changes, i.neverWas = []change{{c.now, "PROVISIONING"}, {done, ""}}, true
	}
	c.instances = append(c.instances, i)
	o := c.operate("insert", i, requestID, c.o.Insert)
	o.failure = fault
	return o, nil
}

// room refuses an instance beyond a quota or the stock.
func (c *Cloud) room(n *Instance) *refusal {
	inRegion, alike := 0, 0
	for _, i := range c.instances {
		if i.at(c.now) == "" || i.neverWas || region(i.Zone) != region(n.Zone) {
			continue
		}
		inRegion++
		if i.Zone == n.Zone && i.Type == n.Type && i.Market == n.Market {
			alike++
		}
	}
	if quota, limited := c.o.Quota[region(n.Zone)]; limited && inRegion >= quota {
		return &refusal{403, "QUOTA_EXCEEDED", fmt.Sprintf(
			"Quota 'NVIDIA_L4_GPUS' exceeded.  Limit: %d.0 in region %s.", quota, region(n.Zone))}
	}
	if stock, limited := c.o.Stock[Key(n.Zone, n.Type, n.Market)]; limited && alike >= stock {
		return &refusal{503, "ZONE_RESOURCE_POOL_EXHAUSTED", "The zone 'projects/" + Project + "/zones/" + n.Zone +
			"' does not have enough resources available to fulfill the request."}
	}
	return nil
}

// remove carries instances.delete out.
func (c *Cloud) remove(zone, name string, ignore bool, fault *refusal) (*operation, *refusal) {
	i, _ := c.shown(zone, name)
	if i == nil {
		return nil, absent("zones/" + zone + "/instances/" + name)
	}
	o := c.operate("delete", i, "", 0)
	if c.o.LinkNumbers {
		o.target = name
	}
	if o.failure = fault; fault != nil || ignore {
		return o, nil
	}
	if i.at(c.now) != "STOPPING" {
		c.stop(i, "")
	}
	o.done = c.now.Add(c.o.End)
	return o, nil
}

// absent is the answer about a resource of the project that does not exist.
func absent(resource string) *refusal {
	return &refusal{404, "notFound", "The resource 'projects/" + Project + "/" + resource + "' was not found"}
}

// region returns the region of a zone.
func region(zone string) string { return zone[:len(zone)-2] }
