package gcefake

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// links is the beginning of the links of resources.
const links = "https://www.googleapis.com/compute/v1/projects/" + Project

// document is an answer.
type document = map[string]any

// Forms that GCE requires.
var (
	names       = regexp.MustCompile(`^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$`)
	uuids       = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[1-8][0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	labelKeys   = regexp.MustCompile(`^[a-z][-_a-z0-9]{0,62}$`)
	labelValues = regexp.MustCompile(`^[-_a-z0-9]{0,63}$`)
	paths       = regexp.MustCompile(`^/compute/v1/projects/([^/]+)/` +
		`(?:(aggregated)/instances|zones/([^/]+)/(instances|operations)(?:/([^/]+))?)$`)
)

// call is one request.
type call struct {
	action, zone, name string
	query              map[string]string
	body               []byte
}

// actions are the names of calls by method, resource and whether they name it.
var actions = map[string]string{
	"POST instances ": "insert", "GET instances name": "get", "DELETE instances name": "delete",
	"GET aggregated ": "list", "GET operations name": "operation", "GET operations ": "operations",
}

// ServeHTTP answers one call.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	text, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	if err != nil {
		respond(w, refusal{400, "parseError", "the body cannot be read"})
		return
	}
	if r.URL.Path == "/token" { // OAuth's exchange of a signed assertion for an access token
		w.Header().Set("Content-Type", "application/json")
		token := document{"access_token": c.o.Token, "token_type": "Bearer", "expires_in": 3600}
		_ = json.NewEncoder(w).Encode(token)
		return
	}
	path := paths.FindStringSubmatch(r.URL.Path)
	token, bearer := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	switch {
	case path == nil:
		http.NotFound(w, r)
		return
	case !bearer:
		respond(w, refusal{401, "required", "Login Required."})
		return
	case c.o.Token != "" && token != c.o.Token:
		respond(w, refusal{403, "forbidden", "Required 'compute.instances.list' permission"})
		return
	case path[1] != Project:
		respond(w, refusal{404, "notFound", "The resource 'projects/" + path[1] + "' was not found"})
		return
	case path[2] == "" && !slices.Contains(Zones, path[3]):
		respond(w, *absent("zones/" + path[3]))
		return
	}
	k := call{zone: path[3], name: path[5], query: map[string]string{}, body: text}
	for name, values := range r.URL.Query() {
		k.query[name] = values[0]
	}
	named := ""
	if k.name != "" {
		named = "name"
	}
	k.action = actions[r.Method+" "+path[2]+path[4]+" "+named]
	if k.action == "" {
		respond(w, refusal{405, "httpMethodNotAllowed", "the method is not allowed"})
		return
	}
	c.answer(w, r, k)
}

// answer carries a call out, with the next fault.
func (c *Cloud) answer(w http.ResponseWriter, r *http.Request, k call) {
	f := c.fault(k.action)
	switch f.Kind {
	case Refuse:
		respond(w, refusal{f.Status, f.Reason, cmp.Or(f.Message, "as the test asked")})
		return
	case Proxy:
		w.WriteHeader(f.Status)
		_, _ = io.WriteString(w, "<html>no</html>")
		return
	case Timeout:
		<-r.Context().Done()
		return
	case Cut:
		panic(http.ErrAbortHandler) // the server closes the connection
	}
	answer, why := c.carryOut(k, f)
	switch {
	case f.Kind == ExecuteAndTimeout:
		<-r.Context().Done()
	case f.Kind == CutAfter:
		panic(http.ErrAbortHandler)
	case f.Kind == ErrorAfter:
		respond(w, refusal{f.Status, f.Reason, "as the test asked, after the effect"})
	case why != nil:
		respond(w, *why)
	case f.Kind == Garbage:
		text, _ := json.Marshal(answer)
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(text[:len(text)/2])
	default:
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(answer)
	}
}

// fault takes the next fault that applies to the action.
func (c *Cloud) fault(action string) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.calls[action]++
	if len(c.faults) == 0 || c.faults[0].Action != "" && c.faults[0].Action != action {
		return Fault{}
	}
	f := c.faults[0]
	c.faults = c.faults[1:]
	return f
}

// carryOut changes and reads the state of the cloud under its lock.
func (c *Cloud) carryOut(k call, f Fault) (document, *refusal) {
	var inside *refusal
	if f.Kind == Inside {
		inside = &refusal{f.Status, f.Reason, cmp.Or(f.Message, "as the test asked")}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch k.action {
	case "insert":
		i, why := parse(k)
		if why != nil {
			return nil, why
		}
		o, why := c.insert(k.zone, k.query["requestId"], i, inside)
		if why != nil {
			return nil, why
		}
		return c.operation(o), nil
	case "delete":
		o, why := c.remove(k.zone, k.name, f.Kind == Ignore, inside)
		if why != nil {
			return nil, why
		}
		return c.operation(o), nil
	case "get":
		i, status := c.shown(k.zone, k.name)
		if i == nil {
			return nil, absent("zones/" + k.zone + "/instances/" + k.name)
		}
		return i.document(status), nil
	case "operation":
		for _, o := range c.operations {
			if o.zone == k.zone && o.name == k.name {
				return c.operation(o), nil
			}
		}
		return nil, &refusal{404, "notFound", "The operation '" + k.name + "' was not found"}
	case "operations":
		return c.listOperations(k)
	}
	return c.list(k)
}

// body is the part of an insert that the fake understands.
type body struct {
	Name        string            `json:"name"`
	MachineType string            `json:"machineType"`
	Labels      map[string]string `json:"labels"`
	Metadata    struct {
		Items []struct {
			Key   string `json:"key"`
			Value string `json:"value"`
		} `json:"items"`
	} `json:"metadata"`
	Disks             []any `json:"disks"`
	NetworkInterfaces []any `json:"networkInterfaces"`
	GuestAccelerators []any `json:"guestAccelerators"`
	Scheduling        struct {
		ProvisioningModel         string `json:"provisioningModel"`
		InstanceTerminationAction string `json:"instanceTerminationAction"`
		OnHostMaintenance         string `json:"onHostMaintenance"`
		AutomaticRestart          *bool  `json:"automaticRestart"`
	} `json:"scheduling"`
}

// parse reads and validates an insert.
func parse(k call) (*Instance, *refusal) {
	invalid := func(format string, args ...any) (*Instance, *refusal) {
		return nil, &refusal{400, "invalid", "Invalid value for field " + fmt.Sprintf(format, args...)}
	}
	var b body
	i := &Instance{Zone: k.zone, Metadata: map[string]string{}}
	if json.Unmarshal(k.body, &b) != nil || json.Unmarshal(k.body, &i.Body) != nil {
		return nil, &refusal{400, "parseError", "Parse Error"}
	}
	if id := k.query["requestId"]; id != "" && !uuids.MatchString(id) {
		return invalid("'requestId': '%s'. It must be a UUID", id)
	}
	kind, isType := strings.CutPrefix(b.MachineType, "zones/"+k.zone+"/machineTypes/")
	switch s := b.Scheduling; {
	case !names.MatchString(b.Name):
		return invalid("'resource.name': '%s'", b.Name)
	case !isType || !names.MatchString(kind):
		return invalid("'resource.machineType': '%s'", b.MachineType)
	case len(b.Disks) == 0 || len(b.NetworkInterfaces) == 0:
		return invalid("'resource.disks' or 'resource.networkInterfaces': they are empty")
	case s.ProvisioningModel == "SPOT" &&
		(s.OnHostMaintenance != "TERMINATE" || s.AutomaticRestart == nil || *s.AutomaticRestart):
		return invalid("'resource.scheduling': a spot instance terminates on maintenance and is not restarted")
	case len(b.GuestAccelerators) > 0 && s.OnHostMaintenance != "TERMINATE":
		return invalid("'resource.scheduling': an instance with accelerators cannot be migrated")
	}
	for key, value := range b.Labels {
		if !labelKeys.MatchString(key) || !labelValues.MatchString(value) {
			return invalid("'resource.labels': '%s=%s'", key, value)
		}
	}
	for _, item := range b.Metadata.Items {
		if _, twice := i.Metadata[item.Key]; twice || len(item.Value) > 256<<10 {
			return invalid("'resource.metadata': '%s'", item.Key)
		}
		i.Metadata[item.Key] = item.Value
	}
	i.Name, i.Type, i.Labels = b.Name, kind, b.Labels
	i.Market = cmp.Or(b.Scheduling.ProvisioningModel, "STANDARD")
	i.terminateAction = b.Scheduling.InstanceTerminationAction
	return i, nil
}

// page returns a part of a list of n items, and the token of the next part.
func (c *Cloud) page(k call, n int) (from, to int, next string) {
	from, _ = strconv.Atoi(k.query["pageToken"]) // 0: the first page
	size := c.o.Page
	if most, err := strconv.Atoi(k.query["maxResults"]); err == nil {
		size = min(size, most)
	}
	from = min(from, n)
	if to = from + size; to < n {
		return from, to, strconv.Itoa(to)
	}
	return from, n, ""
}

// list carries instances.aggregatedList out.
func (c *Cloud) list(k call) (document, *refusal) {
	key, value, isFilter := strings.Cut(k.query["filter"], "=")
	key, isLabel := strings.CutPrefix(key, "labels.")
	if k.query["filter"] != "" && (!isFilter || !isLabel) {
		return nil, &refusal{400, "invalid", "Invalid value for field 'filter': '" + k.query["filter"] + "'"}
	}
	var all []*Instance
	for _, i := range c.instances {
		if c.show(i) != "" && (!isFilter || i.Labels[key] == value) {
			all = append(all, i)
		}
	}
	from, to, next := c.page(k, len(all))
	items, unreachable := document{}, []string{}
	empty := document{"warning": document{"code": "NO_RESULTS_ON_PAGE", "message": "There are no results"}}
	for _, zone := range Zones {
		if k.query["includeAllScopes"] == "true" {
			items["regions/"+region(zone)] = empty
		}
		list := []document{}
		for _, i := range all[from:to] {
			if i.Zone == zone {
				list = append(list, i.document(c.show(i)))
			}
		}
		scope := document{"instances": list}
		if len(list) == 0 {
			scope = empty
		}
		switch c.broken[zone] {
		case Unreachable:
			unreachable = append(unreachable, "zones/"+zone)
			continue
		case Absent:
			continue
		case Warning:
			scope = document{"warning": document{"code": "UNREACHABLE", "message": "the zone did not answer"}}
		}
		items["zones/"+zone] = scope
	}
	answer := document{"kind": "compute#instanceAggregatedList", "items": items}
	if next != "" {
		answer["nextPageToken"] = next
	}
	if len(unreachable) > 0 {
		answer["unreachables"] = unreachable
	}
	return answer, nil
}

var targetFilter = regexp.MustCompile(`^targetLink eq "(.+)"$`)

// listOperations carries zoneOperations.list out.
func (c *Cloud) listOperations(k call) (document, *refusal) {
	m := targetFilter.FindStringSubmatch(k.query["filter"])
	if m == nil {
		return nil, &refusal{400, "invalid", "Invalid value for field 'filter': '" + k.query["filter"] + "'"}
	}
	target, err := regexp.Compile("^(?:" + m[1] + ")$")
	if err != nil {
		return nil, &refusal{400, "invalid", "Invalid list filter expression."}
	}
	all := []document{}
	for _, o := range c.operations {
		if o.zone == k.zone && target.MatchString(o.link()) {
			all = append(all, c.operation(o))
		}
	}
	from, to, next := c.page(k, len(all))
	answer := document{"kind": "compute#operationList", "items": all[from:to]}
	if next != "" {
		answer["nextPageToken"] = next
	}
	return answer, nil
}

// link returns the link of the operation's target.
func (o *operation) link() string { return links + "/zones/" + o.zone + "/instances/" + o.target }

// operation returns the document of an operation.
func (c *Cloud) operation(o *operation) document {
	d := document{
		"kind": "compute#operation", "name": o.name, "operationType": o.kind, "zone": links + "/zones/" + o.zone,
		"targetLink": o.link(), "targetId": strconv.FormatUint(o.number, 10),
		"insertTime": o.begun.Format(time.RFC3339Nano), "status": "RUNNING", "progress": 0,
	}
	if o.requestID != "" {
		d["clientOperationId"] = o.requestID
	}
	if o.done.After(c.now) {
		return d
	}
	d["status"], d["progress"], d["endTime"] = "DONE", 100, o.done.Format(time.RFC3339Nano)
	if o.failure != nil {
		d["httpErrorStatusCode"] = o.failure.status
		d["httpErrorMessage"] = strings.ToUpper(http.StatusText(o.failure.status))
		d["error"] = document{"errors": []document{{"code": o.failure.reason, "message": o.failure.message}}}
	}
	return d
}

// document returns the instance with a status.
func (i *Instance) document(status string) document {
	d := document{}
	for key, value := range i.Body {
		d[key] = value
	}
	items := []document{}
	for key, value := range i.Metadata {
		items = append(items, document{"key": key, "value": value})
	}
	d["id"], d["status"] = strconv.FormatUint(i.Number, 10), status
	d["zone"], d["machineType"] = links+"/zones/"+i.Zone, links+"/zones/"+i.Zone+"/machineTypes/"+i.Type
	d["creationTimestamp"] = i.Created.Format("2006-01-02T15:04:05.000-07:00")
	d["metadata"] = document{"items": items, "fingerprint": "Zg=="}
	return d
}

// respond writes an error document.
func respond(w http.ResponseWriter, r refusal) {
	w.Header().Set("Content-Type", "application/json; charset=UTF-8")
	w.WriteHeader(r.status)
	_ = json.NewEncoder(w).Encode(document{"error": document{
		"code": r.status, "message": r.message,
		"errors": []document{{"message": r.message, "domain": "global", "reason": r.reason}},
	}})
}
