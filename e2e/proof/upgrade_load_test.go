package proof_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/docker/docker/api/types/container"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

const (
	chainSteps = 8 // of the pipeline; more than an upgrade has steps
	gangSize   = 2

	fireEvery   = 10 * time.Second
	streamEvery = 2 * time.Second
)

// upgradeLoad is the work of a cluster during an upgrade besides jobs that only run: jobs that wait, belong together,
// repeat, or store data. All of it begins under the old programs and ends under the new ones.
type upgradeLoad struct {
	s        *stack
	queued   []berth.JobID // no machine has room for them until the last one joins
	gang     berth.JobID
	members  []string    // containers of the gang
	pipeline berth.JobID // a chain: each step reads the output of the one before, and ends on a signal
	saves    berth.JobID // a training that saves all the time, and has an output
	saved    int64       // its last checkpoint that this test has seen
	resumes  berth.JobID // a training that saves once, under the old programs, and restores under the new ones
	restores int64       // the step that it has saved
	stream   *jobStream
}

// startUpgradeLoad starts all of it.
func startUpgradeLoad(s *stack) *upgradeLoad {
	s.t.Helper()
	l := &upgradeLoad{s: s}
	large := s.job("queued", "exit", "0")
	large.Resources.CPUs, large.Priority = new(spec.MilliCPU(32_000)), new(spec.Priority(0)) // behind all others
	l.queued = []berth.JobID{s.submit(large), s.submit(large)}
	gang := s.job("gang", "trap-term", "0")
	gang.Members, gang.Placement.Strategy = gangSize, "spread"
	l.gang = s.submit(gang)
	saves := s.job("saves", "do", "train /checkpoint 1000000 100ms 10", "write-file /workspace/result trained")
	saves.Checkpoint = &spec.CheckpointPolicy{Path: "/checkpoint"}
	saves.Outputs = []spec.Output{{Name: "result", Path: "/workspace/result"}}
	l.saves = s.submit(saves)
	resumes := s.job("resumes", "train", "/checkpoint", "1000000", "100ms")
	resumes.Checkpoint, resumes.Retry.MaxAttempts = &spec.CheckpointPolicy{Path: "/checkpoint"}, 2
	l.resumes = s.submit(resumes)
	l.submitChain()
	if _, _, err := s.api.CreateSchedule(s.t.Context(), spec.Schedule{
		Name: "clock", Every: spec.Duration(fireEvery), Overlap: spec.OverlapAllow, Job: new(s.job("fired", "exit",
			"0")),
	}); err != nil {
		s.t.Fatal(err)
	}
	until(s.t, "the gang runs", func(ctx context.Context) (err error) {
		if l.members, err = l.gangContainers(ctx); err == nil && len(l.members) != gangSize {
			err = fmt.Errorf("%d members have a container", len(l.members))
		}
		return err
	})
	s.becomes(l.gang, berth.Running)
	s.engine.awaitLine(l.resumes, "step 10")
	s.engine.signal(l.resumes, "SIGUSR1")
	l.restores = l.awaitCheckpoint(l.resumes, 1)
	l.wantSaved()
	l.stream = startStream(s)
	return l
}

// submitChain submits the pipeline and waits until its first step runs.
func (l *upgradeLoad) submitChain() {
	l.s.t.Helper()
	p := spec.Pipeline{Kind: string(berth.KindPipeline), Name: "chain", Jobs: map[string]spec.Job{}}
	for i := range chainSteps {
		name := chainStep(i)
		j := l.s.job("", "do", fmt.Sprintf("write-file /workspace/n %d", i), "trap-term 0")
		if i > 0 {
			before := chainStep(i - 1)
			j.Command = []string{"do", "read-file /data/n", fmt.Sprintf("write-file /workspace/n %d", i), "trap-term 0"}
			j.Inputs, j.Needs = []spec.Input{{From: "job:" + before + "/n", To: "/data"}}, []string{before}
		}
		j.Outputs = []spec.Output{{Name: "n", Path: "/workspace/n"}}
		p.Jobs[name] = j
	}
	job, _, err := l.s.api.SubmitPipeline(l.s.t.Context(), p, berth.NewSecret())
	if err != nil {
		l.s.t.Fatal(err)
	}
	l.pipeline = job.ID
	l.s.engine.awaitLine(l.runningStep().Job, "ready")
}

func chainStep(i int) string { return fmt.Sprintf("s%d", i) }

// runningStep waits for the one step of the pipeline that runs.
func (l *upgradeLoad) runningStep() (step wire.Step) {
	l.s.t.Helper()
	until(l.s.t, "a step of the pipeline runs", func(ctx context.Context) error {
		job, err := l.s.api.Job(ctx, l.pipeline)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(job.Steps, func(s wire.Step) bool { return s.Status == berth.Running })
		if i < 0 {
			return fmt.Errorf("the pipeline is %s: %+v", job.Status, job.Reason)
		}
		step = job.Steps[i]
		return nil
	})
	return step
}

// nextStep ends the running step of the pipeline and waits until the next one has read its output.
func (l *upgradeLoad) nextStep() {
	l.s.t.Helper()
	ends := l.runningStep()
	l.s.engine.awaitLine(ends.Job, "ready")
	l.s.engine.signal(ends.Job, "SIGTERM")
	l.s.becomes(ends.Job, berth.Succeeded)
	if ends.Name != chainStep(chainSteps-1) {
		l.s.engine.awaitLine(l.runningStep().Job, "ready")
	}
}

// wantSaved waits until the training has stored a later checkpoint than before: one of the present programs.
func (l *upgradeLoad) wantSaved() {
	l.s.t.Helper()
	l.saved = l.awaitCheckpoint(l.saves, l.saved+1)
}

// awaitCheckpoint waits until a job has stored a checkpoint of this step or a later one, and returns its step.
func (l *upgradeLoad) awaitCheckpoint(id berth.JobID, least int64) (step int64) {
	l.s.t.Helper()
	until(l.s.t, fmt.Sprintf("job %s stores step %d", id, least), func(ctx context.Context) error {
		page, err := l.s.api.Checkpoints(ctx, id)
		for _, c := range page.Items {
			if c.State == berth.CheckpointVerified {
				step = max(step, c.Step)
			}
		}
		if err == nil && step < least {
			err = fmt.Errorf("the last one is step %d of %+v", step, page.Items)
		}
		return err
	})
	return step
}

// lastingMembers is the number of members that run all the time.
func (l *upgradeLoad) lastingMembers() int { return gangSize + 3 } // two trainings, and a step of the pipeline

// gangContainers returns the ids of the gang's running containers.
func (l *upgradeLoad) gangContainers(ctx context.Context) (ids []string, err error) {
	all, err := l.s.engine.list(ctx, l.gang)
	for _, c := range all {
		if c.State == container.StateRunning {
			ids = append(ids, c.ID)
		}
	}
	slices.Sort(ids)
	return ids, err
}

// wantLoadUntouched checks that waiting jobs still wait, and that running ones are in their first attempt and their first
// containers.
func (l *upgradeLoad) wantLoadUntouched() {
	l.s.t.Helper()
	if now, err := l.gangContainers(l.s.t.Context()); err != nil || !slices.Equal(now, l.members) {
		l.s.t.Errorf("the gang began in %s and runs in %s: %v", l.members, now, err)
	}
	for _, id := range []berth.JobID{l.gang, l.saves, l.resumes} {
		job, err := l.s.api.Job(l.s.t.Context(), id)
		if err != nil || job.Status != berth.Running || len(job.Attempts) != 1 || job.Losses != 0 {
			l.s.t.Errorf("job %s is %s with %d attempts and %d losses: %v", id, job.Status, len(job.Attempts),
				job.Losses, err)
		}
	}
	for _, id := range l.queued {
		if job, err := l.s.api.Job(l.s.t.Context(), id); err != nil || job.Status != berth.Queued || job.Attempt != 0 {
			l.s.t.Errorf("job %s is %s in attempt %d, want it to wait: %v", id, job.Status, job.Attempt, err)
		}
	}
}

// finishLoad brings all of it but the waiting jobs to its end, and returns the jobs that had one container each.
func (l *upgradeLoad) finishLoad() (done []berth.JobID) {
	l.s.t.Helper()
	done = slices.Concat(l.wantStreamed(), l.wantFired(), l.wantChained())
	for _, id := range l.members {
		if err := l.s.engine.api.ContainerKill(l.s.t.Context(), id, "SIGTERM"); err != nil {
			l.s.t.Fatal(err)
		}
	}
	if job := l.s.becomes(l.gang, berth.Succeeded); len(job.Attempts) != 1 ||
		l.s.engine.containers(l.gang) != gangSize {
		l.s.t.Errorf("the gang took %d attempts and %d containers", len(job.Attempts), l.s.engine.containers(l.gang))
	}
	l.s.engine.signal(l.saves, "SIGTERM")
	if job := l.s.becomes(l.saves, berth.Succeeded); len(job.Attempts) != 1 {
		l.s.t.Errorf("the training took %d attempts", len(job.Attempts))
	}
	l.wantOutput(l.saves, "result", "trained")
	l.wantRestored()
	return append(done, l.saves)
}

// wantRestored kills the other training, whose next attempt must restore the step that the old programs have stored.
func (l *upgradeLoad) wantRestored() {
	l.s.t.Helper()
	l.s.engine.signal(l.resumes, "SIGKILL")
	until(l.s.t, "the killed training restores its checkpoint", func(ctx context.Context) error {
		job, err := l.s.api.Job(ctx, l.resumes)
		if err == nil && (len(job.Attempts) < 2 || job.Status != berth.Running) {
			err = fmt.Errorf("it is %s in attempt %d: %+v", job.Status, job.Attempt, job.Reason)
		}
		return err
	})
	want := fmt.Sprintf("restored step %d", l.restores)
	until(l.s.t, "it prints "+want, func(context.Context) error {
		if lines := l.s.log(l.resumes); !slices.Contains(lines, want) {
			return fmt.Errorf("it has printed %d lines", len(lines))
		}
		return nil
	})
	l.s.engine.signal(l.resumes, "SIGTERM")
	l.s.becomes(l.resumes, berth.Succeeded)
}

// wantOutput checks the stored output of a job against its sum, and that it holds a text.
func (l *upgradeLoad) wantOutput(id berth.JobID, name, text string) {
	l.s.t.Helper()
	page, err := l.s.api.Outputs(l.s.t.Context(), id)
	if err != nil || len(page.Items) != 1 || page.Items[0].Name != name || page.Items[0].Bytes != int64(len(text)) {
		l.s.t.Fatalf("the outputs of job %s are %+v, %v; want %s of %d bytes", id, page.Items, err, name, len(text))
	}
	body, err := l.s.api.Output(l.s.t.Context(), id, page.Items[0])
	if err != nil {
		l.s.t.Fatal(err)
	}
	defer body.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, body); err != nil || hex.EncodeToString(sum.Sum(nil)) != page.Items[0].SHA256 {
		l.s.t.Errorf("output %s of job %s has the sum %x, want %s: %v", name, id, sum.Sum(nil), page.Items[0].SHA256,
			err)
	}
}

// wantChained brings the pipeline to its end. Each step ran once and has read the output of the one before.
func (l *upgradeLoad) wantChained() (done []berth.JobID) {
	l.s.t.Helper()
	for range chainSteps {
		job, err := l.s.api.Job(l.s.t.Context(), l.pipeline)
		if err != nil {
			l.s.t.Fatal(err)
		}
		if job.Tally.Ended() == chainSteps {
			break
		}
		l.nextStep()
	}
	for _, step := range l.s.becomes(l.pipeline, berth.Succeeded).Steps {
		done = append(done, step.Job)
		if job := l.s.becomes(step.Job, berth.Succeeded); len(job.Attempts) != 1 {
			l.s.t.Errorf("step %s took %d attempts", step.Name, len(job.Attempts))
		}
		number, err := strconv.Atoi(strings.TrimPrefix(step.Name, "s"))
		if err != nil {
			l.s.t.Fatal(err)
		}
		if lines := l.s.log(step.Job); number > 0 && !slices.Contains(lines, strconv.Itoa(number-1)) {
			l.s.t.Errorf("step %s has not read the output of the one before: %q", step.Name, lines)
		}
	}
	if len(done) != chainSteps {
		l.s.t.Errorf("the pipeline has %d steps, want %d", len(done), chainSteps)
	}
	return done
}

// wantFired pauses the schedule and checks that it has fired once for each of its times, and that each fire created a
// job.
func (l *upgradeLoad) wantFired() (done []berth.JobID) {
	l.s.t.Helper()
	l.s.accepts("pause the schedule", func(ctx context.Context) error {
		_, err := l.s.api.PauseSchedule(ctx, "clock", "the upgrade is over")
		return err
	})
	var fires []wire.Fire
	until(l.s.t, "every fire is decided", func(ctx context.Context) error {
		s, err := l.s.api.Schedule(ctx, "clock", 1000)
		fires = s.Fires
		if i := slices.IndexFunc(fires, func(f wire.Fire) bool { return !f.Status.Decided() }); i >= 0 {
			err = errors.Join(err, fmt.Errorf("the fire at %s is %s", fires[i].At, fires[i].Status))
		}
		return err
	})
	slices.Reverse(fires) // now the oldest first
	for i, f := range fires {
		if i > 0 && f.At.Sub(fires[i-1].At) != fireEvery {
			l.s.t.Errorf("after %s the schedule fired at %s", fires[i-1].At, f.At)
		}
		if f.Status != wire.FireSubmitted || f.Job == nil {
			l.s.t.Errorf("the fire at %s is %s: %+v", f.At, f.Status, f.Reason)
			continue
		}
		done = append(done, *f.Job)
	}
	if len(fires) < 3 {
		l.s.t.Errorf("the schedule fired %d times", len(fires))
	}
	l.wantOnce(done)
	fmt.Printf("the schedule fired %d times, without a gap\n", len(fires))
	return done
}

// wantOnce waits for the success of jobs, each in its first attempt.
func (l *upgradeLoad) wantOnce(ids []berth.JobID) {
	l.s.t.Helper()
	for _, id := range ids {
		if job := l.s.becomes(id, berth.Succeeded); len(job.Attempts) != 1 {
			l.s.t.Errorf("job %s took %d attempts", id, len(job.Attempts))
		}
	}
}

// jobStream is a user who submits a short job every two seconds, also while no berthd answers.
type jobStream struct {
	stop context.CancelFunc
	over sync.WaitGroup
	ids  []berth.JobID // read them after over
	err  error
}

func startStream(s *stack) *jobStream {
	ctx, stop := context.WithCancel(context.WithoutCancel(s.t.Context()))
	st := &jobStream{stop: stop}
	s.t.Cleanup(func() { stop(); st.over.Wait() })
	api := s.api
	st.over.Go(func() {
		tick := time.NewTicker(streamEvery)
		defer tick.Stop()
		for ctx.Err() == nil {
			key := berth.NewSecret() // each submit counts once, however often it is repeated
			limit, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
			err := await(limit, func(ctx context.Context) error {
				job, _, err := api.Submit(ctx, s.job("stream", "exit", "0"), key)
				if err == nil {
					st.ids = append(st.ids, job.ID)
				} else if berth.CodeOf(err) != berth.CodeUnavailable && !client.Unreachable(err) {
					st.err = errors.Join(st.err, err)
					return nil
				}
				return err
			})
			cancel()
			st.err = errors.Join(st.err, err)
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	return st
}

// wantStreamed ends the stream and checks that each job that was accepted ran once.
func (l *upgradeLoad) wantStreamed() []berth.JobID {
	l.s.t.Helper()
	l.stream.stop()
	l.stream.over.Wait()
	if l.stream.err != nil {
		l.s.t.Errorf("a user who submits every %s: %v", streamEvery, l.stream.err)
	}
	l.wantOnce(l.stream.ids)
	fmt.Printf("%d jobs of a steady user ran once each\n", len(l.stream.ids))
	return l.stream.ids
}
