package notice

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strconv"
	"strings"
	"time"

	"berth/wire"
)

// EC2Address is the metadata service of an EC2 instance.
const EC2Address = "http://169.254.169.254"

const (
	// tokenTTL is the requested lifetime of a session token. EC2 allows 6 hours at most.
	tokenTTL = 6 * time.Hour
	// callLimit bounds one call. The service is on the host of the instance and answers in
	// milliseconds.
	callLimit = time.Second
	// adviceEvery is the number of calls of Look for each request for advice. Advice is less urgent than
	// a notice, and needs a separate call.
	adviceEvery = 5
)

// Paths and headers of the metadata service, version 2.
const (
	tokenPath       = "/latest/api/token"
	actionPath      = "/latest/meta-data/spot/instance-action"
	rebalancePath   = "/latest/meta-data/events/recommendations/rebalance"
	tokenHeader     = "X-aws-ec2-metadata-token"
	tokenTTLHeader  = "X-aws-ec2-metadata-token-ttl-seconds"
	longestToken    = 1 << 10
	renewalFraction = 10 // a token is renewed when a tenth of its lifetime is left
)

// EC2 is a source that reads the metadata service of an EC2 instance. It uses only IMDSv2.
type EC2 struct {
	base string
	http *http.Client

	token   string
	renewAt time.Time // of the token

	looks     int
	rebalance time.Time // the advice of the last answer
}

// NewEC2 returns a source that calls the metadata service at base, without a proxy of the environment:
// the answers concern this machine alone, and the token must not leave the host.
func NewEC2(base string) *EC2 { return newEC2(base, callLimit) }

// newEC2 is NewEC2 with a given limit for each call. Tests set a limit that a busy machine does not exceed.
func newEC2(base string, limit time.Duration) *EC2 {
	return &EC2{base: base, http: metadataClient(limit, limit)}
}

// metadataClient returns a client of a metadata service, without a proxy. It limits the time of a call and, within
// the call, the time to connect.
func metadataClient(call, connect time.Duration) *http.Client {
	return &http.Client{
		Timeout: call,
		Transport: &http.Transport{
			DialContext:         (&net.Dialer{Timeout: connect}).DialContext,
			MaxIdleConnsPerHost: 1, IdleConnTimeout: time.Minute, DisableCompression: true,
			MaxResponseHeaderBytes: 16 << 10,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// Look implements Reader. The first look asks for advice as well, so a restarted agent knows it at once. An
// error of the request for advice does not hide a notice.
func (e *EC2) Look(ctx context.Context) (State, error) {
	first := e.looks%adviceEvery == 0
	e.looks++
	body, err := e.get(ctx, actionPath)
	if err != nil {
		return State{}, err
	}
	var end *wire.CloudNotice
	if body != nil {
		if end, err = parseEnd(wire.NoticeSpot, body, time.Now()); err != nil {
			return State{}, err
		}
	}
	if first && end == nil {
		err = e.lookForAdvice(ctx)
	}
	return State{End: end, Rebalance: e.rebalance}, err
}

// lookForAdvice reads the rebalance recommendation.
func (e *EC2) lookForAdvice(ctx context.Context) error {
	body, err := e.get(ctx, rebalancePath)
	if err != nil {
		return err
	}
	if body == nil {
		e.rebalance = time.Time{}
		return nil
	}
	var advice struct {
		NoticeTime time.Time `json:"noticeTime"`
	}
	if err := json.Unmarshal(body, &advice); err != nil || advice.NoticeTime.IsZero() {
		return fmt.Errorf("%w: %.200q: allowed is a noticeTime", ErrMalformed, body)
	}
	e.rebalance = advice.NoticeTime.UTC()
	return nil
}

// errUnauthorized reports a token that the service does not accept.
var errUnauthorized = errors.New("the metadata service refuses the token")

// get returns the content of a path; nil: the service has none. A refused token is replaced once: the
// service forgets tokens when the instance is moved or restarted.
func (e *EC2) get(ctx context.Context, path string) ([]byte, error) {
	for try := 0; ; try++ {
		if err := e.ensureToken(ctx); err != nil {
			return nil, err
		}
		body, _, err := e.call(ctx, http.MethodGet, path, tokenHeader, e.token)
		if errors.Is(err, errUnauthorized) {
			e.token = ""
			if try == 0 {
				continue
			}
		}
		return body, err
	}
}

// tokens is the allowed form of a token. Other bytes would break the header.
var tokens = regexp.MustCompile(`^[!-~]+$`)

// ensureToken replaces a token that is missing or expires soon.
func (e *EC2) ensureToken(ctx context.Context) error {
	if e.token != "" && time.Now().Before(e.renewAt) {
		return nil
	}
	asked := time.Now()
	seconds := strconv.Itoa(int(tokenTTL / time.Second))
	body, header, err := e.call(ctx, http.MethodPut, tokenPath, tokenTTLHeader, seconds)
	if err != nil {
		return err
	}
	token := string(body)
	if len(token) > longestToken || !tokens.MatchString(token) {
		return fmt.Errorf("%w: the token has %d bytes or characters other than printable ASCII", ErrMalformed,
			len(token))
	}
	ttl := tokenTTL
	if granted, err := strconv.Atoi(header.Get(tokenTTLHeader)); err == nil && granted > 0 {
		ttl = min(ttl, time.Duration(granted)*time.Second)
	}
	e.token, e.renewAt = token, asked.Add(ttl-ttl/renewalFraction)
	return nil
}

// call sends one request with one header. It returns nil for status 404, by which the service reports that it has
// no content.
func (e *EC2) call(ctx context.Context, method, path, header, value string) ([]byte, http.Header, error) {
	req, err := http.NewRequestWithContext(ctx, method, e.base+path, nil)
	if err != nil {
		return nil, nil, err
	}
	req.Header.Set(header, value)
	r, err := e.http.Do(req)
	if err != nil {
		return nil, nil, fmt.Errorf("metadata service: %w", err)
	}
	defer r.Body.Close()
	body, err := bounded(r.Body, path)
	switch {
	case r.StatusCode == http.StatusUnauthorized:
		return nil, nil, fmt.Errorf("%s %s: %w", method, path, errUnauthorized)
	case r.StatusCode == http.StatusNotFound && method == http.MethodGet:
		return nil, r.Header, nil
	case r.StatusCode != http.StatusOK:
		return nil, nil, fmt.Errorf("%s %s: the metadata service answers %s", method, path, strings.TrimSpace(r.Status))
	case err != nil:
		return nil, nil, fmt.Errorf("%s %s: %w", method, path, err)
	}
	return body, r.Header, nil
}
