package agent

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"mime"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"

	"berth"
	"berth/internal/lib/enginesilence"
	"berth/internal/lib/tracing"
	"berth/wire"
)

// callTimeout bounds a call that the server answers at once.
const callTimeout = 15 * time.Second

// client speaks the agents' protocol. It keeps its connections: a member needs a few calls
// from its claim to its start, and none of them should wait for a handshake.
type client struct {
	base string
	http *http.Client
	mark func() string // value of HeaderWatermark; nil or "": none is sent

	metrics *Metrics // nil: none

	bearer atomic.Pointer[string] // the token of the next calls; "": none

	engineSilent func() time.Duration        // for enginesilence.Header; nil or 0: none is sent
	stuck        func() []berth.AllocationID // for wire.HeaderStuck; nil or none: none is sent
	notice       func() string               // for wire.HeaderCloudNotice; nil or "": none is sent
}

// newClient returns a client for the server at base. Every member may hold a connection of its
// own, therefore the pool is much larger than Go's default of two per host.
func newClient(base, token string) *client {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConns = 128
	transport.MaxIdleConnsPerHost = 128
	transport.ResponseHeaderTimeout = time.Minute
	c := &client{base: base, http: &http.Client{Transport: transport}}
	c.setToken(token)
	return c
}

// token returns the token of the next call.
func (c *client) token() string { return *c.bearer.Load() }

// setToken replaces the token, for all calls that are sent from now on.
func (c *client) setToken(token string) { c.bearer.Store(&token) }

// close closes idle connections. Calls in progress go on.
func (c *client) close() { c.http.CloseIdleConnections() }

// call posts in and decodes the answer into out, which may be nil. An error in the
// server's answer is returned as *berth.Error. Any other error means that the call may or
// may not have been executed.
func (c *client) call(ctx context.Context, timeout time.Duration, path string, in, out any) error {
	return c.callWith(ctx, http.Header{}, timeout, path, in, out)
}

// callWith is call with headers of the caller, which become the request's.
func (c *client) callWith(
	ctx context.Context, header http.Header, timeout time.Duration, path string, in, out any,
) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	body, err := json.Marshal(in)
	if err != nil {
		return fmt.Errorf("call %s: %w", path, err)
	}
	header.Set("Content-Type", "application/json")
	if c.mark != nil {
		if mark := c.mark(); mark != "" {
			header.Set(wire.HeaderWatermark, mark)
		}
	}
	tracing.Inject(ctx, header)
	return c.do(ctx, http.MethodPost, path, header, bytes.NewReader(body), int64(len(body)), out)
}

// do sends one request. A body that is an *os.File section or a bytes.Reader
// can be sent again, which a redirect to the store asks for.
func (c *client) do(
	ctx context.Context, method, path string, header http.Header, body io.ReadSeeker, size int64, out any,
) error {
	r, err := c.send(ctx, method, path, header, body, size)
	if err != nil {
		return err
	}
	defer drain(r)
	if out == nil {
		return nil
	}
	if err := json.NewDecoder(r.Body).Decode(out); err != nil {
		return fmt.Errorf("%s %s: read answer: %w", method, path, err)
	}
	return nil
}

// send returns the response of a request that succeeded; its body is the
// caller's to drain.
func (c *client) send(
	ctx context.Context, method, path string, header http.Header, body io.ReadSeeker, size int64,
) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.base+"/agent/v1/"+path, nil)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if body != nil {
		req.GetBody = func() (io.ReadCloser, error) {
			_, err := body.Seek(0, io.SeekStart)
			return io.NopCloser(body), err
		}
		if req.Body, err = req.GetBody(); err != nil {
			return nil, fmt.Errorf("%s %s: %w", method, path, err)
		}
		req.ContentLength = size
		if size == 0 {
			req.Body = http.NoBody
		}
	}
	maps.Copy(req.Header, header)
	if token := c.token(); token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	r, err := c.http.Do(req)
	c.metrics.called(ctx, r, err)
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	if r.StatusCode >= 300 {
		defer drain(r)
		return nil, problem(r, method, path)
	}
	return r, nil
}

// drain reads the short rest of a body, so that the connection can be used again.
func drain(r *http.Response) {
	_, _ = io.CopyN(io.Discard, r.Body, 64<<10)
	_ = r.Body.Close()
}

// problem returns the error in an answer. An answer that is no problem+json comes from a
// gateway and not from Berth. It says nothing about the work: with any status, the same
// call may succeed in a moment.
func problem(r *http.Response, method, path string) error {
	if kind, _, _ := mime.ParseMediaType(r.Header.Get("Content-Type")); kind != "application/problem+json" {
		return berth.Errorf(berth.CodeUnavailable, "%s %s: %s from a gateway, not from Berth", method, path, r.Status)
	}
	var p struct{ Code, Detail string }
	_ = json.NewDecoder(io.LimitReader(r.Body, 64<<10)).Decode(&p)
	code := berth.CodeInternal
	switch r.StatusCode {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge,
		http.StatusUnsupportedMediaType, http.StatusMethodNotAllowed:
		code = berth.CodeInvalid
	case http.StatusUnauthorized:
		code = berth.CodeUnauthorized
	case http.StatusForbidden:
		code = berth.CodeForbidden
	case http.StatusNotFound:
		code = berth.CodeNotFound
	case http.StatusConflict:
		code = berth.CodeConflict
	case http.StatusTooManyRequests:
		code = berth.CodeCapacity
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		code = berth.CodeUnavailable
	}
	if p.Detail == "" {
		p.Detail = r.Status
	}
	e := &berth.Error{Code: code, Message: fmt.Sprintf("%s %s: %s", method, path, p.Detail)}
	if p.Code != string(code) {
		e.Slug = p.Code
	}
	if last, err := strconv.ParseInt(r.Header.Get(wire.HeaderLastRenewal), 10, 64); err == nil {
		return &replayedError{e, last}
	}
	return e
}

// replayedError is the refusal of a renewal whose number is not above the last one of its key.
type replayedError struct {
	refusal *berth.Error
	last    int64
}

func (e *replayedError) Error() string { return e.refusal.Error() }
func (e *replayedError) Unwrap() error { return e.refusal }

// lastRenewal returns the number of the last renewal that the server has reported with err; 0: none.
func lastRenewal(err error) int64 {
	if e, ok := errors.AsType[*replayedError](err); ok {
		return e.last
	}
	return 0
}

// refused reports whether the server itself has refused the call for a lasting reason: the same
// call would be refused again. Every other error may pass, such as the end of a credential, which the
// key of the machine renews.
func refused(err error) bool {
	e, ok := errors.AsType[*berth.Error](err)
	if !ok || e.Slug == wire.SlugCredentialEnded {
		return false
	}
	switch e.Code {
	case berth.CodeUnavailable, berth.CodeInternal, berth.CodeCapacity:
		return false
	case berth.CodeInvalid, berth.CodeUnauthorized, berth.CodeForbidden, berth.CodeNotFound, berth.CodeConflict:
		return true
	default:
		return false // a newer server's; it may pass
	}
}

// objectMissing reports whether the server refused to register a checkpoint or an output because the object store
// does not have its objects as reported.
func objectMissing(err error) bool { return berth.IsSlug(err, wire.SlugObjectMissing) }

// overQuota reports whether the server refused an object because a storage quota is used up.
func overQuota(err error) bool { return berth.IsSlug(err, berth.SlugStorageQuota) }

// answered reports whether the error comes from the server.
func answered(err error) bool {
	_, ok := errors.AsType[*berth.Error](err)
	return ok
}

// sessionTerms name the session of a call.
type sessionTerms struct {
	boot  string
	epoch int64
}

// header returns the terms as the headers of an upload, whose body has no room for them.
func (t sessionTerms) header() http.Header {
	h := http.Header{"Content-Type": {"application/octet-stream"}}
	h.Set(wire.HeaderAgentBoot, t.boot)
	h.Set(wire.HeaderEpoch, strconv.FormatInt(t.epoch, 10))
	return h
}

// join exchanges a join token for the machine's first credential, and binds the credential to the
// machine's key.
func (c *client) join(
	ctx context.Context, key ed25519.PrivateKey, req wire.JoinRequest,
) (answer wire.JoinResponse, err error) {
	header := http.Header{}
	header.Set(wire.HeaderMachineKey, wire.ProveKey(key, req.Machine, req.Token).String())
	err = c.callWith(ctx, header, callTimeout, "join", req, &answer)
	return answer, err
}

// bindKey binds the machine's token to its key.
func (c *client) bindKey(ctx context.Context, key ed25519.PrivateKey, machine berth.MachineID) error {
	header := http.Header{}
	header.Set(wire.HeaderMachineKey, wire.ProveKey(key, machine, c.token()).String())
	return c.callWith(ctx, header, callTimeout, "key", struct{}{}, nil)
}

// renew makes the token of a renewal the machine's credential. The call carries the present token only
// for servers of the previous version, which answer not_found.
func (c *client) renew(ctx context.Context, r wire.Renewal, hostBoot string) (answer wire.RenewResponse, err error) {
	header := http.Header{}
	header.Set(wire.HeaderRenewal, r.String())
	header.Set(wire.HeaderHostBoot, hostBoot)
	err = c.callWith(ctx, header, callTimeout, "renew", struct{}{}, &answer)
	return answer, err
}

// register opens a session. It may take twice as long as an ordinary call: the request and the
// answer list all containers of the machine.
func (c *client) register(ctx context.Context, req wire.RegisterRequest) (answer wire.RegisterResponse, err error) {
	err = c.call(ctx, 2*callTimeout, "register", req, &answer)
	return answer, err
}

// sync sends reports, or waits up to req.WaitMS for orders. A silent container engine is reported
// in a header, so that the server places no new work on this machine meanwhile.
func (c *client) sync(ctx context.Context, req wire.SyncRequest) (answer wire.SyncResponse, err error) {
	header := http.Header{}
	if c.engineSilent != nil {
		if silent := c.engineSilent(); silent > 0 {
			header.Set(enginesilence.Header, enginesilence.Format(silent))
		}
	}
	if c.stuck != nil {
		if list := c.stuck(); len(list) > 0 {
			header.Set(wire.HeaderStuck, wire.FormatStuck(list))
		}
	}
	if c.notice != nil {
		if notice := c.notice(); notice != "" {
			header.Set(wire.HeaderCloudNotice, notice)
		}
	}
	err = c.callWith(ctx, header, callTimeout+time.Duration(req.WaitMS)*time.Millisecond, "sync", req, &answer)
	return answer, err
}

// claim claims an allocation for this machine and returns the job's specification.
func (c *client) claim(ctx context.Context, req wire.ClaimRequest) (answer wire.Claim, err error) {
	header := http.Header{}
	header.Set(wire.HeaderSources, "1")
	header.Set(wire.HeaderParts, "1")
	header.Set(wire.HeaderChunks, "1")
	header.Set(wire.HeaderHolds, "1")
	header.Set(wire.HeaderSignatures, "1")
	header.Set(wire.HeaderUsers, "1")
	err = c.callWith(ctx, header, callTimeout, "claim", req, &answer)
	return answer, err
}

// checkpoint registers a stored checkpoint. It may take three times as long as an ordinary call.
func (c *client) checkpoint(ctx context.Context, req wire.CheckpointReport) error {
	header := http.Header{}
	if req.MetricValue != nil {
		header.Set(wire.HeaderMetricValue, strconv.FormatFloat(*req.MetricValue, 'g', -1, 64))
	}
	if req.PassedOverFor != nil {
		header.Set(wire.HeaderPassedOverFor, strconv.FormatInt(*req.PassedOverFor, 10))
		header.Set(wire.HeaderPassedOverForAttempt, strconv.Itoa(req.PassedOverForAttempt))
	}
	if req.WriteTime != nil {
		header.Set(wire.HeaderWriteTime, strconv.FormatInt(req.WriteTime.Milliseconds(), 10))
	}
	if req.StoreTime != nil {
		header.Set(wire.HeaderStoreTime, strconv.FormatInt(req.StoreTime.Milliseconds(), 10))
	}
	path := "checkpoints"
	if len(req.Chunks) > 0 {
		path = wire.ChunkedCheckpoints
	}
	return c.callWith(ctx, header, 3*callTimeout, path, req, nil)
}

// appendLog appends a piece that begins at offset and returns the log's end.
func (c *client) appendLog(
	ctx context.Context, t sessionTerms, alloc berth.AllocationID, offset int64, chunk []byte,
) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*callTimeout)
	defer cancel()
	var ack wire.LogAck
	path := fmt.Sprintf("logs/%d?offset=%d", alloc, offset)
	err := c.do(ctx, http.MethodPut, path, t.header(), bytes.NewReader(chunk), int64(len(chunk)), &ack)
	if err == nil {
		c.metrics.shipped(len(chunk))
	}
	return ack.End, err
}

// putObject uploads one object of the given size. rest is the size of this object and of the
// objects that follow it: the server refuses the first one if the quota has no room for all.
// fallback marks an object that should have gone straight to the store.
func (c *client) putObject(
	ctx context.Context, t sessionTerms, key string, body io.ReadSeeker, size, rest int64, fallback bool,
) error {
	h := t.header()
	markFallback(h, fallback)
	if rest > size {
		h.Set(wire.HeaderRest, strconv.FormatInt(rest, 10))
	}
	err := c.do(ctx, http.MethodPut, "objects/"+key, h, body, size, nil)
	if err == nil {
		c.metrics.stored(wayServer, size)
	}
	return err
}

// markFallback marks a call for an object that should have gone straight to or from the store.
func markFallback(h http.Header, fallback bool) {
	if fallback {
		h.Set(wire.HeaderFallback, "1")
	}
}

// getObject returns an object's content and length. The caller closes it.
func (c *client) getObject(ctx context.Context, key string, fallback bool) (io.ReadCloser, int64, error) {
	h := http.Header{}
	markFallback(h, fallback)
	r, err := c.send(ctx, http.MethodGet, "objects/"+key, h, nil, 0)
	if err != nil {
		return nil, 0, err
	}
	size, err := strconv.ParseInt(r.Header.Get("Content-Length"), 10, 64)
	if err != nil {
		size = r.ContentLength
	}
	return c.metrics.reading(wayServer, r.Body), size, nil
}
