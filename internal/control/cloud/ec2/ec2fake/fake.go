// Package ec2fake is an HTTP server that behaves as the API of Amazon EC2 does for the calls that
// Berth sends, with its faults. Tests reach it through Amazon's SDK.
//
// It follows the documents on idempotency, eventual consistency, states and errors:
//
//   - a client token is bound to all parameters of RunInstances but region and zone, and refused once
//     its instance has ended;
//   - DescribeInstances shows a new instance, and a new state, only after Lag;
//   - a terminated instance is shown for an hour;
//   - a pending or running instance has a private address;
//   - a request whose time is more than 15 minutes from the clock of the cloud is refused;
//   - capacity is limited by zone, type and market, and quotas by region.
//
// Time passes only by Advance. The one rule to know: it is a model of the documents, not of the cloud.
package ec2fake

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Options configure a Cloud.
type Options struct {
	// Boot and End are the times from pending to running, and from shutting-down to terminated.
	Boot, End time.Duration
	// Lag is the time until DescribeInstances shows a change.
	Lag time.Duration
	// Page is the highest number of instances in one answer; 0 is 5, so that tests see several pages.
	Page int
	// Stock is the number of instances that fit, by Key; a key that is absent has no limit.
	Stock map[string]int
	// Quota is the number of instances that may run, by region; a region that is absent has no limit.
	Quota map[string]int
	// AccessKey is the only access key with permission; "": all have it.
	AccessKey string
	// Skew is the time by which the clock of the cloud is ahead of this host's. Launch times are by the cloud's clock.
	Skew time.Duration
}

// Key returns the key of Options.Stock.
func Key(zone, instanceType, market string) string { return zone + "/" + instanceType + "/" + market }

// FaultKind is a kind of failure of one call.
type FaultKind string

// The kinds of faults.
const (
	Refuse   FaultKind = "refuse"   // answers with Status and Code, without an effect
	Timeout  FaultKind = "timeout"  // never answers, without an effect
	Cut      FaultKind = "cut"      // closes the connection, without an effect
	Garbage  FaultKind = "garbage"  // carries the call out, and answers with half a document
	CutAfter FaultKind = "cutafter" // carries the call out, and closes the connection
	// ExecuteAndTimeout carries the call out and never answers.
	ExecuteAndTimeout FaultKind = "executeandtimeout"
	// ErrorAfter carries the call out, and answers with Status and Code.
	ErrorAfter FaultKind = "errorafter"
	// Ignore answers as if the call had its effect. A terminated instance runs on.
	Ignore FaultKind = "ignore"
	// Twice lets RunInstances boot two instances with one token and the same tags. The answer names the second one.
	Twice FaultKind = "twice"
	// NoAddress lets RunInstances create an instance that never gets an address, and so never reaches the network.
	NoAddress FaultKind = "noaddress"
)

// Fault is a failure of the next call of Action.
type Fault struct {
	Action string // "": any
	Kind   FaultKind
	Status int
	Code   string
}

// Instance is a machine of the fake.
type Instance struct {
	ID, Region, Zone, Type, Market string
	Token                          string
	Params                         map[string]string // of the request, without the signature
	Tags                           map[string]string
	Created                        time.Time // by the clock of the cloud
	Reason                         string    // code of the state
	Address                        string    // in the subnet; "": none, see NoAddress

	changes []change
}

// change is a state with the time at which it begins.
type change struct {
	at    time.Time
	state string
}

// at returns the state at a time; "" is before the creation.
func (i *Instance) at(t time.Time) (state string) {
	for _, c := range i.changes {
		if !c.at.After(t) {
			state = c.state
		}
	}
	return state
}

// Cloud is the server. Its methods may be called concurrently.
type Cloud struct {
	o Options

	mu        sync.Mutex
	now       time.Time
	instances []*Instance
	tokens    map[string]*Instance // by region, zone and token
	faults    []Fault
	calls     map[string]int
}

// New returns a cloud without instances. Its clock starts at the present time and stands still.
func New(o Options) *Cloud {
	if o.Page == 0 {
		o.Page = 5
	}
	return &Cloud{
		o: o, now: time.Now().UTC().Truncate(time.Second), tokens: map[string]*Instance{}, calls: map[string]int{},
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

// Instances returns copies of all instances ever created, in order of creation.
func (c *Cloud) Instances() []Instance {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]Instance, len(c.instances))
	for n, i := range c.instances {
		all[n] = *i
		all[n].Params, all[n].Tags = maps.Clone(i.Params), maps.Clone(i.Tags)
	}
	return all
}

// State returns the true state of an instance, without lag.
func (c *Cloud) State(id string) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instance(id); i != nil {
		return i.at(c.now)
	}
	return ""
}

// Reclaim ends a spot instance as the cloud does when it needs the capacity.
func (c *Cloud) Reclaim(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instance(id); i != nil {
		i.Reason = "Server.SpotInstanceTermination"
		c.end(i)
	}
}

// Untag removes all tags of an instance, as another user of the account may.
func (c *Cloud) Untag(id string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if i := c.instance(id); i != nil {
		i.Tags = map[string]string{}
	}
}

func (c *Cloud) instance(id string) *Instance {
	for _, i := range c.instances {
		if i.ID == id {
			return i
		}
	}
	return nil
}

// refusal is an error document.
type refusal struct {
	status  int
	code    string
	message string
}

// run carries RunInstances out, with the fault Twice or NoAddress or with none.
func (c *Cloud) run(region string, params map[string]string, fault FaultKind) (*Instance, *refusal) {
	zone, market := params["Placement.AvailabilityZone"], params["InstanceMarketOptions.MarketType"]
	if market == "" {
		market = "on-demand"
	}
	token := params["ClientToken"]
	if len(token) > 64 {
		return nil, &refusal{400, "InvalidClientToken", "a client token has at most 64 characters"}
	}
	key := region + "/" + zone + "/" + token
	if i := c.tokens[key]; i != nil && token != "" {
		return c.repeat(i, params)
	}
	for _, name := range []string{"ImageId", "InstanceType", "MinCount", "MaxCount"} {
		if params[name] == "" {
			return nil, &refusal{400, "MissingParameter", "the request must contain " + name}
		}
	}
	placed := zone
	if placed == "" {
		placed = region + "a"
	}
	if why := c.room(region, placed, params["InstanceType"], market); why != nil {
		return nil, why
	}
	made := Instance{
		Region: region, Zone: placed, Type: params["InstanceType"], Market: market, Token: token,
		Params: maps.Clone(params), Tags: tagsOf(params, "instance"), Created: c.now.Add(c.o.Skew),
	}
	if fault == Twice {
		c.boot(made, fault)
	}
	i := c.boot(made, fault)
	c.tokens[key] = i
	return i, nil
}

// boot adds an instance with an id of its own, which begins to boot.
func (c *Cloud) boot(i Instance, fault FaultKind) *Instance {
	n := len(c.instances) + 1
	i.ID = fmt.Sprintf("i-%017x", n)
	if fault != NoAddress {
		i.Address = fmt.Sprintf("10.0.%d.%d", n/250, n%250+4)
	}
	i.changes = []change{{c.now, "pending"}, {c.now.Add(c.o.Boot), "running"}}
	c.instances = append(c.instances, &i)
	return &i
}

// repeat answers a token that is in use.
func (c *Cloud) repeat(i *Instance, params map[string]string) (*Instance, *refusal) {
	if state := i.at(c.now); state == "shutting-down" || state == "terminated" {
		return nil, &refusal{400, "IdempotentInstanceTerminated", "the instance of this token has been terminated"}
	}
	same := maps.Clone(i.Params)
	other := maps.Clone(params)
	delete(same, "Placement.AvailabilityZone")
	delete(other, "Placement.AvailabilityZone")
	if !maps.Equal(same, other) {
		return nil, &refusal{400, "IdempotentParameterMismatch", "the token belongs to another request"}
	}
	return i, nil
}

// room refuses an instance beyond a quota or the stock.
func (c *Cloud) room(region, zone, instanceType, market string) *refusal {
	inRegion, alike := 0, 0
	for _, i := range c.instances {
		if i.at(c.now) == "terminated" || i.Region != region {
			continue
		}
		inRegion++
		if i.Zone == zone && i.Type == instanceType && i.Market == market {
			alike++
		}
	}
	if quota, limited := c.o.Quota[region]; limited && inRegion >= quota {
		if market == "spot" {
			return &refusal{400, "MaxSpotInstanceCountExceeded", "the limit of spot instances is reached"}
		}
		return &refusal{400, "VcpuLimitExceeded", "the limit of vCPUs is reached"}
	}
	if stock, limited := c.o.Stock[Key(zone, instanceType, market)]; limited && alike >= stock {
		return &refusal{500, "InsufficientInstanceCapacity", "there is not enough capacity in the zone " + zone}
	}
	return nil
}

// visible is the time for which an ended instance is shown.
const visible = time.Hour

// shown returns the state that DescribeInstances shows; "": none.
func (c *Cloud) shown(i *Instance) string {
	state := i.at(c.now.Add(-c.o.Lag))
	if last := i.changes[len(i.changes)-1]; last.state == "terminated" && c.now.Sub(last.at) > visible {
		return ""
	}
	return state
}

// describe carries DescribeInstances out: it returns the instances of a page, and the next page.
func (c *Cloud) describe(region string, params map[string]string) (page []*Instance, next string, why *refusal) {
	filters := map[string][]string{}
	for name, value := range params {
		prefix, isName := strings.CutSuffix(name, ".Name")
		if !isName || !strings.HasPrefix(name, "Filter.") {
			continue
		}
		if value != "client-token" && !strings.HasPrefix(value, "tag:") {
			return nil, "", &refusal{400, "InvalidParameterValue", "the filter '" + value + "' is invalid"}
		}
		for key, v := range params {
			if strings.HasPrefix(key, prefix+".Value.") {
				filters[value] = append(filters[value], v)
			}
		}
	}
	var all []*Instance
	for _, i := range c.instances {
		if i.Region == region && c.shown(i) != "" && selected(i, filters) {
			all = append(all, i)
		}
	}
	from, _ := strconv.Atoi(params["NextToken"]) // 0: the first page
	size := c.o.Page
	if most, err := strconv.Atoi(params["MaxResults"]); err == nil {
		if most < 5 || most > 1000 {
			return nil, "", &refusal{400, "InvalidParameterValue", "MaxResults must be 5 to 1000"}
		}
		size = min(size, most)
	}
	all = all[min(from, len(all)):]
	if len(all) > size {
		return all[:size], strconv.Itoa(from + size), nil
	}
	return all, "", nil
}

// selected reports whether an instance passes all filters.
func selected(i *Instance, filters map[string][]string) bool {
	for name, values := range filters {
		value, tagged := i.Token, true
		if tag, is := strings.CutPrefix(name, "tag:"); is {
			value, tagged = i.Tags[tag], i.Tags[tag] != ""
		}
		if !tagged || !slices.Contains(values, value) {
			return false
		}
	}
	return true
}

// terminate carries TerminateInstances out for one instance.
func (c *Cloud) terminate(region, id string, ignore bool) (*Instance, *refusal) {
	if !strings.HasPrefix(id, "i-") {
		return nil, &refusal{400, "InvalidInstanceID.Malformed", "invalid id: '" + id + "'"}
	}
	i := c.instance(id)
	if i == nil || i.Region != region || c.shown(i) == "" {
		return nil, &refusal{400, "InvalidInstanceID.NotFound", "the instance ID '" + id + "' does not exist"}
	}
	if !ignore {
		c.end(i)
	}
	return i, nil
}

// end begins the end of an instance, once.
func (c *Cloud) end(i *Instance) {
	if state := i.at(c.now); state == "shutting-down" || state == "terminated" {
		return
	}
	// An instance that is terminated while it boots never runs.
	i.changes = slices.DeleteFunc(i.changes, func(ch change) bool { return ch.at.After(c.now) })
	i.changes = append(i.changes, change{c.now, "shutting-down"}, change{c.now.Add(c.o.End), "terminated"})
	if i.Reason == "" {
		i.Reason = "Client.UserInitiatedShutdown"
	}
}

// tagsOf returns the tags of a request for a type of resource.
func tagsOf(params map[string]string, resource string) map[string]string {
	tags := map[string]string{}
	for name, value := range params {
		prefix, is := strings.CutSuffix(name, ".ResourceType")
		if !is || value != resource {
			continue
		}
		for key, name := range params {
			if tag, is := strings.CutSuffix(key, ".Key"); is && strings.HasPrefix(key, prefix+".Tag.") {
				tags[name] = params[tag+".Value"]
			}
		}
	}
	return tags
}
