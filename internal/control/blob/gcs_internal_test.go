package blob

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
	"testing"

	"cloud.google.com/go/auth/credentials"
	"cloud.google.com/go/storage"
	"golang.org/x/sync/errgroup"
	"google.golang.org/api/iterator"
	"google.golang.org/api/option"

	"berth/internal/machine/fetch/gstest"
)

// TestManyPartsAreComposedInSteps completes an object of more parts than two requests in a row compose. Its parts are
// shorter than machines store them.
func TestManyPartsAreComposedInSteps(t *testing.T) {
	t.Parallel()
	server := gstest.StartStore(t)
	login, err := credentials.NewCredentialsFromJSON(credentials.ServiceAccount, []byte(server.Account.Login),
		&credentials.DetectOptions{Scopes: []string{gcsScope}})
	if err != nil {
		t.Fatal(err)
	}
	client, err := storage.NewClient(t.Context(), storage.WithJSONReads(), option.WithAuthCredentials(login),
		option.WithEndpoint(server.URL+"/storage/v1/"))
	if err != nil {
		t.Fatal(err)
	}
	s, err := NewGCS(t.Context(), client, server.Bucket,
		GCSOptions{Account: gstest.Email, Plaintext: true, Key: server.Account.Key(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	signer := s.signer.(*gcsSigner)
	id, err := signer.begin(t.Context(), "a/b")
	if err != nil {
		t.Fatal(err)
	}
	u := Upload{"a/b", id}
	folder, err := signer.folder(u)
	if err != nil {
		t.Fatal(err)
	}
	const count = composeMost*composeMost + 5
	var content strings.Builder
	var all errgroup.Group
	all.SetLimit(4)
	for n := 1; n <= count; n++ {
		text := fmt.Sprint(n, ",")
		content.WriteString(text)
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
	var parts []storedPart
	err = signer.parts(t.Context(), u, 0, 1000, func(p storedPart) error {
		parts = append(parts, p)
		return nil
	})
	if err != nil || len(parts) != count || parts[count-1].number != count || parts[0].sum == nil {
		t.Fatalf("%d parts are listed: %v", len(parts), err)
	}
	want := Parts{Bytes: int64(content.Len()), PartBytes: LeastPart, Sum: sha256.Sum256([]byte("sums"))}
	if err := signer.complete(t.Context(), u, parts, want); err != nil {
		t.Fatal(err)
	}
	got, err := s.ReadAll(t.Context(), "a/b", 1<<20)
	if err != nil || string(got) != content.String() {
		t.Errorf("the object has %d bytes of %d: %v", len(got), content.Len(), err)
	}
	rest := client.Bucket(server.Bucket).Objects(t.Context(), &storage.Query{Prefix: partsFolder})
	if o, err := rest.Next(); !errors.Is(err, iterator.Done) {
		t.Errorf("the completion has left %v, %v", o, err)
	}
}
