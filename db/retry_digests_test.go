package db_test

import (
	"testing"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// A retry of a retry keeps the digest of the first submit; a changed spec is a new submit.
func TestOnlyRetriesOfTheSameSpecKeepADigest(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	ended := func(id berth.JobID) berth.JobID {
		t.Helper()
		if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:test", nil); err != nil {
			t.Fatal(err)
		}
		return id
	}
	retry := func(id berth.JobID, o db.RetryOptions) wire.Job {
		t.Helper()
		j, created, err := s.db.Retries.Retry(t.Context(), "default", id, o, "user:test")
		if err != nil || !created {
			t.Fatalf("retry %+v: created %t, %v", o, created, err)
		}
		return s.job(j.ID)
	}
	id := s.submit(nil)
	s.resolved(s.question(), digestOf("1"))
	first := retry(ended(id), db.RetryOptions{})
	if j := retry(ended(first.ID), db.RetryOptions{}); j.ImageDigest != digestOf("1") {
		t.Errorf("the retry of a retry shows %q", j.ImageDigest)
	}
	changed := *s.job(id).Spec
	changed.Env = map[string]string{"LR": "1"}
	id = s.submit(nil)
	s.resolved(s.question(), digestOf("1"))
	if j := retry(ended(id), db.RetryOptions{Spec: &changed}); j.ImageDigest != "" || j.ImageRequest == nil {
		t.Errorf("a retry with a changed spec shows %q, request %+v", j.ImageDigest, j.ImageRequest)
	}
}

// In a cluster that resolves nothing at the submit, a retry runs what the tag names, as every submit does.
func TestARetryDoesNotKeepTheDigestOfAMachine(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.submit(nil)
	mustExec(t, s.pool, `UPDATE jobs SET image_digest = $2, image_digest_by = 'machine' WHERE id = $1`, id, digestOf("0"))
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	again, _, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	if old, j := s.job(id), s.job(again.ID); old.ImageDigest != digestOf("0") || j.ImageDigest != "" || j.ImageDigestBy != "" {
		t.Errorf("the job shows %q, its retry %q by %q", old.ImageDigest, j.ImageDigest, j.ImageDigestBy)
	}

	step := spec.Job{Image: "step:1", Command: []string{"true"}}
	pipeline, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Actor: "user:test",
		Spec: spec.Pipeline{Name: "p", Jobs: map[string]spec.Job{"a": step}}.WithDefaults()})
	if err != nil {
		t.Fatal(err)
	}
	mustExec(t, s.pool, `UPDATE jobs SET image_digest = $2, image_digest_by = 'machine' WHERE id = $1`,
		pipeline.Steps[0].Job, digestOf("0"))
	mustExec(t, s.pool, `UPDATE jobs SET state = 'canceled', version = version + 1, actor = 'user:test' WHERE id = $1 OR parent = $1`, pipeline.ID)
	again, _, err = s.db.Retries.Retry(t.Context(), "default", pipeline.ID, db.RetryOptions{}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	if j := s.job(s.job(again.ID).Steps[0].Job); j.ImageDigest != "" {
		t.Errorf("a retried step shows %q by %q", j.ImageDigest, j.ImageDigestBy)
	}
}

// An element that never ran has no digest in its row. Its array has the digest of the submit.
func TestARetryOfAnElementThatNeverRanKeepsTheDigestOfItsArray(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	array := s.array(2, nil)
	s.resolved(s.question(), digestOf("1"))
	s.tend(array)
	id := s.element(array, 1)
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	again, created, err := s.db.Retries.Retry(t.Context(), "default", id, db.RetryOptions{}, "user:test")
	if err != nil || !created {
		t.Fatalf("retry: created %t, %v", created, err)
	}
	if j := s.job(again.ID); j.ImageDigest != digestOf("1") || j.ImageDigestBy != wire.DigestByRetry {
		t.Errorf("the retry shows %q by %q", j.ImageDigest, j.ImageDigestBy)
	}
}
