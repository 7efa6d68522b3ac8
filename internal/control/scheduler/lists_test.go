package scheduler_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/blob"
	"berth/internal/control/scheduler"
	"berth/internal/lib/archive"
	"berth/spec"
)

// planned stores a pipeline whose step plan has left the files as its output items, from which
// the array work is made. Without a file the object is missing.
func (r *rig) planned(b *blob.Store, files map[string]string) (work berth.JobID) {
	r.t.Helper()
	p := spec.Pipeline{Kind: "pipeline", Name: "p", Jobs: map[string]spec.Job{
		"plan": {Image: "busybox", Outputs: []spec.Output{{Name: "items", Path: "/out/items"}}},
		"work": {Image: "busybox", Needs: []string{"plan"}, Array: &spec.Array{From: "job:plan/items"}},
	}}
	job, _, err := r.db.Jobs.SubmitPipeline(r.t.Context(), db.PipelineSubmission{Tenant: "default", Spec: p.WithDefaults(), Actor: "user:test"})
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := r.db.Parents.Reconcile(r.t.Context(), job.ID); err != nil {
		r.t.Fatal(err)
	}
	step := func(name string) berth.JobID {
		return value[berth.JobID](r, `SELECT id::text FROM jobs WHERE parent = $1 AND step = $2`, job.ID, name)
	}
	plan := step("plan")
	for _, state := range []berth.State{berth.Queued, berth.Scheduled, berth.Running, berth.Succeeded} {
		r.exec(`UPDATE jobs SET state = $2, version = version + 1 WHERE id = $1`, plan, state)
	}
	key := berth.OutputKey("default", plan, 1, 0, "items")
	if len(files) > 0 {
		dir := r.t.TempDir()
		for name, text := range files {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				r.t.Fatal(err)
			}
		}
		var packed bytes.Buffer
		if _, err := archive.Pack(r.t.Context(), &packed, dir, archive.Output); err != nil {
			r.t.Fatal(err)
		}
		if err := b.Create(r.t.Context(), key, packed.Bytes()); err != nil {
			r.t.Fatal(err)
		}
	}
	r.exec(`INSERT INTO outputs (job, attempt, rank, name, address, files, bytes, stored_bytes, sha256, object)
		VALUES ($1, 1, 0, 'items', 'sha256:a', 1, 1, 1, 'x', $2)`, plan, key)
	return step("work")
}

func TestTheLeaderMakesArraysFromLists(t *testing.T) {
	t.Parallel()
	r, b := newRig(t), store(t)
	var list []string
	for i := range 500 {
		list = append(list, fmt.Sprintf(`{"SHARD": %d}`, i))
	}
	good := r.planned(b, map[string]string{"items.json": "[" + strings.Join(list, ", ") + "]"})
	bad := map[berth.JobID]string{
		r.planned(b, map[string]string{"items.json": "{}"}):                                                "it is not a JSON list",
		r.planned(b, map[string]string{"a.json": "[1]", "b.json": "[2]"}):                                  "it has 2 files; a list is one file",
		r.planned(b, map[string]string{"items.json": "[" + strings.Repeat(" ", spec.MaxListBytes) + "1]"}): "unpacks to more than",
		r.planned(b, nil): "the output is no longer stored",
	}
	r.lead(func(o *scheduler.Options) { o.Objects, o.ReconcileEvery = b, 20*time.Millisecond })
	r.await("the array has its elements", func() bool {
		return value[int](r, `SELECT coalesce(total, 0) FROM jobs WHERE id = $1`, good) == 500
	})
	if got := value[string](r, `SELECT spec #>> '{array,each,499,SHARD}' FROM job_specs WHERE job = $1`, good); got != "499" {
		t.Errorf("the last element has SHARD=%s", got)
	}
	for id, want := range bad {
		r.await("the array has failed: "+want, func() bool {
			return value[string](r, `SELECT state FROM jobs WHERE id = $1`, id) == "failed"
		})
		if got := value[string](r, `SELECT reason ->> 'code' || ': ' || (reason ->> 'message') FROM jobs WHERE id = $1`, id); !strings.HasPrefix(got, "list_invalid: ") || !strings.Contains(got, want) {
			t.Errorf("it failed because of %s, want %s", got, want)
		}
	}
}
