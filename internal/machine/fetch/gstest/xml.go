package gstest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// frontend adds the checks of Google's server that fake-gcs-server lacks: it checks signed addresses with their
// conditions, and the generations of compositions.
type frontend struct {
	account *Account
	behind  string
	next    http.Handler
	mu      sync.Mutex // makes conditions and their requests one step
	ignores []string   // headers whose conditions this server does not keep; "compose": the conditions of compositions
	forges  bool       // signatures are not checked
}

// Ignore makes the server take signed requests without the conditions of some headers, as one that only resembles
// Google's would.
func (s *Server) Ignore(headers ...string) {
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	s.front.ignores = headers
}

// Forge makes the server take any signature.
func (s *Server) Forge() {
	s.front.mu.Lock()
	defer s.front.mu.Unlock()
	s.front.forges = true
}

// ServeHTTP answers signed requests, and compositions by a token; other requests by a token are passed on.
func (f *frontend) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	switch {
	case r.URL.Query().Has("X-Goog-Signature"):
		f.signed(w, r)
	case !f.account.Admits(r):
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = io.WriteString(w,
			`{"error": {"code": 401, "message": "canary", "errors": [{"reason": "required", "message": "canary"}]}}`)
	case r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/compose"):
		f.compose(w, r)
	default:
		f.next.ServeHTTP(w, r)
	}
}

// refuse answers as the XML API does.
func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, "<?xml version='1.0' encoding='UTF-8'?>"+
		"<Error><Code>%s</Code><Message>canary</Message></Error>", code)
}

// signed answers a request by a signed address.
func (f *frontend) signed(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	forges := f.forges
	f.mu.Unlock()
	switch err := Verify(&f.account.key.PublicKey, Email, r, time.Now()); {
	case err == nil || forges:
	case errors.Is(err, ErrExpired):
		refuse(w, http.StatusBadRequest, "ExpiredToken")
		return
	default:
		refuse(w, http.StatusForbidden, "SignatureDoesNotMatch")
		return
	}
	bucket, key, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	switch r.Method {
	case http.MethodGet:
		f.relay(w, r, http.MethodGet, object(bucket, key)+"?alt=media", "", nil)
	case http.MethodPut:
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		f.put(w, r, bucket, key, body)
	default:
		refuse(w, http.StatusMethodNotAllowed, "MethodNotAllowed")
	}
}

// put stores an object under the conditions of its headers.
func (f *frontend) put(w http.ResponseWriter, r *http.Request, bucket, key string, body []byte) {
	f.mu.Lock()
	defer f.mu.Unlock()
	header := r.Header.Clone()
	for _, name := range f.ignores {
		header.Del(name)
	}
	if limits := header.Get("X-Goog-Content-Length-Range"); limits != "" {
		least, most, _ := strings.Cut(limits, ",")
		switch size := len(body); {
		case size < number(least):
			refuse(w, http.StatusBadRequest, "EntityTooSmall")
			return
		case size > number(most):
			refuse(w, http.StatusBadRequest, "EntityTooLarge")
			return
		}
	}
	sum := sha256.Sum256(body)
	if want := header.Get("X-Goog-Content-Sha256"); want != "" && want != hex.EncodeToString(sum[:]) {
		refuse(w, http.StatusBadRequest, "BadDigest")
		return
	}
	metadata := map[string]string{}
	for name := range header {
		if meta, ok := strings.CutPrefix(strings.ToLower(name), "x-goog-meta-"); ok {
			metadata[meta] = header.Get(name)
		}
	}
	about, _ := json.Marshal(map[string]any{"name": key, "metadata": metadata})
	to := "/upload/storage/v1/b/" + url.PathEscape(bucket) + "/o?uploadType=multipart"
	if match := header.Get("X-Goog-If-Generation-Match"); match != "" {
		to += "&ifGenerationMatch=" + url.QueryEscape(match)
	}
	parts := "--part\r\nContent-Type: application/json\r\n\r\n" + string(about) +
		"\r\n--part\r\nContent-Type: application/octet-stream\r\n\r\n" + string(body) + "\r\n--part--\r\n"
	f.relay(w, r, http.MethodPost, to, "multipart/related; boundary=part", strings.NewReader(parts))
}

// number returns the value of a decimal number, or -1.
func number(text string) int {
	n, err := strconv.Atoi(text)
	if err != nil {
		return -1
	}
	return n
}

// object is the path of an object in the JSON API.
func object(bucket, key string) string {
	return "/storage/v1/b/" + url.PathEscape(bucket) + "/o/" + url.PathEscape(key)
}

// ask sends a request to the server behind.
func (f *frontend) ask(r *http.Request, method, to, kind string, body io.Reader) (*http.Response, error) {
	req, err := http.NewRequestWithContext(r.Context(), method, f.behind+to, body)
	if err != nil {
		return nil, err
	}
	if kind != "" {
		req.Header.Set("Content-Type", kind)
	}
	return http.DefaultClient.Do(req)
}

// relay sends a request to the server behind, and answers with its content or as the XML API does.
func (f *frontend) relay(w http.ResponseWriter, r *http.Request, method, to, kind string, body io.Reader) {
	answer, err := f.ask(r, method, to, kind, body)
	if err != nil {
		refuse(w, http.StatusBadGateway, "InternalError")
		return
	}
	defer answer.Body.Close()
	switch {
	case answer.StatusCode == http.StatusNotFound:
		refuse(w, http.StatusNotFound, "NoSuchKey")
	case answer.StatusCode == http.StatusPreconditionFailed:
		refuse(w, http.StatusPreconditionFailed, "PreconditionFailed")
	case answer.StatusCode >= 300:
		refuse(w, answer.StatusCode, "InternalError")
	case method == http.MethodGet:
		w.Header().Set("Content-Length", answer.Header.Get("Content-Length"))
		_, _ = io.Copy(w, answer.Body)
	}
}

// compose checks the generations of a composition, which the server behind ignores, and passes it on.
func (f *frontend) compose(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return
	}
	var request struct {
		SourceObjects []struct {
			Name       string
			Generation int64 `json:",string"`
		}
	}
	if json.Unmarshal(body, &request) != nil || len(request.SourceObjects) == 0 {
		fault(w, http.StatusBadRequest)
		return
	}
	name := strings.TrimPrefix(strings.TrimSuffix(r.URL.Path, "/compose"), "/storage/v1/b/")
	bucket, to, _ := strings.Cut(name, "/o/")
	for _, source := range request.SourceObjects {
		if now := f.generation(r, bucket, source.Name); now == 0 || source.Generation != 0 && now != source.Generation {
			fault(w, http.StatusNotFound)
			return
		}
	}
	match := r.URL.Query().Get("ifGenerationMatch")
	if match != "" && !slices.Contains(f.ignores, "compose") &&
		strconv.FormatInt(f.generation(r, bucket, to), 10) != match {
		fault(w, http.StatusPreconditionFailed)
		return
	}
	r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
	f.next.ServeHTTP(w, r)
}

// fault answers as the JSON API does.
func fault(w http.ResponseWriter, status int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w, `{"error": {"code": %d, "message": "canary"}}`, status)
}

// generation returns the generation of an object, 0 for a missing one.
func (f *frontend) generation(r *http.Request, bucket, key string) int64 {
	answer, err := f.ask(r, http.MethodGet, object(bucket, key), "", nil)
	if err != nil {
		return 0
	}
	defer answer.Body.Close()
	var o struct {
		Generation int64 `json:",string"`
	}
	if answer.StatusCode != http.StatusOK || json.NewDecoder(answer.Body).Decode(&o) != nil {
		return 0
	}
	return o.Generation
}
