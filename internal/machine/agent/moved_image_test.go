package agent_test

import (
	"context"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/db"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// pulledAt is an engine that pulled its images at another moment than others: names have a digest of
// its own.
type pulledAt struct {
	*fakeruntime.Fake
	digest string
}

func (e pulledAt) EnsureImage(ctx context.Context, ref string, auth *node.RegistryAuth, fresh bool) (node.Image, error) {
	found, err := e.Fake.EnsureImage(ctx, ref, auth, fresh)
	if err == nil && !strings.Contains(ref, "@") {
		found.Digest = e.digest
	}
	return found, err
}

func digestOf(digit string) string { return "sha256:" + strings.Repeat(digit, 64) }

// created collects the images of the containers that an engine creates.
type created struct {
	mu     sync.Mutex
	images []string
}

func (c *created) of(engine *fakeruntime.Fake) {
	engine.Intercept(func(call fakeruntime.Call) error {
		if call.Method == "Create" {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.images = append(c.images, call.Spec.Image)
		}
		return nil
	})
}

func (c *created) sorted() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(slices.Values(c.images))
}

// movingGang is a gang of two whose machines find different digests under the name of its image.
func movingGang(s *site) (id berth.JobID, ran *created, on [2]*machine) {
	s.t.Helper()
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	s.t.Cleanup(engine.Shutdown)
	ran = &created{}
	ran.of(engine)
	on = [2]*machine{
		s.machineOn("m1", pulledAt{engine, digestOf("1")}), s.machineOn("m2", pulledAt{engine, digestOf("2")}),
	}
	return s.submit(gangOf(2), "exit", "0"), ran, on
}

func TestMembersOfAGangRunOneImageAlthoughItsTagMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	var away atomic.Int32
	next := s.gate.next
	s.gate.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/image") && away.Add(1) <= 3 {
			http.Error(w, "a gateway without its server", http.StatusBadGateway)
			return
		}
		next.ServeHTTP(w, r)
	})
	id, ran, on := movingGang(s)
	s.gangEnds(id, s.placeGang(id, on[0], on[1]))
	j := s.settle(id)
	if j.Status != berth.Succeeded || j.ImageDigest != digestOf("1") && j.ImageDigest != digestOf("2") {
		t.Errorf("the job is %s with the digest %s", j.Status, j.ImageDigest)
	}
	if want := []string{s.image + "@" + j.ImageDigest, s.image + "@" + j.ImageDigest}; !slices.Equal(ran.sorted(), want) {
		t.Errorf("members ran %q, want %q", ran.sorted(), want)
	}
	if away.Load() < 4 {
		t.Errorf("the agents asked %d times", away.Load())
	}
}

// A replica of the version before does not know the call. Members then run what they have found.
func TestAServerThatFixesNoImagesIsNotWaitedFor(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	answerImages(s, http.StatusNotFound)
	id, ran, on := movingGang(s)
	s.gangEnds(id, s.placeGang(id, on[0], on[1]))
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("the job is %s: %+v", j.Status, j.Reason)
	}
	if want := []string{s.image + "@" + digestOf("1"), s.image + "@" + digestOf("2")}; !slices.Equal(ran.sorted(), want) {
		t.Errorf("members ran %q, want %q", ran.sorted(), want)
	}
}

// answerImages makes the server refuse to fix images, with an answer of its own.
func answerImages(s *site, status int) {
	next := s.gate.next
	s.gate.next = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/image") {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(status)
			fmt.Fprint(w, `{"code":"refused","detail":"no"}`)
			return
		}
		next.ServeHTTP(w, r)
	})
}

func TestAMemberThatIsNoLongerCurrentCreatesNoContainer(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	answerImages(s, http.StatusConflict)
	id, ran, on := movingGang(s)
	attempt := s.placeGang(id, on[0], on[1])
	s.gangEnds(id, attempt)
	var causes []string
	rows, err := s.db.Pool().Query(t.Context(), `SELECT exit ->> 'cause' FROM allocations WHERE job = $1`, id)
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var cause string
		if err := rows.Scan(&cause); err != nil {
			t.Fatal(err)
		}
		causes = append(causes, cause)
	}
	if len(ran.sorted()) != 0 || !slices.Equal(causes, []string{string(failure.CauseNotStarted), string(failure.CauseNotStarted)}) {
		t.Errorf("containers of %q, exits %q, %v", ran.sorted(), causes, rows.Err())
	}
}

// The second element runs the image of the first one on a machine that finds another image, and on one
// that finds none: a registry keeps a digest for longer than a tag.
func TestElementsOfAnArrayRunOneImageAlthoughItsTagMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	array := s.submit(func(j *spec.Job) { j.Array = &spec.Array{Size: 3} }, "exit", "0")
	if _, err := s.db.Parents.ReconcileThrough(t.Context(), array, new(math.MaxInt)); err != nil {
		t.Fatal(err)
	}
	ran := &created{}
	for index, digit := range []string{"1", "2", "3"} {
		engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
		t.Cleanup(engine.Shutdown)
		ran.of(engine)
		if index == 2 {
			engine.FailImage(s.image, node.ErrImageNotFound)
		}
		m := s.machineOn(berth.MachineID("m"+digit), pulledAt{engine, digestOf(digit)})
		var id berth.JobID
		if err := s.db.Pool().QueryRow(t.Context(), `SELECT id::text FROM jobs WHERE parent = $1 AND array_index = $2`,
			array, index).Scan(&id); err != nil {
			t.Fatal(err)
		}
		_, w := m.run(id)
		if x := w.exit(); x.Code != 0 || x.Cause != failure.CauseExited {
			t.Errorf("element %d ended with %+v", index, x)
		}
		if j := s.settle(id); j.ImageDigest != digestOf("1") {
			t.Errorf("element %d shows the digest %s", index, j.ImageDigest)
		}
	}
	pinned := s.image + "@" + digestOf("1")
	if want := []string{pinned, pinned, pinned}; !slices.Equal(ran.sorted(), want) {
		t.Errorf("elements ran %q, want %q", ran.sorted(), want)
	}
	if got := s.job(array).ImageDigest; got != digestOf("1") {
		t.Errorf("the array shows the digest %s", got)
	}
}

// The next attempt of a job runs the digest of its first one on a machine that finds another image under the
// name. The job shows the name as it was submitted, and the digest that runs.
func TestTheNextAttemptRunsTheFirstDigestAlthoughItsTagMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	ran := &created{}
	id := s.submit(func(j *spec.Job) { j.Retry.MaxAttempts = 2 }, "exit", "3")
	for index, digit := range []string{"1", "2"} {
		engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
		t.Cleanup(engine.Shutdown)
		ran.of(engine)
		m := s.machineOn(berth.MachineID("m"+digit), pulledAt{engine, digestOf(digit)})
		_, w := m.run(id)
		w.exit()
		j := s.settle(id)
		if index > 0 {
			continue
		}
		if j.Status != berth.Retrying {
			t.Fatalf("the job is %s, %+v", j.Status, j.Reason)
		}
		s.eligible(id)
	}
	pinned := s.image + "@" + digestOf("1")
	if want := []string{pinned, pinned}; !slices.Equal(ran.sorted(), want) {
		t.Errorf("attempts ran %q, want %q", ran.sorted(), want)
	}
	if j := s.job(id); j.Attempt != 2 || j.Spec.Image != s.image || j.ImageDigest != digestOf("1") {
		t.Errorf("the job shows attempt %d, image %s, digest %s", j.Attempt, j.Spec.Image, j.ImageDigest)
	}
}

// republished is an engine that has an image whose registry has deleted it, and serves another one under its name.
type republished struct{ *fakeruntime.Fake }

func (e republished) EnsureImage(ctx context.Context, ref string, auth *node.RegistryAuth, fresh bool) (node.Image, error) {
	if strings.Contains(ref, "@") {
		return e.Fake.EnsureImage(ctx, ref, auth, fresh)
	}
	if fresh {
		return node.Image{Digest: digestOf("2"), Pulled: true}, nil
	}
	return node.Image{Digest: digestOf("1")}, nil
}

func TestAnImageThatItsRegistryDeletedIsPulledByName(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	t.Cleanup(engine.Shutdown)
	engine.GuardImages(func(ref, digest string, _ *node.RegistryAuth) error {
		return fmt.Errorf("%s has no manifest %s: %w", ref, digest, node.ErrImageNotFound)
	})
	ran := &created{}
	ran.of(engine)
	m := s.machineOn("m1", republished{engine})
	m.ran(s.submit(nil, "exit", "0"))
	if got, want := ran.sorted(), s.image+"@"+digestOf("2"); len(got) != 1 || got[0] != want {
		t.Errorf("ran %q, want %q", got, want)
	}
}

// resolvedAtSubmit submits a job and stores the digest that its tag has at the submit.
func (s *site) resolvedAtSubmit(digest string) berth.JobID {
	s.t.Helper()
	if err := s.db.Images.Alive(s.t.Context(), time.Hour); err != nil {
		s.t.Fatal(err)
	}
	id := s.submit(nil, "exit", "0")
	if _, err := s.db.Pool().Exec(s.t.Context(), `UPDATE image_requests SET due_at = now()`); err != nil {
		s.t.Fatal(err)
	}
	list, err := s.db.Images.Claim(s.t.Context(), db.ImageClaim{Each: 1, Limit: 1, Lease: time.Hour})
	if err != nil || len(list) != 1 {
		s.t.Fatalf("questions %+v, %v", list, err)
	}
	if err := s.db.Images.Resolved(s.t.Context(), list[0], digest); err != nil {
		s.t.Fatal(err)
	}
	return id
}

// The tag names another image by the start of the job. The machine pulls the digest of the submit, and not the other
// image before it, and reports the image for the placement of later jobs.
func TestAJobRunsTheImageOfItsSubmitAlthoughTheTagMoves(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	t.Cleanup(engine.Shutdown)
	pinned := s.image + "@" + digestOf("1")
	var mu sync.Mutex
	var pulled, ran []string
	engine.Intercept(func(call fakeruntime.Call) error {
		mu.Lock()
		defer mu.Unlock()
		switch call.Method {
		case "EnsureImage":
			pulled = append(pulled, call.Subject)
		case "Create":
			ran = append(ran, call.Spec.Image)
		}
		return nil
	})
	engine.SizeImage(pinned, 4<<30)
	m := s.machineOn("m1", pulledAt{engine, digestOf("2")})
	id := s.resolvedAtSubmit(digestOf("1"))
	m.ran(id)
	mu.Lock()
	if !slices.Equal(pulled, []string{pinned}) || !slices.Equal(ran, []string{pinned}) {
		t.Errorf("pulled %q and ran %q, want %s", pulled, ran, pinned)
	}
	mu.Unlock()
	if j := s.job(id); j.Status != berth.Succeeded || j.ImageDigest != digestOf("1") || j.ImageDigestBy != wire.DigestBySubmit {
		t.Errorf("the job is %s with %s by %s", j.Status, j.ImageDigest, j.ImageDigestBy)
	}
	m.until("it reports the image", s.told("m1", s.imageOf("default")))
}

// The registry has deleted the content of the submit, and the tag names another one.
func TestADigestThatIsGoneIsExplained(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	t.Cleanup(engine.Shutdown)
	engine.FailImage(s.image+"@"+digestOf("1"), node.ErrImageNotFound)
	m := s.machineOn("m1", engine)
	_, w := m.run(s.resolvedAtSubmit(digestOf("1")))
	x := w.exit()
	for _, part := range []string{"the tag named digest " + digestOf("1") + " at the submit (20", "the tag names sha256:",
		"submit the job again", "--fresh-image"} {
		if x.Cause != failure.CauseImageNotFound || !strings.Contains(x.Message, part) {
			t.Errorf("exit %s, %q: want %q", x.Cause, x.Message, part)
		}
	}
}

// The image of the machine has no digest, as images do that came from no registry. The control plane no longer looks
// for one before the container exists, so that no other content of this name gets into the job.
func TestALocalImageEndsTheRequestBeforeTheStart(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	if err := s.db.Images.Alive(t.Context(), time.Hour); err != nil {
		t.Fatal(err)
	}
	id := s.submit(nil, "exit", "0")
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	t.Cleanup(engine.Shutdown)
	var mu sync.Mutex
	var atStart []string
	engine.Intercept(func(call fakeruntime.Call) error {
		if call.Method != "Create" {
			return nil
		}
		var state string
		err := s.db.Pool().QueryRow(t.Context(), `SELECT state FROM image_requests WHERE job = $1`, id).Scan(&state)
		mu.Lock()
		defer mu.Unlock()
		atStart = append(atStart, call.Spec.Image, state)
		return err
	})
	s.machineOn("m1", pulledAt{engine, ""}).ran(id)
	mu.Lock()
	defer mu.Unlock()
	if want := []string{s.image, "unresolvable"}; !slices.Equal(atStart, want) {
		t.Errorf("image of the container and state of the request at its start: %q, want %q", atStart, want)
	}
	if j := s.job(id); j.Status != berth.Succeeded || j.ImageDigest != "" {
		t.Errorf("the job is %s with %q", j.Status, j.ImageDigest)
	}
}
