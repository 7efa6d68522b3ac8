package blob_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"
	"time"

	v4 "github.com/aws/aws-sdk-go-v2/aws/signer/v4"
	"gocloud.dev/blob/s3blob"

	"berth"
	"berth/internal/control/blob"
	"berth/internal/machine/fetch/s3test"
)

func TestASignedAddressCreatesOneObjectOnce(t *testing.T) {
	buckets(t, func(t *testing.T, p protocol, s *blob.Store) {
		const body = "the content of a checkpoint"
		put := func(key string) blob.SignedAddress {
			a, err := s.SignPut(t.Context(), key, int64(len(body)), sha256.Sum256([]byte(body)), blob.AddressLife)
			if err != nil {
				t.Fatal(err)
			}
			return a
		}
		other := strings.Repeat("x", len(body))
		for name, c := range map[string]struct {
			method, body string
			edit         func(*http.Request)
		}{
			"another key":       {"PUT", body, moved("/refused", "/stolen")},
			"another bucket":    {"PUT", body, moved("/bucket/", "/other/")},
			"to read":           {"GET", "", nil},
			"to delete":         {"DELETE", "", nil},
			"a shorter body":    {"PUT", body[1:], nil},
			"a longer body":     {"PUT", body + "x", nil},
			"another body":      {"PUT", other, nil},
			"another checksum":  {"PUT", other, func(r *http.Request) { r.Header.Set(p.sum, p.encode(sumOf(other))) }},
			"no checksum":       {"PUT", body, func(r *http.Request) { r.Header.Del(p.sum) }},
			"no condition":      {"PUT", body, func(r *http.Request) { r.Header.Del(p.condition) }},
			"another condition": {"PUT", body, func(r *http.Request) { r.Header.Set(p.condition, p.otherCondition) }},
			"a longer life": {"PUT", body, func(r *http.Request) {
				r.URL.RawQuery = strings.Replace(r.URL.RawQuery, p.expires+"=300", p.expires+"=3000", 1)
			}},
			"another recorded sum": {"PUT", body, func(r *http.Request) {
				r.Header.Set(p.recorded, p.encode(sumOf(other)))
			}},
		} {
			status, text := sends(t, c.method, put("a/refused"), c.body, c.edit)
			if status < 400 || status >= 500 {
				t.Errorf("%s: %d %s", name, status, text)
			}
			for _, key := range []string{"a/refused", "a/stolen"} {
				if ok, err := s.Exists(t.Context(), key); ok || err != nil {
					t.Fatalf("%s: %s exists: %v, %v", name, key, ok, err)
				}
			}
		}
		a := put("a/b")
		if status, text := sends(t, "PUT", a, body, nil); status != http.StatusOK {
			t.Fatalf("the first use: %d %s", status, text)
		}
		if status, text := sends(t, "PUT", a, body, nil); status != http.StatusPreconditionFailed {
			t.Errorf("the second use: %d %s", status, text)
		}
		if got, err := s.ReadAll(t.Context(), "a/b", 100); err != nil || string(got) != body {
			t.Errorf("stored is %q, %v", got, err)
		}
	})
}

// moved leads a request to another path.
func moved(from, to string) func(*http.Request) {
	return func(r *http.Request) {
		r.URL.Path, r.URL.RawPath = strings.Replace(r.URL.Path, from, to, 1), ""
	}
}

func TestASignedAddressReadsOneObject(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		for _, key := range []string{"a/b", "a/c"} {
			if _, err := s.Put(t.Context(), key, strings.NewReader("of "+key), -1); err != nil {
				t.Fatal(err)
			}
		}
		a, err := s.SignGet(t.Context(), "a/b", blob.AddressLife)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			if status, text := sends(t, "GET", a, "", nil); status != http.StatusOK || text != "of a/b" {
				t.Errorf("read %d %q", status, text)
			}
		}
		for name, c := range map[string]struct {
			method string
			edit   func(*http.Request)
		}{
			"another key": {"GET", moved("a/b", "a/c")},
			"a list":      {"GET", func(r *http.Request) { r.URL.Path, r.URL.RawPath = "/bucket", "" }},
			"to write":    {"PUT", nil},
			"to delete":   {"DELETE", nil},
		} {
			if status, text := sends(t, c.method, a, "", c.edit); status < 400 || strings.Contains(text, "of a/") {
				t.Errorf("%s: %d %s", name, status, text)
			}
		}
	})
}

// ended reports whether a store refuses an address as one that has ended: S3 as forbidden, and Google as a bad request.
func ended(status int) bool { return status == http.StatusForbidden || status == http.StatusBadRequest }

// TestASignedAddressEnds uses a life of a second and waits for the refusal.
func TestASignedAddressEnds(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		if _, err := s.Put(t.Context(), "a/b", strings.NewReader("x"), 1); err != nil {
			t.Fatal(err)
		}
		read, err := s.SignGet(t.Context(), "a/b", time.Second)
		if err != nil {
			t.Fatal(err)
		}
		write, err := s.SignPut(t.Context(), "a/late", 1, sha256.Sum256([]byte("x")), time.Second)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
		defer cancel()
		for {
			status, _ := sends(t, "GET", read, "", nil)
			if ended(status) && time.Now().After(write.Until.Add(time.Second)) {
				break
			}
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				t.Fatalf("the address is never refused: %d", status)
			}
		}
		if status, text := sends(t, "PUT", write, "x", nil); !ended(status) {
			t.Errorf("an object is created after the end: %d %s", status, text)
		}
	})
}

func TestAStoreDescribesAnObjectByItsOwnChecksum(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		const body = "content"
		sum := sha256.Sum256([]byte(body))
		if _, err := s.Info(t.Context(), "a/b"); berth.CodeOf(err) != berth.CodeNotFound {
			t.Errorf("a missing object: %v", err)
		}
		a, err := s.SignPut(t.Context(), "a/b", int64(len(body)), sum, blob.AddressLife)
		if err != nil {
			t.Fatal(err)
		}
		if status, text := sends(t, "PUT", a, body, nil); status != http.StatusOK {
			t.Fatalf("put: %d %s", status, text)
		}
		o, err := s.Info(t.Context(), "a/b")
		if err != nil || !o.Is(int64(len(body)), sum) {
			t.Errorf("the same object: %+v, %v", o, err)
		}
		if o.Is(int64(len(body))+1, sum) || o.Is(int64(len(body)), sha256.Sum256([]byte("CONTENT"))) {
			t.Error("another length or content counts as the same object")
		}
		if (blob.ObjectInfo{Bytes: int64(len(body))}).Is(int64(len(body)), sum) {
			t.Error("an object without a checksum counts as the same object")
		}
		sizes, err := s.Sizes(t.Context(), "a", 1)
		if err != nil || len(sizes) != 1 || sizes["b"] != int64(len(body)) {
			t.Errorf("the folder has %v, %v", sizes, err)
		}
		if _, err := s.Put(t.Context(), "a/c", strings.NewReader("x"), -1); err != nil {
			t.Fatal(err)
		}
		if sizes, err := s.Sizes(t.Context(), "a", 1); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("more objects than are read: %v, %v", sizes, err)
		}
	})
}

// TestASignedWriteAsksForTheEncryptionOfTheStore looks at the headers: the server of the tests knows no encryption.
func TestASignedWriteAsksForTheEncryptionOfTheStore(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	s, err := blob.NewS3(t.Context(), server.Client(), server.Bucket, s3blob.Options{EncryptionType: "aws:kms", KMSEncryptionID: "key-1"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	a, err := s.SignPut(t.Context(), "a/b", 1, sha256.Sum256([]byte("x")), blob.AddressLife)
	if err != nil {
		t.Fatal(err)
	}
	if h := a.Header; h.Get("X-Amz-Server-Side-Encryption") != "aws:kms" || h.Get("X-Amz-Server-Side-Encryption-Aws-Kms-Key-Id") != "key-1" {
		t.Errorf("the signed headers are %v", h)
	}
}

func TestABucketWithoutALoginHasNoSignedAddresses(t *testing.T) {
	t.Parallel()
	s, err := blob.Open(t.Context(), "s3://bucket?region=us-east-1&anonymous=true")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Signs() {
		t.Error("a client without a login signs")
	}
}

func TestAFolderHasNoSignedAddresses(t *testing.T) {
	t.Parallel()
	s, _ := folder(t)
	if s.Signs() {
		t.Error("a folder signs")
	}
	if _, err := s.SignGet(t.Context(), "a/b", blob.AddressLife); berth.CodeOf(err) != berth.CodeUnavailable {
		t.Errorf("an address of a file: %v", err)
	}
}

// TestASignedAddressIsNeverPrinted formats an address in all ways in which it might reach a log.
func TestASignedAddressIsNeverPrinted(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		a, err := s.SignGet(t.Context(), "a/b", blob.AddressLife)
		if err != nil {
			t.Fatal(err)
		}
		var log bytes.Buffer
		printAll(&log, a)
		if strings.Contains(log.String(), "Signature=") || !strings.Contains(string(a.URL), "Signature=") {
			t.Errorf("printed: %s", log.String())
		}
	})
}

// printAll writes a value as loggers and errors would.
func printAll(to io.Writer, v any) {
	for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		_, _ = fmt.Fprintf(to, verb+"\n", v)
	}
	slog.New(slog.NewTextHandler(to, nil)).Info("signed", "address", v)
}

func TestAStoreThatKeepsAllConditionsIsProven(t *testing.T) {
	buckets(t, func(t *testing.T, _ protocol, s *blob.Store) {
		for range 2 {
			if err := s.ProveSigning(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if left, err := s.Names(t.Context(), "signing"); err != nil || len(left) != 0 {
			t.Errorf("the proof has left %v, %v", left, err)
		}
	})
}

// TestAStoreThatIgnoresAConditionIsFoundOut plays servers that resemble S3, before a real one that lacks no condition.
func TestAStoreThatIgnoresAConditionIsFoundOut(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	login := server.Client().Options().Credentials
	for name, c := range map[string]struct {
		edit   func(r *http.Request) // of a signed PUT, which is signed again
		answer func(w http.ResponseWriter, r *http.Request) bool
		says   string
	}{
		"used twice":       {func(r *http.Request) { r.Header.Del("If-None-Match") }, nil, "an address was used twice"},
		"any content":      {func(r *http.Request) { r.Header.Del("X-Amz-Checksum-Sha256") }, nil, "another content"},
		"any key":          {func(*http.Request) {}, nil, "another key"},
		"a strange answer": {func(*http.Request) {}, func(w http.ResponseWriter, r *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true }, "answers 403"},
	} {
		proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(target)
			if q := r.In.URL.Query(); !q.Has("X-Amz-Signature") {
				r.Out.Host = r.In.Host
				return
			}
			if name != "any key" {
				r.Out.Host = r.In.Host
			}
			c.edit(r.Out)
			r.Out.URL.RawQuery = ""
			r.Out.Header.Set("X-Amz-Content-Sha256", "UNSIGNED-PAYLOAD")
			if err := v4.NewSigner().SignHTTP(r.In.Context(), must(login.Retrieve(r.In.Context())), r.Out, "UNSIGNED-PAYLOAD", "s3", "us-east-1", time.Now()); err != nil {
				t.Error(err)
			}
		}}
		front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if c.answer != nil && r.URL.Query().Has("X-Amz-Signature") && c.answer(w, r) {
				return
			}
			proxy.ServeHTTP(w, r)
		}))
		t.Cleanup(front.Close)
		s, err := blob.NewS3(t.Context(), s3test.ClientAt(front.URL), server.Bucket, s3blob.Options{})
		if err != nil {
			t.Fatal(err)
		}
		err = s.ProveSigning(t.Context())
		_, unbound := errors.AsType[blob.UnboundError](err)
		if unbound != (c.answer == nil) || err == nil || !strings.Contains(err.Error(), c.says) || strings.Contains(err.Error(), "X-Amz") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
