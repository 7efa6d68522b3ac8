package source_test

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

	"berth"
	"berth/internal/archive"
	"berth/internal/source"
	"berth/internal/source/s3test"
)

// The claims share one server, which is a real one.
func TestObjects(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	s := source.Open(source.Options{Policy: near, Limits: archive.Limits{Bytes: 1 << 20, Files: 10}})
	t.Cleanup(s.Close)
	server.Put("top/a", "a")
	if _, files, err := fetch(t, s, server.Input("", "/data", "S3"), server.Login, 1); err != nil || files["top/a"] != "a" {
		t.Errorf("the whole bucket is %q, %v", files, err)
	}
	for _, claim := range []struct {
		says string
		test func(*testing.T, *s3test.Server, *source.Sources)
	}{
		{"all below a prefix is read, and has an address of its own while it is the same", readsAPrefix},
		{"one object is a file", readsOneObject},
		{"a refusal is the user's", tellsRefusals},
		{"a line that breaks goes on where it broke, and a server that is away is waited for", goesOn},
		{"what changes or is gone while it is read is no input", noticesChanges},
	} {
		t.Run(claim.says, func(t *testing.T) {
			t.Parallel()
			claim.test(t, server, s)
		})
	}
}

func readsAPrefix(t *testing.T, server *s3test.Server, s *source.Sources) {
	for key, content := range map[string]string{"set/a.txt": "a", "set/deep/er/b ü?#%2e.txt": "b", "set/empty.txt": "", "set/marker/": "", "settle": "no"} {
		server.Put(key, content)
	}
	found, files, err := fetch(t, s, server.Input("set/", "/data", "S3"), server.Login, 1)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"a.txt": "a", "deep/": "", "deep/er/": "", "deep/er/b ü?#%2e.txt": "b", "empty.txt": "", "marker/": ""}
	if diff := cmp.Diff(want, files); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	lines := berth.Sensitive("[default]\naws_access_key_id = test-key\naws_secret_access_key=" + strings.TrimPrefix(string(server.Login), "test-key:") + "\n")
	same, err := s.Find(t.Context(), server.Input("set/", "/data", "S3"), lines)
	if err != nil || same.Address != found.Address {
		t.Errorf("found again it is %+v, %v", same, err)
	}
	server.Put("set/a.txt", "A")
	other, err := s.Find(t.Context(), server.Input("set/", "/data", "S3"), server.Login)
	if err != nil || other.Address == found.Address {
		t.Errorf("changed it is %+v, %v", other, err)
	}
}

func readsOneObject(t *testing.T, server *s3test.Server, s *source.Sources) {
	server.Put("one/model.bin", "weights")
	found, files, err := fetch(t, s, server.Input("one/model.bin", "/m", "S3"), server.Login, 1)
	if err != nil || files[source.FileName] != "weights" || len(files) != 1 {
		t.Errorf("it is %q, %v", files, err)
	}
	again, err := s.Find(t.Context(), server.Input("one/model.bin", "/m", "S3"), server.Login)
	if err != nil || again.Address != found.Address || again.Once {
		t.Errorf("found again it is %+v, %v", again, err)
	}
}

func tellsRefusals(t *testing.T, server *s3test.Server, s *source.Sources) {
	server.Put("refuse/big", strings.Repeat("x", 1<<20+1))
	for i := range 11 {
		server.Put(fmt.Sprintf("many/%d", i), "x")
	}
	other := server.Input("refuse/", "/d", "S3")
	other.From = "s3://no-such-bucket/x/"
	for what, row := range map[string]struct {
		in    berth.Input
		login berth.Sensitive
		says  string
	}{
		"nobody's login":   {server.Input("refuse/", "/d", ""), "", "403 Forbidden (AccessDenied)"},
		"a wrong login":    {server.Input("refuse/", "/d", "S3"), "test-key:wrong-canary", "403 Forbidden (SignatureDoesNotMatch)"},
		"no login at all":  {server.Input("refuse/", "/d", "S3"), "wrong-canary", "secret S3 is written neither KEY_ID:SECRET_KEY nor"},
		"no such bucket":   {other, server.Login, "404 Not Found (NoSuchBucket)"},
		"no such object":   {server.Input("refuse/none", "/d", "S3"), server.Login, "for all objects below a prefix, write a / at its end"},
		"nothing there":    {server.Input("refuse/none/", "/d", "S3"), server.Login, "s3://bucket/refuse/none/: nothing lies there"},
		"too much":         {server.Input("refuse/", "/d", "S3"), server.Login, "has at least 1 objects of 1.0 MiB: at most 10 of 1.0 MiB"},
		"a file too large": {server.Input("refuse/big", "/d", "S3"), server.Login, "at most 10 of 1.0 MiB"},
		"too many":         {server.Input("many/", "/d", "S3"), server.Login, "has at least 11 objects"},
	} {
		_, _, err := fetch(t, s, row.in, row.login, 1)
		refused(t, what, err, row.says)
		if err != nil && strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: the login is told: %v", what, err)
		}
	}
}

// through returns an input that comes by a proxy, which spoils what is sent.
func through(t *testing.T, server *s3test.Server, key string, spoil func(r *http.Request, w http.ResponseWriter, next http.Handler)) berth.Input {
	t.Helper()
	to, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	next := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to); r.Out.Host = r.In.Host }}
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { spoil(r, w, next) }))
	t.Cleanup(proxy.Close)
	in := server.Input(key, "/d", "S3")
	in.Endpoint = proxy.URL
	return in
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

func goesOn(t *testing.T, server *s3test.Server, s *source.Sources) {
	content := strings.Repeat("0123456789", 1000)
	server.Put("cut/a", content)
	var sent, away atomic.Int64
	in := through(t, server, "cut/", func(r *http.Request, w http.ResponseWriter, next http.Handler) {
		switch {
		case away.Add(1) < 3:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Query().Has("list-type"):
			next.ServeHTTP(w, r)
		default:
			from, _ := strconv.Atoi(strings.Trim(r.Header.Get("Range"), "bytes=-"))
			if from > 0 && from != int(sent.Load()) {
				t.Errorf("it goes on from %d, and %d were sent", from, sent.Load())
			}
			sent.Add(4000)
			next.ServeHTTP(&cut{w, 4000}, r)
		}
	})
	_, files, err := fetch(t, s, in, server.Login, 4)
	if err != nil || files["a"] != content {
		t.Errorf("%d bytes came, %v", len(files["a"]), err)
	}
	away.Store(0)
	_, _, err = fetch(t, s, in, server.Login, 2)
	passing(t, "away for longer", err, "503 Service Unavailable")
}

func noticesChanges(t *testing.T, server *s3test.Server, s *source.Sources) {
	for what, change := range map[string]func(key string){
		"another content": func(key string) { server.Put(key, "BBBB") },
		"another length":  func(key string) { server.Put(key, "more than before") },
	} {
		key := "change/" + strings.ReplaceAll(what, " ", "-")
		server.Put(key, "aaaa")
		found, err := s.Find(t.Context(), server.Input(key, "/d", "S3"), server.Login)
		if err != nil {
			t.Fatal(err)
		}
		change(key)
		if _, err := read(t, found, 3); !errors.As(err, new(source.Changed)) {
			t.Errorf("%s: %v", what, err)
		}
	}
	// A server that knows no conditions.
	server.Put("change/ignored", "aaaa")
	in := through(t, server, "change/ignored", func(r *http.Request, w http.ResponseWriter, next http.Handler) {
		if r.Method == http.MethodGet {
			w.Header().Set("ETag", `"another"`)
			_, _ = io.WriteString(w, "BBBB")
			return
		}
		next.ServeHTTP(w, r)
	})
	if _, _, err := fetch(t, s, in, server.Login, 3); !errors.As(err, new(source.Changed)) {
		t.Errorf("a server that ignores If-Match: %v", err)
	}
}

// What a server lists is a stranger's.
func TestHostileKeysAreRefused(t *testing.T) {
	t.Parallel()
	var keys atomic.Pointer[[]string]
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("list-type") {
			t.Errorf("%s is asked for", r.URL)
		}
		var list strings.Builder
		for _, key := range *keys.Load() {
			size := 1
			if strings.HasSuffix(key, "//") {
				key, size = strings.TrimSuffix(key, "/"), 0
			}
			fmt.Fprintf(&list, `<Contents><Key>%s</Key><Size>%d</Size><ETag>"e"</ETag></Contents>`, key, size)
		}
		w.Header().Set("Content-Type", "application/xml")
		_, _ = io.WriteString(w, `<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>`+list.String()+`</ListBucketResult>`)
	}))
	t.Cleanup(server.Close)
	s := source.Open(source.Options{Policy: near})
	t.Cleanup(s.Close)
	for _, row := range []struct {
		says string
		keys []string
	}{
		{"leads out of the folder", []string{"p/../../etc/passwd"}},
		{"leads out of the folder", []string{"p/a/../../b"}},
		{"is an absolute path", []string{"p//etc/passwd"}},
		{"is not written in its simplest form", []string{"p/a//b"}},
		{"is not written in its simplest form", []string{"p/./a"}},
		{"lies below the file", []string{"p/a", "p/a/b"}},
		{"is there twice", []string{"p/a/b", "p/a"}},
		{"is there twice", []string{"p/a", "p/a"}},
		{"is there twice", []string{"p/a", "p/a//"}},
		{"has content, and the name of a folder", []string{"p/a/"}},
		{"lies elsewhere", []string{"q/a"}},
		{"has a part of 256 bytes", []string{"p/" + strings.Repeat("x", 256)}},
		{"folders deep", []string{"p/" + strings.Repeat("x/", 70) + "y"}},
		{"nothing lies there", nil},
		{"nothing lies there", []string{"p//"}},
	} {
		keys.Store(&row.keys)
		_, _, err := fetch(t, s, berth.Input{From: "s3://bucket/p/", To: "/d", Endpoint: server.URL}, "", 1)
		refused(t, fmt.Sprint(row.keys), err, row.says)
	}
}
