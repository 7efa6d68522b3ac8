package fetch_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"berth/internal/machine/fetch"
	"berth/internal/machine/fetch/s3test"
	"berth/spec"
)

// The claims share one server, which is a real one.
func TestObjects(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	keeps(t, place{server, server.Login, few(t)},
		claim{"a login may be written as a credentials file", func(t *testing.T, p place) {
			server.Put("lines/a", "a")
			lines := spec.Sensitive("[default]\naws_access_key_id = test-key\naws_secret_access_key=" + strings.TrimPrefix(string(server.Login), "test-key:") + "\n")
			if _, files, err := findAndRead(t, p.s, server.Input("lines/", "/data", "S3"), lines, 1); err != nil || files["a"] != "a" {
				t.Errorf("it is %q, %v", files, err)
			}
		}},
		claim{"who may not read is refused", func(t *testing.T, p place) {
			server.Put("refuse/a", "a")
			other := server.Input("refuse/", "/d", "S3")
			other.From = "s3://no-such-bucket/x/"
			refusals(t, p.s, map[string]refusal{
				"nobody's login":  {server.Input("refuse/", "/d", ""), "", "403 Forbidden (AccessDenied)"},
				"a wrong login":   {server.Input("refuse/", "/d", "S3"), "test-key:wrong-canary", "403 Forbidden (SignatureDoesNotMatch)"},
				"no login at all": {server.Input("refuse/", "/d", "S3"), "wrong-canary", "secret S3 is written neither KEY_ID:SECRET_KEY nor"},
				"no such bucket":  {other, server.Login, "404 Not Found (NoSuchBucket)"},
			})
		}})
}

// The list of a server is not trusted.
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
	s := fetch.Open(fetch.Options{Policy: near})
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
		{"is named like a folder but has content", []string{"p/a/"}},
		{"outside the prefix", []string{"q/a"}},
		{"has a part of 256 bytes", []string{"p/" + strings.Repeat("x", 256)}},
		{"folders deep", []string{"p/" + strings.Repeat("x/", 70) + "y"}},
		{"no objects found", nil},
		{"no objects found", []string{"p//"}},
	} {
		keys.Store(&row.keys)
		_, _, err := findAndRead(t, s, spec.Input{From: "s3://bucket/p/", To: "/d", Endpoint: server.URL}, "", 1)
		refused(t, fmt.Sprint(row.keys), err, row.says)
	}
}
