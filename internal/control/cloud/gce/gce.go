// Package gce creates machines in Google Compute Engine, through the SDK of Google.
//
//   - Create sends instances.insert with a request id derived from the launch's token, and with a name
//     derived from machine, number and token. Both make a repetition harmless.
//   - GCE answers an insert with an operation. Refusals arrive inside of it, so Create waits for its end.
//     If the operation does not end in time, the outcome is unknown, and the repetition waits for the same operation.
//   - GCE does not show deleted instances. Operations prove their end, see history.go.
//   - The SDK never repeats a call: the caller repeats, with the same token, after its answer is stored.
//
// The one rule to know: this package is linked by berth-cloud alone, see adr/0065 and adr/0074.
package gce

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"cloud.google.com/go/auth"
	"cloud.google.com/go/compute/apiv1/computepb"
	"google.golang.org/protobuf/proto"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/offers"
)

// Options configure a Provider.
type Options struct {
	// Project is the id of the Google project that owns the instances.
	Project string
	// Credentials return access tokens. A provider without credentials fails with kind Auth.
	Credentials auth.TokenProvider
	// NoCredentials is the reason for which Credentials are nil, for the texts of errors.
	NoCredentials error
	// Endpoint replaces Google's own, for tests; "": Google's.
	Endpoint string
	// Offers returns the offers of GCE, see package offers; nil: none.
	Offers func() ([]cloud.Offer, error)
	// Wait is the time for which Create waits for the end of its operation; 0: DefaultWait.
	Wait time.Duration
	// Poll is the pause between two reads of an operation; 0: one second.
	Poll time.Duration
}

// DefaultWait is below the default time limit of a call of a cloud program, one minute. A longer wait
// would end with the process, and its reason would be lost.
const DefaultWait = 45 * time.Second

// Provider is a cloud.Provider for one project.
type Provider struct {
	o    Options
	http http.RoundTripper
}

var _ cloud.Provider = (*Provider)(nil)

// projects are the ids of projects; projects of a domain have a prefix.
var projects = regexp.MustCompile(`^([a-z0-9.-]+:)?[a-z][a-z0-9-]{4,28}[a-z0-9]$`)

// New returns a provider. It fails if the id of the project is not valid.
func New(o Options) (*Provider, error) {
	if !projects.MatchString(o.Project) {
		return nil, fmt.Errorf("project %q: it must be the id of a Google project, such as berth-burst", o.Project)
	}
	if o.Wait == 0 {
		o.Wait = DefaultWait
	}
	if o.Poll == 0 {
		o.Poll = time.Second
	}
	return &Provider{o: o, http: http.DefaultTransport.(*http.Transport).Clone()}, nil
}

// Create implements cloud.Provider.
func (p *Provider) Create(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	doing := fmt.Sprintf("create machine %s launch %d", l.Machine, l.N)
	r, err := p.request(l)
	if err != nil {
		return cloud.Instance{}, badRequest(doing, l.Offering, err)
	}
	s, err := p.open(ctx, doing, l.Offering)
	if err != nil {
		return cloud.Instance{}, err
	}
	op, err := s.instances.Insert(ctx, r)
	if err != nil {
		e := s.failure(ctx, err)
		switch {
		case reasonOf(err) == "ALREADYEXISTS":
			return s.adopt(ctx, l, e)
		case e.Kind == cloud.NotFound: // the image, the network or another part of the request
			e.Kind, e.Scope = cloud.Spec, s.scope(cloud.Spec, e.Err.Error(), nil)
		}
		return cloud.Instance{}, e
	}
	done, failed := s.wait(ctx, l.Offering.Zone, op.Proto())
	if failed != nil {
		return cloud.Instance{}, failed
	}
	if e := s.refusal(done); e != nil {
		return s.refused(ctx, l, e)
	}
	return s.created(ctx, l)
}

// created returns the instance of a launch whose insert has succeeded. GCE may have answered with the
// operation of an earlier request with the same id, whose parameters were others and whose instance may
// have ended: only the instance itself shows that. The insert had its effect, so each other failure
// from here on is an unknown outcome.
func (s *session) created(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	f, err := s.get(ctx, l.Offering.Zone, nameOf(l))
	switch {
	case err == nil && f.is(l) && !ended(f.State):
		return f.Instance, nil
	case err == nil:
		return cloud.Instance{}, s.mismatch(f)
	case err.Kind == cloud.NotFound:
		_, gone, failed := s.gone(ctx, l)
		if failed == nil && gone {
			return cloud.Instance{}, &cloud.Error{Kind: cloud.Mismatch, Scope: nameOf(l),
				Err: fmt.Errorf("%s: the instance of this token has ended", s.doing)}
		}
	}
	return cloud.Instance{}, unknown(err)
}

// adopt handles a name that is in use. If the instance with the name belongs to this very launch, adopt
// returns the instance: GCE has forgotten the request id.
func (s *session) adopt(ctx context.Context, l cloud.Launch, conflict *cloud.Error) (cloud.Instance, error) {
	f, err := s.get(ctx, l.Offering.Zone, nameOf(l))
	switch {
	case err == nil && f.is(l) && !ended(f.State):
		return f.Instance, nil
	case err == nil:
		return cloud.Instance{}, s.mismatch(f)
	}
	// The owner of the name is not known: it may be an instance of this launch.
	conflict.Kind = cloud.Mismatch
	return cloud.Instance{}, conflict
}

// refused handles an insert whose operation has ended with an error. The refusal is certain if no
// instance with the name exists. GCE answers each repetition with the failed operation, so the kind is
// never Throttle, after which the caller would repeat the launch: Capacity ends it, and the next launch
// has another token.
func (s *session) refused(ctx context.Context, l cloud.Launch, refusal *cloud.Error) (cloud.Instance, error) {
	if refusal.Kind == cloud.Mismatch {
		return s.adopt(ctx, l, refusal)
	}
	_, err := s.get(ctx, l.Offering.Zone, nameOf(l))
	if err == nil || err.Kind != cloud.NotFound {
		return cloud.Instance{}, unknown(refusal)
	}
	if refusal.Kind == cloud.Throttle {
		refusal.Kind, refusal.Scope = cloud.Capacity, l.Offering.String()
	}
	return cloud.Instance{}, refusal
}

// mismatch returns the error about an instance that has the name of a launch and is not its instance, or
// has ended.
func (s *session) mismatch(f found) *cloud.Error {
	return &cloud.Error{Kind: cloud.Mismatch, Scope: f.ID,
		Err: fmt.Errorf("%s: instance %s is %s, of launch %d of machine %q, or of another request for this launch",
			s.doing, f.ID, f.State, f.N, f.Machine)}
}

// ended reports whether an instance is gone or about to go.
func ended(s cloud.State) bool { return s == cloud.Ending || s == cloud.Terminated }

// Find implements cloud.Provider. An instance that GCE does not show is Terminated if operations prove
// its end, and NotFound otherwise.
func (p *Provider) Find(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	doing := fmt.Sprintf("find machine %s launch %d", l.Machine, l.N)
	if err := checkPlace(l.Offering); err != nil {
		return cloud.Instance{}, badRequest(doing, l.Offering, err)
	}
	s, err := p.open(ctx, doing, l.Offering)
	if err != nil {
		return cloud.Instance{}, err
	}
	f, failed := s.get(ctx, l.Offering.Zone, nameOf(l))
	switch {
	case failed == nil && f.Token == l.Token:
		return f.Instance, nil
	case failed == nil && f.Token == "": // someone has removed the metadata; the name has a part of the token
		f.Token = l.Token
		return f.Instance, nil
	case failed != nil && failed.Kind != cloud.NotFound:
		return cloud.Instance{}, failed
	}
	i, gone, failed := s.gone(ctx, l)
	switch {
	case failed != nil:
		return cloud.Instance{}, failed
	case gone:
		return i, nil
	}
	return cloud.Instance{}, &cloud.Error{Kind: cloud.NotFound,
		Err: fmt.Errorf("%s: GCE shows no instance %s, and no operation proves its end", doing, nameOf(l))}
}

// List implements cloud.Provider. GCE does not list deleted instances. A list without one of the zones
// would be wrong, so a partial answer is an unknown outcome.
func (p *Provider) List(ctx context.Context, cluster string, regions []string) ([]cloud.Instance, error) {
	const doing = "list instances"
	if len(regions) == 0 {
		err := errors.New("list instances: name the regions; an empty list would look like an empty cloud")
		return nil, &cloud.Error{Kind: cloud.Spec, Err: err}
	}
	s, err := p.open(ctx, doing, cloud.Offering{Region: strings.Join(regions, ",")})
	if err != nil {
		return nil, err
	}
	r := &computepb.AggregatedListInstancesRequest{
		Project: p.o.Project, Filter: proto.String("labels." + labelCluster + "=" + label(cluster)),
		IncludeAllScopes: proto.Bool(true), ReturnPartialSuccess: proto.Bool(false),
	}
	list, seen := []cloud.Instance{}, map[string]bool{}
	for token := ""; ; {
		pages := s.instances.AggregatedList(ctx, r)
		// Next would drop the warnings of a page without items.
		scopes, next, err := pages.InternalFetch(pageSize, token)
		if err != nil {
			return nil, s.failure(ctx, err)
		}
		answer, _ := pages.Response.(*computepb.InstanceAggregatedList)
		if err := whole(answer, regions); err != nil {
			return nil, &cloud.Error{Kind: cloud.Unknown, Err: fmt.Errorf("%s: %w", doing, err)}
		}
		for _, scope := range scopes {
			region := regionOf(scope.Key)
			// Instances are in zones: a scope regions/NAME, which is always empty, shows no zone.
			if !strings.HasPrefix(scope.Key, "zones/") || !contains(regions, region) {
				continue
			}
			seen[region] = true
			some, err := readAll(scope.Value.GetInstances(), cluster)
			if err != nil {
				return nil, &cloud.Error{Kind: cloud.Unknown, Err: fmt.Errorf("%s: %w", doing, err)}
			}
			list = append(list, some...)
		}
		if next == "" {
			break
		}
		token = next
	}
	for _, region := range regions {
		if !seen[region] {
			return nil, &cloud.Error{Kind: cloud.Unknown, Scope: region, Err: fmt.Errorf(
				"%s: the answer has no zone of region %s; check its name and the rights of the project", doing, region)}
		}
	}
	return list, nil
}

// readAll converts the instances of a cluster among those of a scope. Two clusters may have one label.
func readAll(scope []*computepb.Instance, cluster string) ([]cloud.Instance, error) {
	var list []cloud.Instance
	for _, i := range scope {
		f, err := read(i)
		if err != nil {
			return nil, err
		}
		if f.Cluster == cluster {
			list = append(list, f.Instance)
		}
	}
	return list, nil
}

// Terminate implements cloud.Provider. It names the instance by its number, which GCE accepts in place of
// the name: another instance may have the name by now. It sends no request id: GCE would ignore a
// repetition with the id of a delete that has failed.
func (p *Provider) Terminate(ctx context.Context, i cloud.Instance) error {
	doing := "terminate instance " + i.ID
	at, err := parseID(i.ID)
	if err != nil {
		return badRequest(doing, i.Offering, err)
	}
	s, err := p.open(ctx, doing, cloud.Offering{Region: regionOf(at.zone), Zone: at.zone})
	if err != nil {
		return err
	}
	number := strconv.FormatUint(at.number, 10)
	r := &computepb.DeleteInstanceRequest{Project: p.o.Project, Zone: at.zone, Instance: number}
	op, err := s.instances.Delete(ctx, r)
	if err == nil {
		if e := s.refusal(op.Proto()); e != nil {
			return e
		}
		return nil
	}
	e := s.failure(ctx, err)
	if e.Kind != cloud.NotFound {
		return e
	}
	for _, target := range []string{number, at.name} {
		all, failed := s.history(ctx, at.zone, target)
		if failed != nil {
			return failed
		}
		if _, gone := end(all, at.number); gone {
			return nil
		}
	}
	return e
}

// Offers implements cloud.Provider.
func (p *Provider) Offers(_ context.Context, regions []string) ([]cloud.Offer, error) {
	if p.o.Offers == nil {
		return nil, nil
	}
	all, err := p.o.Offers()
	if err != nil {
		return nil, &cloud.Error{Kind: cloud.Spec, Err: err}
	}
	for _, o := range all {
		if err := checkPlace(o.Offering); err != nil {
			return nil, badRequest("read offers", o.Offering, err)
		}
	}
	return offers.In(all, regions), nil
}
