package rig

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"time"
)

// Caller makes single calls of the API and repeats none, unlike package client,
// so that refusals and latencies are seen as they are.
type Caller struct {
	base, token string
	http        *http.Client
}

// NewCaller returns a caller of the server at base with a token. from is the
// loopback address that it calls from, such as 127.0.0.2; empty: the kernel's
// choice.
func NewCaller(base, token, from string) *Caller {
	d := net.Dialer{Timeout: callLimit}
	if from != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(from)}
	}
	return &Caller{base: base, token: token, http: &http.Client{
		Timeout:   callLimit,
		Transport: &http.Transport{DialContext: d.DialContext, MaxIdleConnsPerHost: CallsUnderWay},
	}}
}

// CallsUnderWay is the most calls that a generator has open at once, and so the most idle connections that a caller
// keeps: a connection that is closed after its call costs both sides a new one.
const CallsUnderWay = 2000

// callLimit bounds one call.
const callLimit = 2 * time.Minute

// Answer is the outcome of a call.
type Answer struct {
	Status int // 0: no answer came
	Body   []byte
	Took   time.Duration
	Err    error
}

// Good reports whether the call succeeded.
func (a Answer) Good() bool { return a.Status >= 200 && a.Status < 300 }

// Call makes one call.
func (c *Caller) Call(ctx context.Context, method, path string, header http.Header, body []byte) Answer {
	began := time.Now()
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return Answer{Err: err}
	}
	for k, v := range header {
		req.Header[k] = v
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	if len(body) > 0 && req.Header.Get("Content-Type") == "" {
		req.Header.Set("Content-Type", "application/json")
	}
	res, err := c.http.Do(req)
	if err != nil {
		return Answer{Took: time.Since(began), Err: err}
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	return Answer{Status: res.StatusCode, Body: text, Took: time.Since(began), Err: err}
}

// Close closes idle connections; the next call opens a new one.
func (c *Caller) Close() { c.http.CloseIdleConnections() }
