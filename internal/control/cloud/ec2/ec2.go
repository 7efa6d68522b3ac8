// Package ec2 creates machines in Amazon EC2, through the SDK of Amazon.
//
//   - Create sends RunInstances with the launch's token as ClientToken and with all tags. EC2 binds the
//     token to all parameters but region and zone.
//   - The SDK never repeats a call: the caller repeats, with the same token, after its answer is stored.
//   - An error is certain only if EC2 answered with an error document; errors.go has the codes.
//
// The one rule to know: this package is linked by berth-cloud alone, see adr/0065.
package ec2

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/aws/retry"
	"github.com/aws/aws-sdk-go-v2/service/ec2"
	"github.com/aws/aws-sdk-go-v2/service/ec2/types"
	"github.com/aws/smithy-go"
	smithyhttp "github.com/aws/smithy-go/transport/http"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/offers"
)

// Options configure a Provider.
type Options struct {
	// Config has the credentials and the HTTP client. Its region is not used: each call names one.
	Config aws.Config
	// Endpoint replaces the endpoints of all regions; "": Amazon's own.
	Endpoint string
	// Offers returns the offers of EC2, see package offers; nil: none.
	Offers func() ([]cloud.Offer, error)
}

// Provider is a cloud.Provider for one account.
type Provider struct {
	o Options

	mu      sync.Mutex
	clients map[string]*ec2.Client // by region
}

var _ cloud.Provider = (*Provider)(nil)

// New returns a provider.
func New(o Options) *Provider { return &Provider{o: o, clients: map[string]*ec2.Client{}} }

// client returns the client of a region.
func (p *Provider) client(region string) *ec2.Client {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.clients[region]
	if c == nil {
		c = ec2.NewFromConfig(p.o.Config, func(o *ec2.Options) {
			o.Region = region
			// The calls for credentials keep the retries of the configuration.
			o.Retryer, o.RetryMaxAttempts = aws.NopRetryer{}, 1
			o.HTTPClient = wholeAnswers{o.HTTPClient}
			if p.o.Endpoint != "" {
				o.BaseEndpoint = aws.String(p.o.Endpoint)
			}
		})
		p.clients[region] = c
	}
	return c
}

// authenticate returns an error of kind Auth if there are no credentials, or if their source refuses them: Auth stops
// all launches of the provider. After any other failure, such as a broken connection or throttling, the next call may
// have credentials, also by another host if this one has no role. EC2 has received nothing then, so the kind is
// Throttle with Unsent: the caller repeats the call. Without this check the SDK reports a failed call, whose outcome
// would be unknown.
func (p *Provider) authenticate(ctx context.Context, doing string) error {
	if p.o.Config.Credentials == nil {
		return &cloud.Error{Kind: cloud.Auth, Err: fmt.Errorf("%s: there are no credentials", doing)}
	}
	_, err := p.o.Config.Credentials.Retrieve(ctx)
	if err == nil {
		return nil
	}
	e := &cloud.Error{Kind: cloud.Throttle, Unsent: true, Err: fmt.Errorf("%s: get credentials: %w", doing, err)}
	var response *smithyhttp.ResponseError
	if errors.As(err, &response) && slices.Contains(refusals, response.HTTPStatusCode()) &&
		!throttles(err) && !ofHost(err) {
		e.Kind, e.Unsent = cloud.Auth, false
		e.Err = fmt.Errorf("%w%s", e.Err, clockDifference(response.Response, time.Now()))
	}
	return e
}

// refusals are the statuses by which a source of credentials refuses them, or does not know them.
var refusals = []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound}

// throttles reports whether a source of credentials refused a call because there were too many. Amazon's services do so
// with a status of 400, too.
func throttles(err error) bool {
	return retry.ThrottleErrorCode{Codes: retry.DefaultThrottleErrorCodes}.IsErrorThrottle(err) == aws.TrueTernary
}

// metadataService is the SDK's name of the metadata service of a host.
const metadataService = "ec2imds"

// ofHost reports whether the metadata service gave the error: the host has no role, or the service is switched off.
// Neither says anything about the credentials of other hosts.
func ofHost(err error) bool {
	op, ok := errors.AsType[*smithy.OperationError](err)
	for ok && op.Service() != metadataService {
		op, ok = errors.AsType[*smithy.OperationError](op.Err)
	}
	return ok
}

// Create implements cloud.Provider.
func (p *Provider) Create(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	doing := fmt.Sprintf("create machine %s launch %d", l.Machine, l.N)
	r, err := request(l)
	if err != nil {
		return cloud.Instance{}, spec(doing, l.Offering, err)
	}
	if err := p.authenticate(ctx, doing); err != nil {
		return cloud.Instance{}, err
	}
	out, err := p.client(l.Offering.Region).RunInstances(ctx, r)
	if err != nil {
		e := failure(doing, l.Offering, err)
		if e.Kind == cloud.Mismatch {
			return p.adopt(ctx, l, e)
		}
		return cloud.Instance{}, e
	}
	if len(out.Instances) != 1 {
		err := fmt.Errorf("%s: EC2 answered with %d instances, want 1", doing, len(out.Instances))
		return cloud.Instance{}, &cloud.Error{Kind: cloud.Unknown, Err: err}
	}
	i, err := read(l.Offering.Region, out.Instances[0])
	switch {
	case err != nil:
		return cloud.Instance{}, &cloud.Error{Kind: cloud.Unknown, Err: fmt.Errorf("%s: %w", doing, err)}
	case ended(i.State):
		err := fmt.Errorf("%s: instance %s of this token is %s", doing, i.ID, i.State)
		return cloud.Instance{}, &cloud.Error{Kind: cloud.Mismatch, Scope: i.ID, Err: err}
	}
	return i.Instance, nil
}

// ended reports whether an instance is gone or about to go.
func ended(s cloud.State) bool { return s == cloud.Ending || s == cloud.Terminated }

// adopt handles a refused token. If the instance with the token belongs to this very launch, adopt
// returns the instance: another version of Berth has built another request for the launch.
func (p *Provider) adopt(ctx context.Context, l cloud.Launch, refused *cloud.Error) (cloud.Instance, error) {
	i, err := p.find(ctx, l)
	if err == nil && i.hash == l.Hash() && !ended(i.State) {
		return i.Instance, nil
	}
	return cloud.Instance{}, refused
}

// Find implements cloud.Provider.
func (p *Provider) Find(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	i, err := p.find(ctx, l)
	if err != nil {
		return cloud.Instance{}, err
	}
	return i.Instance, nil
}

// find returns the instance with the launch's token. EC2 allows one in each
// zone; of several, find returns the oldest that has not ended.
func (p *Provider) find(ctx context.Context, l cloud.Launch) (found, error) {
	doing := fmt.Sprintf("find machine %s launch %d", l.Machine, l.N)
	all, err := p.describe(ctx, doing, l.Offering, "client-token", l.Token)
	if err != nil {
		return found{}, err
	}
	if len(all) == 0 {
		err := fmt.Errorf("%s: EC2 shows no instance with the token", doing)
		return found{}, &cloud.Error{Kind: cloud.NotFound, Err: err}
	}
	return slices.MinFunc(all, func(a, b found) int {
		if x, y := ended(a.State), ended(b.State); x != y {
			if x {
				return 1
			}
			return -1
		}
		return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.ID, b.ID))
	}), nil
}

// List implements cloud.Provider. A list without one of the regions would be wrong, so the first
// failure ends it.
func (p *Provider) List(ctx context.Context, cluster string, regions []string) ([]cloud.Instance, error) {
	if len(regions) == 0 {
		err := errors.New("list instances: name the regions; an empty list would look like an empty cloud")
		return nil, &cloud.Error{Kind: cloud.Spec, Err: err}
	}
	list := []cloud.Instance{}
	for _, region := range regions {
		doing := "list instances of " + region
		all, err := p.describe(ctx, doing, cloud.Offering{Region: region}, "tag:"+tagCluster, cluster)
		if err != nil {
			return nil, err
		}
		for _, i := range all {
			list = append(list, i.Instance)
		}
	}
	return list, nil
}

// describe returns all instances of a region that a filter selects.
func (p *Provider) describe(
	ctx context.Context, doing string, o cloud.Offering, filter, value string,
) ([]found, error) {
	if err := p.authenticate(ctx, doing); err != nil {
		return nil, err
	}
	pages := ec2.NewDescribeInstancesPaginator(p.client(o.Region), &ec2.DescribeInstancesInput{
		Filters:    []types.Filter{{Name: aws.String(filter), Values: []string{value}}},
		MaxResults: aws.Int32(1000),
	})
	var all []found
	for pages.HasMorePages() {
		page, err := pages.NextPage(ctx)
		if err != nil {
			return nil, failure(doing, o, err)
		}
		for _, reservation := range page.Reservations {
			for _, i := range reservation.Instances {
				f, err := read(o.Region, i)
				if err != nil {
					return nil, &cloud.Error{Kind: cloud.Unknown, Err: fmt.Errorf("%s: %w", doing, err)}
				}
				all = append(all, f)
			}
		}
	}
	return all, nil
}

// Terminate implements cloud.Provider.
func (p *Provider) Terminate(ctx context.Context, i cloud.Instance) error {
	doing := "terminate instance " + i.ID
	if i.ID == "" || i.Offering.Region == "" {
		return spec(doing, i.Offering, errors.New("it has no id or no region"))
	}
	if err := p.authenticate(ctx, doing); err != nil {
		return err
	}
	r := &ec2.TerminateInstancesInput{InstanceIds: []string{i.ID}}
	if _, err := p.client(i.Offering.Region).TerminateInstances(ctx, r); err != nil {
		return failure(doing, i.Offering, err)
	}
	return nil
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
	return offers.In(all, regions), nil
}
