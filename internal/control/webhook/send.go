package webhook

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/internal/lib/publicnet"
	"berth/spec"
)

// errFinal marks failures that a repeat would not change.
var errFinal = errors.New("not tried again")

const (
	maxAnswer  = 16 << 10 // read of an answer, so that its connection can be used again
	maxHeaders = 16 << 10
)

// newClient returns the client for one call to a receiver. It refuses addresses outside the
// policy, and returns a redirect as the answer.
func newClient(p publicnet.Policy, timeout time.Duration) *http.Client {
	t := p.Transport(timeout)
	t.MaxResponseHeaderBytes = maxHeaders
	t.DisableCompression = true
	t.MaxIdleConnsPerHost = 2
	t.IdleConnTimeout = 30 * time.Second
	return &http.Client{
		Transport: t, Timeout: timeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Call makes one call with the signatures of the tenant. id is the same at each repeat. Its errors are for
// users: they reveal nothing about the network of this process.
func (s *Sender) Call(ctx context.Context, tenant berth.TenantID, address, id, body string) error {
	keys, err := s.keys(ctx, tenant)
	if err != nil {
		return err
	}
	return s.post(ctx, address, body, func(h http.Header) {
		sign(h, keys, id, strconv.FormatInt(time.Now().Unix(), 10), body)
	})
}

// Post makes one call without a signature, to a receiver that recognizes its callers by the address. Its errors
// are for users, and do not contain the address.
func (s *Sender) Post(ctx context.Context, address, body string) error {
	return s.post(ctx, address, body, func(http.Header) {})
}

// post makes one call. edit adds headers.
func (s *Sender) post(ctx context.Context, address, body string, edit func(http.Header)) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(body))
	if err != nil {
		return fmt.Errorf("the URL cannot be called: %w", errFinal)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "Berth")
	edit(req.Header)
	client := s.allowed
	if req.URL.Scheme == "https" {
		client = s.public
	}
	r, err := client.Do(req)
	if err != nil {
		cause := err
		if u, ok := errors.AsType[*url.Error](err); ok {
			cause = u.Err // without the URL, which may be a secret
		}
		s.Logger.Debug("webhook unreachable", "host", req.URL.Host, "err", cause)
		return s.reason(err)
	}
	defer r.Body.Close()
	// The content of an answer means nothing; reading it frees the connection.
	_, _ = io.CopyN(io.Discard, r.Body, maxAnswer)
	return judge(r)
}

// Final reports whether a repeat of a call would fail with the same error.
func Final(err error) bool { return errors.Is(err, errFinal) }

// errAnswered marks failures with an answer of the receiver.
var errAnswered = errors.New("")

// Answered reports whether the receiver of a call has answered, with a refusal.
func Answered(err error) bool { return errors.Is(err, errAnswered) }

// judge returns nil for an accepted call, and an error that describes any other answer.
func judge(r *http.Response) error {
	switch {
	case r.StatusCode >= 200 && r.StatusCode < 300:
		return nil
	case r.StatusCode == http.StatusGone: // Standard Webhooks: the endpoint no longer exists
		return fmt.Errorf("it answered %d: %w%w", r.StatusCode, errFinal, errAnswered)
	case r.StatusCode >= 300 && r.StatusCode < 400:
		return fmt.Errorf("it answered %d, a redirect, and none is followed%w", r.StatusCode, errAnswered)
	default:
		return fmt.Errorf("it answered %d%w", r.StatusCode, errAnswered)
	}
}

// reason describes why no answer arrived.
func (s *Sender) reason(err error) error {
	if _, ok := errors.AsType[*publicnet.RefusedError](err); ok {
		return fmt.Errorf("its address is none that may be called: %w", errFinal)
	}
	if u, ok := errors.AsType[*url.Error](err); ok && u.Timeout() {
		return fmt.Errorf("it did not answer within %s", spec.Duration(s.Timeout))
	}
	return errors.New("it could not be reached")
}

// keys returns the tenant's keys with which the call is signed.
func (s *Sender) keys(ctx context.Context, tenant berth.TenantID) ([][]byte, error) {
	list, err := s.DB.Secrets.Sealed(ctx, tenant, []string{spec.WebhookSecret})
	switch {
	case err != nil:
		return nil, fmt.Errorf("read secret %s: %w", spec.WebhookSecret, err)
	case len(list) == 0:
		return nil, fmt.Errorf("there is no secret %s to sign it with", spec.WebhookSecret)
	}
	value, err := s.Keys.Open(tenant, list[0].Name, list[0].Key, list[0].Sealed)
	if err != nil {
		return nil, err
	}
	keys, err := spec.ParseWebhookKeys(string(value))
	if err != nil {
		return nil, fmt.Errorf("secret %s %w", spec.WebhookSecret, err)
	}
	return keys, nil
}

// hostOf returns the host of an address for logs: the rest of the address may hold a secret.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return "?"
	}
	return u.Host
}
