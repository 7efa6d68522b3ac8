package api_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
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

// behind is a site whose store is a real server of S3 behind a proxy that a test can disturb.
func behind(
	t *testing.T, disturb func(next http.Handler, w http.ResponseWriter, r *http.Request),
) (*site, *blob.Store) {
	t.Helper()
	server := s3test.Start(t)
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	next := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) {
		r.SetURL(target)
		r.Out.Host = r.In.Host // which is signed
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { disturb(next, w, r) }))
	t.Cleanup(front.Close)
	store, err := blob.NewS3(t.Context(), s3test.ClientAt(front.URL), server.Bucket, s3blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = store.Close() })
	return newSite(t, func(d *api.Deps) {
		d.Agent = api.AgentDeps{Blobs: store, Direct: true, ProofLimit: 10 * time.Minute, Parts: api.PartSizes{Above: 1}}
	}), store
}

// storesStep stores the file and the manifest of a step with one file.
func (a *agent) storesStep(store *blob.Store, job wire.Job, step int64, content string) wire.CheckpointReport {
	a.t.Helper()
	report := a.part(job, step, content)
	for key, text := range map[string]string{
		report.Manifest: a.manifest(job, step, content),
		strings.Replace(report.Manifest, berth.ManifestName, "file-000000", 1): content,
	} {
		if _, err := store.Put(a.t.Context(), key, strings.NewReader(text), -1); err != nil {
			a.t.Fatal(err)
		}
	}
	return report
}

// TestAListingThatLagsMakesNoObjectMissing hides the files of steps from listings: the objects themselves decide.
func TestAListingThatLagsMakesNoObjectMissing(t *testing.T) {
	t.Parallel()
	s, store := behind(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodGet || !r.URL.Query().Has("list-type") {
			next.ServeHTTP(w, r)
			return
		}
		answer := httptest.NewRecorder()
		next.ServeHTTP(answer, r)
		body := answer.Body.Bytes()
		if i, j := bytes.Index(body, []byte("<Contents>")), bytes.LastIndex(body, []byte("</Contents>")); i >= 0 {
			body = append(body[:i:i], body[j+len("</Contents>"):]...)
		}
		_, _ = w.Write(body)
	})
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	report := a.storesStep(store, job, 5, "weights")
	if got := a.post("checkpoints", report, nil); got.status != http.StatusNoContent {
		t.Errorf("a step that the listing lacks: %d %s", got.status, got.body)
	}
	lost := a.storesStep(store, job, 6, "weights")
	file := strings.Replace(lost.Manifest, berth.ManifestName, "file-000000", 1)
	if err := store.Delete(t.Context(), file); err != nil {
		t.Fatal(err)
	}
	if got := a.post("checkpoints", lost, nil); got.problem.Code != wire.SlugObjectMissing {
		t.Errorf("a step whose file is missing: %d %s", got.status, got.body)
	}
}

// TestAStoreThatIgnoresConditionsIsNotCompared answers each signed PUT with a success and stores nothing. The site
// neither signs addresses nor judges reports by such a store, and warns once.
func TestAStoreThatIgnoresConditionsIsNotCompared(t *testing.T) {
	t.Parallel()
	s, _ := behind(t, func(next http.Handler, w http.ResponseWriter, r *http.Request) {
		if r.URL.Query().Has("X-Amz-Signature") {
			_, _ = io.Copy(io.Discard, r.Body)
			return
		}
		next.ServeHTTP(w, r)
	})
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	for range 3 {
		got := s.call("m1", "GET", "/agent/v1/object-access", "")
		if strings.TrimSpace(got.body) != `{"direct":false}` {
			t.Errorf("access: %d %s", got.status, got.body)
		}
	}
	if got := a.signs(a.put(berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5)+"/file-000000", "x")); got.URL != "" {
		t.Error("an address is signed")
	}
	if got := a.post("checkpoints", a.part(job, 5, "weights"), nil); got.status != http.StatusNoContent {
		t.Errorf("a report is compared: %d %s", got.status, got.body)
	}
	if n := strings.Count(s.log.String(), "object store not proven fit"); n != 1 {
		t.Errorf("%d warnings, want 1:\n%s", n, s.log.String())
	}
}

// TestAddressesAreSignedForDeclaredObjectsAlone asks for addresses of objects that the job's file does not have.
func TestAddressesAreSignedForDeclaredObjectsAlone(t *testing.T) {
	t.Parallel()
	s, _ := onBucket(t)
	for name, c := range map[string]struct {
		edit               func(*spec.Job)
		checkpoint, output bool
	}{
		"both":            {keeps, true, true},
		"a checkpoint":    {func(j *spec.Job) { keeps(j); j.Outputs = nil }, true, false},
		"another output":  {func(j *spec.Job) { keeps(j); j.Outputs[0].Name = "other" }, true, false},
		"an output alone": {func(j *spec.Job) { keeps(j); j.Checkpoint = nil }, false, true},
		"nothing":         {nil, false, false},
	} {
		a := s.joinMachine(berth.MachineID("m-" + strings.ReplaceAll(name, " ", "-")))
		job := s.submit("alice", c.edit)
		a.take(job.ID)
		file := a.put(berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5)+"/file-000000", "x")
		inParts := file
		inParts.Bytes, inParts.PartBytes = 2*blob.LeastPart, blob.LeastPart
		if got := a.signs(file); (got.URL != "") != c.checkpoint {
			t.Errorf("%s: a file of a checkpoint is signed: %t", name, got.URL != "")
		}
		if got := a.signs(inParts); (got.Upload != "") != c.checkpoint {
			t.Errorf("%s: an upload of parts begins: %t", name, got.Upload != "")
		}
		if got := a.signs(a.put(berth.OutputKey(job.Tenant, job.ID, 1, 0, "model"), "x")); (got.URL != "") != c.output {
			t.Errorf("%s: an output is signed: %t", name, got.URL != "")
		}
	}
}

// TestObjectsThatNoManifestListsAreDeletedAtTheRegistration stores further objects into the folder of a step.
func TestObjectsThatNoManifestListsAreDeletedAtTheRegistration(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	report := a.storesStep(store.Store, job, 5, "weights")
	folder := strings.TrimSuffix(report.Manifest, "/"+berth.ManifestName)
	for _, name := range []string{"file-000001", "more"} {
		if _, err := store.Store.Put(t.Context(), folder+"/"+name, strings.NewReader("extra"), -1); err != nil {
			t.Fatal(err)
		}
	}
	if got := a.post("checkpoints", report, nil); got.status != http.StatusNoContent {
		t.Fatalf("register: %d %s", got.status, got.body)
	}
	names, err := store.Names(t.Context(), folder)
	if err != nil || len(names) != 2 {
		t.Errorf("the folder has %v: %v, want the file and the manifest", names, err)
	}
}

// TestABackupHoldsDeletionsOfMachinesReports registers a step and stores an object while a backup runs. The objects that
// no manifest lists stay, and so does the upload of the object.
func TestABackupHoldsDeletionsOfMachinesReports(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	report := a.storesStep(store.Store, job, 5, "weights")
	folder := strings.TrimSuffix(report.Manifest, "/"+berth.ManifestName)
	if _, err := store.Store.Put(t.Context(), folder+"/more", strings.NewReader("extra"), -1); err != nil {
		t.Fatal(err)
	}
	content := twoParts()
	key := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 6) + "/file-000000"
	r, _ := a.partsOf(key, content)
	upload := a.signs(r).Upload
	if _, err := s.db.Backups.Begin(t.Context(), "operator:test"); err != nil {
		t.Fatal(err)
	}
	if got := a.post("checkpoints", report, nil); got.status != http.StatusNoContent {
		t.Fatalf("register: %d %s", got.status, got.body)
	}
	if ok, err := store.Exists(t.Context(), folder+"/more"); !ok || err != nil {
		t.Errorf("an object is deleted during a backup: %t, %v", ok, err)
	}
	if got := a.call(string(a.machine), "PUT", "/agent/v1/objects/"+key, string(content)); got.status != http.StatusNoContent {
		t.Fatalf("through the server: %d %s", got.status, got.body)
	}
	if id, resumed, err := store.InParts().Begin(t.Context(), key); id != upload || !resumed || err != nil {
		t.Errorf("an upload is aborted during a backup: %v", err)
	}
}

// TestAForgedManifestIsRefused reports manifests that no agent writes, with their true hash.
func TestAForgedManifestIsRefused(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	for name, text := range map[string]string{
		"no manifest":      `[1]`,
		"too many entries": `{"files":[` + strings.Repeat(`{},`, 1<<20) + `{}]}`,
		"another folder":   `{"files":[{"object":"tenants/b/x","bytes":1}]}`,
	} {
		report := a.part(job, 5, "weights")
		report.SHA256 = hexSum(text)
		if _, err := store.Store.Put(t.Context(), report.Manifest, strings.NewReader(text), -1); err != nil {
			t.Fatal(err)
		}
		if got := a.post("checkpoints", report, nil); got.status != http.StatusBadRequest || len(got.body) > 2000 {
			t.Errorf("%s: %d %.200s", name, got.status, got.body)
		}
	}
}

// TestAnObjectThatExistsIsCompared checks the answer about the object of a refused creation.
func TestAnObjectThatExistsIsCompared(t *testing.T) {
	t.Parallel()
	s, store := onBucket(t)
	a := s.joinMachine("m1")
	job := s.submit("alice", keeps)
	a.take(job.ID)
	folder := berth.CheckpointKey(job.Tenant, job.ID, 1, 0, 5)
	ask := func(name, content string) wire.ObjectAddress {
		r := a.put(folder+"/"+name, content)
		r.Exists = true
		return a.signs(r)
	}
	if got := ask("file-000000", "weights"); got.Found != wire.FoundNone || got.Stored {
		t.Errorf("no object: %+v", got)
	}
	address := a.signs(a.put(folder+"/file-000000", "weights"))
	if status, text := a.sends("PUT", address, "weights"); status != http.StatusOK {
		t.Fatalf("put: %d %s", status, text)
	}
	if got := ask("file-000000", "weights"); got.Found != wire.FoundSame || !got.Stored {
		t.Errorf("the same object: %+v", got)
	}
	if got := ask("file-000000", "WEIGHTS"); got.Found != wire.FoundOther || got.Stored {
		t.Errorf("another object: %+v", got)
	}
	store.Server.Put(folder+"/file-000001", "weights") // the client adds no SHA-256
	if got := ask("file-000001", "weights"); got.Found != wire.FoundUnknown || got.Stored {
		t.Errorf("an object without a hash: %+v", got)
	}
}
