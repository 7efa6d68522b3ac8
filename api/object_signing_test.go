package api_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"google.golang.org/api/iamcredentials/v1"
	"google.golang.org/api/option"

	"berth"
	"berth/api"
	"berth/internal/control/blob"
	"berth/internal/machine/fetch/gstest"
	"berth/wire"
)

// onGoogle is a site whose store is a bucket of Google's protocol, with a login that signs by Google's API.
func onGoogle(t *testing.T) (*site, *blob.Store, *gstest.Account) {
	t.Helper()
	server := gstest.StartStore(t)
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
	store, err := blob.NewGCS(t.Context(), client, server.Bucket,
		blob.GCSOptions{Account: gstest.Email, IAM: iam, Plaintext: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := newSite(t, func(d *api.Deps) {
		d.Agent = api.AgentDeps{Blobs: store, Direct: true, ProofLimit: 10 * time.Minute, Parts: smallParts}
	})
	return s, store, server.Account
}

// TestObjectsPassTheServerWhileSignaturesFail takes the right to sign from the login of a proven store. The server
// answers calls for addresses as a server that signs none, and still compares objects.
func TestObjectsPassTheServerWhileSignaturesFail(t *testing.T) {
	t.Parallel()
	s, store, account := onGoogle(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	const content = "weights"
	folder := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5)
	put := a.put(folder+"/file-000000", content)
	if status, text := a.sends("PUT", a.signs(put), content); status != http.StatusOK {
		t.Fatalf("put: %d %s", status, text)
	}
	large := twoParts()
	part, sums := a.partsOf(folder+"/file-000001", large)
	part.Upload = a.signs(part).Upload
	if status := a.storesPart(part, 1, sums, large); status != http.StatusOK {
		t.Fatalf("part 1: %d", status)
	}
	account.RefuseSigning()
	get := put
	get.Method = "GET"
	part.Part, part.PartSHA256 = 2, sums[1]
	begin, _ := a.partsOf(folder+"/file-000002", large)
	for name, r := range map[string]wire.AddressRequest{
		"to read": get, "to write": a.put(folder+"/file-000003", content), "a part": part,
	} {
		if got := a.signs(r); got.URL != "" || got.Stored {
			t.Errorf("%s: %+v", name, got)
		}
	}
	if got := a.signs(begin); got.Upload != "" || got.Found != wire.FoundNone {
		t.Errorf("an upload begins with %+v", got)
	}
	if got := s.call("m1", "GET", "/agent/v1/object-access", ""); strings.TrimSpace(got.body) != `{"direct":false}` {
		t.Errorf("access: %d %s", got.status, got.body)
	}
	put.Exists, part.Exists, part.Part, part.PartSHA256 = true, true, 1, sums[0]
	for name, r := range map[string]wire.AddressRequest{"an object": put, "a part": part} {
		if got := a.signs(r); !got.Stored {
			t.Errorf("%s is compared without a signature: %+v", name, got)
		}
	}
	key := folder + "/file-000001"
	if got := s.call("m1", "PUT", "/agent/v1/objects/"+key, string(large)); got.status != http.StatusNoContent {
		t.Errorf("through the server: %d %s", got.status, got.body)
	}
	if b, err := store.ReadAll(t.Context(), key, 1<<30); err != nil || string(b) != string(large) {
		t.Errorf("%d bytes are stored, want %d: %v", len(b), len(large), err)
	}
	if n := strings.Count(s.log.String(), "cannot sign addresses"); n != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, s.log.String())
	}
}
