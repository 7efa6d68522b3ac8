package day

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
)

// recorder is a proxy before the API that keeps the calls of the last command.
type recorder struct {
	url string

	mu    sync.Mutex
	calls []*call
}

// call is a request and its answer.
type call struct {
	method, uri, kind string
	status            int
	ended             time.Time
	body              bytes.Buffer
}

func startRecorder(b *testing.B, target string) *recorder {
	b.Helper()
	to, err := url.Parse(target)
	if err != nil {
		b.Fatal(err)
	}
	r := &recorder{}
	proxy := &httputil.ReverseProxy{
		Transport:     &http.Transport{},
		FlushInterval: -1, // logs are followed
		Rewrite: func(req *httputil.ProxyRequest) {
			req.SetURL(to)
			req.Out.Header.Del("Accept-Encoding") // the transport unpacks, and the recording is plain text
		},
	}
	proxy.ModifyResponse = func(res *http.Response) error {
		c := &call{method: res.Request.Method, uri: res.Request.URL.RequestURI(), status: res.StatusCode,
			kind: res.Header.Get("Content-Type")}
		r.mu.Lock()
		r.calls = append(r.calls, c)
		r.mu.Unlock()
		res.Body = &recordedBody{ReadCloser: res.Body, recorder: r, call: c}
		return nil
	}
	server := httptest.NewServer(proxy)
	b.Cleanup(server.Close)
	r.url = server.URL
	return r
}

// recordedBody copies an answer into its call, as it is read.
type recordedBody struct {
	io.ReadCloser
	recorder *recorder
	call     *call
}

func (t *recordedBody) Read(p []byte) (int, error) {
	n, err := t.ReadCloser.Read(p)
	t.recorder.mu.Lock()
	defer t.recorder.mu.Unlock()
	t.call.body.Write(p[:n])
	t.call.ended = time.Now()
	return n, err
}

// reset forgets the calls so far.
func (r *recorder) reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = nil
}

// noon is the time that a recording gives its last answer.
var noon = time.Date(2026, 1, 31, 12, 0, 0, 0, time.UTC)

// write stores the calls since reset as a script of the test of the guide's screens: the command, the
// answers in the order of their calls, and the files that the command reads. It leaves the screen to the test.
func (r *recorder) write(folder string, s step) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	archive := &txtar.Archive{}
	var routes strings.Builder
	last := time.Time{}
	for i, c := range thinned(r.calls) {
		if c.ended.After(last) {
			last = c.ended
		}
		file := fmt.Sprintf("%d%s", i+1, extension(c.kind))
		if c.body.Len() == 0 {
			file = "-"
		} else {
			body := strings.TrimRight(c.body.String(), "\n") + "\n"
			if strings.HasSuffix(file, ".sse") {
				body += "\n" // an event ends with an empty line
			}
			archive.Files = append(archive.Files, txtar.File{Name: file, Data: []byte(body)})
		}
		fmt.Fprintf(&routes, "%s %s %d %s\n", c.method, c.uri, c.status, file)
	}
	archive.Files = slices.Insert(archive.Files, 0, txtar.File{Name: "routes", Data: []byte(routes.String())})
	comment := "Recorded by make day RECORD=1, with other ids and times.\n" + prompt + " " + s.typed + "\n"
	if s.stop != "" {
		comment += "interrupted at: " + s.stop + "\n"
	}
	archive.Comment = []byte(comment)
	text := regular(string(txtar.Format(archive)), last)
	return os.WriteFile(filepath.Join(folder, s.keep+".txtar"), []byte(text), 0o644)
}

// thinned leaves out all but the first and the last call of each kind. A command that waits asks for the same many
// times, and the test would wait as often.
func thinned(calls []*call) []*call {
	of := map[string][]int{}
	for i, c := range calls {
		of[c.method+c.uri] = append(of[c.method+c.uri], i)
	}
	var kept []*call
	for i, c := range calls {
		if same := of[c.method+c.uri]; i == same[0] || i == same[len(same)-1] {
			kept = append(kept, c)
		}
	}
	return kept
}

// extension returns the ending by which the test's server knows the type of an answer.
func extension(kind string) string {
	switch kind, _, _ = strings.Cut(kind, ";"); kind {
	case "application/problem+json":
		return ".problem"
	case "text/event-stream":
		return ".sse"
	case "application/x-ndjson":
		return ".ndjson"
	default:
		return ".json"
	}
}

var (
	uuids  = regexp.MustCompile(`\b[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[0-9a-f]{4}-[0-9a-f]{12}\b`)
	clocks = regexp.MustCompile(`\bat \d\d:\d\d:\d\dZ`) // in texts, of today or tomorrow
	stamps = regexp.MustCompile(`\b\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z`)
	hosts  = regexp.MustCompile(`http://127\.0\.0\.1:\d+`)
)

// regular replaces ids by others in the same order, with their handles, and moves times so that now
// becomes noon. A day that is recorded again then changes little.
func regular(text string, now time.Time) string {
	ids := map[string]string{}
	for _, id := range uuids.FindAllString(text, -1) {
		ids[id] = ""
	}
	for i, id := range slices.Sorted(maps.Keys(ids)) {
		sum := sha256.Sum256(fmt.Appendf(nil, "id %d of a screen", i))
		ids[id] = fmt.Sprintf("0193a1b2-c3d4-7000-80%02x-%s", i, hex.EncodeToString(sum[:6]))
	}
	text = uuids.ReplaceAllStringFunc(text, func(id string) string { return ids[id] })
	for id, to := range ids {
		// A handle is the shortest unique end of an id, of six characters or more.
		for n := 6; n <= 12; n++ {
			handle := regexp.MustCompile(`\b` + id[len(id)-n:] + `\b`)
			text = handle.ReplaceAllString(text, to[len(to)-n:])
		}
	}
	text = stamps.ReplaceAllStringFunc(text, func(s string) string {
		at, err := time.Parse(time.RFC3339Nano, s)
		if err != nil {
			return s
		}
		return noon.Add(at.Sub(now)).UTC().Truncate(time.Millisecond).Format(time.RFC3339Nano)
	})
	text = clocks.ReplaceAllStringFunc(text, func(s string) string {
		at, err := time.Parse("at 15:04:05Z", s)
		if err != nil {
			return s
		}
		day := now.UTC().Truncate(24 * time.Hour)
		since := day.Add(at.Sub(at.Truncate(24 * time.Hour))).Sub(now)
		return noon.Add(since).Format("at 15:04:05Z")
	})
	return hosts.ReplaceAllString(text, "http://127.0.0.1:7070")
}

// A recording does not depend on the ids and the times of its day.
func TestRecordingsAreRegular(t *testing.T) {
	t.Parallel()
	at := func(id, handle, now string) string {
		n, err := time.Parse(time.RFC3339, now)
		if err != nil {
			t.Fatal(err)
		}
		return regular(`{"id": "`+id+`", "handle": "`+handle+`", "at": "`+n.Add(-5*time.Second).Format(time.RFC3339)+
			`", "text": "retrying at `+n.Add(time.Hour).Format(time.TimeOnly)+`Z", "url": "http://127.0.0.1:41234/x"}`, n)
	}
	first := at("0199a000-1111-7000-8000-123456789abc", "789abc", "2026-11-24T10:00:00Z")
	second := at("0199b000-2222-7000-9000-cba987654321", "654321", "2027-01-02T23:59:59Z")
	if first != second || !strings.Contains(first, `"at": "2026-01-31T11:59:55Z"`) || strings.Contains(first, "789abc") ||
		!strings.Contains(first, "retrying at 13:00:00Z") {
		t.Errorf("recordings of two days differ:\n%s\n%s", first, second)
	}
}
