package blob_test

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"testing"

	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/storage"
	"gocloud.dev/blob/s3blob"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"

	"berth/internal/control/blob"
	"berth/internal/machine/fetch/gstest"
	"berth/internal/machine/fetch/s3test"
)

// protocol describes a bucket to the tests of signed addresses.
type protocol struct {
	name           string
	sum, recorded  string // headers of the SHA-256 that the store checks, and of the one that it keeps
	condition      string // header that keeps an object from being replaced
	otherCondition string // value of that header
	expires        string // parameter of the life
	open           func(t *testing.T) *blob.Store
	encode         func([32]byte) string // as the headers have a sum
	// part makes a request one of a part of an upload; of the whole object with number 0.
	part func(r *http.Request, key, id string, number int)
}

// gsPrefix is the prefix of the store in the bucket of the tests.
const gsPrefix = "of/berth=1"

// protocols lists the protocols of the buckets that machines reach by signed addresses.
var protocols = []protocol{
	{
		name: "s3", open: signing, sum: "X-Amz-Checksum-Sha256", recorded: "X-Amz-Checksum-Sha256",
		condition: "If-None-Match", otherCondition: `"x"`, expires: "X-Amz-Expires",
		encode: func(sum [32]byte) string { return base64.StdEncoding.EncodeToString(sum[:]) },
		part: func(r *http.Request, key, id string, number int) {
			r.URL.Path = "/bucket/" + key
			q := r.URL.Query()
			q.Set("partNumber", fmt.Sprint(number))
			q.Set("uploadId", id)
			if number == 0 {
				q.Del("partNumber")
				q.Del("uploadId")
			}
			r.URL.RawQuery = q.Encode()
		},
	},
	{
		name: "gs", open: google, sum: "X-Goog-Content-Sha256", recorded: "X-Goog-Meta-Berth-Sha256",
		condition: "X-Goog-If-Generation-Match", otherCondition: "1", expires: "X-Goog-Expires",
		encode: func(sum [32]byte) string { return hex.EncodeToString(sum[:]) },
		part: func(r *http.Request, key, id string, number int) {
			r.URL.Path, r.URL.RawPath = fmt.Sprintf("/bucket/%s/~parts/%s/~%s/%05d", gsPrefix, key, id, number), ""
			if number == 0 {
				r.URL.Path = "/bucket/" + gsPrefix + "/" + key
			}
		},
	},
}

// buckets runs a test with a store of each protocol.
func buckets(t *testing.T, test func(t *testing.T, p protocol, s *blob.Store)) {
	t.Parallel()
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			test(t, p, p.open(t))
		})
	}
}

// signing opens the bucket of a real server of S3.
func signing(t *testing.T) *blob.Store {
	t.Helper()
	server := s3test.Start(t)
	s, err := blob.NewS3(t.Context(), server.Client(), server.Bucket, s3blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// google opens the bucket of a server of Google's protocol.
func google(t *testing.T) *blob.Store {
	t.Helper()
	server := gstest.StartStore(t)
	return googleAt(t, server, server.URL)
}

// googleAt opens the bucket of a server at an address.
func googleAt(t *testing.T, server *gstest.Server, address string) *blob.Store {
	t.Helper()
	login, err := credentials.NewCredentialsFromJSON(credentials.ServiceAccount, []byte(server.Account.Login),
		&credentials.DetectOptions{Scopes: []string{"https://www.googleapis.com/auth/cloud-platform"}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := storage.NewClient(t.Context(), storage.WithJSONReads(), option.WithAuthCredentials(login),
		option.WithEndpoint(address+"/storage/v1/"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := blob.NewGCS(t.Context(), client, server.Bucket,
		blob.GCSOptions{Prefix: gsPrefix, Account: gstest.Email, Plaintext: true, Key: server.Account.Key(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// keyless opens the bucket by a login that has tokens alone, as machines in Google's cloud have.
func keyless(t *testing.T, server *gstest.Server) *blob.Store {
	t.Helper()
	login := option.WithHTTPClient(&http.Client{Transport: server.Account.Transport()})
	client, err := storage.NewClient(t.Context(), storage.WithJSONReads(),
		option.WithEndpoint(server.URL+"/storage/v1/"), login)
	if err != nil {
		t.Fatal(err)
	}
	iam, err := iamcredentials.NewService(t.Context(), login)
	if err != nil {
		t.Fatal(err)
	}
	s, err := blob.NewGCS(t.Context(), client, server.Bucket,
		blob.GCSOptions{Account: gstest.Email, Plaintext: true, IAM: iam})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// refusingFront is a proxy that refuses some requests as the server of a protocol refuses a login.
func refusingFront(t *testing.T, server, answer string, refuse func(*http.Request) bool) string {
	t.Helper()
	return answeringFront(t, server, func(w http.ResponseWriter, r *http.Request) bool {
		if !refuse(r) {
			return false
		}
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, answer)
		return true
	})
}

// answeringFront is a proxy in front of a server. It forwards the requests for which answer returns false.
func answeringFront(t *testing.T, server string, answer func(http.ResponseWriter, *http.Request) bool) string {
	t.Helper()
	target, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	next := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !answer(w, r) {
			next.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(front.Close)
	return front.URL
}

// refusing is a store in S3 that refuses the requests of one kind, as for the login.
func refusing(t *testing.T, refuse func(*http.Request) bool) *blob.Store {
	t.Helper()
	server := s3test.Start(t)
	front := refusingFront(t, server.URL, "<Error><Code>AccessDenied</Code></Error>", refuse)
	s, err := blob.NewS3(t.Context(), s3test.ClientAt(front), server.Bucket, s3blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

// refusingGoogle is a store in Google Cloud Storage that refuses the requests of one kind.
func refusingGoogle(t *testing.T, refuse func(*http.Request) bool) *blob.Store {
	t.Helper()
	server := gstest.StartStore(t)
	return googleAt(t, server, refusingFront(t, server.URL, `{"error": {"code": 403, "message": "denied"}}`, refuse))
}

// sends sends a signed request, after edit has changed it, and returns the status and the body of the answer.
func sends(t *testing.T, method string, a blob.SignedAddress, body string, edit func(*http.Request)) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, string(a.URL), nil)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	req.Header = a.Header.Clone()
	if edit != nil {
		edit(req)
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

// sumOf returns the SHA-256 of a text.
func sumOf(text string) [32]byte { return sha256.Sum256([]byte(text)) }
