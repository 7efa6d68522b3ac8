package blob_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/api/iamcredentials/v1"

	"berth"
	"berth/internal/control/blob"
	"berth/internal/machine/fetch/gstest"
)

// TestAStoreIsOpenedByTheDefaultLogin is not parallel: the login comes from the environment.
func TestAStoreIsOpenedByTheDefaultLogin(t *testing.T) {
	server := gstest.StartStore(t)
	file := filepath.Join(t.TempDir(), "login.json")
	if err := os.WriteFile(file, []byte(server.Account.Login), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", file)
	s, err := blob.Open(t.Context(), "gs://"+server.Bucket+"/of/berth/?endpoint="+server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if err := s.Create(t.Context(), "a/b", []byte("x")); err != nil {
		t.Fatal(err)
	}
	whole, err := blob.Open(t.Context(), "gs://"+server.Bucket+"?endpoint="+server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer whole.Close()
	holds(t, whole, "of/berth/a/b", "x")
	if err := errors.Join(s.ProveSigning(t.Context()), s.InParts().Prove(t.Context())); err != nil {
		t.Errorf("the store is not proven: %v", err)
	}
	for address, says := range map[string]string{
		"gs://bucket/a//b":                       "prefix",
		"gs://bucket/~parts":                     "prefix",
		"gs://bucket/" + strings.Repeat("a", 61): "at most 60",
		"gs://bucket?private_key_path=/etc/key":  "allowed are access_id, endpoint",
		"gs://bucket?endpoint=ftp://x":           "allowed are https://HOST",
		"gs://bucket?endpoint=https://x/path":    "allowed are https://HOST",
		"gs:///prefix":                           "bucket",
	} {
		if s, err := blob.Open(t.Context(), address); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%s: %v, %v", address, s, err)
		}
	}
	t.Setenv("GOOGLE_APPLICATION_CREDENTIALS", filepath.Join(t.TempDir(), "none"))
	_, err = blob.Open(t.Context(), "gs://bucket")
	if err == nil || !strings.Contains(err.Error(), "login of Google") {
		t.Errorf("opened without a login: %v", err)
	}
}

// TestAServerThatResemblesGoogleIsFoundOut plays servers that ignore one condition each.
func TestAServerThatResemblesGoogleIsFoundOut(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(*gstest.Server)
		prove func(*blob.Store) error
		says  string
	}{
		"any content": {func(s *gstest.Server) { s.Ignore("X-Goog-Content-Sha256") }, whole, "another content"},
		"used twice":  {func(s *gstest.Server) { s.Ignore("X-Goog-If-Generation-Match") }, whole, "used twice"},
		"any address": {func(s *gstest.Server) { s.Forge() }, whole, "another recorded SHA-256"},
		"no metadata": {func(s *gstest.Server) { s.Ignore("X-Goog-Meta-Berth-Sha256") }, whole,
			"does not return the SHA-256"},
		"any part": {func(s *gstest.Server) { s.Ignore("X-Goog-Content-Sha256") }, inPieces,
			"a part of another content"},
		"any number": {func(s *gstest.Server) { s.Forge() }, inPieces, "a part of another number"},
		"any completion": {func(s *gstest.Server) { s.Ignore("compose") }, inPieces,
			"an object in parts replaced another object"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := gstest.StartStore(t)
			s := googleAt(t, server, server.URL)
			c.spoil(server)
			err := c.prove(s)
			_, unbound := errors.AsType[blob.UnboundError](err)
			if !unbound || !strings.Contains(err.Error(), c.says) ||
				strings.Contains(err.Error(), "Signature=") {
				t.Error(err)
			}
			if left, err := s.Names(t.Context(), "signing"); err != nil || len(left) != 0 {
				t.Errorf("the proof has left %v, %v", left, err)
			}
			if left := unfinished(t, s, "signing"); len(left) != 0 {
				t.Errorf("the proof has left the uploads %v", left)
			}
		})
	}
}

// whole and inPieces are the proofs of a store.
func whole(s *blob.Store) error    { return s.ProveSigning(context.Background()) }
func inPieces(s *blob.Store) error { return s.InParts().Prove(context.Background()) }

// TestAPartThatArrivesAfterTheAbortIsListed sends a part by an address that was signed before the abort.
func TestAPartThatArrivesAfterTheAbortIsListed(t *testing.T) {
	t.Parallel()
	s := google(t)
	id := opens(t, s, "a/b", false)
	const content = "a part"
	a, err := s.InParts().Sign(t.Context(), "a/b", id, 7, int64(len(content)), sumOf(content), blob.AddressLife)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.AbortUpload(t.Context(), blob.Upload{Key: "a/b", ID: id}); err != nil {
		t.Fatal(err)
	}
	if list := unfinished(t, s, "a"); len(list) != 0 {
		t.Errorf("after the abort: %v", list)
	}
	if status, text := sends(t, "PUT", a, content, nil); status != http.StatusOK {
		t.Fatalf("the late part: %d %s", status, text)
	}
	list := unfinished(t, s, "a")
	if len(list) != 1 || list[0] != (blob.Upload{Key: "a/b", ID: id}) {
		t.Fatalf("the late part is not listed: %v", list)
	}
	if another := opens(t, s, "a/b", false); another == id {
		t.Error("an aborted upload goes on")
	}
	if has, err := s.InParts().Has(t.Context(), "a/b", id, 7, int64(len(content)), sumOf(content)); has ||
		berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("a part of an aborted upload: %t, %v", has, err)
	}
	if err := s.AbortUpload(t.Context(), list[0]); err != nil {
		t.Fatal(err)
	}
	if list := unfinished(t, s, "a"); len(list) != 1 || list[0].ID == id {
		t.Errorf("after the second abort: %v", list)
	}
}

// TestAnUploadOfAnotherFormIsUnknown uses ids that a machine may invent, to reach other objects.
func TestAnUploadOfAnotherFormIsUnknown(t *testing.T) {
	t.Parallel()
	s := google(t)
	opens(t, s, "a/b", false)
	for _, id := range []string{"x", "../../c", strings.Repeat("a", 26), strings.Repeat("a", 25) + "/",
		strings.Repeat("A", 26), strings.Repeat("a", 26) + "/00001"} {
		_, err := s.InParts().Sign(t.Context(), "a/b", id, 1, 1, sumOf("x"), blob.AddressLife)
		if berth.CodeOf(err) != berth.CodeNotFound {
			t.Errorf("upload %q: %v", id, err)
		}
	}
}

// TestALoginWithoutAKeySignsByGoogle has a server that signs for the account, as Google's does for logins of machines.
func TestALoginWithoutAKeySignsByGoogle(t *testing.T) {
	t.Parallel()
	server := gstest.StartStore(t)
	s := keyless(t, server)
	if err := s.ProveSigning(t.Context()); err != nil || server.Account.Signed.Load() == 0 {
		t.Errorf("%d signatures by the server, %v", server.Account.Signed.Load(), err)
	}
	sum := sha256.Sum256([]byte("x"))
	server.Account.RefuseSigning()
	_, err := s.SignPut(t.Context(), "a/b", 1, sum, blob.AddressLife)
	if _, unsigned := errors.AsType[blob.SigningError](err); !unsigned {
		t.Errorf("a refused signature: %v", err)
	}
}

// TestASignatureEndsWithItsCaller has a server that never answers a request for a signature.
func TestASignatureEndsWithItsCaller(t *testing.T) {
	t.Parallel()
	server := gstest.StartStore(t)
	s := keyless(t, server)
	asked, release := make(chan struct{}), make(chan struct{})
	t.Cleanup(func() { close(release) })
	server.Account.SpoilSigning(func(_ http.ResponseWriter, r *http.Request) bool {
		_, _ = io.Copy(io.Discard, r.Body) // the server notices the end of a connection only after the body
		close(asked)
		select {
		case <-r.Context().Done():
		case <-release:
		}
		return true
	})
	ctx, cancel := context.WithCancel(t.Context())
	result := make(chan error, 1)
	go func() {
		_, err := s.SignGet(ctx, "a/b", blob.AddressLife)
		result <- err
	}()
	<-asked
	cancel()
	select {
	case err := <-result:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("a canceled signature: %v", err)
		}
	case <-time.After(time.Minute):
		t.Error("the signature goes on after its caller has gone")
	}
}

// TestASignatureIsAskedForAgain has a server that is busy twice.
func TestASignatureIsAskedForAgain(t *testing.T) {
	t.Parallel()
	server := gstest.StartStore(t)
	s := keyless(t, server)
	var asked atomic.Int32
	server.Account.SpoilSigning(func(w http.ResponseWriter, _ *http.Request) bool {
		if asked.Add(1) > 2 {
			return false
		}
		w.WriteHeader(http.StatusTooManyRequests)
		return true
	})
	if _, err := s.SignGet(t.Context(), "a/b", blob.AddressLife); err != nil || asked.Load() != 3 {
		t.Errorf("after %d requests: %v", asked.Load(), err)
	}
}

func TestAnAccountHasOneMeansToSign(t *testing.T) {
	t.Parallel()
	for name, o := range map[string]blob.GCSOptions{
		"none": {},
		"two":  {Key: []byte("x"), IAM: &iamcredentials.Service{}},
	} {
		o.Account = gstest.Email
		if s, err := blob.NewGCS(t.Context(), nil, "bucket", o); berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
}
