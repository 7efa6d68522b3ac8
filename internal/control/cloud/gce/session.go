package gce

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"time"

	"cloud.google.com/go/auth"
	compute "cloud.google.com/go/compute/apiv1"
	"cloud.google.com/go/compute/apiv1/computepb"
	"cloud.google.com/go/compute/metadata"
	"google.golang.org/api/option"

	"berth/internal/control/cloud"
)

// maxAnswer is the longest answer in bytes. The metadata of a full page of instances needs half of it:
// its user data and the items of the pool's settings. The rest is for escaped characters and other fields.
const maxAnswer = 2 * pageSize * (maxUserData + maxMetadata)

// pageSize is the number of instances that GCE returns in one page of a list.
const pageSize = 100

// session holds the clients of one call to the provider.
type session struct {
	p          *Provider
	doing      string         // of error texts
	offering   cloud.Offering // of scopes
	instances  *compute.InstancesClient
	operations *compute.ZoneOperationsClient
}

// open returns the clients for one call, with an access token. Without this check the SDK reports
// missing credentials as a failed call, whose outcome would be unknown.
func (p *Provider) open(ctx context.Context, doing string, o cloud.Offering) (*session, error) {
	token, err := p.token(ctx, doing)
	if err != nil {
		return nil, err
	}
	client := &http.Client{
		Transport: transport{ctx: ctx, next: p.http, token: token},
		// A redirect is no answer of GCE, and must not receive the request.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	options := []option.ClientOption{option.WithHTTPClient(client)}
	if p.o.Endpoint != "" {
		options = append(options, option.WithEndpoint(p.o.Endpoint))
	}
	s := &session{p: p, doing: doing, offering: o}
	if s.instances, err = compute.NewInstancesRESTClient(ctx, options...); err == nil {
		s.operations, err = compute.NewZoneOperationsRESTClient(ctx, options...)
	}
	if err != nil { // nothing was sent
		return nil, badRequest(doing, o, err)
	}
	// No repetitions by the SDK: one could be sent after the caller has stored an outcome.
	*s.instances.CallOptions = compute.InstancesCallOptions{}
	*s.operations.CallOptions = compute.ZoneOperationsCallOptions{}
	return s, nil
}

// token returns an access token. The error has the kind Auth if there are no credentials, or if the
// server of access tokens or the metadata service refuses them: Auth stops all launches of the provider. After
// any other failure, such as a broken connection, the next call may get a token, also from another host if this one has
// no service account. GCE has received nothing then, so the kind is Throttle with Unsent and not Unknown: the caller
// repeats the call.
func (p *Provider) token(ctx context.Context, doing string) (string, error) {
	if p.o.Credentials == nil {
		err := p.o.NoCredentials
		if err == nil {
			err = errors.New("there are no credentials")
		}
		return "", p.noToken(cloud.Auth, doing, err)
	}
	token, err := p.o.Credentials.Token(ctx)
	if err == nil {
		return token.Value, nil
	}
	kind := cloud.Throttle
	if slices.Contains(refusals, status(err)) {
		kind = cloud.Auth
	}
	return "", p.noToken(kind, doing, err)
}

// status returns the HTTP status with which a source of access tokens answered about credentials, or 0 without such an
// answer. The metadata service of a host without a service account answers that there is nothing (404), which says
// nothing about the credentials of other hosts.
func status(err error) int {
	if e, ok := errors.AsType[*auth.Error](err); ok && e.Response != nil {
		return e.Response.StatusCode
	}
	if e, ok := errors.AsType[*metadata.Error](err); ok && e.Code != http.StatusNotFound {
		return e.Code
	}
	return 0
}

// noToken returns the error of a call that was not sent, since there is no access token.
func (p *Provider) noToken(kind cloud.Kind, doing string, err error) *cloud.Error {
	return &cloud.Error{Kind: kind, Scope: p.o.Project, Unsent: kind == cloud.Throttle,
		Err: fmt.Errorf("%s: get credentials: %w", doing, err)}
}

// refusals are the statuses by which a source of access tokens refuses credentials, or does not know them.
var refusals = []int{http.StatusBadRequest, http.StatusUnauthorized, http.StatusForbidden, http.StatusNotFound}

// transport adds the access token to requests, and bounds their answers.
type transport struct {
	// ctx ends requests that have no context: the SDK sends requests for lists without one.
	ctx   context.Context //nolint:containedctx // it lives as long as one call of the provider
	next  http.RoundTripper
	token string
}

// RoundTrip sends a request.
func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	ctx := r.Context()
	if ctx.Done() == nil {
		ctx = t.ctx
	}
	r = r.Clone(ctx)
	r.Header.Set("Authorization", "Bearer "+t.token)
	answer, err := t.next.RoundTrip(r)
	if err == nil {
		answer.Body = &bounded{ReadCloser: answer.Body, left: maxAnswer}
	}
	return answer, err
}

// bounded fails after a number of bytes.
type bounded struct {
	io.ReadCloser
	left int
}

// Read implements io.Reader.
func (b *bounded) Read(to []byte) (int, error) {
	n, err := b.ReadCloser.Read(to)
	if b.left -= n; b.left < 0 {
		return n, errors.New("the answer is too long")
	}
	return n, err
}

// get returns an instance by its name.
func (s *session) get(ctx context.Context, zone, name string) (found, *cloud.Error) {
	r := &computepb.GetInstanceRequest{Project: s.p.o.Project, Zone: zone, Instance: name}
	i, err := s.instances.Get(ctx, r)
	if err != nil {
		return found{}, s.failure(ctx, err)
	}
	f, err := read(i)
	if err != nil {
		return found{}, &cloud.Error{Kind: cloud.Unknown, Err: fmt.Errorf("%s: %w", s.doing, err)}
	}
	return f, nil
}

// wait returns an operation once it is done. A failed read of the operation says nothing about it, so
// wait tries again until its time is over; that is an unknown outcome. GCE's own method wait
// would hold the connection, but may return at any time as well.
func (s *session) wait(
	ctx context.Context, zone string, op *computepb.Operation,
) (*computepb.Operation, *cloud.Error) {
	limited, cancel := context.WithTimeout(ctx, s.p.o.Wait)
	defer cancel()
	r := &computepb.GetZoneOperationRequest{Project: s.p.o.Project, Zone: zone, Operation: op.GetName()}
	var last error
	for op.GetStatus() != computepb.Operation_DONE {
		select {
		case <-limited.Done():
			err := fmt.Errorf("%s: operation %s is %s after %s", s.doing, op.GetName(), op.GetStatus(), s.p.o.Wait)
			if last != nil {
				err = fmt.Errorf("%w; last error: %w", err, last)
			}
			return nil, &cloud.Error{Kind: cloud.Unknown, Err: fmt.Errorf("%w: %w", err, limited.Err())}
		case <-time.After(s.p.o.Poll):
		}
		next, err := s.operations.Get(limited, r)
		if last = err; err == nil {
			op = next
		}
	}
	return op, nil
}
