// Package gstest runs a server that speaks the JSON API of Google Cloud Storage
// for tests: fake-gcs-server, over memory. It requires no login; a front that does
// stands before it.
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
}

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{t: t, Bucket: "bucket", Account: NewAccount(t)}
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
	next := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.Account.Admits(r) {
			next.ServeHTTP(w, r)
			return
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w,
			`{"error": {"code": 401, "message": "canary", "errors": [{"reason": "required", "message": "canary"}]}}`)
	}))
	t.Cleanup(front.Close)
	s.URL = front.URL
	return s
}

// Put stores an object.
func (s *Server) Put(key, content string) {
	s.t.Helper()
	s.post("/upload/storage/v1/b/"+s.Bucket+"/o?uploadType=media&name="+url.QueryEscape(key),
		"application/octet-stream", content)
}

// PutGzip stores an object with the content encoding gzip.
func (s *Server) PutGzip(key, content string) {
	s.t.Helper()
	about, err := json.Marshal(map[string]string{"name": key, "contentEncoding": "gzip"})
	if err != nil {
		s.t.Fatal(err)
	}
	parts := "--part\r\nContent-Type: application/json\r\n\r\n" + string(about) +
		"\r\n--part\r\nContent-Type: application/octet-stream\r\n\r\n" + content + "\r\n--part--\r\n"
	s.post("/upload/storage/v1/b/"+s.Bucket+"/o?uploadType=multipart", "multipart/related; boundary=part", parts)
}

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

// Input is an input from the server.
func (s *Server) Input(key, to, secret string) spec.Input {
	return spec.Input{From: "gs://" + s.Bucket + "/" + key, To: to, Endpoint: s.URL, Secret: secret}
}
