package api_test

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"cloud.google.com/go/storage"
	"gocloud.dev/blob/s3blob"
	"google.golang.org/api/option"

	"berth/api"
	"berth/internal/control/blob"
	"berth/internal/machine/fetch/gstest"
	"berth/internal/machine/fetch/s3test"
	"berth/wire"
)

func TestACheckpointOfChunksIsStoredReadAndDownloaded(t *testing.T) {
	t.Parallel()
	s := onChunks(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	a.stores(job, 5, "base", "adapter")
	if got := a.reports(job, 5, "base", "adapter", "base"); got.status != http.StatusNoContent {
		t.Fatalf("report: %d %s", got.status, got.body)
	}
	if got := a.readsChunk(job, 5, "adapter"); got.status != http.StatusOK || got.body != "adapter" {
		t.Errorf("a chunk: %d %q", got.status, got.body)
	}
	var answer wire.ChunkAnswer
	a.post("chunks", a.asks(job, 6, wire.ChunkAsk, "base", "new"), &answer)
	if !answer.Chunks[0].Have || answer.Chunks[1].Have {
		t.Errorf("for the next step: %+v", answer)
	}
	c := s.as("alice")
	files, err := c.CheckpointFiles(t.Context(), job.ID, 5, 0)
	if err != nil || len(files.Files) != 1 || files.Files[0].Bytes != 15 {
		t.Fatalf("files are %+v, %v", files, err)
	}
	in, err := c.CheckpointFile(t.Context(), job.ID, files, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if got, err := io.ReadAll(in); err != nil || string(got) != "baseadapterbase" {
		t.Errorf("downloaded %q, %v", got, err)
	}
	path := "/v1/jobs/" + string(job.ID) + "/checkpoints/5/members/0/files/"
	if got := s.call("bob", "GET", path+"0", ""); got.status != http.StatusNotFound {
		t.Errorf("another tenant downloads: %d", got.status)
	}
	if got := s.call("alice", "GET", path+"1", ""); got.status != http.StatusNotFound {
		t.Errorf("a file that is not listed: %d", got.status)
	}
}

// Chunks are read by the checkpoints that name them, and written by the member that has announced them, with the content
// of their hash.
func TestChunksAreMovedForTheirHolderAlone(t *testing.T) {
	t.Parallel()
	s := onChunks(t)
	a, b := s.joinMachine("m1"), s.joinMachine("m2")
	job, other := s.submit("alice", keeps), s.submit("alice", keeps)
	a.take(job.ID)
	b.take(other.ID)
	a.stores(job, 5, "secret", "more")
	if got := a.reports(job, 5, "secret"); got.status != http.StatusNoContent {
		t.Fatalf("report: %d %s", got.status, got.body)
	}
	var announced wire.ChunkAnswer
	b.post("chunks", b.asks(other, 5, wire.ChunkStore, "secret"), &announced)
	key := announced.Chunks[0].Key
	if announced.Chunks[0].Have || !strings.Contains(key, string(other.ID)) {
		t.Errorf("another job of the tenant is answered %+v", announced.Chunks[0])
	}
	var stored string
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT copy FROM chunks WHERE sha256 = decode($1, 'hex')`, hexSum("secret")).Scan(&stored); err != nil {
		t.Fatal(err)
	}
	of := wire.ChunkCopy{Tenant: job.Tenant, Job: job.ID, Attempt: 1, SHA256: hexSum("secret"), Random: stored}.Key()
	terms := fmt.Sprintf(`"agent_boot":%q,"epoch":%d`, a.boot, a.epoch)
	for name, c := range map[string]struct {
		got  answer
		want int
	}{
		"read by the holder":                {a.readsChunk(job, 5, "secret"), http.StatusOK},
		"read by another job":               {b.readsChunk(job, 5, "secret"), http.StatusNotFound},
		"read of a step without it":         {a.readsChunk(job, 5, "more"), http.StatusNotFound},
		"read of another step":              {a.readsChunk(job, 6, "secret"), http.StatusNotFound},
		"read by its key":                   {a.call("m1", "GET", "/agent/v1/objects/"+of, ""), http.StatusNotFound},
		"signed by its key":                 {a.call("m1", "POST", "/agent/v1/object-access", fmt.Sprintf(`{%s,"key":%q,"method":"GET"}`, terms, of)), http.StatusNotFound},
		"addresses for another job":         {b.post("chunks", b.asks(job, 5, wire.ChunkRead, "secret"), nil), http.StatusNotFound},
		"questions about another job":       {b.post("chunks", b.asks(job, 5, wire.ChunkAsk, "secret"), nil), http.StatusConflict},
		"written by another machine":        {a.call("m1", "PUT", "/agent/v1/objects/"+key, "secret"), http.StatusNotFound},
		"written with other content":        {b.call("m2", "PUT", "/agent/v1/objects/"+key, "Secret"), http.StatusBadRequest},
		"written under a name of its own":   {b.call("m2", "PUT", "/agent/v1/objects/"+strings.Replace(key, ".chunk", "0.chunk", 1), "secret"), http.StatusServiceUnavailable},
		"written with another length":       {b.call("m2", "PUT", "/agent/v1/objects/"+key, "secret and more"), http.StatusBadRequest},
		"registered by its hash":            {b.reports(other, 5, "secret"), http.StatusConflict},
		"registered at the route of before": {b.post("checkpoints", wire.CheckpointReport{AgentBoot: b.boot, Epoch: b.epoch, Job: job.ID, Attempt: 1, Step: 5}, nil), http.StatusBadRequest},
		"named twice":                       {a.post("chunks", a.asks(job, 6, wire.ChunkAsk, "x", "x"), nil), http.StatusBadRequest},
		"none":                              {a.post("chunks", a.asks(job, 6, wire.ChunkAsk), nil), http.StatusBadRequest},
		"another question":                  {a.post("chunks", a.asks(job, 6, "delete", "x"), nil), http.StatusBadRequest},
	} {
		if c.got.status != c.want {
			t.Errorf("%s: %d %s, want %d", name, c.got.status, c.got.body, c.want)
		}
	}
	b.stores(other, 5, "secret")
	if got := b.reports(other, 5, "secret"); got.status != http.StatusNoContent {
		t.Errorf("after the content was sent: %d %s", got.status, got.body)
	}
}

// The server finds damage itself, and then lets no member leave the chunk out.
func TestADamagedChunkIsFoundAndSentAgain(t *testing.T) {
	t.Parallel()
	s := onChunks(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	a.stores(job, 5, "base")
	if got := a.reports(job, 5, "base"); got.status != http.StatusNoContent {
		t.Fatalf("report: %d %s", got.status, got.body)
	}
	var random string
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT copy FROM chunks`).Scan(&random); err != nil {
		t.Fatal(err)
	}
	key := wire.ChunkCopy{Tenant: job.Tenant, Job: job.ID, Attempt: 1, SHA256: hexSum("base"), Random: random}.Key()
	if _, err := s.blobs.Put(t.Context(), key, strings.NewReader("Base"), 4); err != nil {
		t.Fatal(err)
	}
	if got := a.readsChunk(job, 5, "base"); got.status != http.StatusNotFound || !strings.Contains(got.body, wire.SlugObjectMissing) {
		t.Errorf("a damaged chunk: %d %s", got.status, got.body)
	}
	var answer wire.ChunkAnswer
	a.post("chunks", a.asks(job, 6, wire.ChunkAsk, "base"), &answer)
	if answer.Chunks[0].Have {
		t.Error("a damaged chunk may be left out")
	}
	a.stores(job, 6, "base")
	if got := a.readsChunk(job, 5, "base"); got.status != http.StatusOK || got.body != "base" {
		t.Errorf("after it was sent again: %d %s", got.status, got.body)
	}
}

// chunkBuckets are stores with signed addresses.
var chunkBuckets = map[string]func(t *testing.T) *blob.Store{
	"s3": func(t *testing.T) *blob.Store {
		server := s3test.Start(t)
		store, err := blob.NewS3(t.Context(), server.Client(), server.Bucket, s3blob.Options{})
		if err != nil {
			t.Fatal(err)
		}
		return store
	},
	"gs": func(t *testing.T) *blob.Store {
		server := gstest.StartStore(t)
		client, err := storage.NewClient(t.Context(), storage.WithJSONReads(),
			option.WithHTTPClient(&http.Client{Transport: server.Account.Transport()}), option.WithEndpoint(server.URL+"/storage/v1/"))
		if err != nil {
			t.Fatal(err)
		}
		store, err := blob.NewGCS(t.Context(), client, server.Bucket,
			blob.GCSOptions{Account: gstest.Email, Plaintext: true, Key: server.Account.Key(t)})
		if err != nil {
			t.Fatal(err)
		}
		return store
	},
}

// Signed addresses bind a chunk to its hash, and the server believes the store alone.
func TestChunksAreStoredBySignedAddresses(t *testing.T) {
	t.Parallel()
	for name, open := range chunkBuckets {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := open(t)
			t.Cleanup(func() { _ = store.Close() })
			chunksBySignedAddresses(t, store)
		})
	}
}

func chunksBySignedAddresses(t *testing.T, store *blob.Store) {
	s := newSite(t, func(d *api.Deps) {
		d.Agent = api.AgentDeps{Blobs: store, Direct: true, Chunks: true, ProofLimit: 10 * time.Minute}
	})
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	contents := []string{"base", "adapter"}
	var answer wire.ChunkAnswer
	a.post("chunks", a.asks(job, 5, wire.ChunkStore, contents...), &answer)
	if status, _ := a.sends("PUT", answer.Chunks[0].Address, "Base"); status < 300 {
		t.Errorf("another content is stored: %d", status)
	}
	a.post("chunks", a.asks(job, 5, wire.ChunkStored, contents...), &answer)
	if answer.Chunks[0].Have || answer.Chunks[1].Have {
		t.Errorf("chunks that were not sent are stored: %+v", answer)
	}
	a.post("chunks", a.asks(job, 5, wire.ChunkStore, contents...), &answer)
	for i, content := range contents {
		if status, text := a.sends("PUT", answer.Chunks[i].Address, content); status != http.StatusOK {
			t.Fatalf("put: %d %s", status, text)
		}
	}
	if status, _ := a.sends("PUT", answer.Chunks[0].Address, "base"); status != http.StatusPreconditionFailed {
		t.Errorf("the second use of an address: %d", status)
	}
	longer := a.asks(job, 5, wire.ChunkStored, "base")
	longer.Chunks[0].Bytes++
	if got := a.post("chunks", longer, nil); got.status != http.StatusBadRequest {
		t.Errorf("a chunk of another length than announced: %d %s", got.status, got.body)
	}
	a.post("chunks", a.asks(job, 5, wire.ChunkStored, contents...), &answer)
	if !answer.Chunks[0].Have || !answer.Chunks[1].Have {
		t.Errorf("chunks that were sent: %+v", answer)
	}
	if got := a.reports(job, 5, contents...); got.status != http.StatusNoContent {
		t.Fatalf("report: %d %s", got.status, got.body)
	}
	answer = wire.ChunkAnswer{}
	a.post("chunks", a.asks(job, 5, wire.ChunkRead, contents...), &answer)
	for i, content := range contents {
		if status, text := a.sends("GET", answer.Chunks[i].Address, ""); status != http.StatusOK || text != content {
			t.Errorf("get: %d %q", status, text)
		}
	}
	if got := a.post("chunks", a.asks(job, 5, wire.ChunkRead, "base", "other"), nil); got.status != http.StatusNotFound ||
		strings.Contains(got.body, "Signature") {
		t.Errorf("an address of a chunk that the step does not name: %d %s", got.status, got.body)
	}
}
