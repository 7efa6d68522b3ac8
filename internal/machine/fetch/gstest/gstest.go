// Package gstest runs a server that speaks the JSON API of Google Cloud Storage for tests:
// fake-gcs-server, over memory. That server requires no login, so Start puts a proxy in front
// of it that requires one.
package gstest

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os/exec"
	"strings"
	"testing"

	"berth/internal/machine/fetch/toolserver"
	"berth/spec"
)

// Server is a running server with one bucket.
type Server struct {
	URL     string
	Bucket  string
	Account *Account // whose tokens it takes
	t       testing.TB
	behind  string // the address without logins
	front   *frontend
}

// Start runs a server until the test ends. A proxy before it demands a token of s.Account, as
// Google's server would.
func Start(t testing.TB) *Server { return start(t, NewAccount(t)) }

// StartStore runs a server whose account may also write and sign, as the login of a store does.
func StartStore(t testing.TB) *Server {
	a := NewAccount(t)
	a.scope = "https://www.googleapis.com/auth/cloud-platform"
	return start(t, a)
}

// start runs a server with an account.
func start(t testing.TB, account *Account) *Server {
	t.Helper()
	s := &Server{t: t, Bucket: "bucket", Account: account}
	s.behind = "http://" + toolserver.Start(t, "fake-gcs-server", func(cmd *exec.Cmd, address string) {
		host, port, err := net.SplitHostPort(address)
		if err != nil {
			t.Fatal(err)
		}
		cmd.Args = append(cmd.Args, "-scheme", "http", "-host", host, "-port", port, "-backend",
			"memory", "-log-level", "error")
	})
	s.post("/storage/v1/b", "application/json", `{"name": "`+s.Bucket+`"}`)
	to, err := url.Parse(s.behind)
	if err != nil {
		t.Fatal(err)
	}
	// Rewrite alone sets the target: paths, queries and ranges pass unchanged.
	next := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	s.front = &frontend{account: s.Account, behind: s.behind, next: next}
	front := httptest.NewServer(s.front)
	t.Cleanup(front.Close)
	s.URL = front.URL
	return s
}

// Put stores an object. Another Put of the same key makes a new generation.
func (s *Server) Put(key, content string) {
	s.t.Helper()
	s.post("/upload/storage/v1/b/"+s.Bucket+"/o?uploadType=media&name="+url.QueryEscape(key),
		"application/octet-stream", content)
}

// PutGzip stores content, which must be compressed already, with the content encoding gzip.
func (s *Server) PutGzip(key, content string) {
	s.t.Helper()
	// A simple upload cannot set an encoding, therefore the object is sent with its metadata in
	// two parts.
	about, err := json.Marshal(map[string]string{"name": key, "contentEncoding": "gzip"})
	if err != nil {
		s.t.Fatal(err)
	}
	parts := "--part\r\nContent-Type: application/json\r\n\r\n" + string(about) +
		"\r\n--part\r\nContent-Type: application/octet-stream\r\n\r\n" + content + "\r\n--part--\r\n"
	s.post("/upload/storage/v1/b/"+s.Bucket+"/o?uploadType=multipart", "multipart/related; boundary=part", parts)
}

// post sends a request to the server behind the proxy, past the login.
func (s *Server) post(path, kind, body string) {
	s.t.Helper()
	r, err := http.Post(s.behind+path, kind, strings.NewReader(body)) //nolint:noctx // of a test
	if err != nil {
		s.t.Fatal(err)
	}
	defer r.Body.Close()
	if says, _ := io.ReadAll(r.Body); r.StatusCode != http.StatusOK {
		s.t.Fatalf("%s: %s: %s", path, r.Status, says)
	}
}

// Input returns an input from the server. A key that ends in / names all objects below it. secret
// is the name under which the job finds the account's Login, "" for a request without a login.
func (s *Server) Input(key, to, secret string) spec.Input {
	return spec.Input{From: "gs://" + s.Bucket + "/" + key, To: to, Endpoint: s.URL, Secret: secret}
}
