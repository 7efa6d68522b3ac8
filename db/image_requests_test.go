package db_test

import (
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// resolves makes submits request digests, as a berthd that resolves images does, and makes questions due at once.
func (s *gangStage) resolves() {
	s.t.Helper()
	if err := s.db.Images.Alive(s.t.Context(), time.Hour); err != nil {
		s.t.Fatal(err)
	}
}

// questions claims all questions, due or not.
func (s *gangStage) questions() []db.ImageRequest {
	s.t.Helper()
	mustExec(s.t, s.pool, `UPDATE image_requests SET due_at = now() - interval '1 second' WHERE state = 'waiting'`)
	list, err := s.db.Images.Claim(s.t.Context(), db.ImageClaim{Each: 10, Limit: 100, Lease: time.Minute})
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// question claims the only question there is.
func (s *gangStage) question() db.ImageRequest {
	s.t.Helper()
	list := s.questions()
	if len(list) != 1 {
		s.t.Fatalf("questions %+v, want one", list)
	}
	return list[0]
}

func (s *gangStage) resolved(q db.ImageRequest, digest string) {
	s.t.Helper()
	if err := s.db.Images.Resolved(s.t.Context(), q, digest); err != nil {
		s.t.Fatal(err)
	}
}

func TestTheDigestOfTheSubmitIsClaimed(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	id := s.queued(nil)
	if j := s.job(id); j.ImageRequest == nil || j.ImageRequest.State != wire.ImageWaiting {
		t.Errorf("the job shows the request %+v", j.ImageRequest)
	}
	q := s.question()
	if q.Jobs != 1 || q.Login != "" || q.Tries != 1 || q.Tenant != "default" {
		t.Errorf("question %+v", q)
	}
	s.resolved(q, digestOf("1"))
	j := s.job(id)
	if j.ImageDigest != digestOf("1") || j.ImageDigestBy != wire.DigestBySubmit || j.ImageDigestAt == nil || j.ImageRequest != nil {
		t.Errorf("the job shows %q by %q at %v, request %+v", j.ImageDigest, j.ImageDigestBy, j.ImageDigestAt, j.ImageRequest)
	}
	c := s.takes(id, "m0")
	if c.ImageDigest != digestOf("1") || c.FixImage || c.ImageDigestBy != wire.DigestBySubmit || c.ImageDigestAt == nil {
		t.Errorf("claim: digest %q by %q at %v, fix_image %t", c.ImageDigest, c.ImageDigestBy, c.ImageDigestAt, c.FixImage)
	}
	events, err := s.db.Jobs.Events(t.Context(), "default", id, 0, 100)
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(events, func(e wire.Event) bool {
		return e.Kind == wire.EventImageResolved && e.Facts != nil && e.Facts.Digest == digestOf("1")
	}) {
		t.Errorf("events %+v", events)
	}
}

// A job that starts before the answer runs the digest that its machine fixes, and a late answer changes nothing.
func TestAMachineThatIsFirstDecides(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	id := s.queued(nil)
	q := s.question()
	attempt := s.place(id, "m0")
	if c := s.claim(id, attempt, 0); !c.FixImage || c.ImageDigest != "" {
		t.Errorf("claim before the answer: fix_image %t, digest %q", c.FixImage, c.ImageDigest)
	}
	s.mustFix(id, attempt, 0, digestOf("0"), digestOf("0"))
	s.resolved(q, digestOf("1"))
	if j := s.job(id); j.ImageDigest != digestOf("0") || j.ImageDigestBy != wire.DigestByMachine || j.ImageRequest != nil {
		t.Errorf("the job shows %q by %q, request %+v", j.ImageDigest, j.ImageDigestBy, j.ImageRequest)
	}
}

// An agent from before adr/0061 reports its digest without asking, and leaves the request.
func TestADigestThatAnOlderAgentReportedStays(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	id := s.queued(nil)
	q := s.question()
	mustExec(t, s.pool, `UPDATE jobs SET image_digest = $1 WHERE id = $2`, digestOf("0"), id)
	s.resolved(q, digestOf("1"))
	if j := s.job(id); j.ImageDigest != digestOf("0") || j.ImageRequest != nil {
		t.Errorf("the job shows %q, request %+v", j.ImageDigest, j.ImageRequest)
	}
}

// A machine runs an image of its own that is in no registry: the name may mean another image at a registry, which this
// job and its later attempts must not run.
func TestAJobOfALocalImageGetsNoDigestOfARegistry(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	told, silent := s.queued(nil), s.queued(nil)
	q := s.question()

	attempt := s.place(told, "m0")
	s.claim(told, attempt, 0)
	s.mustFix(told, attempt, 0, "", "")
	if r := s.job(told).ImageRequest; r == nil || r.State != wire.ImageUnresolvable || !strings.Contains(r.Reason, "no digest") {
		t.Errorf("request %+v", r)
	}
	// An agent of the version before reports only that the job runs.
	attempt = s.place(silent, "m1")
	s.claim(silent, attempt, 0)
	s.runs(silent, attempt, 1)
	if r := s.job(silent).ImageRequest; r == nil || r.State != wire.ImageUnresolvable {
		t.Errorf("request %+v", r)
	}
	s.resolved(q, digestOf("1"))
	for _, id := range []berth.JobID{told, silent} {
		if j := s.job(id); j.ImageDigest != "" || j.ImageRequest == nil {
			t.Errorf("the job shows %q, request %+v", j.ImageDigest, j.ImageRequest)
		}
	}
	if list := s.questions(); len(list) != 0 {
		t.Errorf("questions %+v", list)
	}
}

// A replica of the version before has let the job run, and has left the request open.
func TestAnAnswerReachesNoJobThatRuns(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.queued(nil)
	attempt := s.place(id, "m0")
	s.runs(id, attempt, 1)
	mustExec(t, s.pool, `INSERT INTO image_requests (job, tenant, image) SELECT id, tenant, 'team/app:1' FROM jobs WHERE id = $1`, id)
	s.resolved(s.question(), digestOf("1"))
	if got := s.job(id).ImageDigest; got != "" {
		t.Errorf("the job shows %q", got)
	}
}

// The answer was first: the machine gets it although its image has no digest.
func TestAMachineWithoutADigestGetsTheAnswer(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	id := s.queued(nil)
	q := s.question()
	attempt := s.place(id, "m0")
	s.claim(id, attempt, 0)
	s.resolved(q, digestOf("1"))
	s.mustFix(id, attempt, 0, "", digestOf("1"))
}

// The answer comes between the claim and the report of the machine: the machine runs the answer.
func TestAnAnswerBeforeTheReportOfTheMachineCounts(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	id := s.queued(nil)
	q := s.question()
	attempt := s.place(id, "m0")
	s.claim(id, attempt, 0)
	s.resolved(q, digestOf("1"))
	s.mustFix(id, attempt, 0, digestOf("0"), digestOf("1"))
	if j := s.job(id); j.ImageDigest != digestOf("1") || j.ImageDigestBy != wire.DigestBySubmit {
		t.Errorf("the job shows %q by %q", j.ImageDigest, j.ImageDigestBy)
	}
}

func TestTheAnswerAndTheMachineRaceForOneDigest(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	id := s.queued(nil)
	q := s.question()
	attempt := s.place(id, "m0")
	s.claim(id, attempt, 0)
	a, r := s.found(id, attempt, 0, digestOf("0"))
	var fixed wire.FixedImage
	var failed [2]error
	var both sync.WaitGroup
	s.holding(`SELECT 1 FROM jobs WHERE id = '`+string(id)+`' FOR UPDATE`, func() {
		both.Go(func() { fixed, failed[0] = s.db.Agents.FixImage(t.Context(), a.machine, r) })
		both.Go(func() { failed[1] = s.db.Images.Resolved(t.Context(), q, digestOf("1")) })
		s.blocked(2)
	})
	both.Wait()
	if j := s.job(id); failed[0] != nil || failed[1] != nil || fixed.Digest != j.ImageDigest || j.ImageRequest != nil {
		t.Errorf("the machine is to run %q, the job shows %q; errors %v", fixed.Digest, j.ImageDigest, failed)
	}
}

// One question serves all jobs that were submitted before it, of one tenant with one login.
func TestOneQuestionServesAllJobsOfItsTenantImageAndLogin(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	if err := s.db.Tenants.Create(t.Context(), spec.NewTenant{ID: "blue"}); err != nil {
		t.Fatal(err)
	}
	var ids []berth.JobID
	for range 1200 { // more than one batch
		ids = append(ids, s.submit(nil))
	}
	other := s.submit(func(j *spec.Job) { j.Image = "other:1" })
	pinned := s.submit(func(j *spec.Job) { j.Image = "other@" + digestOf("7") })
	blue, _, err := s.db.Jobs.Submit(t.Context(), db.Submission{Tenant: "blue", Spec: *s.job(ids[0]).Spec, Actor: "user:blue"})
	if err != nil {
		t.Fatal(err)
	}
	list := s.questions()
	if len(list) != 3 {
		t.Fatalf("questions %+v, want three", list)
	}
	if again := s.questions(); len(again) != 0 {
		t.Errorf("another process claims %+v", again)
	}
	late := s.submit(nil)
	for _, q := range list {
		if q.Jobs == len(ids) {
			s.resolved(q, digestOf("1"))
		}
	}
	for _, id := range []berth.JobID{ids[0], ids[len(ids)-1]} {
		if got := s.job(id).ImageDigest; got != digestOf("1") {
			t.Errorf("job %s shows %q", id, got)
		}
	}
	if n := one[int](s.stage, `SELECT count(*)::int FROM jobs WHERE image_digest <> ''`); n != len(ids) {
		t.Errorf("%d jobs have a digest, want %d", n, len(ids))
	}
	for what, id := range map[string]berth.JobID{"another image": other, "a digest": pinned, "another tenant": blue.ID, "a later job": late} {
		if got := s.job(id).ImageDigest; got != "" {
			t.Errorf("%s: the job shows %q", what, got)
		}
	}
}

// A process that died, or that answers after its lease, changes nothing once another one has the question.
func TestAClaimThatWasTakenOverChangesNothing(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	id := s.submit(nil)
	first := s.question()
	mustExec(t, s.pool, `UPDATE image_requests SET due_at = now() - interval '1 second'`)
	second := s.question()
	s.resolved(first, digestOf("0"))
	if got := s.job(id).ImageDigest; got != "" {
		t.Errorf("the digest of the first claim is stored: %q", got)
	}
	if second.Tries != 2 {
		t.Errorf("the second question is try %d", second.Tries)
	}
	s.resolved(second, digestOf("1"))
	if got := s.job(id).ImageDigest; got != digestOf("1") {
		t.Errorf("the job shows %q", got)
	}
}

func TestWithoutAResolverNothingIsRequested(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	id := s.queued(nil)
	if list := s.questions(); len(list) != 0 {
		t.Errorf("questions %+v", list)
	}
	if c := s.takes(id, "m0"); c.FixImage {
		t.Error("a job of one member is to fix its image")
	}
}

func TestArraysAndStepsAreResolvedWhenTheyAreSubmitted(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	array := s.array(3, nil)
	q := s.question()
	if q.Jobs != 1 {
		t.Errorf("an array asks for %d jobs", q.Jobs)
	}
	s.resolved(q, digestOf("1"))
	s.tend(array)
	if list := s.questions(); len(list) != 0 {
		t.Errorf("elements ask %+v", list)
	}
	if c := s.takes(s.element(array, 2), "m0"); c.ImageDigest != digestOf("1") || c.FixImage || c.ImageDigestBy != wire.DigestBySubmit {
		t.Errorf("claim of an element: digest %q by %q, fix_image %t", c.ImageDigest, c.ImageDigestBy, c.FixImage)
	}

	step := func(needs ...string) spec.Job {
		return spec.Job{Image: "step:1", Command: []string{"true"}, Needs: needs}
	}
	pipeline, _, err := s.db.Jobs.SubmitPipeline(t.Context(), db.PipelineSubmission{Tenant: "default", Actor: "user:test",
		Spec: spec.Pipeline{Name: "p", Jobs: map[string]spec.Job{"a": step(), "b": step("a")}}.WithDefaults()})
	if err != nil {
		t.Fatal(err)
	}
	if q = s.question(); q.Jobs != 2 || q.Image != "step:1" {
		t.Errorf("the steps ask %+v", q)
	}
	s.resolved(q, digestOf("2"))
	for _, st := range pipeline.Steps {
		if got := s.job(st.Job).ImageDigest; got != digestOf("2") {
			t.Errorf("step %s shows %q", st.Name, got)
		}
	}

	// A retry runs the images of the steps.
	mustExec(t, s.pool, `UPDATE jobs SET state = 'canceled', version = version + 1, actor = 'user:test' WHERE id = $1 OR parent = $1`, pipeline.ID)
	again, _, err := s.db.Retries.Retry(t.Context(), "default", pipeline.ID, db.RetryOptions{}, "user:test")
	if err != nil {
		t.Fatal(err)
	}
	for _, st := range s.job(again.ID).Steps {
		if j := s.job(st.Job); j.ImageDigest != digestOf("2") || j.ImageDigestBy != wire.DigestByRetry {
			t.Errorf("retried step %s shows %q by %q", st.Name, j.ImageDigest, j.ImageDigestBy)
		}
	}
	if list := s.questions(); len(list) != 0 {
		t.Errorf("a retry asks %+v", list)
	}
}

func TestARetryRunsTheDigestOfTheJobUnlessAskedForTheTag(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	id := s.submit(nil)
	s.resolved(s.question(), digestOf("1"))
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	retry := func(o db.RetryOptions) wire.Job {
		t.Helper()
		j, created, err := s.db.Retries.Retry(t.Context(), "default", id, o, "user:test")
		if err != nil || !created {
			t.Fatalf("retry %+v: created %t, %v", o, created, err)
		}
		return s.job(j.ID)
	}
	changed := func(image string) *spec.Job {
		j := *s.job(id).Spec
		j.Image, j.Env = image, map[string]string{"LR": "1"}
		return &j
	}
	if j := retry(db.RetryOptions{}); j.ImageDigest != digestOf("1") || j.ImageDigestBy != wire.DigestByRetry || j.ImageRequest != nil {
		t.Errorf("a retry shows %q by %q, request %+v", j.ImageDigest, j.ImageDigestBy, j.ImageRequest)
	}
	if j := retry(db.RetryOptions{FreshImage: true}); j.ImageDigest != "" || j.ImageRequest == nil {
		t.Errorf("a retry with a fresh image shows %q, request %+v", j.ImageDigest, j.ImageRequest)
	}
	if j := retry(db.RetryOptions{Fresh: true}); j.ImageDigest != digestOf("1") {
		t.Errorf("a retry from the start shows %q", j.ImageDigest)
	}
	other := s.submit(nil)
	s.resolved(s.questions()[0], digestOf("2"))
	id = other
	if _, err := s.db.Jobs.RequestCancel(t.Context(), "", id, "user:test", nil); err != nil {
		t.Fatal(err)
	}
	if j := retry(db.RetryOptions{Spec: changed("other:2")}); j.ImageDigest != "" || j.ImageRequest == nil {
		t.Errorf("a retry with another image shows %q, request %+v", j.ImageDigest, j.ImageRequest)
	}
}

func TestAnImageWithoutAnAnswerKeepsTheReason(t *testing.T) {
	t.Parallel()
	s := newGangStage(t)
	s.resolves()
	old := s.submit(nil)
	mustExec(t, s.pool, `UPDATE image_requests SET created_at = now() - interval '1 hour'`)
	young := s.queued(nil)
	q := s.question()
	if q.Jobs != 2 || q.Age < time.Hour {
		t.Errorf("question %+v", q)
	}
	ctx := t.Context()
	if err := s.db.Images.Unresolved(ctx, q, 10*time.Minute, wire.ImageGivenUp, "no answer"); err != nil {
		t.Fatal(err)
	}
	if err := s.db.Images.Postpone(ctx, q, time.Hour, "no answer", false); err != nil {
		t.Fatal(err)
	}
	if r := s.job(old).ImageRequest; r == nil || r.State != wire.ImageGivenUp || r.Reason != "no answer" || r.Tries != 1 {
		t.Errorf("the old job shows %+v", r)
	}
	if r := s.job(young).ImageRequest; r == nil || r.State != wire.ImageWaiting || r.Tries != 0 {
		t.Errorf("the young job shows %+v", r)
	}
	q = s.question()
	if q.Jobs != 1 {
		t.Errorf("question %+v", q)
	}
	if err := s.db.Images.Unresolved(ctx, q, 0, wire.ImageRefused, "not allowed"); err != nil {
		t.Fatal(err)
	}
	if list := s.questions(); len(list) != 0 {
		t.Errorf("questions %+v", list)
	}
	if c := s.takes(young, "m0"); c.FixImage || c.ImageDigest != "" {
		t.Errorf("a claim after the end of the request: fix_image %t, digest %q", c.FixImage, c.ImageDigest)
	}
	if err := s.db.Images.Resolved(ctx, q, "no digest"); !strings.Contains(berthText(err), "not the digest") {
		t.Errorf("a digest that is none: %v", err)
	}
}

func berthText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}
