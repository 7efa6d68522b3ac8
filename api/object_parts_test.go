package api_test

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/aws/aws-sdk-go-v2/service/s3/types"

	"berth"
	"berth/api"
	"berth/internal/control/blob"
	"berth/wire"
)

// partsOf is the request to store this content by parts, and the hashes of the parts.
func (a *agent) partsOf(key string, content []byte) (r wire.AddressRequest, sums []string) {
	all := sha256.New()
	for at := 0; at < len(content); at += blob.LeastPart {
		sum := sha256.Sum256(content[at:min(at+blob.LeastPart, len(content))])
		all.Write(sum[:])
		sums = append(sums, hex.EncodeToString(sum[:]))
	}
	r = a.put(key, string(content))
	r.SHA256, r.PartBytes = hex.EncodeToString(all.Sum(nil)), blob.LeastPart
	return r, sums
}

// twoParts is content of two parts.
func twoParts() []byte { return bytes.Repeat([]byte("0123456789abcdef"), blob.LeastPart/16+3) }

// storesPart stores a part of the content by a signed address and returns the status.
func (a *agent) storesPart(r wire.AddressRequest, number int, sums []string, content []byte) int {
	a.t.Helper()
	r.Part, r.PartSHA256 = number, sums[number-1]
	at := (number - 1) * blob.LeastPart
	status, _ := a.sends("PUT", a.signs(r), string(content[at:min(at+blob.LeastPart, len(content))]))
	return status
}

// TestALargeObjectIsStoredByParts lets two servers take turns, as after the end of one by kill -9: all that they know
// of an upload is in the store.
func TestALargeObjectIsStoredByParts(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	server, err := api.New(api.Deps{
		DB: s.db, Control: s.db.Jobs, Logger: slog.New(slog.DiscardHandler), Rate: 1e6, Burst: 1e6,
		Agent: api.AgentDeps{Blobs: store.Store, Direct: true, ProofLimit: 10 * time.Minute, Parts: smallParts},
	})
	if err != nil {
		t.Fatal(err)
	}
	second := httptest.NewServer(server.Handler())
	t.Cleanup(func() { server.Close(); second.CloseClientConnections(); second.Close(); server.Wait() })
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	other := *a
	otherSite := *a.site
	otherSite.url = second.URL
	other.site = &otherSite
	content := twoParts()
	key := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5) + "/file-000000"
	r, sums := a.partsOf(key, content)
	begun := a.signs(r)
	if begun.Upload == "" || begun.Resumed || begun.URL != "" || begun.Found != wire.FoundNone {
		t.Fatalf("the upload begins with %+v", begun)
	}
	r.Upload = begun.Upload
	if got := a.post("object-access", r, nil); got.status != http.StatusBadRequest {
		t.Errorf("completed without parts: %d %s", got.status, got.body)
	}
	if status := a.storesPart(r, 1, sums, content); status != http.StatusOK {
		t.Fatalf("part 1: %d", status)
	}
	again := r
	again.Upload = ""
	if got := other.signs(again); got.Upload != begun.Upload || !got.Resumed {
		t.Fatalf("another server begins with %+v", got)
	}
	for part, want := range map[int]bool{1: true, 2: false} {
		ask := r
		ask.Part, ask.PartSHA256, ask.Exists = part, sums[part-1], true
		if got := other.signs(ask); got.Stored != want || got.URL != "" {
			t.Errorf("part %d is answered %+v", part, got)
		}
	}
	if status := other.storesPart(r, 2, sums, content); status != http.StatusOK {
		t.Fatalf("part 2: %d", status)
	}
	for range 2 { // the first answer may be lost
		if got := other.signs(r); !got.Stored {
			t.Errorf("completed with %+v", got)
		}
	}
	if got, err := store.ReadAll(t.Context(), key, 1<<30); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d other bytes are stored: %v", len(got), err)
	}
	if got := a.signs(again); !got.Stored || got.Upload != "" {
		t.Errorf("a repeated begin is answered %+v", got)
	}
	different, _ := a.partsOf(key, bytes.ToUpper(content))
	if got := a.signs(different); got.Stored || got.Upload != "" || got.Found != wire.FoundOther {
		t.Errorf("another content of the key begins with %+v", got)
	}
	gone := r
	gone.Part, gone.PartSHA256, gone.Exists = 1, sums[0], true
	if got := a.post("object-access", gone, nil); got.status != http.StatusServiceUnavailable {
		t.Errorf("a part of a completed upload: %d %s", got.status, got.body)
	}
}

// TestAnUploadEndsWithItsObject lets the object of an upload pass the server, and then begins to store the same object,
// whose upload another call had begun. No upload stays.
func TestAnUploadEndsWithItsObject(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	content := twoParts()
	folder := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5)
	key, neighbor := folder+"/file-000000", folder+"/file-0000000"
	uploads := func() (keys []string) {
		t.Helper()
		if err := store.Uploads(t.Context(), folder, func(u blob.Upload) error {
			keys = append(keys, u.Key)
			return nil
		}); err != nil {
			t.Fatal(err)
		}
		slices.Sort(keys)
		return keys
	}
	if _, _, err := store.InParts().Begin(t.Context(), neighbor); err != nil {
		t.Fatal(err)
	}
	r, sums := a.partsOf(key, content)
	r.Upload = a.signs(r).Upload
	if got := uploads(); !slices.Equal(got, []string{key, neighbor}) {
		t.Fatalf("the uploads are %v", got)
	}
	if got := a.call(string(a.machine), "PUT", "/agent/v1/objects/"+key, string(content)); got.status != http.StatusNoContent {
		t.Fatalf("through the server: %d %s", got.status, got.body)
	}
	if got := uploads(); !slices.Equal(got, []string{neighbor}) {
		t.Errorf("after the object passed the server, the uploads are %v", got)
	}
	if err := store.Delete(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	begin := r
	begin.Upload = ""
	r.Upload = a.signs(begin).Upload
	for part := range sums {
		if status := a.storesPart(r, part+1, sums, content); status != http.StatusOK {
			t.Fatalf("part %d: %d", part+1, status)
		}
	}
	if got := a.signs(r); !got.Stored {
		t.Fatalf("completed with %+v", got)
	}
	if _, _, err := store.InParts().Begin(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if got := a.signs(begin); !got.Stored || !slices.Equal(uploads(), []string{neighbor}) {
		t.Errorf("a begin of a complete object is answered %+v, and the uploads are %v", got, uploads())
	}
}

// TestACompletionThatFindsItsObjectEndsOtherUploads repeats a completion after another call has begun a further upload
// of the object.
func TestACompletionThatFindsItsObjectEndsOtherUploads(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	content := twoParts()
	key := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5) + "/file-000000"
	r, sums := a.partsOf(key, content)
	r.Upload = a.signs(r).Upload
	for part := range sums {
		if status := a.storesPart(r, part+1, sums, content); status != http.StatusOK {
			t.Fatalf("part %d: %d", part+1, status)
		}
	}
	if got := a.signs(r); !got.Stored {
		t.Fatalf("completed with %+v", got)
	}
	if _, _, err := store.InParts().Begin(t.Context(), key); err != nil {
		t.Fatal(err)
	}
	if got := a.signs(r); !got.Stored {
		t.Errorf("the repeated completion is answered %+v", got)
	}
	if left := store.uploadsOf(t, key); len(left) > 0 {
		t.Errorf("the uploads %v are left", left)
	}
}

// TestAnObjectEndsNoTransferOfTheServer stores an object, while the server stores the same object for another call,
// which goes by parts as well: the other call must not fail.
func TestAnObjectEndsNoTransferOfTheServer(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	content := twoParts()
	key := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5) + "/file-000000"
	out, err := store.Client().CreateMultipartUpload(t.Context(), &s3.CreateMultipartUploadInput{
		Bucket: &store.Bucket, Key: &key, ChecksumAlgorithm: types.ChecksumAlgorithmCrc32,
	})
	if err != nil {
		t.Fatal(err)
	}
	r, _ := a.partsOf(key, content)
	if got := a.signs(r); got.Upload == "" || got.Upload == *out.UploadId {
		t.Fatalf("the upload begins with %+v", got)
	}
	if got := a.call(string(a.machine), "PUT", "/agent/v1/objects/"+key, string(content)); got.status != http.StatusNoContent {
		t.Fatalf("through the server: %d %s", got.status, got.body)
	}
	if left := store.uploadsOf(t, key); !slices.Equal(left, []string{*out.UploadId}) {
		t.Errorf("the uploads %v are left, want the server's %s", left, *out.UploadId)
	}
}

// uploadsOf lists the ids of the unfinished uploads of an object.
func (b *bucket) uploadsOf(t *testing.T, key string) (ids []string) {
	t.Helper()
	err := b.Uploads(t.Context(), path.Dir(key), func(u blob.Upload) error {
		if u.Key == key {
			ids = append(ids, u.ID)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// TestAShortObjectGoesByNoParts asks for parts of an object that goes as a whole.
func TestAShortObjectGoesByNoParts(t *testing.T) {
	t.Parallel()
	s, _ := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	r, _ := a.partsOf(berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5)+"/file-000000", twoParts()[:smallParts.Above])
	if got := a.signs(r); got.Upload != "" || got.URL != "" {
		t.Errorf("answered %+v", got)
	}
}

// TestPartsAreSignedWhileTheAttemptIsCurrent ends the attempt between the parts: no further part is signed and the
// object is never completed. The leader aborts the upload (TestUploadsOfPartsEndWithTheirAttempt of package scheduler).
func TestPartsAreSignedWhileTheAttemptIsCurrent(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a, b := s.joinMachine("m1"), s.joinMachine("m2")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	other := s.submit("bob", keeps)
	b.take(other.ID)
	content := twoParts()
	key := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5) + "/file-000000"
	r, sums := a.partsOf(key, content)
	r.Upload = a.signs(r).Upload
	if status := a.storesPart(r, 1, sums, content); status != http.StatusOK {
		t.Fatalf("part 1: %d", status)
	}
	part := r
	part.Part, part.PartSHA256 = 2, sums[1]
	for name, c := range map[string]struct {
		by   *agent
		edit func(*wire.AddressRequest)
		want int
	}{
		"another machine":       {b, func(*wire.AddressRequest) {}, http.StatusNotFound},
		"another session":       {a, func(r *wire.AddressRequest) { r.Epoch-- }, http.StatusConflict},
		"part 0 of the object":  {a, func(r *wire.AddressRequest) { r.Part = -1 }, http.StatusBadRequest},
		"a part behind the end": {a, func(r *wire.AddressRequest) { r.Part = 3 }, http.StatusBadRequest},
		"a part without a hash": {a, func(r *wire.AddressRequest) { r.PartSHA256 = "" }, http.StatusBadRequest},
		"an id that is no id":   {a, func(r *wire.AddressRequest) { r.Upload = "a b" }, http.StatusBadRequest},
		"to complete as another": {a, func(r *wire.AddressRequest) { r.Part, r.SHA256 = 0, hexSum("x") },
			http.StatusBadRequest},
	} {
		q := part
		if c.by == b {
			q.AgentBoot, q.Epoch = b.boot, b.epoch
		}
		c.edit(&q)
		if got := c.by.post("object-access", q, nil); got.status != c.want || strings.Contains(got.body, "Signature") {
			t.Errorf("%s: %d %s, want %d", name, got.status, got.body, c.want)
		}
	}
	q := part
	q.PartBytes++
	if got := a.signs(q); got.URL != "" {
		t.Error("a part of another length than the server's is signed")
	}
	late := a.signs(part)
	for _, state := range []berth.State{berth.Running, berth.Canceling} {
		s.exec(`UPDATE jobs SET state = $2, version = version + 1, actor = 'user:alice' WHERE id = $1`, job.ID, state)
	}
	s.end(job.ID, berth.Canceled)
	if status, text := a.sends("PUT", late, string(content[blob.LeastPart:])); status != http.StatusOK {
		t.Errorf("the one part that was signed before: %d %s", status, text)
	}
	begin, complete := r, r
	begin.Upload = ""
	for name, q := range map[string]wire.AddressRequest{"to begin": begin, "a part": part, "to complete": complete} {
		if got := a.post("object-access", q, nil); got.status != http.StatusNotFound {
			t.Errorf("%s after the end: %d %s", name, got.status, got.body)
		}
	}
	if ok, err := store.Exists(t.Context(), key); ok || err != nil {
		t.Errorf("an object of the dead attempt exists: %v, %v", ok, err)
	}
}
