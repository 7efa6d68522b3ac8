package scheduler_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
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
	"berth/internal/control/blob"
	"berth/internal/control/scheduler"
	"berth/internal/machine/fetch/s3test"
	"berth/wire"
)

// bucket is a store in a real server of S3.
func bucket(t *testing.T) *blob.Store {
	t.Helper()
	server := s3test.Start(t)
	b, err := blob.NewS3(t.Context(), server.Client(), server.Bucket, s3blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

// uploading returns the keys with unfinished uploads.
func uploading(t *testing.T, b *blob.Store) map[string]bool {
	t.Helper()
	keys := map[string]bool{}
	if err := b.Uploads(t.Context(), "tenants", func(u blob.Upload) error {
		keys[u.Key] = true
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return keys
}

// TestUploadsOfPartsEndWithTheirAttempt opens uploads as killed agents and servers leave them: no process knows them.
func TestUploadsOfPartsEndWithTheirAttempt(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), bucket(t)
	r.machine("m0", 4, 0)
	ended, _ := r.trained(b, time.Second, nil)
	exited, _ := r.trained(b, time.Second, nil)
	running, _ := r.trained(b, time.Second, nil)
	// The member of one has exited and may store its outputs, the other one runs.
	r.exec(`UPDATE allocations SET state = 'exited', forgotten_at = NULL WHERE job = $1`, exited)
	r.exec(`INSERT INTO allocations (job, attempt, rank, machine_id, machine_epoch, cpu_m, mem_mb, disk_mb, gpu_milli,
		state) VALUES ($1, 1, 1, 'm0', 1, 0, 0, 0, 0, 'active')`, running)
	file := func(id berth.JobID) string { return berth.CheckpointKey("default", id, 1, 0, 5) + "/file-000000" }
	archived := berth.NewJobID(time.Now())
	r.exec(`INSERT INTO archived_jobs (id, tenant, name, state, labels, submitted_at, finished_at, job, events)
		VALUES ($1, 'default', 'a', 'succeeded', '{}', now(), now(), '{}', '[]')`, archived)
	dead := []string{file(ended), berth.OutputKey("default", ended, 1, 0, "model"), file(archived)}
	live := []string{
		file(exited), file(running),
		berth.CheckpointKey("default", running, 2, 0, 5) + "/file-000000", // of an attempt without a row
		file(berth.NewJobID(time.Now())),                                  // of a job of another cluster
	}
	for _, key := range append(dead, live...) {
		if _, _, err := b.InParts().Begin(t.Context(), key); err != nil {
			t.Fatal(err)
		}
	}
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("the uploads of dead attempts are aborted", func() bool {
		left := uploading(t, b)
		for _, key := range dead {
			if left[key] {
				return false
			}
		}
		return true
	})
	// A call that was authorized before the end may open another one.
	if _, _, err := b.InParts().Begin(t.Context(), file(ended)); err != nil {
		t.Fatal(err)
	}
	r.await("the late upload is aborted", func() bool { return !uploading(t, b)[file(ended)] })
	for _, key := range live {
		if !uploading(t, b)[key] {
			t.Errorf("the upload of %s is aborted, too", key)
		}
	}
}

// TestAnUploadThatCannotBeAbortedStopsNoOther lets the store refuse the abort of the first upload of the list.
func TestAnUploadThatCannotBeAbortedStopsNoOther(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	server := s3test.Start(t)
	target, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	next := &httputil.ReverseProxy{Rewrite: func(p *httputil.ProxyRequest) {
		p.SetURL(target)
		p.Out.Host = p.In.Host
	}}
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		if req.Method == http.MethodDelete && strings.HasSuffix(req.URL.Path, "file-000000") {
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, "<Error><Code>AccessDenied</Code></Error>")
			return
		}
		next.ServeHTTP(w, req)
	}))
	t.Cleanup(front.Close)
	b, err := blob.NewS3(t.Context(), s3test.ClientAt(front.URL), server.Bucket, s3blob.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	r.machine("m0", 4, 0)
	id, _ := r.trained(b, time.Second, nil)
	folder := berth.CheckpointKey("default", id, 1, 0, 5)
	for _, name := range []string{"/file-000000", "/file-000001"} {
		if _, _, err := b.InParts().Begin(t.Context(), folder+name); err != nil {
			t.Fatal(err)
		}
	}
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("the other upload is aborted", func() bool { return !uploading(t, b)[folder+"/file-000001"] })
	if !uploading(t, b)[folder+"/file-000000"] {
		t.Error("the refused upload is gone, so nothing was tested")
	}
}

// archived is a store with one object that cannot be read, as in an archive class.
type archived struct {
	*blob.Store
	key string
}

func (a archived) ReadAll(ctx context.Context, key string, limit int64) ([]byte, error) {
	if key == a.key {
		return nil, errors.New("InvalidObjectState")
	}
	return a.Store.ReadAll(ctx, key, limit)
}

func TestAnUnreadableManifestDoesNotStopTheSweep(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.machine("m0", 4, 0)
	_, key := r.trained(b, 26*time.Hour, map[int64]string{10: "verified"})
	_, later := r.trained(b, 25*time.Hour, map[int64]string{10: ""})
	r.lead(func(o *scheduler.Options) {
		o.Objects, o.TidyEvery = archived{b, key(10)}, 20*time.Millisecond
	})
	r.await("the cut-off step of the later attempt is gone", func() bool { return !exists(t, b, later(10)) })
	if !exists(t, b, key(10)) {
		t.Error("the unreadable manifest is deleted")
	}
}

// TestExtraFilesOfAVerifiedStepAreSwept stores objects that the manifest does not list, as a lying machine does.
func TestExtraFilesOfAVerifiedStepAreSwept(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	r.machine("m0", 4, 0)
	id, key := r.trained(b, 25*time.Hour, map[int64]string{10: "verified", 20: "verified"})
	for _, step := range []int64{10, 20} {
		folder := strings.TrimSuffix(key(step), "/"+berth.ManifestName)
		m := wire.CheckpointManifest{Job: id, Attempt: 1, Step: step, Files: []wire.CheckpointFile{
			{Path: "weights", Object: folder + "/file-000000", Bytes: 1}}}
		body, err := json.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(body)
		if step == 20 {
			sum[0] ^= 1 // damaged: nothing of it may be trusted
		}
		r.exec(`UPDATE checkpoint_shards SET sha256 = $3 WHERE job = $1 AND step = $2`, id, step,
			hex.EncodeToString(sum[:]))
		for name, content := range map[string]string{
			berth.ManifestName: string(body), "file-000000": "x", "file-000001": "extra", "other": "extra",
		} {
			if _, err := b.Put(t.Context(), folder+"/"+name, strings.NewReader(content), -1); err != nil {
				t.Fatal(err)
			}
		}
	}
	r.lead(func(o *scheduler.Options) { o.Objects, o.TidyEvery = b, 20*time.Millisecond })
	r.await("the attempt is swept", func() bool {
		return value[int](r, `SELECT count(*) FROM attempts WHERE swept_at IS NOT NULL`) == 1
	})
	for step, extra := range map[int64]bool{10: false, 20: true} {
		folder := strings.TrimSuffix(key(step), "/"+berth.ManifestName)
		for name, want := range map[string]bool{
			berth.ManifestName: true, "file-000000": true, "file-000001": extra, "other": extra,
		} {
			if got := exists(t, b, folder+"/"+name); got != want {
				t.Errorf("step %d: %s exists %t, want %t", step, name, got, want)
			}
		}
	}
}
