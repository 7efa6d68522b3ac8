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
	"sync"
	"time"

	"berth"
	"berth/internal/lib/publicnet"
	"berth/wire"
)

const (
	policyAge   = time.Minute // of the server's answer which objects it signs addresses for
	directPause = time.Minute // without signed addresses, after the store could not be used from this machine
	directStall = time.Minute // without a byte, after which a transfer is given up
	directTries = 3           // failures in a row after which the store counts as not usable
)

// directStore moves objects straight between this machine and the object store, by addresses that the server signs
// one by one. Objects that it cannot move go through the server: those of other stores and of older servers, small
// ones, and all for a while after the store could not be used from here. Signed addresses are secrets: they appear in
// no error and no log. All methods may be called concurrently.
type directStore struct {
	control   *control
	http      *http.Client
	plaintext bool // the operator accepts connections without TLS
	local     bool // the server is on this machine, so a store on this machine may be meant
	log       *slog.Logger

	mu       sync.Mutex
	policy   wire.ObjectAccess
	expires  time.Time // of policy
	paused   time.Time // until then nothing is tried
	failures int       // of transfers, in a row
}

// newDirectStore returns a directStore that uses the server of a session.
func newDirectStore(cfg Config, c *control, log *slog.Logger) *directStore {
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = 16
	transport.ResponseHeaderTimeout = directStall
	transport.ExpectContinueTimeout = 5 * time.Second
	transport.DisableCompression = true // the length of an object is compared with the recorded one
	transport.DialContext = (&net.Dialer{Timeout: 10 * time.Second, KeepAlive: 15 * time.Second}).DialContext
	d := &directStore{
		control: c, plaintext: cfg.AllowPlaintext, log: log,
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

// errUnusable is a failure that the next try would meet again: the store cannot be reached from this machine, or
// refuses the address.
type errUnusable struct{ error }

// Unwrap returns the failure.
func (e errUnusable) Unwrap() error { return e.error }

// errExists is the store's refusal of an object whose key exists.
var errExists = errors.New("the object store has an object of this key")

// covers reports whether an object of this length should be moved by a signed address now. It asks the server for its
// policy once a minute; a server that does not know the question signs nothing.
func (d *directStore) covers(ctx context.Context, bytes int64) bool {
	if d == nil {
		return false
	}
	now := time.Now()
	d.mu.Lock()
	policy, fresh, paused := d.policy, now.Before(d.expires), now.Before(d.paused)
	d.mu.Unlock()
	if paused {
		return false
	}
	if !fresh {
		policy = wire.ObjectAccess{}
		ask, cancel := context.WithTimeout(ctx, callTimeout)
		err := d.control.do(ask, http.MethodGet, "object-access", nil, nil, 0, &policy)
		cancel()
		if err != nil && !refused(err) {
			return false // the call for the object will meet the same fault, and is repeated
		}
		d.mu.Lock()
		d.policy, d.expires = policy, now.Add(policyAge)
		d.mu.Unlock()
	}
	return policy.Covers(bytes)
}

// avoided reports whether an object of this length goes through the server only because the store could not be used.
func (d *directStore) avoided(bytes int64) bool {
	if d == nil {
		return false
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.policy.Covers(bytes) && time.Now().Before(d.paused)
}

// address asks the server for an address under the terms of the present session.
func (d *directStore) address(ctx context.Context, r wire.AddressRequest) (a wire.ObjectAddress, err error) {
	err = d.control.withTerms(ctx, func(epoch int64) error {
		r.AgentBoot, r.Epoch = d.control.boot, epoch
		return d.control.call(ctx, 2*callTimeout, "object-access", r, &a)
	})
	return a, err
}

// put stores an object. done is false if the object must go through the server, which also gives the verdict on an
// object that may no longer be stored. Any error is worth another try, apart from an exceeded quota.
func (d *directStore) put(ctx context.Context, key string, body *hashed, rest int64) (done bool, err error) {
	if !d.covers(ctx, body.size) {
		return false, nil
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
	err = d.send(ctx, a, body)
	if err != nil && ctx.Err() != nil {
		return false, context.Cause(ctx)
	}
	if _, unusable := errors.AsType[errUnusable](err); err == nil || unusable {
		return err == nil, d.judge(err)
	}
	// The store may have the object: this answer or an earlier one was lost, or an earlier process has stored the
	// file. The server compares.
	r.Exists = true
	a, failed := d.address(ctx, r)
	switch {
	case failed == nil && a.Stored:
		return true, d.judge(nil)
	case errors.Is(err, errExists):
		d.log.Warn("object store has another object, will replace it", "key", key)
		return false, failed
	}
	return false, d.judge(err)
}

// get opens an object. body is nil if the object must come through the server. The caller closes body.
func (d *directStore) get(ctx context.Context, key string, bytes int64) (body io.ReadCloser, size int64, err error) {
	if !d.covers(ctx, bytes) {
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
		return nil, 0, d.judge(err)
	}
	watch := time.AfterFunc(directStall, cancel)
	return &directBody{ReadCloser: r.Body, ctx: ctx, of: d, watch: watch, cancel: cancel}, r.ContentLength, nil
}

// doubt makes objects go through the server for a while after one that came straight from the store was not as
// recorded: only the server's copy proves that the object is damaged, and not the way to it. It returns an error that
// is worth another try.
func (d *directStore) doubt(says string) error {
	fault := berth.Errorf(berth.CodeUnavailable, "%s, as read straight from the object store", says)
	_ = d.judge(errUnusable{fault})
	return fault
}

// judge counts a failed transfer, or forgets the failures after a success. It returns nil, too, for a failure after
// which the object goes through the server, as all objects do for a while then.
func (d *directStore) judge(err error) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil {
		d.failures = 0
		return nil
	}
	d.failures++
	_, unusable := errors.AsType[errUnusable](err)
	if !unusable && d.failures < directTries {
		return err
	}
	d.failures, d.paused = 0, time.Now().Add(directPause)
	d.log.Warn("object store not usable from this machine, objects go through the server", "err", err,
		"pause", directPause)
	return nil
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

// send creates an object.
func (d *directStore) send(ctx context.Context, a wire.ObjectAddress, body *hashed) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	watch := time.AfterFunc(directStall, cancel)
	defer watch.Stop()
	content := func() io.Reader {
		return &watched{io.NewSectionReader(body.f, 0, body.size), watch}
	}
	r, err := d.do(ctx, http.MethodPut, a, content, body.size)
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
	_, unnamed := errors.AsType[*net.DNSError](err)
	_, certificate := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	if dialed && dial.Op == "dial" || unnamed || certificate || record || authority ||
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
	case r.StatusCode >= 500, r.StatusCode == http.StatusTooManyRequests, r.StatusCode == http.StatusRequestTimeout,
		r.StatusCode == http.StatusConflict, // another request for this key is under way
		body.Code == "BadDigest", body.Code == "XAmzContentChecksumMismatch", body.Code == "IncompleteBody",
		body.Code == "RequestTimeout": // damaged or cut off on the way, or the file has changed: it is hashed again
		return fault
	}
	return errUnusable{fault}
}

// watched is a reader whose progress keeps a transfer alive.
type watched struct {
	io.Reader
	watch *time.Timer
}

// Read reads and restarts the time after which the transfer is given up.
func (w *watched) Read(p []byte) (int, error) {
	w.watch.Reset(directStall)
	return w.Reader.Read(p)
}

// directBody is the content of an object on its way from the store.
type directBody struct {
	io.ReadCloser
	ctx    context.Context // of the caller
	of     *directStore
	watch  *time.Timer
	cancel context.CancelFunc
	over   bool
}

// Read notes the end of the transfer, good or bad, once.
func (b *directBody) Read(p []byte) (int, error) {
	b.watch.Reset(directStall)
	n, err := b.ReadCloser.Read(p)
	if err != nil && !b.over {
		b.over = true
		switch {
		case errors.Is(err, io.EOF):
			_ = b.of.judge(nil)
		case b.ctx.Err() == nil:
			_ = b.of.judge(err)
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
