package agent

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/internal/lib/publicnet"
	"berth/wire"
)

// directTries is the number of failures in a row after which transfers, or an object, go through the server.
const directTries = 3

// directStore moves objects straight between this machine and the object store, by addresses that the server signs
// one by one. Objects that it cannot move go through the server: objects of other stores and of older servers, small
// ones, and others while the path to the store pauses. Signed addresses are secrets: they appear in no error and no
// log. All methods may be called concurrently.
type directStore struct {
	control   *control
	http      *http.Client
	path      *storePath
	stall     time.Duration // without a byte, after which a transfer is given up
	age       time.Duration // of policy, after which the server is asked again
	plaintext bool          // the operator accepts connections without TLS
	local     bool          // the server is on this machine, so a store on this machine may be meant
	log       *slog.Logger

	mu      sync.Mutex
	policy  wire.ObjectAccess
	expires time.Time // of policy
}

// newDirectStore returns a directStore that uses the server of a session.
func newDirectStore(cfg Config, c *control, log *slog.Logger) *directStore {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	transport.ResponseHeaderTimeout = cfg.Timing.DirectStall
	transport.ExpectContinueTimeout = 5 * time.Second
	transport.DisableCompression = true // the length of an object is compared with the recorded one
	transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	transport.OnProxyConnectResponse = tunneled
	d := &directStore{
		control: c, plaintext: cfg.AllowPlaintext, log: log, stall: cfg.Timing.DirectStall,
		age: cfg.Timing.DirectPolicy, path: newStorePath(cfg.Timing.DirectPause, cfg.Timing.DirectPauseMax, log),
		http: &http.Client{
			Transport: transport,
			// An address is signed for one host: a redirect would show it to another one.
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		},
	}
	if u, err := url.Parse(cfg.Server); err == nil {
		d.local = publicnet.Loopback(u.Hostname())
	}
	return d
}

// close closes idle connections to the store.
func (d *directStore) close() { d.http.CloseIdleConnections() }

// tunneled returns an error for the refusal of a proxy to connect to the store.
func tunneled(_ context.Context, proxy *url.URL, _ *http.Request, answer *http.Response) error {
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	return errUnusable{fmt.Errorf("the proxy %s refuses the tunnel: %d", proxy.Host, answer.StatusCode)}
}

// errExists is the store's refusal of an object whose key exists.
var errExists = errors.New("the object store has an object of this key")

// covers reports whether an object of this length should be moved by signed addresses now, and the policy by which. It
// asks the server for its policy once in a while; a server that does not know the question signs nothing.
func (d *directStore) covers(ctx context.Context, bytes int64) (policy wire.ObjectAccess, ok bool) {
	policy, ok = d.asks(ctx)
	return policy, ok && policy.Covers(bytes) && !d.path.pauses(bytes)
}

// asks returns the policy of the server, which is at most d.age old. ok is false if the server does not answer.
func (d *directStore) asks(ctx context.Context) (policy wire.ObjectAccess, ok bool) {
	if d == nil {
		return policy, false
	}
	now := time.Now()
	d.mu.Lock()
	policy, fresh := d.policy, now.Before(d.expires)
	d.mu.Unlock()
	if !fresh {
		policy = wire.ObjectAccess{}
		ask, cancel := context.WithTimeout(ctx, callTimeout)
		err := d.control.do(ask, http.MethodGet, "object-access", nil, nil, 0, &policy)
		cancel()
		if err != nil && !refused(err) {
			return policy, false // the call for the object will meet the same fault, and is repeated
		}
		d.mu.Lock()
		d.policy, d.expires = policy, now.Add(d.age)
		d.mu.Unlock()
	}
	return policy, true
}

// avoided reports whether an object goes through the server only because the store could not be used for it.
func (d *directStore) avoided(key string, bytes int64) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	policy := d.policy
	d.mu.Unlock()
	return policy.Covers(bytes) && (d.path.pauses(bytes) || d.path.avoids(key))
}

// settled forgets the faults of an object that was moved through the server.
func (d *directStore) settled(key string) {
	if d != nil {
		d.path.forget(key)
	}
}

// address asks the server for an address under the terms of the present session.
func (d *directStore) address(ctx context.Context, r wire.AddressRequest) (wire.ObjectAddress, error) {
	return d.addressWithin(ctx, 2*callTimeout, r)
}

// addressWithin is address with another limit of time.
func (d *directStore) addressWithin(
	ctx context.Context, limit time.Duration, r wire.AddressRequest,
) (a wire.ObjectAddress, err error) {
	err = d.control.withTerms(ctx, func(epoch int64) error {
		a = wire.ObjectAddress{}
		r.AgentBoot, r.Epoch = d.control.boot, epoch
		return d.control.call(ctx, limit, "object-access", r, &a)
	})
	return a, err
}

// put stores an object. done is false if the object must go through the server, which also gives the verdict on an
// object that may no longer be stored. Any error is worth another try, apart from an exceeded quota and an error of the
// file, which body has.
func (d *directStore) put(ctx context.Context, key string, body *hashed, rest int64) (done bool, err error) {
	policy, ok := d.covers(ctx, body.size)
	if !ok || d.path.avoids(key) {
		return false, nil
	}
	if policy.InParts(body.size) {
		return d.putParts(ctx, key, body, rest, policy.PartBytes)
	}
	sum, err := body.sum()
	if err != nil {
		return false, err
	}
	r := wire.AddressRequest{Key: key, Method: http.MethodPut, Bytes: body.size, SHA256: sum, Rest: rest}
	a, err := d.address(ctx, r)
	switch {
	case err != nil && (!refused(err) || overQuota(err)):
		return false, err
	case err != nil, a.URL == "":
		return false, nil
	}
	err = d.send(ctx, a, body, 0, body.size)
	switch {
	case err == nil:
		d.path.worked(body.size)
		d.path.forget(key)
		return true, nil
	case ctx.Err() != nil:
		return false, context.Cause(ctx)
	case body.fault() != nil:
		return false, body.fault()
	}
	if _, unusable := errors.AsType[errUnusable](err); !unusable {
		// The store may have the object: this answer or an earlier one was lost, or an earlier process has stored the
		// file. The server compares.
		r.Exists = true
		a, failed := d.address(ctx, r)
		switch {
		case failed == nil && a.Stored:
			d.path.worked(body.size)
			d.path.forget(key)
			return true, nil
		case errors.Is(err, errExists):
			d.replaces(key, a.Found)
			return false, failed
		}
	}
	return false, d.judge(key, body.size, err)
}

// replaces logs why an object goes through the server, although the store has one of its key.
func (d *directStore) replaces(key string, found wire.Found) {
	switch found {
	case wire.FoundUnknown:
		d.log.Warn("object store has an object of this length without its SHA-256, will replace it", "key", key)
	case wire.FoundNone:
		d.log.Warn("object store refused an object as existing and does not have it, will send it through the server",
			"key", key)
	default:
		d.log.Warn("object store has another object, will replace it", "key", key)
	}
}

// judge counts a failed transfer of some bytes of an object. It returns nil for a failure after which the object goes
// through the server, and else the failure, which is worth another try.
func (d *directStore) judge(key string, bytes int64, err error) error {
	if _, content := errors.AsType[errContent](err); content {
		if d.path.avoid(key, 1); d.path.avoids(key) {
			d.log.Warn("object store refuses the content of an object, will send it through the server", "key", key,
				"err", err)
			return nil
		}
		return err
	}
	if d.path.failed(bytes, err) {
		return nil
	}
	return err
}

// get opens an object. body is nil if the object must come through the server. The caller closes body.
func (d *directStore) get(ctx context.Context, key string, bytes int64) (body io.ReadCloser, size int64, err error) {
	if _, ok := d.covers(ctx, bytes); !ok || d.path.avoids(key) {
		return nil, 0, nil
	}
	a, err := d.address(ctx, wire.AddressRequest{Key: key, Method: http.MethodGet})
	switch {
	case err != nil && !refused(err):
		return nil, 0, err
	case err != nil, a.URL == "":
		return nil, 0, nil
	}
	read, cancel := context.WithCancel(ctx)
	r, err := d.do(read, http.MethodGet, a, nil, 0)
	if err == nil && r.ContentLength < 0 {
		_ = r.Body.Close()
		err = errUnusable{errors.New("the object store does not announce the length of an object")}
	}
	if err != nil {
		cancel()
		if ctx.Err() != nil {
			return nil, 0, context.Cause(ctx)
		}
		// The server decides about this object at once: the patience of a restore must not be used up by a path that
		// does not work.
		d.path.avoid(key, directTries)
		if _, content := errors.AsType[errContent](err); !content {
			d.path.failed(bytes, err)
		}
		return nil, 0, nil
	}
	watch := time.AfterFunc(d.stall, cancel)
	return &directBody{ReadCloser: r.Body, ctx: ctx, of: d, key: key, size: bytes, watch: watch,
		cancel: cancel}, r.ContentLength, nil
}

// doubt makes an object come through the server after it came straight from the store and was not as recorded: only
// the server's copy proves that the object is damaged, and not the way to it. It returns an error that is worth
// another try.
func (d *directStore) doubt(key, says string) error {
	d.path.avoid(key, directTries)
	fault := berth.Errorf(berth.CodeUnavailable, "%s, as read straight from the object store", says)
	d.log.Warn("object not as recorded, will read it through the server", "key", key, "err", fault)
	return fault
}

// refuses returns why an address may not be used from this machine, or nil (adr/0058). A store on loopback is meant
// only if the server is on this machine, too; otherwise anything may listen there.
func (d *directStore) refuses(u *url.URL) error {
	loopback := publicnet.Loopback(u.Hostname())
	switch {
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil:
		return errors.New("the signed address is not an http or https URL")
	case loopback && !d.local:
		return fmt.Errorf("the object store's address %s means this machine, and the server is on another one", u.Host)
	case u.Scheme == "http" && !loopback && !d.plaintext:
		return fmt.Errorf("the object store's address %s has no TLS: give the store an https address, or accept the "+
			"risk with --allow-plaintext", u.Host)
	}
	return nil
}

// send stores some bytes of a file. An error of the file is left in body.
func (d *directStore) send(ctx context.Context, a wire.ObjectAddress, body *hashed, at, size int64) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := time.AfterFunc(d.stall, cancel)
	defer watch.Stop()
	content := func() io.Reader {
		return &watched{Reader: body.section(at, size), watch: watch, stall: d.stall}
	}
	r, err := d.do(ctx, http.MethodPut, a, content, size)
	if err != nil {
		return err
	}
	drain(r)
	return nil
}

// do sends one signed request and returns the response of a success.
func (d *directStore) do(
	ctx context.Context, method string, a wire.ObjectAddress, content func() io.Reader, size int64,
) (*http.Response, error) {
	u, err := url.Parse(string(a.URL))
	if err != nil {
		return nil, errUnusable{errors.New("the signed address cannot be read")}
	}
	if err := d.refuses(u); err != nil {
		return nil, errUnusable{err}
	}
	req, err := http.NewRequestWithContext(ctx, method, "", nil)
	if err != nil {
		return nil, err
	}
	req.URL, req.Host = u, u.Host
	for name, values := range a.Header {
		req.Header[http.CanonicalHeaderKey(name)] = slices.Clone(values)
	}
	if content != nil {
		// A connection that the store has closed meanwhile is replaced, with the content from its beginning.
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(content()), nil }
		req.Body, _ = req.GetBody()
		req.ContentLength = size
		req.Header.Set("Expect", "100-continue") // a refusal comes before the content leaves
	}
	r, err := d.http.Do(req)
	if err != nil {
		return nil, transportFault(method, u.Host, err)
	}
	if r.StatusCode >= 300 {
		defer drain(r)
		return nil, storeFault(method, u.Host, r)
	}
	return r, nil
}

// transportFault returns the error of a request without an answer. The error of net/http has the whole address.
func transportFault(method, host string, err error) error {
	if e, ok := errors.AsType[*url.Error](err); ok {
		err = e.Err
	}
	fault := berth.Errorf(berth.CodeUnavailable, "%s at the object store %s: %v", method, host, err)
	dial, dialed := errors.AsType[*net.OpError](err)
	_, tunnel := errors.AsType[errUnusable](err)
	_, unnamed := errors.AsType[*net.DNSError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	if dialed && (dial.Op == "dial" || dial.Op == "proxyconnect") || tunnel || unnamed || certificate || record ||
		authority ||
		errors.Is(err, http.ErrSchemeMismatch) {
		return errUnusable{fault}
	}
	return fault
}

// faultCode matches the codes of S3. Everything else in the body of a refusal may contain parts of the address.
var faultCode = regexp.MustCompile(`^[A-Za-z]{1,60}$`)

// storeFault returns the error of a refusal. Of its body only the code is used.
func storeFault(method, host string, r *http.Response) error {
	var body struct {
		Code string `xml:"Code"`
	}
	_ = xml.NewDecoder(io.LimitReader(r.Body, 64<<10)).Decode(&body)
	if !faultCode.MatchString(body.Code) {
		body.Code = "no code"
	}
	fault := berth.Errorf(berth.CodeUnavailable, "%s at the object store %s: %d (%s)", method, host, r.StatusCode,
		body.Code)
	switch {
	case r.StatusCode == http.StatusPreconditionFailed:
		return errExists
	case body.Code == "NoSuchUpload":
		return errNoUpload{fault}
	case body.Code == "NoSuchKey", body.Code == "BadDigest", body.Code == "XAmzContentChecksumMismatch",
		strings.HasSuffix(body.Code, "ContentSHA256Mismatch"):
		return errContent{fault} // missing, damaged on the way, or the file has changed: it is hashed again
	case r.StatusCode >= 500, r.StatusCode == http.StatusTooManyRequests, r.StatusCode == http.StatusRequestTimeout,
		r.StatusCode == http.StatusConflict,                          // another request for this key is under way
		body.Code == "IncompleteBody", body.Code == "RequestTimeout": // cut off on the way
		return fault
	}
	return errUnusable{fault}
}

// watched is a reader whose progress keeps a transfer alive.
type watched struct {
	io.Reader
	watch *time.Timer
	stall time.Duration
}

// Read reads and restarts the time after which the transfer is given up.
func (w *watched) Read(p []byte) (int, error) {
	w.watch.Reset(w.stall)
	return w.Reader.Read(p)
}

// directBody is the content of an object on its way from the store.
type directBody struct {
	io.ReadCloser
	ctx    context.Context // of the caller
	of     *directStore
	key    string
	size   int64
	watch  *time.Timer
	cancel context.CancelFunc
	over   bool
}

// Read notes the end of the transfer, good or bad, once.
func (b *directBody) Read(p []byte) (int, error) {
	b.watch.Reset(b.of.stall)
	n, err := b.ReadCloser.Read(p)
	if err != nil && !b.over {
		b.over = true
		switch {
		case errors.Is(err, io.EOF):
			b.of.path.worked(b.size)
		case b.ctx.Err() == nil:
			b.of.path.avoid(b.key, 1)
			b.of.path.failed(b.size, err)
		}
	}
	return n, err
}

// Close ends the transfer.
func (b *directBody) Close() error {
	b.watch.Stop()
	defer b.cancel()
	return b.ReadCloser.Close()
}
