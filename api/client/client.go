package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"berth"
)

// Client calls one server with one token. It may be used concurrently; create one with
// New.
//
// A call that the server refuses for its rate (429 with Retry-After) is repeated while
// that fits into 15 s. A call that met an unavailable server (503) is repeated too,
// unless a second call would have a second effect. Submit repeats a call with a key also after a lost answer
// and after any other 5xx.
type Client struct {
	base  string
	token string
	http  *http.Client

	// OnRepeat, if set before the first call, is called once for each call that the
	// server asked to repeat, with the server's answer: the call may take a while.
	OnRepeat func(answer error)

	// OnSilence, if set before the first call, is called by FollowEvents as LogsQuery.Silence is by Logs.
	OnSilence func(silent bool)
}

// The timeouts of all calls. callTimeout includes the repeats of a call.
const (
	dialTimeout   = 5 * time.Second
	answerTimeout = 30 * time.Second // from the request to the first byte of the answer
	callTimeout   = time.Minute      // of a call other than a stream
	patience      = 15 * time.Second // with a server that asks for a repeat
)

// New returns a client of the server at base, such as http://127.0.0.1:7070. It honours
// the proxy variables of the environment and follows no redirects. New makes no call, so
// a wrong address shows with the first call.
func New(base, token string) *Client {
	transport := &http.Transport{
		Proxy:                 http.ProxyFromEnvironment,
		DialContext:           (&net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}).DialContext,
		ResponseHeaderTimeout: answerTimeout,
		TLSHandshakeTimeout:   dialTimeout,
		MaxIdleConnsPerHost:   64,
		IdleConnTimeout:       time.Minute,
		ForceAttemptHTTP2:     true,
	}
	return &Client{base: strings.TrimRight(base, "/"), token: token, http: &http.Client{
		Transport: transport,
		// A redirect would send the token to any host that the answer names.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
}

// Over returns a client that makes its calls over a transport. The transport identifies the caller,
// so an empty token is allowed, and the client then sends none. Calls inside one process use it.
func Over(transport http.RoundTripper, token string) *Client {
	return &Client{base: "http://berth", token: token, http: &http.Client{Transport: transport}}
}

// Close closes idle connections. Calls under way continue, and the client stays usable.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Unreachable reports whether err means that no answer arrived, as opposed to an answer
// with an error. The call may still have had its effect.
func Unreachable(err error) bool {
	if err == nil || errors.Is(err, context.Canceled) {
		return false
	}
	if _, ok := errors.AsType[*berth.Error](err); ok {
		return false
	}
	_, network := errors.AsType[net.Error](err)
	_, request := errors.AsType[*url.Error](err)
	return network || request || errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

// request is one call.
type request struct {
	method string
	path   string
	query  url.Values
	header http.Header
	body   any
	once   bool // a second call would have a second effect

	answers *answers // if not nil, records the answers to all tries
}

// answers describes the answers to the tries of a call. The zero value stands for a try without an answer.
type answers struct {
	status int           // of the last try; 0: no answer
	asked  time.Duration // pause that the last answer requested; 0: none
	failed bool          // any try was answered 5xx: the server may have done its work before
}

// do makes a call, decodes its answer into out unless out is nil, and returns the status.
// The rest of the body is read, so that the connection can be reused.
func (c *Client) do(ctx context.Context, r request, out any) (int, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	res, err := c.send(ctx, r)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	if out != nil {
		if err := json.NewDecoder(res.Body).Decode(out); err != nil {
			return 0, fmt.Errorf("%s %s: read the answer: %w", r.method, r.path, err)
		}
	}
	_, _ = io.Copy(io.Discard, res.Body)
	return res.StatusCode, nil
}

// send makes a call and returns a successful answer; the caller closes the body. A call
// that the server asks to repeat (Retry-After, RFC 9110 section 10.2.3) is repeated while
// the pause ends within patience: a call refused for its rate, and, where a second call
// has no second effect, a call that met an unavailable database.
func (c *Client) send(ctx context.Context, r request) (*http.Response, error) {
	begun, said := time.Now(), false
	for {
		res, wait, err := c.sendOnce(ctx, r)
		code := berth.CodeOf(err)
		again := wait > 0 && time.Since(begun)+wait <= patience &&
			(code == berth.CodeCapacity || code == berth.CodeUnavailable && !r.once)
		if !again {
			return res, err
		}
		if told := c.OnRepeat; told != nil && !said {
			said = true
			told(err)
		}
		// Jitter: callers that were refused together do not come back together.
		if pause(ctx, wait+rand.N(wait/4)) != nil {
			return nil, err
		}
	}
}

// sendOnce makes a call once. wait is the pause that the server requests before a repeat;
// 0 without such a request.
func (c *Client) sendOnce(ctx context.Context, r request) (res *http.Response, wait time.Duration, err error) {
	var body io.Reader
	if r.body != nil {
		text, err := json.Marshal(r.body)
		if err != nil {
			return nil, 0, fmt.Errorf("%s %s: %w", r.method, r.path, err)
		}
		body = bytes.NewReader(text)
	}
	target := c.base + r.path
	if len(r.query) > 0 {
		target += "?" + r.query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, r.method, target, body)
	if err != nil {
		return nil, 0, fmt.Errorf("%s %s: %w", r.method, r.path, err)
	}
	for k, v := range r.header {
		req.Header[k] = v
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if r.answers != nil {
		r.answers.status, r.answers.asked = 0, 0
	}
	res, err = c.http.Do(req)
	if err != nil {
		return nil, 0, err
	}
	ok := res.StatusCode >= 200 && res.StatusCode < 300
	if s, err := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 16); err == nil && !ok {
		wait = time.Duration(s) * time.Second
	}
	if a := r.answers; a != nil {
		a.status, a.asked, a.failed = res.StatusCode, wait, a.failed || res.StatusCode >= 500
	}
	if ok {
		return res, 0, nil
	}
	defer res.Body.Close()
	return nil, wait, problem(res)
}

// problem converts an unsuccessful answer into a *berth.Error. An answer in another form,
// such as the page of a proxy, becomes an error with the code of its status.
func problem(res *http.Response) error {
	var p problemBody
	text, err := io.ReadAll(io.LimitReader(res.Body, 1<<20))
	if err != nil {
		return err
	}
	if json.Unmarshal(text, &p) != nil || p.Code == "" {
		return berth.Errorf(codeOf(res.StatusCode), "%s %s: the server answered %s, not as Berth does",
			res.Request.Method, res.Request.URL.Path, res.Status)
	}
	return p.asError(res.StatusCode)
}

// problemBody is the body of an unsuccessful answer, and the last record of a log that breaks off.
type problemBody struct {
	Status int                `json:"status"`
	Code   string             `json:"code"`
	Detail string             `json:"detail"`
	Errors []berth.FieldError `json:"errors"`
}

// asError converts the body of an answer with a status.
func (p problemBody) asError(status int) *berth.Error {
	e := &berth.Error{Code: codeOf(status), Message: p.Detail, Fields: p.Errors}
	switch p.Code {
	case berth.SlugUnsatisfiable, berth.SlugQuota:
		e.Code = berth.CodeCapacity
	case berth.SlugIdempotencyMismatch:
		e.Code = berth.CodeConflict
	}
	if p.Code != string(e.Code) {
		e.Slug = p.Code
	}
	return e
}

// codeOf is the inverse of the server's table from codes to statuses. 502 and 504 come
// from proxies and count as unavailable.
func codeOf(status int) berth.Code {
	switch status {
	case http.StatusUnauthorized:
		return berth.CodeUnauthorized
	case http.StatusForbidden:
		return berth.CodeForbidden
	case http.StatusNotFound:
		return berth.CodeNotFound
	case http.StatusConflict:
		return berth.CodeConflict
	case http.StatusTooManyRequests:
		return berth.CodeCapacity
	case http.StatusServiceUnavailable, http.StatusBadGateway, http.StatusGatewayTimeout:
		return berth.CodeUnavailable
	}
	if status >= 400 && status < 500 {
		return berth.CodeInvalid
	}
	return berth.CodeInternal
}
