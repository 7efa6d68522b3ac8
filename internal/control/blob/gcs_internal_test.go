package blob

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"cloud.google.com/go/storage"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"

	"berth"
	"berth/internal/machine/fetch/gstest"
)

// hooked sends requests by a function.
type hooked func(*http.Request) (*http.Response, error)

// RoundTrip sends one request.
func (h hooked) RoundTrip(r *http.Request) (*http.Response, error) { return h(r) }

// manyParts begins an upload of the object a/b with parts that are shorter than machines store them.
func manyParts(t *testing.T, count int, hook func(next http.RoundTripper) http.RoundTripper) (
	s *Store, u Upload, parts []storedPart, content string,
) {
	t.Helper()
	server := gstest.StartStore(t)
	client, err := storage.NewClient(t.Context(), storage.WithJSONReads(),
		option.WithHTTPClient(&http.Client{Transport: hook(server.Account.Transport())}),
		option.WithEndpoint(server.URL+"/storage/v1/"))
	if err != nil {
		t.Fatal(err)
	}
	s, err = NewGCS(t.Context(), client, server.Bucket,
		GCSOptions{Account: gstest.Email, Plaintext: true, Key: server.Account.Key(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	signer := s.signer.(*gcsSigner)
	id, err := signer.begin(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	u = Upload{"a/b", id}
	folder, err := signer.folder(u)
	if err != nil {
		t.Fatal(err)
	}
	var all errgroup.Group
	all.SetLimit(4)
	for n := 1; n <= count; n++ {
		text := fmt.Sprint(n, ",")
		content += text
		all.Go(func() error {
			w := client.Bucket(server.Bucket).Object(folder + numbered(n)).NewWriter(t.Context())
			w.ChunkSize = gcsChunk
			w.Metadata = map[string]string{metaSum: fmt.Sprintf("%x", sha256.Sum256([]byte(text)))}
			if _, err := w.Write([]byte(text)); err != nil {
				return err
			}
			return w.Close()
		})
	}
	if err := all.Wait(); err != nil {
		t.Fatal(err)
	}
	err = signer.parts(t.Context(), u, 0, 1000, func(p storedPart) error {
		parts = append(parts, p)
		return nil
	})
	if err != nil || len(parts) != count || parts[count-1].number != count || parts[0].sum == nil {
		t.Fatalf("%d parts are listed: %v", len(parts), err)
	}
	return s, u, parts, content
}

// TestManyPartsAreComposedInSteps completes an object of more parts than two requests in a row compose.
func TestManyPartsAreComposedInSteps(t *testing.T) {
	t.Parallel()
	s, u, parts, content := manyParts(t, composeMost*composeMost+5,
		func(next http.RoundTripper) http.RoundTripper { return next })
	signer := s.signer.(*gcsSigner)
	want := Parts{Bytes: int64(len(content)), PartBytes: LeastPart, Sum: sha256.Sum256([]byte("sums"))}
	if err := signer.complete(t.Context(), u, parts, want); err != nil {
		t.Fatal(err)
	}
	got, err := s.ReadAll(t.Context(), "a/b", 1<<20)
	if err != nil || string(got) != content {
		t.Errorf("the object has %d bytes of %d: %v", len(got), len(content), err)
	}
	rest := signer.bucket.Objects(t.Context(), &storage.Query{Prefix: partsFolder})
	if o, err := rest.Next(); !errors.Is(err, iterator.Done) {
		t.Errorf("the completion has left %v, %v", o, err)
	}
}

// TestAnAbortedUploadIsNotCompletedFromItsSteps aborts an upload while its parts are composed in steps: the abort lists
// the folder before the intermediate objects exist, and ends before the last step.
func TestAnAbortedUploadIsNotCompletedFromItsSteps(t *testing.T) {
	t.Parallel()
	var on atomic.Bool
	var begin, list, join sync.Once
	listed, joined, aborted := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	var abort func() error
	s, u, parts, _ := manyParts(t, composeMost+1, func(next http.RoundTripper) http.RoundTripper {
		return hooked(func(r *http.Request) (*http.Response, error) {
			compose := strings.HasSuffix(r.URL.Path, "/compose")
			switch {
			case !on.Load() || r.Method == http.MethodDelete:
			case compose && strings.Contains(r.URL.Path, "/join-"):
				begin.Do(func() { go func() { aborted <- abort() }() })
				<-listed
			case compose, strings.HasSuffix(r.URL.Path, "/"+beginning):
				join.Do(func() {
					close(joined)
					if err := <-aborted; err != nil {
						t.Errorf("the abort: %v", err)
					}
				})
			case r.URL.Query().Has("prefix"):
				answer, err := next.RoundTrip(r)
				list.Do(func() { close(listed) })
				<-joined
				return answer, err
			}
			return next.RoundTrip(r)
		})
	})
	abort = func() error { return s.signer.abort(t.Context(), u) }
	on.Store(true)
	err := s.signer.complete(t.Context(), u, parts, Parts{Bytes: 1, PartBytes: LeastPart})
	on.Store(false)
	if berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("completed after the abort: %v", err)
	}
	if ok, err := s.Exists(t.Context(), "a/b"); ok || err != nil {
		t.Errorf("the object of an aborted upload exists: %t, %v", ok, err)
	}
}
