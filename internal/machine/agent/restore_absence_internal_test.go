package agent

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
	"berth/wire"
)

// stepStore is a server that holds checkpoints of jobs and records the reports of a restore.
type stepStore struct {
	url string

	mu      sync.Mutex
	objects map[string][]byte
	asked   []string // manifests, in the order of the requests; several tries count once
	reports []wire.CheckpointReport
	// refuse decides whether a request for an object fails. times counts how often the manifest of the
	// object's step was asked for, without the repeated tries.
	refuse func(key string, times int) bool
}

func newStepStore(t *testing.T) *stepStore {
	t.Helper()
	s := &stepStore{objects: map[string][]byte{}, refuse: func(string, int) bool { return false }}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	s.url = server.URL
	return s
}

// ServeHTTP answers like berthd: objects that exist, or 503, and 204 for each report.
func (s *stepStore) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	key, ok := strings.CutPrefix(r.URL.Path, "/agent/v1/objects/")
	if !ok {
		var p wire.CheckpointReport
		if err := json.NewDecoder(r.Body).Decode(&p); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		var step int64
		if n, _ := fmt.Sscan(r.Header.Get(wire.HeaderPassedOverFor), &step); n == 1 {
			p.PassedOverFor = &step
			_, _ = fmt.Sscan(r.Header.Get(wire.HeaderPassedOverForAttempt), &p.PassedOverForAttempt)
		}
		s.reports = append(s.reports, p)
		w.WriteHeader(http.StatusNoContent)
		return
	}
	if path.Base(key) == berth.ManifestName && (len(s.asked) == 0 || s.asked[len(s.asked)-1] != key) {
		s.asked = append(s.asked, key)
	}
	times := 0
	for _, manifest := range s.asked {
		if path.Dir(manifest) == path.Dir(key) {
			times++
		}
	}
	body, ok := s.objects[key]
	if s.refuse(key, times) || !ok {
		http.Error(w, "{}", http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	_, _ = w.Write(body)
}

// add stores a step with the files state and DONE, and returns p, which names its job, step and attempt, with the
// manifest.
func (s *stepStore) add(t *testing.T, p wire.RestorePoint) wire.RestorePoint {
	t.Helper()
	job := cmp.Or(p.Job, "own")
	folder := berth.CheckpointKey("default", job, p.Attempt, 0, p.Step)
	m := wire.CheckpointManifest{Job: job, Attempt: p.Attempt, Step: p.Step}
	for i, f := range []wire.CheckpointFile{{Path: "state", Bytes: 5}, {Path: doneFile}} {
		body := make([]byte, f.Bytes)
		sum := sha256.Sum256(body)
		f.Object, f.SHA256 = fmt.Sprintf("%s/file-%06d", folder, i), hex.EncodeToString(sum[:])
		s.objects[f.Object] = body
		m.Files = append(m.Files, f)
	}
	body, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(body)
	p.Manifest, p.SHA256 = folder+"/"+berth.ManifestName, hex.EncodeToString(sum[:])
	s.objects[p.Manifest] = body
	return p
}

// steps lists the steps that were asked for, in order.
func (s *stepStore) steps() (list []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, key := range s.asked {
		var step int64
		_, _ = fmt.Sscanf(path.Base(path.Dir(key)), "step-%d", &step)
		list = append(list, step)
	}
	return list
}

// passed lists the steps that were reported as passed over, each with the step in its place.
func (s *stepStore) passed() (list []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range s.reports {
		if r.PassedOverFor != nil {
			text := fmt.Sprintf("%d for %d", r.Step, *r.PassedOverFor)
			if r.PassedOverForAttempt != r.OfAttempt {
				text += fmt.Sprintf(" of attempt %d", r.PassedOverForAttempt)
			}
			list = append(list, text)
		}
	}
	return list
}

// own is a step of the first attempt of the job "own", which failed restores did not get.
func own(step int64, failed int) wire.RestorePoint {
	return wire.RestorePoint{Step: step, Attempt: 1, FailedRestores: failed}
}

// restoring is one restore of a job.
type restoring struct {
	*restorePhase
	t *testing.T
}

// restores returns a restore of the job "own" from some points, which are stored.
func (s *stepStore) restores(t *testing.T, points ...wire.RestorePoint) restoring {
	t.Helper()
	for i := range points {
		points[i] = s.add(t, points[i])
	}
	place := &scratch{state: t.TempDir()}
	if err := place.open("rank", true); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(place.close)
	log := slog.New(slog.DiscardHandler)
	timing := Timing{RestorePatience: 20 * time.Millisecond, RetryMin: time.Millisecond,
		RetryMax: 5 * time.Millisecond}.withDefaults()
	id := &identity{job: "own", attempt: 4}
	c := &core{identity: id, ctx: t.Context(), log: log, timing: timing, reports: newReporter(id, log, func() {}),
		claim: &claim{Claim: wire.Claim{Restore: points, HadCheckpoint: true,
			Spec: spec.Job{Checkpoint: &spec.CheckpointPolicy{Path: "/checkpoint", Keep: 2}}}}}
	server := newControl(newClient(s.url, ""), "", openWatermark(t.TempDir(), log))
	server.begin(1)
	uploader := &checkpointUploader{core: c, scratch: place}
	uploader.resume()
	return restoring{t: t, restorePhase: &restorePhase{core: c, control: server,
		retry: &retrier{ctx: t.Context(), log: log, timing: timing}, scratch: place, uploader: uploader,
		recipe: &recipe{}, result: &result{}}}
}

// goesOnFrom runs the restore, which must put the step in place.
func (r restoring) goesOnFrom(step int64) {
	r.t.Helper()
	next, err := r.Do(r.t.Context())
	if err != nil || next != phaseCreate || r.recipe.restored == nil || *r.recipe.restored != step {
		r.t.Errorf("restored %v, next is %s, exit %+v, %v; want step %d", r.recipe.restored, next, r.result.exit, err, step)
	}
	if _, err := r.scratch.checkpoint.Lstat(path.Join(stepName(step), doneFile)); err != nil {
		r.t.Error(err)
	}
}

// ends runs the restore, which must end the attempt with a message that contains text.
func (r restoring) ends(text string) {
	r.t.Helper()
	next, err := r.Do(r.t.Context())
	x := r.result.exit
	if err != nil || next != phaseFence || x.Cause != failure.CauseRestoreFailed || !strings.Contains(x.Message, text) ||
		r.recipe.restored != nil {
		r.t.Errorf("restored %v, next is %s, exit %+v, %v", r.recipe.restored, next, x, err)
	}
}

// A disk that takes nothing is the machine's fault: the step that it does not take is not passed over. A folder in the
// place of a file stands for the full disk.
func TestAFullDiskPassesNoStepOver(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, own(10, absentAfter), own(5, 0))
	newest := path.Dir(r.claim.Restore[0].Manifest) + "/"
	s.refuse = func(key string, times int) bool {
		if key == newest+"file-000000" {
			_ = r.scratch.checkpoint.Mkdir(path.Join(partial, "state"), 0o777)
		}
		return strings.HasPrefix(key, newest) && times == 1
	}
	r.ends("write state")
	if got := s.passed(); got != nil {
		t.Errorf("passed over: %v", got)
	}
}

// The checkpoint from which a job started is no older step of the job: the member does not ask for it, so nothing of
// another job is left in the folder, where the agent would store it as a step of this job.
func TestTheStepOfAnotherJobIsNoOlderStep(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, own(3, absentAfter), wire.RestorePoint{Job: "before", Step: 40, Attempt: 1})
	s.refuse = func(key string, times int) bool { return key == r.claim.Restore[0].Manifest && times == 1 }
	r.ends("restore step 3")
	if got := s.steps(); !slices.Equal(got, []int64{3}) {
		t.Errorf("asked for the steps %v", got)
	}
	if got, err := r.uploader.complete(); err != nil || len(got) > 0 || len(s.passed()) > 0 {
		t.Errorf("the agent would store the steps %v, %v; passed over: %v", got, err, s.passed())
	}
}

// A damaged step between them changes nothing: the step of another job is in the place of no step of this one. The job
// would go on from there, and prune its own step, although the store returns that one again.
func TestTheStepOfAnotherJobBehindADamagedOneIsNoOlderStep(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, own(5, absentAfter), own(3, 0), wire.RestorePoint{Job: "before", Step: 40, Attempt: 1})
	s.objects[r.claim.Restore[1].Manifest] = []byte("{}")
	s.refuse = func(key string, times int) bool { return key == r.claim.Restore[0].Manifest && times == 1 }
	r.ends("restore step 5: ")
	s.wants(t, []int64{5, 3})
}

// The rest of a step that was passed over would count against the disk of the job.
func TestTheRestOfAStepThatIsPassedOverIsRemoved(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, own(10, absentAfter), own(5, 0))
	last := path.Dir(r.claim.Restore[0].Manifest) + "/file-000001"
	rest := false
	s.refuse = func(key string, times int) bool {
		if key == last && times == 2 {
			_, err := os.Stat(path.Join(r.scratch.checkpoint.Name(), partial, "state"))
			rest = err == nil
		}
		return key == last
	}
	r.goesOnFrom(5)
	if got := s.passed(); !slices.Equal(got, []string{"10 for 5"}) || !rest {
		t.Errorf("passed over: %v; a file of the step had arrived: %t", got, rest)
	}
	if _, err := r.scratch.checkpoint.Lstat(partial); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the unfinished step is left: %v", err)
	}
}

// notReturned refuses the manifests of steps of the first attempt, however often a restore asks for the step.
func (s *stepStore) notReturned(steps ...int64) {
	s.refuse = func(key string, _ int) bool {
		return slices.ContainsFunc(steps, func(step int64) bool {
			return key == berth.CheckpointKey("default", "own", 1, 0, step)+"/"+berth.ManifestName
		})
	}
}

// wants compares the steps that were asked for and the steps that were passed over.
func (s *stepStore) wants(t *testing.T, asked []int64, passed ...string) {
	t.Helper()
	if got := s.steps(); !slices.Equal(got, asked) {
		t.Errorf("asked for the steps %v, want %v", got, asked)
	}
	if got := s.passed(); !slices.Equal(got, passed) {
		t.Errorf("passed over: %v, want %v", got, passed)
	}
}

// Each of the steps has failed in two attempts before: one attempt passes over all of them.
func TestSeveralStepsThatTheStoreDoesNotReturnArePassedOver(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, own(20, 5), own(15, 4), own(10, absentAfter), own(5, 0))
	s.notReturned(20, 15, 10)
	r.goesOnFrom(5)
	s.wants(t, []int64{20, 15, 10, 5, 20, 5, 15, 5, 10, 5}, "20 for 5", "15 for 5", "10 for 5")
}

// The store goes away during the second request for a newer step: that it did not return the step proves nothing, since
// it returns the step in place no longer, either.
func TestAnOutageDuringTheSecondRequestsPassesNoStepOver(t *testing.T) {
	t.Parallel()
	for requests, asked := range map[int][]int64{
		4: {20, 15, 10, 5, 20, 5},
		6: {20, 15, 10, 5, 20, 5, 15, 5},
	} {
		t.Run(fmt.Sprintf("after %d requests", requests), func(t *testing.T) {
			t.Parallel()
			s := newStepStore(t)
			r := s.restores(t, own(20, 5), own(15, 5), own(10, 5), own(5, 0))
			s.notReturned(20, 15, 10)
			never := s.refuse
			s.refuse = func(key string, times int) bool { return never(key, times) || len(s.asked) > requests }
			r.ends("did not return step 5 again, so no step is passed over")
			s.wants(t, asked)
		})
	}
}

// A step that fails for the first time is tried again by the next attempt, also if a newer one is about to be passed
// over.
func TestAStepThatFailedOnceIsNotPassedOver(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, own(10, absentAfter), own(5, absentAfter-1), own(1, 0))
	s.notReturned(10, 5)
	r.ends("restore step 5")
	s.wants(t, []int64{10, 5})
}

// The newest step that the store returns at the second request is used. Steps before it stay passed over; the one after
// it was never needed, and the one that proved that the store answers is removed.
func TestTheNewestStepThatIsReturnedAgainIsUsed(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, own(20, 5), own(15, 5), own(10, 5), own(5, 0))
	s.notReturned(20)
	never := s.refuse
	s.refuse = func(key string, times int) bool {
		return never(key, times) || key != r.claim.Restore[3].Manifest && times == 1 && path.Base(key) == berth.ManifestName
	}
	r.goesOnFrom(15)
	s.wants(t, []int64{20, 15, 10, 5, 20, 5, 15}, "20 for 15")
	if _, err := r.scratch.checkpoint.Lstat(stepName(5)); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("step 5 is left: %v", err)
	}
}

// A step that was passed over before is newer than the one that the store does not return now. It is used at once, and
// the older one stands behind it from then on.
func TestAStepThatWasPassedOverBeforeIsUsedOnceItReturns(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, own(5, absentAfter), own(15, 9))
	s.notReturned(5)
	r.goesOnFrom(15)
	s.wants(t, []int64{5, 15}, "5 for 15")
}

// Two attempts may have saved a step of the same number, in folders of the same name.
func TestTheSameStepOfTwoAttemptsStaysInPlace(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, wire.RestorePoint{Step: 5, Attempt: 2, FailedRestores: absentAfter}, own(5, 0))
	s.refuse = func(key string, times int) bool { return key == r.claim.Restore[0].Manifest && times == 1 }
	r.goesOnFrom(5)
	s.wants(t, []int64{5, 5, 5})
}

// The report names the attempt of the step in place, too, which may have the number of the one that is passed over.
func TestAStepIsPassedOverForTheSameStepOfAnotherAttempt(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, wire.RestorePoint{Step: 5, Attempt: 2, FailedRestores: absentAfter}, own(5, 0))
	s.refuse = func(key string, _ int) bool { return key == r.claim.Restore[0].Manifest }
	r.goesOnFrom(5)
	s.wants(t, []int64{5, 5, 5, 5}, "5 for 5 of attempt 1")
}

// An earlier process of the agent has placed a step of the attempt, and ended before it noted that. The step is not the
// job's: the agent must not store it again as one of this attempt.
func TestAStepThatAnEarlierProcessPlacedIsRemoved(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, own(20, absentAfter), own(15, 0))
	if err := r.restore(t.Context(), r.claim.Restore[0]); err != nil {
		t.Fatal(err)
	}
	s.notReturned(20)
	r.goesOnFrom(15)
	r.uploader.skip(r.recipe.restored, "")
	if steps, err := r.uploader.complete(); err != nil || len(steps) > 0 {
		t.Errorf("the agent would store the steps %v, %v", steps, err)
	}
}

// An attempt asks for a bounded number of steps, since each of them costs the patience of a restore.
func TestARestoreAsksForABoundedNumberOfSteps(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	var points []wire.RestorePoint
	for step := int64(maxAbsent + 3); step > 0; step-- {
		points = append(points, own(step, 9))
	}
	r := s.restores(t, points...)
	s.refuse = func(key string, _ int) bool { return path.Base(path.Dir(key)) != stepName(1) }
	r.ends("restore step 3")
	if got := s.steps(); len(got) != maxAbsent+1 || len(s.passed()) > 0 {
		t.Errorf("asked for the steps %v, and passed over %v", got, s.passed())
	}
}

// Each attempt tries the one checkpoint of another job from which the job started. The reason of the failure names that
// job, so that a user can choose another step of it.
func TestTheStepOfAnotherJobIsTriedByEachAttempt(t *testing.T) {
	t.Parallel()
	s := newStepStore(t)
	r := s.restores(t, wire.RestorePoint{Job: "before", Step: 40, Attempt: 1, FailedRestores: 9})
	s.refuse = func(string, int) bool { return true }
	r.ends("restore step 40 of job before: ")
	s.wants(t, []int64{40})
}
