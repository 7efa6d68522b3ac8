package api_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/api"
	"berth/internal/lib/archive"
	"berth/spec"
	"berth/wire"
)

// noise is text that does not compress.
func noise(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
	return string(b)
}

// An upload over the quota is 413 with the tenant, its use and its limit, whether the length
// is announced or not; nothing of it is stored, and there is room again after a delete.
func TestUploadsOverQuotaAreRefused(t *testing.T) {
	t.Parallel()
	s, dir := uploading(t, archive.Limits{})
	tenant := s.submit("alice", nil).Tenant
	set := func(l spec.StorageLimits) {
		t.Helper()
		if _, err := s.as("admin").SetQuota(t.Context(), spec.Quota{Tenant: tenant, Storage: &l}); err != nil {
			t.Fatal(err)
		}
	}
	set(spec.StorageLimits{Uploads: new(spec.MiB(1))})
	first, got := s.upload("alice", noise(600<<10))
	if got.status != http.StatusCreated {
		t.Fatalf("%d %s", got.status, got.body)
	}
	before, _ := s.stored(dir)
	refused := func(what string, got answer) {
		t.Helper()
		p := got.problem
		if got.status != http.StatusRequestEntityTooLarge || p.Code != berth.SlugStorageQuota || len(p.Errors) != 1 ||
			!strings.Contains(p.Detail, fmt.Sprintf("tenant %s stores", tenant)) || !strings.Contains(p.Detail, "its quota is 1.0 MiB") || p.Errors[0].Allowed == "" {
			t.Errorf("%s: %d %s", what, got.status, got.body)
		}
	}
	second, text := archived(t, noise(700<<10))
	path := "/v1/uploads?address=" + string(second)
	refused("announced", s.call("alice", "POST", path, text, "Content-Type", "application/zstd"))
	refused("not announced", s.unannounced("alice", path, text))
	if _, got := s.upload("alice", "small"); got.status != http.StatusCreated {
		t.Errorf("what fits: %d %s", got.status, got.body)
	}
	if n, _ := s.stored(dir); n > before+2 { // the small one
		t.Errorf("%d files are stored, and %d were", n, before)
	}
	got = s.call("alice", "GET", "/v1/quotas/"+string(tenant), "")
	if !strings.Contains(got.body, `"storage":{"uploads":"1MiB"}`) || !strings.Contains(got.body, `"uploads_bytes":6`) {
		t.Errorf("quota: %s", got.body)
	}
	if _, err := s.db.Pool().Exec(t.Context(), `DELETE FROM uploads WHERE address = $1`, first); err != nil {
		t.Fatal(err)
	}
	if got := s.call("alice", "POST", path, text, "Content-Type", "application/zstd"); got.status != http.StatusCreated {
		t.Errorf("after a delete: %d %s", got.status, got.body)
	}
	if got := s.call("alice", "POST", path, text, "Content-Type", "application/zstd"); got.status != http.StatusOK {
		t.Errorf("the same again, without room for it: %d %s", got.status, got.body)
	}
}

// unannounced sends a body without its length.
func (s *site) unannounced(name, path, body string) answer {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.url+path, struct{ *strings.Reader }{strings.NewReader(body)})
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+s.tokens[name])
	req.Header.Set("Content-Type", "application/zstd")
	return s.answered(req)
}

func TestSecretsOverQuotaAreRefused(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	tenant := s.submit("alice", nil).Tenant
	quota := spec.Quota{Tenant: tenant, Storage: &spec.StorageLimits{Secrets: new(1)}}
	if _, err := s.as("admin").SetQuota(t.Context(), quota); err != nil {
		t.Fatal(err)
	}
	s.secret("A", "alice", "x")
	if got := s.secret("B", "alice", "x"); got.status != http.StatusConflict || got.problem.Code != berth.SlugQuota ||
		!strings.Contains(got.problem.Detail, "its quota is 1") {
		t.Errorf("%d %s", got.status, got.body)
	}
	if got := s.secret("A", "alice", "y"); got.status != http.StatusOK {
		t.Errorf("another value: %d %s", got.status, got.body)
	}
	s.call("alice", "DELETE", "/v1/secrets/A", "")
	if got := s.secret("B", "alice", "x"); got.status != http.StatusCreated {
		t.Errorf("after a delete: %d %s", got.status, got.body)
	}
}

// A restarted agent stores registered objects again. That adds nothing, so it is
// accepted while the quota has no room for as much again, and a step of which one
// member's shard is registered is not given up.
func TestWhatCountsAlreadyIsStoredAgain(t *testing.T) {
	t.Parallel()
	s := newSite(t, nil)
	a := s.joinMachine("m1")
	job := s.submit("alice", func(j *spec.Job) {
		j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 1}
		j.Outputs = []spec.Output{{Name: "model", Path: "/out"}, {Name: "other", Path: "/other"}}
	})
	a.take(job.ID)
	limits := spec.StorageLimits{Outputs: new(spec.MiB(1)), Checkpoints: new(spec.MiB(1))}
	if _, err := s.as("admin").SetQuota(t.Context(), spec.Quota{Tenant: job.Tenant, Storage: &limits}); err != nil {
		t.Fatal(err)
	}
	large := noise(700 << 10)
	for range 2 {
		if put, registered := a.store(job, "model", large); put.status >= 300 || registered.status >= 300 {
			t.Fatalf("the output: %d %s, %d %s", put.status, put.body, registered.status, registered.body)
		}
	}
	if put, _ := a.store(job, "other", large); put.status != http.StatusRequestEntityTooLarge {
		t.Errorf("another output: %d %s", put.status, put.body)
	}
	part := func(step int64, content string) answer {
		t.Helper()
		return a.call("m1", "PUT", "/agent/v1/objects/"+berth.CheckpointKey(job.Tenant, job.ID, 1, 0, step)+"/file-000000", content)
	}
	for range 2 {
		if got := part(1, large); got.status != http.StatusNoContent {
			t.Fatalf("the checkpoint: %d %s", got.status, got.body)
		}
		got := a.post("checkpoints", wire.CheckpointReport{
			AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.run.Alloc, Job: job.ID, Attempt: 1, OfAttempt: 1,
			Step: 1, Manifest: berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 1) + "/" + berth.ManifestName, SHA256: "x", Bytes: int64(len(large)),
		}, nil)
		if got.status != http.StatusNoContent {
			t.Fatalf("register: %d %s", got.status, got.body)
		}
	}
	if got := part(1, large+"more"); got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("more than is registered: %d %s", got.status, got.body)
	}
	if got := part(2, large); got.status != http.StatusRequestEntityTooLarge {
		t.Errorf("another step: %d %s", got.status, got.body)
	}
}

// However many uploads of one tenant ask whether there is room for them, at most as many
// as it may have open wait for the database.
func TestUploadsAskForRoomWithinTheirCap(t *testing.T) {
	t.Parallel()
	const most = 2
	s := newSite(t, func(d *api.Deps) { d.Transfers.UploadsPerToken, d.Transfers.UploadsPerTenant = most, most })
	tenant := s.submit("alice", nil).Tenant
	limits := spec.StorageLimits{Uploads: new(spec.MiB(1))}
	if _, err := s.as("admin").SetQuota(t.Context(), spec.Quota{Tenant: tenant, Storage: &limits}); err != nil {
		t.Fatal(err)
	}
	release := s.lock("tenant_storage")
	answers := make(chan answer, most+1)
	for i := range most + 1 {
		go func() {
			_, got := s.upload("alice", fmt.Sprint("content ", i))
			answers <- got
		}()
	}
	refused := false
	for late := time.After(waitLimit); !refused && s.waitingForLocks() <= most; {
		select {
		case <-late:
			t.Fatal("an upload neither waits for the database nor is refused")
		case got := <-answers:
			if refused = got.status == http.StatusTooManyRequests; !refused {
				t.Fatalf("%d %s", got.status, got.body)
			}
		case <-time.After(2 * time.Millisecond):
		}
	}
	if !refused {
		t.Errorf("more than %d uploads of a tenant wait for the database", most)
	}
	release()
	left := most + 1
	if refused {
		left--
	}
	for range left {
		if got := <-answers; got.status != http.StatusCreated {
			t.Errorf("%d %s", got.status, got.body)
		}
	}
}
