package cloudexec

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"berth/internal/control/cloud"
	"berth/spec"
)

// Protocol is the version of the protocol. A change that an older program cannot read has a new number.
const Protocol = 1

// Call names a method of cloud.Provider.
type Call string

// The calls.
const (
	CallCreate    Call = "create"
	CallFind      Call = "find"
	CallList      Call = "list"
	CallTerminate Call = "terminate"
	CallOffers    Call = "offers"
)

// calls lists all calls for error messages.
var calls = []Call{CallCreate, CallFind, CallList, CallTerminate, CallOffers}

// Request is the input of a program.
type Request struct {
	Protocol int  `json:"protocol"`
	Call     Call `json:"call"`
	// Launch belongs to create and find. For find its bootstrap is empty: only create needs the secret.
	Launch *cloud.Launch `json:"launch,omitempty"`
	// Instance belongs to terminate.
	Instance *cloud.Instance `json:"instance,omitempty"`
	// Cluster belongs to list, and Regions to list and offers.
	Cluster string   `json:"cluster,omitempty"`
	Regions []string `json:"regions,omitempty"`
}

// validate checks that the request has the fields of its call.
func (r Request) validate() error {
	if r.Protocol != Protocol {
		return fmt.Errorf("protocol %d: this program speaks %d", r.Protocol, Protocol)
	}
	missing := ""
	switch r.Call {
	case CallCreate, CallFind:
		if r.Launch == nil {
			missing = "launch"
		}
	case CallTerminate:
		if r.Instance == nil {
			missing = "instance"
		}
	case CallList:
		if r.Cluster == "" {
			missing = "cluster"
		}
	case CallOffers:
	default:
		return fmt.Errorf("call %q: allowed are %s", r.Call, list(calls))
	}
	if missing != "" {
		return fmt.Errorf("call %q needs %q", r.Call, missing)
	}
	return nil
}

// Answer is the output of a program: the result of the call, or Error alone. The answer to terminate
// is an empty object.
type Answer struct {
	Instance  *cloud.Instance   `json:"instance,omitempty"`  // to create and find
	Instances *[]cloud.Instance `json:"instances,omitempty"` // to list; may be empty, not absent
	Offers    *[]cloud.Offer    `json:"offers,omitempty"`    // to offers; may be empty, not absent
	Error     *Fault            `json:"error,omitempty"`
}

// Fault is the error of an answer.
type Fault struct {
	Kind       cloud.Kind    `json:"kind"`
	Message    string        `json:"message"`
	Scope      string        `json:"scope,omitempty"`
	RetryAfter spec.Duration `json:"retry_after,omitempty"`
	// Unsent states that the cloud was not called. It belongs to the kind throttle, and to answers for a berthd that
	// names the field in AnswersEnv.
	Unsent bool `json:"unsent,omitempty"`
}

// AnswersEnv is the environment variable in which berthd names the fields of answers that it reads in addition to the
// first ones of the protocol, separated by commas. A berthd refuses answers with fields that it does not know, and is
// older than the program for a while during an upgrade.
const AnswersEnv = "BERTH_CLOUD_ANSWERS"

// answers are the fields that this version names in AnswersEnv.
const answers = "unsent"

// kinds and states are the values that an answer may have.
var (
	kinds = []cloud.Kind{cloud.NotFound, cloud.Capacity, cloud.Quota, cloud.Network, cloud.Throttle,
		cloud.Auth, cloud.Spec, cloud.Mismatch, cloud.Unknown}
	states = []cloud.State{cloud.Pending, cloud.Running, cloud.Ending, cloud.Terminated}
)

// maxMessage is the number of bytes of a text in an answer that are kept, and maxID the greatest length
// of the id of an instance in bytes.
const (
	maxMessage = 2000
	maxID      = 500
)

// err returns the fault as an error of a provider, without the secret.
func (f Fault) err(secret string) *cloud.Error {
	return &cloud.Error{
		Kind: f.Kind, Scope: clean(f.Scope, secret), RetryAfter: f.RetryAfter.Std(), Unsent: f.Unsent,
		Err: errors.New(clean(f.Message, secret)),
	}
}

// clean returns the answer with texts that can be stored and shown, or its error.
func (a Answer) clean(secret string) (Answer, error) {
	switch {
	case a.Error != nil:
		return Answer{}, a.Error.err(secret)
	case a.Instance != nil:
		a.Instance.Reason = clean(a.Instance.Reason, secret)
	case a.Instances != nil:
		for i := range *a.Instances {
			reason := &(*a.Instances)[i].Reason
			*reason = clean(*reason, secret)
		}
	}
	return a, nil
}

// clean returns s as cut does, with asterisks in the place of the secret.
func clean(s, secret string) string {
	if secret != "" {
		s = strings.ReplaceAll(s, secret, "***")
	}
	return cut(s)
}

// cut returns s as one line of valid text of bounded length.
func cut(s string) string {
	s = strings.Join(strings.Fields(strings.ReplaceAll(s, "\x00", " ")), " ")
	if len(s) > maxMessage {
		s = s[:maxMessage] + "..."
	}
	return strings.ToValidUTF8(s, "?")
}

// decode reads exactly one JSON document with known fields.
func decode(data []byte, into any) error {
	if len(bytes.TrimSpace(data)) == 0 {
		return errors.New("it is empty")
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return fmt.Errorf("more data follows the document, from byte %d on", d.InputOffset())
	}
	return nil
}

// Read decodes and validates the answer to a request.
func Read(data []byte, r Request) (Answer, error) {
	var a Answer
	if err := decode(data, &a); err != nil {
		return Answer{}, err
	}
	return a, a.validate(r)
}

// validate checks that the answer has the field of the call and no other, and that its values are
// possible answers to the request.
func (a Answer) validate(r Request) error {
	has := map[string]bool{
		"instance": a.Instance != nil, "instances": a.Instances != nil, "offers": a.Offers != nil,
		"error": a.Error != nil,
	}
	want := map[Call]string{
		CallCreate: "instance", CallFind: "instance", CallList: "instances", CallOffers: "offers", CallTerminate: "",
	}[r.Call]
	if a.Error != nil {
		want = "error"
	}
	for _, field := range []string{"error", "instance", "instances", "offers"} {
		if has[field] && field != want {
			return fmt.Errorf("it has %q, which does not belong to the call %q", field, r.Call)
		}
	}
	switch {
	case want != "" && !has[want]:
		return fmt.Errorf("it has neither %q nor \"error\"", want)
	case a.Error != nil:
		return a.Error.validate()
	case a.Instance != nil:
		return validateInstance(*a.Instance, *r.Launch)
	case a.Instances != nil:
		return validateList(*a.Instances, r.Cluster)
	case a.Offers != nil:
		return validateOffers(*a.Offers)
	}
	return nil
}

// validate checks the kind and the wait of a fault. A refusal closes a part of the cloud, so it is never Unsent.
func (f Fault) validate() error {
	if !slices.Contains(kinds, f.Kind) {
		return fmt.Errorf("error.kind %q: allowed are %s", f.Kind, list(kinds))
	}
	if f.RetryAfter < 0 {
		return fmt.Errorf("error.retry_after %s: it may not be negative", f.RetryAfter.Std())
	}
	if f.Unsent && f.Kind != cloud.Throttle {
		return fmt.Errorf("error.unsent with the kind %q: allowed is only the kind %q", f.Kind, cloud.Throttle)
	}
	return nil
}

// validateInstance checks that i can be the instance of l. An instance with other tags belongs to
// another launch; if it were accepted, this launch's own instance would stay unwatched.
func validateInstance(i cloud.Instance, l cloud.Launch) error {
	if err := validateState(i); err != nil {
		return err
	}
	if secret := l.Bootstrap.JoinToken; secret != "" && strings.Contains(i.ID, secret) {
		return errors.New("the id of the instance contains the join token")
	}
	for _, tag := range []struct{ name, got, want string }{
		{"token", i.Token, l.Token}, {"cluster", i.Cluster, l.Cluster}, {"pool", i.Pool, l.Pool},
		{"machine", string(i.Machine), string(l.Machine)}, {"n", fmt.Sprint(i.N), fmt.Sprint(l.N)},
		{"offering.region", i.Offering.Region, l.Offering.Region},
	} {
		if tag.got != tag.want {
			return fmt.Errorf("instance %q has %s %q, the launch has %q", i.ID, tag.name, tag.got, tag.want)
		}
	}
	return nil
}

// validateState checks the fields that each instance has.
func validateState(i cloud.Instance) error {
	if i.ID == "" {
		return errors.New("an instance has no id")
	}
	// An id is not cut or changed: it would name another instance.
	if len(i.ID) > maxID || cut(i.ID) != i.ID {
		return fmt.Errorf("the id %.100q of an instance is not one line of valid text of at most %d bytes", i.ID, maxID)
	}
	if !slices.Contains(states, i.State) {
		return fmt.Errorf("instance %q has state %q: allowed are %s", i.ID, i.State, list(states))
	}
	return nil
}

// validateList checks that all instances belong to the cluster. A list with an instance of another
// cluster is refused as a whole, since its caller takes over instances that it does not know.
func validateList(all []cloud.Instance, cluster string) error {
	seen := map[string]bool{}
	for _, i := range all {
		if err := validateState(i); err != nil {
			return err
		}
		if i.Cluster != cluster {
			return fmt.Errorf("instance %q has cluster %q, the request is for %q", i.ID, i.Cluster, cluster)
		}
		place := i.Offering.Region + "/" + i.ID
		if seen[place] {
			return fmt.Errorf("instance %q is listed twice", i.ID)
		}
		seen[place] = true
	}
	return nil
}

// validateOffers checks the numbers of offers.
func validateOffers(all []cloud.Offer) error {
	for _, o := range all {
		switch {
		case o.Region == "" || o.Type == "":
			return fmt.Errorf("offer %s has no region or no type", o.Offering)
		case o.Market != cloud.OnDemand && o.Market != cloud.Spot:
			return fmt.Errorf("offer %s has market %q: allowed are %s, %s", o.Offering, o.Market,
				cloud.OnDemand, cloud.Spot)
		case o.CPUs <= 0 || o.MemoryMiB <= 0 || o.GPUs < 0:
			return fmt.Errorf("offer %s has %d cpus, %d memory_mib and %d gpus", o.Offering,
				o.CPUs, o.MemoryMiB, o.GPUs)
		case o.Price < 0 || math.IsNaN(o.Price):
			return fmt.Errorf("offer %s has price_per_hour %v: it may not be negative", o.Offering, o.Price)
		}
	}
	return nil
}

// list joins names for an error message.
func list[S ~string](names []S) string {
	texts := make([]string, len(names))
	for i, n := range names {
		texts[i] = string(n)
	}
	return strings.Join(texts, ", ")
}
