package ec2fake

import (
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"time"
)

// credential finds access key and region in the signature of a request.
var credential = regexp.MustCompile(`Credential=([^/]+)/[0-9]{8}/([^/]+)/ec2/aws4_request`)

// signatureLife is the greatest difference between the time of a request and the clock of the cloud.
const signatureLife = 15 * time.Minute

// ServeHTTP answers one call.
func (c *Cloud) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, 1<<20))
	form, parseErr := url.ParseQuery(string(body))
	if err != nil || parseErr != nil {
		respond(w, refusal{400, "MalformedQueryString", "the body is no form"})
		return
	}
	params := map[string]string{}
	for name := range form {
		params[name] = form.Get(name)
	}
	action := params["Action"]
	delete(params, "Action")
	delete(params, "Version")
	clock := time.Now().Add(c.o.Skew)
	w.Header().Set("Date", clock.UTC().Format(http.TimeFormat))
	signature := credential.FindStringSubmatch(r.Header.Get("Authorization"))
	if signature == nil {
		respond(w, refusal{403, "MissingAuthenticationToken", "the request is not signed"})
		return
	}
	signed, err := time.Parse("20060102T150405Z", r.Header.Get("X-Amz-Date"))
	if err != nil || clock.Sub(signed).Abs() > signatureLife {
		respond(w, refusal{400, "RequestExpired", "Request has expired."})
		return
	}
	if c.o.AccessKey != "" && c.o.AccessKey != signature[1] {
		respond(w, refusal{403, "UnauthorizedOperation", "you are not authorized to perform this operation"})
		return
	}
	c.answer(w, r, action, signature[2], params)
}

// answer carries a call out, with the next fault.
func (c *Cloud) answer(w http.ResponseWriter, r *http.Request, action, region string, params map[string]string) {
	f := c.fault(action)
	switch f.Kind {
	case Refuse:
		respond(w, refusal{f.Status, f.Code, "as the test asked"})
		return
	case Timeout:
		<-r.Context().Done()
		return
	case Cut:
		panic(http.ErrAbortHandler) // the server closes the connection
	}
	document, why := c.carryOut(action, region, params, f.Kind)
	switch {
	case f.Kind == ExecuteAndTimeout:
		<-r.Context().Done()
	case f.Kind == CutAfter:
		panic(http.ErrAbortHandler)
	case f.Kind == ErrorAfter:
		respond(w, refusal{f.Status, f.Code, "as the test asked, after the effect"})
	case why != nil:
		respond(w, *why)
	case f.Kind == Garbage:
		text, _ := xml.Marshal(document)
		w.Header().Set("Content-Type", "text/xml")
		_, _ = w.Write(text[:len(text)/2])
	default:
		w.Header().Set("Content-Type", "text/xml")
		_ = xml.NewEncoder(w).Encode(document)
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
func (c *Cloud) carryOut(action, region string, params map[string]string, fault FaultKind) (any, *refusal) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch action {
	case "RunInstances":
		i, why := c.run(region, params, fault)
		if why != nil {
			return nil, why
		}
		return runAnswer{ReservationID: "r-" + i.ID[2:], Instances: []item{c.item(i, i.at(c.now))}}, nil
	case "DescribeInstances":
		page, next, why := c.describe(region, params)
		if why != nil {
			return nil, why
		}
		a := describeAnswer{NextToken: next}
		for _, i := range page {
			shown := []item{c.item(i, c.shown(i))}
			a.Reservations = append(a.Reservations, reservation{ID: "r-" + i.ID[2:], Instances: shown})
		}
		return a, nil
	case "TerminateInstances":
		before := ""
		if i := c.instance(params["InstanceId.1"]); i != nil {
			before = i.at(c.now)
		}
		i, why := c.terminate(region, params["InstanceId.1"], fault == Ignore)
		if why != nil {
			return nil, why
		}
		now := i.at(c.now)
		if fault == Ignore {
			now = "shutting-down" // the fault: the instance runs on
		}
		return terminateAnswer{Instances: []ending{{ID: i.ID, Now: stateOf(now), Before: stateOf(before)}}}, nil
	}
	return nil, &refusal{400, "InvalidAction", fmt.Sprintf("the action %q is not valid", action)}
}

// respond writes an error document.
func respond(w http.ResponseWriter, r refusal) {
	w.Header().Set("Content-Type", "text/xml")
	w.WriteHeader(r.status)
	_ = xml.NewEncoder(w).Encode(errorAnswer{Code: r.code, Message: r.message, RequestID: "fake"})
}

// The documents of the EC2 query protocol.
type (
	errorAnswer struct {
		XMLName   xml.Name `xml:"Response"`
		Code      string   `xml:"Errors>Error>Code"`
		Message   string   `xml:"Errors>Error>Message"`
		RequestID string   `xml:"RequestID"`
	}
	runAnswer struct {
		XMLName       xml.Name `xml:"RunInstancesResponse"`
		ReservationID string   `xml:"reservationId"`
		Instances     []item   `xml:"instancesSet>item"`
	}
	describeAnswer struct {
		XMLName      xml.Name      `xml:"DescribeInstancesResponse"`
		Reservations []reservation `xml:"reservationSet>item"`
		NextToken    string        `xml:"nextToken,omitempty"`
	}
	terminateAnswer struct {
		XMLName   xml.Name `xml:"TerminateInstancesResponse"`
		Instances []ending `xml:"instancesSet>item"`
	}
	reservation struct {
		ID        string `xml:"reservationId"`
		Instances []item `xml:"instancesSet>item"`
	}
	ending struct {
		ID     string `xml:"instanceId"`
		Now    state  `xml:"currentState"`
		Before state  `xml:"previousState"`
	}
	item struct {
		ID        string `xml:"instanceId"`
		Image     string `xml:"imageId"`
		State     state  `xml:"instanceState"`
		Token     string `xml:"clientToken,omitempty"`
		Type      string `xml:"instanceType"`
		Launched  string `xml:"launchTime"`
		Zone      string `xml:"placement>availabilityZone"`
		Address   string `xml:"privateIpAddress,omitempty"`
		Lifecycle string `xml:"instanceLifecycle,omitempty"`
		Reason    string `xml:"stateReason>code,omitempty"`
		Tags      []tag  `xml:"tagSet>item"`
	}
	state struct {
		Code int    `xml:"code"`
		Name string `xml:"name"`
	}
	tag struct {
		Key   string `xml:"key"`
		Value string `xml:"value"`
	}
)

// codes are the numbers of states.
var codes = map[string]int{
	"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80,
}

func stateOf(name string) state { return state{codes[name], name} }

// item returns the document of an instance in a state.
func (c *Cloud) item(i *Instance, name string) item {
	d := item{
		ID: i.ID, Image: i.Params["ImageId"], State: stateOf(name), Token: i.Token, Type: i.Type,
		Launched: i.Created.Format(time.RFC3339), Zone: i.Zone,
	}
	if i.Market == "spot" {
		d.Lifecycle = "spot"
	}
	if name == "shutting-down" || name == "terminated" {
		d.Reason = strings.TrimSpace(i.Reason)
	} else {
		d.Address = i.Address
	}
	for key, value := range i.Tags {
		d.Tags = append(d.Tags, tag{key, value})
	}
	return d
}
