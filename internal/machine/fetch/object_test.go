package fetch_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"berth/internal/lib/archive"
	"berth/internal/machine/fetch"
	"berth/spec"
)

// store is a server for the tests that apply to all protocols.
type store interface {
	Put(key, content string)
	Input(key, to, secret string) spec.Input
}

// place is a store, with a login and the sources that read it.
type place struct {
	store
	login spec.Sensitive
	s     *fetch.Sources
}

// few are sources that allow little.
func few(t *testing.T) *fetch.Sources {
	t.Helper()
	s := fetch.Open(fetch.Options{Policy: near, Limits: archive.Limits{Bytes: 1 << 20, Files: 10}})
	t.Cleanup(s.Close)
	return s
}

// claim is one claim of a protocol's test.
type claim struct {
	says string
	test func(*testing.T, place)
}

// keeps tests the claims about all protocols, and further claims of a test.
func keeps(t *testing.T, p place, more ...claim) {
	t.Helper()
	p.Put("top/a", "a")
	if _, files, err := findAndRead(t, p.s, p.Input("", "/data", "LOGIN"), p.login, 1); err != nil || files["top/a"] != "a" {
		t.Errorf("the whole bucket is %q, %v", files, err)
	}
	for _, c := range append([]claim{
		{"all below a prefix is read, and has an address of its own while it is the same", readsAPrefix},
		{"one object is a file", readsOneObject},
		{"limits are the user's to keep", keepsLimits},
		{"a line that breaks goes on where it broke, and a server that is away is waited for", goesOn},
		{"what changes or is gone while it is read is no input", noticesChanges},
		{"a list that brings nothing, or more than a page can be, is given up", givesUpLists},
	}, more...) {
		t.Run(c.says, func(t *testing.T) {
			t.Parallel()
			c.test(t, p)
		})
	}
}

func readsAPrefix(t *testing.T, p place) {
	for key, content := range map[string]string{"set/a.txt": "a", "set/deep/er/b ü?#%2e.txt": "b", "set/empty.txt": "", "set/marker/": "", "settle": "no"} {
		p.Put(key, content)
	}
	found, files, err := findAndRead(t, p.s, p.Input("set/", "/data", "LOGIN"), p.login, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a.txt": "a", "deep/": "", "deep/er/": "", "deep/er/b ü?#%2e.txt": "b", "empty.txt": "", "marker/": ""}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	same, err := p.s.Find(t.Context(), p.Input("set/", "/data", "LOGIN"), p.login)
	if err != nil || same.Address != found.Address || same.Kind != found.Kind {
		t.Errorf("found again it is %+v, %v", same, err)
	}
	p.Put("set/a.txt", "A")
	other, err := p.s.Find(t.Context(), p.Input("set/", "/data", "LOGIN"), p.login)
	if err != nil || other.Address == found.Address {
		t.Errorf("changed it is %+v, %v", other, err)
	}
}

func readsOneObject(t *testing.T, p place) {
	p.Put("one/model.bin", "weights")
	found, files, err := findAndRead(t, p.s, p.Input("one/model.bin", "/m", "LOGIN"), p.login, 1)
	if err != nil || files[fetch.FileName] != "weights" || len(files) != 1 {
		t.Errorf("it is %q, %v", files, err)
	}
	again, err := p.s.Find(t.Context(), p.Input("one/model.bin", "/m", "LOGIN"), p.login)
	if err != nil || again.Address != found.Address || again.Once {
		t.Errorf("found again it is %+v, %v", again, err)
	}
}

func keepsLimits(t *testing.T, p place) {
	p.Put("limits/big", strings.Repeat("x", 1<<20+1))
	for i := range 11 {
		p.Put("many/"+strconv.Itoa(i), "x")
	}
	refusals(t, p.s, map[string]refusal{
		"no such object":   {p.Input("limits/none", "/d", "LOGIN"), p.login, "end the address with / to fetch all objects below a prefix"},
		"nothing there":    {p.Input("limits/none/", "/d", "LOGIN"), p.login, "limits/none/: no objects found"},
		"too much":         {p.Input("limits/", "/d", "LOGIN"), p.login, "has at least 1 objects of 1.0 MiB; the limits of this machine are 10 objects and 1.0 MiB"},
		"a file too large": {p.Input("limits/big", "/d", "LOGIN"), p.login, "the limits of this machine are 10 objects and 1.0 MiB"},
		"too many":         {p.Input("many/", "/d", "LOGIN"), p.login, "has at least 11 objects"},
	})
}

// refusal is an input that is refused, with the error's text.
type refusal struct {
	in    spec.Input
	login spec.Sensitive
	says  string
}

// refusals fails unless each is the user's fault and reveals nothing of a login.
func refusals(t *testing.T, s *fetch.Sources, all map[string]refusal) {
	t.Helper()
	for what, row := range all {
		_, _, err := findAndRead(t, s, row.in, row.login, 1)
		refused(t, what, err, row.says)
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the login is told: %v", what, err)
		}
	}
}

// through returns an input behind a proxy that changes requests and answers.
func through(t *testing.T, in spec.Input, spoil func(r *http.Request, w http.ResponseWriter, next http.Handler)) spec.Input {
	t.Helper()
	to, err := url.Parse(in.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	path := to.Path // which a request has already
	to.Path = ""
	next := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host }}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { spoil(r, w, next) }))
	t.Cleanup(proxy.Close)
	in.Endpoint = proxy.URL + path
	return in
}

// wantsContent reports whether a request asks for the content of an object.
func wantsContent(r *http.Request) bool {
	q := r.URL.Query()
	return r.Method == http.MethodGet && !q.Has("list-type") && !q.Has("comp") && (!strings.HasPrefix(r.URL.Path, "/storage/v1/") || q.Get("alt") == "media")
}

// cut is an answer of which only so much comes.
type cut struct {
	http.ResponseWriter
	left int
}

func (c *cut) Write(p []byte) (int, error) {
	n, _ := c.ResponseWriter.Write(p[:min(len(p), c.left)])
	if c.left -= n; c.left == 0 {
		c.ResponseWriter.(http.Flusher).Flush() //nolint:forcetypeassert // of a test
		panic(http.ErrAbortHandler)
	}
	return n, nil
}

func goesOn(t *testing.T, p place) {
	content := strings.Repeat("0123456789", 1000)
	p.Put("cut/a", content)
	var sent, away atomic.Int64
	in := through(t, p.Input("cut/", "/d", "LOGIN"), func(r *http.Request, w http.ResponseWriter, next http.Handler) {
		switch {
		case away.Add(1) < 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		case wantsContent(r):
			from, _ := strconv.Atoi(strings.Trim(r.Header.Get("Range")+r.Header.Get("X-Ms-Range"), "bytes=-"))
			if from != int(sent.Load()) {
				t.Errorf("it goes on from %d, and %d were sent", from, sent.Load())
			}
			sent.Add(4000)
			next.ServeHTTP(&cut{w, 4000}, r)
		default:
			next.ServeHTTP(w, r)
		}
	})
	_, files, err := findAndRead(t, p.s, in, p.login, 4)
	if err != nil || files["a"] != content {
		t.Errorf("%d bytes came, %v", len(files["a"]), err)
	}
	away.Store(0)
	_, _, err = findAndRead(t, p.s, in, p.login, 2)
	passing(t, "away for longer", err, "503 Service Unavailable")
}

func noticesChanges(t *testing.T, p place) {
	changed := func(what string, err error) {
		t.Helper()
		if !errors.As(err, new(fetch.Changed)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, change := range map[string]func(key string){
		"another content": func(key string) { p.Put(key, "BBBB") },
		"another length":  func(key string) { p.Put(key, "more than before") },
	} {
		key := "change/" + strings.ReplaceAll(what, " ", "-")
		p.Put(key, "aaaa")
		found, err := p.s.Find(t.Context(), p.Input(key, "/d", "LOGIN"), p.login)
		if err != nil {
			t.Fatal(err)
		}
		change(key)
		_, err = read(t, found, 3)
		changed(what, err)
	}
	p.Put("change/ignored", "aaaa")
	for what, instead := range map[string]func(w http.ResponseWriter){
		"a server that knows no conditions": func(w http.ResponseWriter) {
			w.Header().Set("ETag", `"another"`)
			w.Header().Set("X-Goog-Generation", "1")
			_, _ = io.WriteString(w, "BBBB")
		},
		"gone": func(w http.ResponseWriter) { w.WriteHeader(http.StatusNotFound) },
	} {
		in := through(t, p.Input("change/ignored", "/d", "LOGIN"), func(r *http.Request, w http.ResponseWriter, next http.Handler) {
			if wantsContent(r) {
				instead(w)
				return
			}
			next.ServeHTTP(w, r)
		})
		_, _, err := findAndRead(t, p.s, in, p.login, 3)
		changed(what, err)
	}
}

// lists answers a request for a list, in the words of all protocols: a page
// without anything on it, after which comes another one or none.
func lists(w io.Writer, r *http.Request, more string) {
	switch q := r.URL.Query(); {
	case strings.HasPrefix(r.URL.Path, "/storage/v1/"):
		_, _ = fmt.Fprintf(w, `{"nextPageToken": %q}`, more)
	case q.Get("comp") == "list":
		_, _ = fmt.Fprintf(w, `<EnumerationResults><Blobs/><NextMarker>%s</NextMarker></EnumerationResults>`, more)
	default:
		_, _ = fmt.Fprintf(w, `<ListBucketResult><IsTruncated>%t</IsTruncated><NextContinuationToken>%s</NextContinuationToken></ListBucketResult>`, more != "", more)
	}
}

func givesUpLists(t *testing.T, p place) {
	var pages atomic.Int64
	endless := through(t, p.Input("endless/", "/d", "LOGIN"), func(r *http.Request, w http.ResponseWriter, _ http.Handler) {
		if pages.Add(1) > 2000 {
			lists(w, r, "")
			return
		}
		lists(w, r, "more")
	})
	_, _, err := findAndRead(t, p.s, endless, p.login, 1)
	passing(t, "pages without end", err, "endless/: 1000 pages of the list in a row have nothing on them")
	if n := pages.Load(); n != 1000 {
		t.Errorf("%d pages were read", n)
	}
	blank := []byte(strings.Repeat(" ", 1<<20))
	long := through(t, p.Input("long/", "/d", "LOGIN"), func(r *http.Request, w http.ResponseWriter, _ http.Handler) {
		for range 20 {
			_, _ = w.Write(blank)
		}
		lists(w, r, "")
	})
	_, _, err = findAndRead(t, p.s, long, p.login, 1)
	passing(t, "a page of 20 MiB", err, "long/: ")
}
