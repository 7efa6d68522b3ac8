// Package azuretest imitates the part of Azure Blob Storage that reads blobs, for tests, as its
// REST reference describes it: logins, versions, ranges and pages. The tests do not use a real
// server, since none can be built outside of Azure.
package azuretest

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/spec"
)

// Server is a running server with one account, a container that needs a login and a public one.
// A test can change its clock and its content at any time.
type Server struct {
	URL               string // with the account in its path
	Account           string
	Container, Public string
	Login             spec.Sensitive // the account's key

	key   []byte
	mu    sync.Mutex
	blobs map[string]blob // by container and name
	puts  int
	skew  time.Duration
}

// blob is one stored blob, or a folder of an account with a hierarchy of names.
type blob struct {
	content, etag string
	at            time.Time
	folder        bool
}

// page is the number of blobs in a page of a list. It is small, so that a test with a few blobs
// already reads several pages.
const page = 3

// Start runs a server until the test ends.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{
		Account: "account", Container: "container", Public: "public",
		key: []byte("canary-of-an-account-key-64-bytes-long-as-those-of-the-cloud-are"), blobs: map[string]blob{},
	}
	s.Login = spec.Sensitive(encoded(s.key))
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.URL = server.URL + "/" + s.Account
	return s
}

// Put stores a blob in both containers.
func (s *Server) Put(key, content string) {
	// The same key can so be read with a login and without one.
	s.put(s.Container+"/"+key, blob{content: content})
	s.put(s.Public+"/"+key, blob{content: content})
}

// PutFolder creates a folder as accounts with a hierarchy of names store one.
func (s *Server) PutFolder(key string) { s.put(s.Container+"/"+key, blob{folder: true}) }

// put stores a blob with a new ETag, so that the client sees each put as a new version.
func (s *Server) put(at string, b blob) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.puts++
	b.etag, b.at = fmt.Sprintf("0x8DC%012X", s.puts), time.Now()
	s.blobs[at] = b
}

// Skew sets the server's clock forward, by which signatures become too old and SAS tokens expire.
func (s *Server) Skew(by time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.skew = by
}

// Input returns an input from the container that needs a login. A key that ends in / names all
// blobs below it. secret is the name under which the job finds Login or a SAS token.
func (s *Server) Input(key, to, secret string) spec.Input {
	return spec.Input{From: "azblob://" + s.Account + "/" + s.Container + "/" + key, To: to, Endpoint: s.URL,
		Secret: secret}
}

// ServeHTTP answers one request. Only reads are supported: a path outside the account, or another
// method, is a bad request.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w.Header().Set("Date", s.now().UTC().Format(http.TimeFormat))
	// The path names the account, as it does for Azure's emulators: in the cloud the host does.
	at, ok := strings.CutPrefix(r.URL.Path, "/"+s.Account+"/")
	container, key, _ := strings.Cut(at, "/")
	list := key == "" && r.URL.Query().Get("comp") == "list" && r.URL.Query().Get("restype") == "container"
	status, code := s.refuses(r, container, list)
	switch {
	case !ok || r.Method != http.MethodGet && r.Method != http.MethodHead || key == "" && !list:
		refuse(w, http.StatusBadRequest, "InvalidUri")
	case status != 0:
		refuse(w, status, code)
	case container != s.Container && container != s.Public:
		refuse(w, http.StatusNotFound, "ContainerNotFound")
	case list:
		s.list(w, container, r.URL.Query())
	default:
		s.read(w, r, at)
	}
}

// now returns the time on the server's clock.
func (s *Server) now() time.Time { return time.Now().Add(s.skew) }

// refuse answers with an error in Azure's format. The message is a canary: tests look for it in
// logs and errors, where no text of a server may appear.
func refuse(w http.ResponseWriter, status int, code string) {
	w.Header().Set("X-Ms-Error-Code", code)
	w.Header().Set("Content-Type", "application/xml")
	w.WriteHeader(status)
	_, _ = fmt.Fprintf(w,
		`<?xml version="1.0" encoding="utf-8"?><Error><Code>%s</Code><Message>canary</Message></Error>`, code)
}

// list answers with one page of a list, from the query's marker on. s.mu is held.
func (s *Server) list(w http.ResponseWriter, container string, query url.Values) {
	// A marker is the first name of its page, which the server may choose freely.
	var names []string
	for at := range s.blobs {
		if name, in := strings.CutPrefix(at, container+"/"); in && strings.HasPrefix(name, query.Get("prefix")) &&
			name >= query.Get("marker") {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	var out bytes.Buffer
	text := func(s string) string {
		var b strings.Builder
		_ = xml.EscapeText(&b, []byte(s))
		return b.String()
	}
	fmt.Fprintf(&out, `<?xml version="1.0" encoding="utf-8"?>`+
		`<EnumerationResults ServiceEndpoint="%s" ContainerName="%s"><Blobs>`, s.URL, container)
	for _, name := range names[:min(page, len(names))] {
		b := s.blobs[container+"/"+name]
		fmt.Fprintf(&out, `<Blob><Name>%s</Name><Properties><Last-Modified>%s</Last-Modified><Etag>%s</Etag>`+
			`<Content-Length>%d</Content-Length><BlobType>BlockBlob</BlobType></Properties>`,
			text(name), b.at.UTC().Format(http.TimeFormat), b.etag, len(b.content))
		if b.folder && strings.Contains(query.Get("include"), "metadata") {
			out.WriteString(`<Metadata><hdi_isfolder>true</hdi_isfolder></Metadata>`)
		}
		out.WriteString(`</Blob>`)
	}
	next := ""
	if len(names) > page {
		next = names[page]
	}
	fmt.Fprintf(&out, `</Blobs><NextMarker>%s</NextMarker></EnumerationResults>`, text(next))
	w.Header().Set("Content-Type", "application/xml")
	_, _ = w.Write(out.Bytes())
}

// read answers with a blob's content, or for HEAD with its properties. It supports a range with
// an open end and an ETag as a condition, the two that fetch uses. s.mu is held.
func (s *Server) read(w http.ResponseWriter, r *http.Request, at string) {
	b, found := s.blobs[at]
	if !found {
		refuse(w, http.StatusNotFound, "BlobNotFound")
		return
	}
	if m := r.Header.Get("If-Match"); m != "" && m != `"`+b.etag+`"` {
		refuse(w, http.StatusPreconditionFailed, "ConditionNotMet")
		return
	}
	// The client's library sends ranges in a header of its own, not in Range.
	from, status := 0, http.StatusOK
	if part, ok := strings.CutPrefix(r.Header.Get("X-Ms-Range"), "bytes="); ok {
		var err error
		if from, err = strconv.Atoi(strings.TrimSuffix(part, "-")); err != nil || from >= len(b.content) {
			refuse(w, http.StatusRequestedRangeNotSatisfiable, "InvalidRange")
			return
		}
		status = http.StatusPartialContent
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, len(b.content)-1, len(b.content)))
	}
	h := w.Header()
	h.Set("ETag", `"`+b.etag+`"`)
	h.Set("Last-Modified", b.at.UTC().Format(http.TimeFormat))
	h.Set("Content-Length", strconv.Itoa(len(b.content)-from))
	h.Set("X-Ms-Blob-Type", "BlockBlob")
	if b.folder { // the client's only sign of a folder
		h.Set("X-Ms-Meta-Hdi_isfolder", "true")
	}
	w.WriteHeader(status)
	if r.Method == http.MethodGet {
		_, _ = io.WriteString(w, b.content[from:])
	}
}
