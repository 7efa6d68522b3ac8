package api_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"gocloud.dev/blob/s3blob"

	"berth"
	"berth/api"
	"berth/internal/control/blob"
	"berth/internal/machine/fetch/s3test"
	"berth/spec"
	"berth/wire"
)

// smallParts are the least parts that S3 allows.
var smallParts = api.PartSizes{Above: blob.LeastPart, Bytes: blob.LeastPart}

// onBucket is a site whose store is a real server of S3.
func onBucket(t *testing.T) (*site, *bucket) {
	t.Helper()
	server := s3test.Start(t)
	store, err := blob.NewS3(t.Context(), server.Client(), server.Bucket, s3blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	s := newSite(t, func(d *api.Deps) {
		d.Agent = api.AgentDeps{Blobs: store, Direct: true,
			ProofLimit: 10 * time.Minute, Parts: smallParts}
	})
	return s, &bucket{Store: store, Server: server}
}

// bucket is the store, and the server that it is in.
type bucket struct {
	*blob.Store
	*s3test.Server
}

// keeps is a job with checkpoints and an output.
func keeps(j *spec.Job) {
	j.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 1}
	j.Outputs = []spec.Output{{Name: "model", Path: "/out"}}
}

func hexSum(content string) string {
	sum := sha256.Sum256([]byte(content))
	return hex.EncodeToString(sum[:])
}

// put is the request to store this content at a key.
func (a *agent) put(key, content string) wire.AddressRequest {
	return wire.AddressRequest{AgentBoot: a.boot, Epoch: a.epoch, Key: key, Method: "PUT", Bytes: int64(len(content)), SHA256: hexSum(content)}
}

// signs asks for an address, which the server must grant.
func (a *agent) signs(r wire.AddressRequest) wire.ObjectAddress {
	a.t.Helper()
	var address wire.ObjectAddress
	a.post("object-access", r, &address)
	return address
}

// sends sends the signed request and returns the status.
func (a *agent) sends(method string, at wire.ObjectAddress, content string) (int, string) {
	a.t.Helper()
	req, err := http.NewRequestWithContext(a.t.Context(), method, string(at.URL), nil)
	if err != nil {
		a.t.Fatal(err)
	}
	req.Header = at.Header.Clone()
	if content != "" {
		req.Body, req.ContentLength = io.NopCloser(strings.NewReader(content)), int64(len(content))
	}
	r, err := http.DefaultClient.Do(req)
	if err != nil {
		a.t.Fatal(err)
	}
	defer r.Body.Close()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		a.t.Fatal(err)
	}
	return r.StatusCode, string(b)
}

func TestAddressesAreSignedForTheHolderAlone(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a, b := s.joinMachine("m1"), s.joinMachine("m2")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	other := s.submit("bob", keeps)
	b.take(other.ID)
	const content = "weights"
	folder := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5)
	good := a.put(folder+"/file-000000", content)
	address := a.signs(good)
	if status, text := a.sends("PUT", address, content); status != http.StatusOK {
		t.Fatalf("put: %d %s", status, text)
	}
	if status, _ := a.sends("PUT", address, content); status != http.StatusPreconditionFailed {
		t.Errorf("the second use: %d", status)
	}
	read := good
	read.Method, read.Bytes, read.SHA256 = "GET", 0, ""
	if status, text := a.sends("GET", a.signs(read), ""); status != http.StatusOK || text != content {
		t.Errorf("get: %d %q", status, text)
	}
	for name, c := range map[string]struct {
		by   *agent
		edit func(*wire.AddressRequest)
		want int
	}{
		"another machine":                 {b, nil, http.StatusNotFound},
		"another machine, to read":        {b, func(r *wire.AddressRequest) { r.Method = "GET" }, http.StatusNotFound},
		"a session of before":             {a, func(r *wire.AddressRequest) { r.Epoch-- }, http.StatusConflict},
		"another process":                 {a, func(r *wire.AddressRequest) { r.AgentBoot = "x" }, http.StatusConflict},
		"a later attempt":                 {a, func(r *wire.AddressRequest) { r.Key = strings.Replace(r.Key, "attempt-1", "attempt-2", 1) }, http.StatusNotFound},
		"another member":                  {a, func(r *wire.AddressRequest) { r.Key = strings.Replace(r.Key, "rank-0", "rank-1", 1) }, http.StatusNotFound},
		"another tenant":                  {a, func(r *wire.AddressRequest) { r.Key = strings.Replace(r.Key, "tenants/a/", "tenants/b/", 1) }, http.StatusNotFound},
		"a key of no attempt":             {a, func(r *wire.AddressRequest) { r.Key = "uploads/a/x" }, http.StatusBadRequest},
		"a way out":                       {a, func(r *wire.AddressRequest) { r.Key = folder + "/../../x" }, http.StatusBadRequest},
		"to delete":                       {a, func(r *wire.AddressRequest) { r.Method = "DELETE" }, http.StatusBadRequest},
		"without a hash":                  {a, func(r *wire.AddressRequest) { r.SHA256 = "" }, http.StatusBadRequest},
		"without a length":                {a, func(r *wire.AddressRequest) { r.Bytes = 0 }, http.StatusBadRequest},
		"of a length that no store takes": {a, func(r *wire.AddressRequest) { r.Bytes = blob.MaxSigned + 1 }, http.StatusBadRequest},
	} {
		r := c.by.put(good.Key, content)
		if c.edit != nil {
			c.edit(&r)
		}
		if got := c.by.post("object-access", r, nil); got.status != c.want || strings.Contains(got.body, "Signature") {
			t.Errorf("%s: %d %s, want %d", name, got.status, got.body, c.want)
		}
	}
	for _, key := range []string{
		folder + "/" + berth.ManifestName, folder + "/deep/file", berth.AttemptPrefix(job.Tenant, job.ID, 1, 0) + "/checkpoints/file",
		berth.AttemptPrefix(job.Tenant, job.ID, 1, 0) + "/usage.json", berth.AttemptPrefix(job.Tenant, job.ID, 1, 0) + "/outputs/model",
		berth.LogChunkKey(job.Tenant, job.ID, 1, 0, 0),
	} {
		if got := a.signs(a.put(key, content)); got.URL != "" {
			t.Errorf("%s is signed", key)
		}
	}
	if got := a.signs(a.put(berth.OutputKey(job.Tenant, job.ID, 1, 0, "model"), content)); got.URL == "" {
		t.Error("an output is not signed")
	}
	if text := s.log.String(); strings.Contains(text, "Signature") || strings.Contains(text, "X-Amz") {
		t.Errorf("an address is in the log:\n%s", text)
	}
	if ok, err := store.Exists(t.Context(), folder+"/"+berth.ManifestName); ok || err != nil {
		t.Errorf("a manifest exists: %v, %v", ok, err)
	}
}

// TestAnAddressOfADeadAttemptRegistersNothing uses an address after a cancel. The object that it creates is swept with
// its attempt (TestAnObjectOfALateAddressIsSwept of package scheduler).
func TestAnAddressOfADeadAttemptRegistersNothing(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	const content = "weights"
	folder := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5)
	request := a.put(folder+"/file-000000", content)
	address := a.signs(request)
	for _, state := range []berth.State{berth.Running, berth.Canceling} {
		s.exec(`UPDATE jobs SET state = $2, version = version + 1, actor = 'user:alice' WHERE id = $1`, job.ID, state)
	}
	s.end(job.ID, berth.Canceled)
	if status, text := a.sends("PUT", address, content); status != http.StatusOK {
		t.Errorf("the one object: %d %s", status, text)
	}
	if status, _ := a.sends("PUT", address, content); status != http.StatusPreconditionFailed {
		t.Error("a second object")
	}
	for _, edit := range []func(*wire.AddressRequest){
		func(*wire.AddressRequest) {},
		func(r *wire.AddressRequest) { r.Method = "GET" },
		func(r *wire.AddressRequest) { r.Exists = true },
	} {
		r := request
		edit(&r)
		if got := a.post("object-access", r, nil); got.status != http.StatusNotFound {
			t.Errorf("an address after the end: %d %s", got.status, got.body)
		}
	}
	report := a.part(job, 5, content)
	if _, err := store.Store.Put(t.Context(), report.Manifest, strings.NewReader(a.manifest(job, 5, content)), -1); err != nil {
		t.Fatal(err)
	}
	if got := a.post("checkpoints", report, nil); got.status != http.StatusConflict || got.problem.Code != berth.SlugStaleAttempt {
		t.Errorf("registered after the end: %d %s", got.status, got.body)
	}
}

// manifest is that of a step with one file.
func (a *agent) manifest(job wire.Job, step int64, content string) string {
	b, err := json.Marshal(wire.CheckpointManifest{Job: job.ID, Attempt: 1, Step: step, Files: []wire.CheckpointFile{{
		Path: "weights", Object: berth.CheckpointKey(job.Tenant, job.ID, 1, 0, step) + "/file-000000", SHA256: hexSum(content), Bytes: int64(len(content)),
	}}})
	if err != nil {
		a.t.Fatal(err)
	}
	return string(b)
}

// part is the report of that step.
func (a *agent) part(job wire.Job, step int64, content string) wire.CheckpointReport {
	return wire.CheckpointReport{
		AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.run.Alloc, Job: job.ID, Attempt: 1, OfAttempt: 1, Step: step,
		Manifest: berth.CheckpointKey(job.Tenant, job.ID, 1, 0, step) + "/" + berth.ManifestName,
		SHA256:   hexSum(a.manifest(job, step, content)), Bytes: int64(len(content)),
	}
}

func TestACheckpointIsRegisteredOnlyAsItLiesInTheStore(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	const content = "weights"
	step := int64(0)
	for name, c := range map[string]struct {
		manifest, file string // in the store; "": absent
		edit           func(*wire.CheckpointReport)
		code           string
	}{
		"no manifest":      {"", content, nil, wire.SlugObjectMissing},
		"another manifest": {"{}", content, nil, wire.SlugObjectMissing},
		"no file":          {"good", "", nil, wire.SlugObjectMissing},
		"a shorter file":   {"good", "weight", nil, wire.SlugObjectMissing},
		"fewer bytes":      {"good", content, func(r *wire.CheckpointReport) { r.Bytes = 1 }, wire.SlugObjectMissing},
		"another hash":     {"good", content, func(r *wire.CheckpointReport) { r.SHA256 = hexSum("x") }, wire.SlugObjectMissing},
		"no hash":          {"good", content, func(r *wire.CheckpointReport) { r.SHA256 = "x" }, "invalid"},
		"a manifest of another step": {"good", content, func(r *wire.CheckpointReport) {
			r.Manifest = berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 10_000) + "/" + berth.ManifestName
		}, "invalid"},
		"a manifest below another tenant": {"good", content, func(r *wire.CheckpointReport) {
			r.Manifest = strings.Replace(r.Manifest, "tenants/"+string(job.Tenant)+"/", "tenants/other/", 1)
		}, "invalid"},
		"a manifest of another member": {"good", content, func(r *wire.CheckpointReport) {
			r.Manifest = strings.Replace(r.Manifest, "rank-0", "rank-1", 1)
		}, "invalid"},
	} {
		step++
		report := a.part(job, step, content)
		for key, text := range map[string]string{report.Manifest: c.manifest, strings.Replace(report.Manifest, berth.ManifestName, "file-000000", 1): c.file} {
			if text == "good" {
				text = a.manifest(job, step, content)
			}
			if text == "" {
				continue
			}
			if _, err := store.Store.Put(t.Context(), key, strings.NewReader(text), -1); err != nil {
				t.Fatal(err)
			}
		}
		if c.edit != nil {
			c.edit(&report)
		}
		if got := a.post("checkpoints", report, nil); got.status < 400 || got.problem.Code != c.code {
			t.Errorf("%s: %d %s, want %s", name, got.status, got.body, c.code)
		}
	}
	if list := s.call("alice", "GET", "/v1/jobs/"+string(job.ID), ""); strings.Contains(list.body, `"verified"`) {
		t.Errorf("a checkpoint is registered: %s", list.body)
	}
	saves := func(step int64) wire.CheckpointReport {
		t.Helper()
		folder := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, step)
		if status, text := a.sends("PUT", a.signs(a.put(folder+"/file-000000", content)), content); status != http.StatusOK {
			t.Fatalf("put: %d %s", status, text)
		}
		if _, err := store.Store.Put(t.Context(), folder+"/"+berth.ManifestName, strings.NewReader(a.manifest(job, step, content)), -1); err != nil {
			t.Fatal(err)
		}
		report := a.part(job, step, content)
		if got := a.post("checkpoints", report, nil); got.status != http.StatusNoContent {
			t.Fatalf("step %d: %d %s", step, got.status, got.body)
		}
		return report
	}
	older := saves(100)
	saves(200) // keep is 1: the objects of step 100 are deleted
	if got := a.post("checkpoints", older, nil); got.status != http.StatusNoContent {
		t.Errorf("a repeated report of a pruned step: %d %s", got.status, got.body)
	}
}

func TestAnOutputIsRegisteredOnlyAsItLiesInTheStore(t *testing.T) {
	t.Parallel()
	s, _ := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	const content = "an archive"
	report := wire.OutputReport{AgentBoot: a.boot, Epoch: a.epoch, Alloc: a.run.Alloc, Job: job.ID, Attempt: 1,
		Output: wire.StoredOutput{Name: "model", Attempt: 1, Address: berth.Address("sha256:" + strings.Repeat("0", 64)), Files: 1, Bytes: 1,
			Stored: int64(len(content)), SHA256: hexSum(content)}}
	refused := func(name string, edit func(*wire.StoredOutput)) {
		t.Helper()
		r := report
		edit(&r.Output)
		if got := a.post("outputs", r, nil); got.status != http.StatusConflict || got.problem.Code != wire.SlugObjectMissing {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
	refused("no object", func(*wire.StoredOutput) {})
	address := a.signs(a.put(berth.OutputKey(job.Tenant, job.ID, 1, 0, "model"), content))
	if status, text := a.sends("PUT", address, content); status != http.StatusOK {
		t.Fatalf("put: %d %s", status, text)
	}
	refused("fewer bytes", func(o *wire.StoredOutput) { o.Stored-- })
	refused("another content", func(o *wire.StoredOutput) { o.SHA256 = hexSum("another") })
	for range 2 {
		if got := a.post("outputs", report, nil); got.status != http.StatusNoContent {
			t.Errorf("the output: %d %s", got.status, got.body)
		}
	}
	if got := a.signs(wire.AddressRequest{AgentBoot: a.boot, Epoch: a.epoch, Key: berth.OutputKey(job.Tenant, job.ID, 1, 0, "model"), Method: "PUT",
		Bytes: int64(len(content)), SHA256: hexSum(content), Exists: true}); !got.Stored || got.URL != "" {
		t.Errorf("the stored object is answered %+v", got)
	}
	if got := a.signs(wire.AddressRequest{AgentBoot: a.boot, Epoch: a.epoch, Key: berth.OutputKey(job.Tenant, job.ID, 1, 0, "model"), Method: "PUT",
		Bytes: int64(len(content)), SHA256: hexSum("another"), Exists: true}); got.Stored {
		t.Error("another content counts as stored")
	}
}

// TestAnAddressIsRefusedWithoutRoomInTheQuota checks that the announced length is the stored one: the store refuses
// any other.
func TestAnAddressIsRefusedWithoutRoomInTheQuota(t *testing.T) {
	t.Parallel()
	s, _ := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	limits := spec.StorageLimits{Outputs: new(spec.MiB(1)), Checkpoints: new(spec.MiB(1))}
	if _, err := s.as("admin").SetQuota(t.Context(), spec.Quota{Tenant: job.Tenant, Storage: &limits}); err != nil {
		t.Fatal(err)
	}
	small := a.put(berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 1)+"/file-000000", "x")
	if got := a.signs(small); got.URL == "" {
		t.Error("an object that fits is not signed")
	}
	rest := small
	rest.Rest = 2 << 20
	large := a.put(berth.OutputKey(job.Tenant, job.ID, 1, 0, "model"), strings.Repeat("x", 2<<20))
	for name, r := range map[string]wire.AddressRequest{"a checkpoint as a whole": rest, "an output": large} {
		if got := a.post("object-access", r, nil); got.status != http.StatusRequestEntityTooLarge || got.problem.Code != berth.SlugStorageQuota {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
	}
}

// TestAServerMaySignNothing checks the answers of servers whose store or operator allows no signed addresses.
func TestAServerMaySignNothing(t *testing.T) {
	t.Parallel()
	server := s3test.Start(t)
	store, err := blob.NewS3(t.Context(), server.Client(), server.Bucket, s3blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for name, edit := range map[string]func(*api.Deps){
		"a folder":     func(d *api.Deps) { d.Agent.Direct = true },
		"the operator": func(d *api.Deps) { d.Agent.Blobs = store },
	} {
		s := newSite(t, edit)
		a := s.joinMachine("m1")
		job := s.submit("alice", keeps)
		a.take(job.ID)
		if got := s.call("m1", "GET", "/agent/v1/object-access", ""); strings.TrimSpace(got.body) != `{"direct":false}` {
			t.Errorf("%s: %d %s", name, got.status, got.body)
		}
		key := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 1) + "/file-000000"
		if got := a.signs(a.put(key, "x")); got.URL != "" {
			t.Errorf("%s: an object is signed", name)
		}
	}
	s, _ := onBucket(t)
	s.joinMachine("m1")
	if got := s.call("m1", "GET", "/agent/v1/object-access", ""); strings.TrimSpace(got.body) != fmt.Sprintf(
		`{"direct":true,"min_bytes":%d,"max_bytes":%d,"parts_above":%d,"part_bytes":%d,"max_in_parts":%d}`, 1<<20,
		int64(blob.MaxSigned), blob.LeastPart, blob.LeastPart, int64(1<<40)) {
		t.Errorf("a bucket: %d %s", got.status, got.body)
	}
}
