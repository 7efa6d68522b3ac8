package proof_test

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/events"

	"berth"
	"berth/e2e/faultproxy"
	"berth/spec"
	"berth/wire"
)

var (
	cutCount  = flag.Int("cuts", 4, "machines that are cut off with a running at_most_one container, side by side")
	cutFence  = flag.Duration("cut-fence", 24*time.Second, "fence of the machines that are cut off")
	cutMargin = flag.Duration("cut-margin", 12*time.Second, "margin after which their jobs run elsewhere")
	cutSeed   = flag.Uint64("cut-seed", 0, "choices of the lengths of cuts; 0: others each time")
)

// cut is one machine behind a link of its own, with one job.
type cut struct {
	name    string
	link    *faultproxy.Proxy
	job     berth.JobID
	delay   time.Duration // before the link is cut
	length  time.Duration // of the cut
	severed time.Time
	healed  time.Time
	again   time.Time // when the job was seen running with its machine back
	placed  time.Time // when its first attempt since the cut was placed
}

// cutTrials is how often the cuts are made, each time with twice the times, where the machine that runs the
// test stood still for so long that its deadmen could not keep the times of the trial before.
const cutTrials = 3

// Machines with a running at_most_one container each are cut off for random times
// around their fence: some are back before it, some while it ends the container,
// some when the job already runs elsewhere. The engine's events are the witness
// that no job ever has two live containers, and each job runs again in the end.
func TestF24CutsAroundTheFenceNeverLeaveTwoLiveContainers(t *testing.T) {
	t.Parallel()
	seed := *cutSeed
	if seed == 0 {
		seed = rand.Uint64()
	}
	fence, margin := *cutFence, *cutMargin
	for range cutTrials {
		proven := false
		passed := t.Run("fence "+fence.String(), func(t *testing.T) {
			t.Logf("seed %d: %d cuts, fence %s, margin %s", seed, *cutCount, fence, margin)
			proven = cutAround(t, seed, fence, margin)
		})
		if proven || !passed {
			return
		}
		fence, margin = 2*fence, 2*margin
	}
	t.Errorf("the machine stood still for too long in each of %d trials", cutTrials)
}

// cutAround makes the cuts on a stack of their own. It returns false if two containers of a job lived at once and the
// machine had stood still: the margin is the time for which a deadman may be held up.
func cutAround(t *testing.T, seed uint64, fence, margin time.Duration) (proven bool) {
	flags := []string{"--fence-margin", margin.String()}
	if fence == berth.DefaultFence { // everything else at its default, too
		flags = append(flags, "--suspect-after", berth.MachineLeaseTTL.String(), "--grace", time.Minute.String(),
			"--reconcile-every", "10s")
	}
	s, c := onLinks(t, flags...)
	s.query(fmt.Sprintf(`INSERT INTO machines (id, state, reason)
		SELECT 'crowd-' || i, 'draining', 'stands for a larger fleet' FROM generate_series(1, %d) i`, 20**cutCount))
	agent := []string{"--no-gpus", "--fence-after", fence.String(), "--cpus"}
	cuts := s.planCuts(c, rand.New(rand.NewPCG(seed, 0)), fence, margin)
	for _, x := range cuts {
		s.agent(x.name, x.link.Address(), append(agent, "1")...)
	}
	s.agent("spare", c.listen, append(agent, strconv.Itoa(*cutCount))...)
	s.ready(*cutCount + 1)
	stalls := s.watchStalls()
	// The first attempts are where the cuts will be.
	s.accepts("drain the spare machine", func(ctx context.Context) error {
		_, err := s.api.Drain(ctx, "spare", wire.DrainRequest{Reason: "so that nothing is placed there yet"})
		return err
	})
	ids := make([]berth.JobID, len(cuts))
	for i, x := range cuts {
		ids[i] = s.submit(s.endless(x.name, patience, func(j *spec.Job) {
			j.Execution = spec.AtMostOne
			j.Placement.Constraint = fmt.Sprintf("machine.id in [%q, %q]", x.name, "spare")
		}))
		x.job = ids[i]
	}
	for _, x := range cuts {
		s.runsAt(x)
	}
	s.accepts("undrain the spare machine", func(ctx context.Context) error {
		_, err := s.api.Undrain(ctx, "spare")
		return err
	})
	s.ready(*cutCount + 1)

	s.loseAfter(partLost, ids...)
	var all sync.WaitGroup
	for _, x := range cuts {
		all.Go(x.run)
	}
	all.Wait()
	s.ready(*cutCount + 1)
	s.loseAfter(patience, ids...)
	until(t, "every job has run again", func(ctx context.Context) error { return s.seeAgain(ctx, cuts) })
	for _, id := range ids {
		s.dismiss(id)
	}
	s.engine.wantEmpty()
	s.wantNothingReserved()
	return s.neverTwo(cuts, margin, stalls)
}

// planCuts chooses the cuts, and makes the links that will be cut.
func (s *stack) planCuts(c *controlPlane, r *rand.Rand, fence, margin time.Duration) []*cut {
	s.t.Helper()
	const grace = time.Second // of the jobs
	shortest, longest := fence-margin, fence+grace+2*margin
	cuts := make([]*cut, *cutCount)
	for i := range cuts {
		cuts[i] = &cut{
			name:   fmt.Sprintf("m%02d", i),
			link:   s.link(c.listen),
			delay:  time.Duration(r.Int64N(int64(margin))),
			length: shortest + time.Duration(r.Int64N(int64(longest-shortest))),
		}
	}
	return cuts
}

// run cuts the machine off and heals its link again.
func (x *cut) run() {
	<-time.After(x.delay)
	x.severed = time.Now()
	x.link.Cut()
	<-time.After(x.length)
	x.link.Heal()
	x.healed = time.Now()
}

// runsAt waits until the job of a cut runs on its machine, in whichever attempt: where the test runs on a crowded
// machine, the fence may have ended one already.
func (s *stack) runsAt(x *cut) {
	s.t.Helper()
	until(s.t, fmt.Sprintf("job %s runs on %s", x.job, x.name), func(ctx context.Context) error {
		job, err := s.api.Job(ctx, x.job)
		if err != nil {
			return err
		}
		at := job.Attempts
		if job.Status != berth.Running || !slices.Contains(at[len(at)-1].Machines, berth.MachineID(x.name)) ||
			s.engine.running()[x.job] == "" {
			return fmt.Errorf("it is %s in attempt %d: %+v", job.Status, job.Attempt, job.Reason)
		}
		return nil
	})
}

// seeAgain looks which jobs run, all of whose machines are back. It returns an error until each was seen running.
func (s *stack) seeAgain(ctx context.Context, cuts []*cut) error {
	live := s.engine.running()
	var missing []error
	for _, x := range cuts {
		if !x.again.IsZero() {
			continue
		}
		job, err := s.api.Job(ctx, x.job)
		if err == nil && (job.Status != berth.Running || live[x.job] == "") {
			err = fmt.Errorf("the job of %s is %s in attempt %d: %+v", x.name, job.Status, job.Attempt, job.Reason)
		}
		if err != nil {
			missing = append(missing, err)
			continue
		}
		x.again = time.Now()
		for _, a := range job.Attempts {
			if x.placed.IsZero() && a.PlacedAt.After(x.severed) {
				x.placed = a.PlacedAt
			}
		}
	}
	return errors.Join(missing...)
}

// neverTwo reads from the engine's events the lifetimes of each job's containers, which must
// follow each other, and prints the results of the cuts. It returns false instead of a fault where the machine
// stood still for a part of the margin at a stretch: several processes take part in an end, and each may have been
// held for as long.
func (s *stack) neverTwo(cuts []*cut, margin time.Duration, stalls *stalls) (proven bool) {
	s.t.Helper()
	until(s.t, "the engine has noted the end of every container", func(context.Context) error {
		if began, died := s.engine.count(events.ActionStart, ""), s.engine.count(events.ActionDie, ""); began != died {
			return fmt.Errorf("%d containers were started and %d died", began, died)
		}
		return nil
	})
	proven = true
	replaced, early, least := 0, 0, time.Duration(0)
	var slowest time.Duration
	for _, x := range slices.SortedFunc(slices.Values(cuts), func(a, b *cut) int { return cmp.Compare(a.length, b.length) }) {
		lives := s.engine.lives(x.job)
		fate := "kept its container"
		for i, l := range lives[1:] {
			gap := l.began.Sub(lives[i].ended)
			fate = fmt.Sprintf("had %d containers, the next one %s after the end of the one before", len(lives),
				gap.Round(time.Millisecond))
			if gap <= 0 {
				two := fmt.Sprintf("%s, cut for %s: container %s was started at %s, the one before lived until %s",
					x.name, x.length, l.id, l.began, lives[i].ended)
				if held := stalls.worst(); held > margin/4 {
					proven = false
					s.t.Logf("%s; the machine stood still for %s", two, held)
				} else {
					s.t.Error(two)
				}
			}
			if replaced++; replaced == 1 || gap < least {
				least = gap
			}
		}
		if !x.placed.IsZero() && x.placed.Before(x.healed) {
			early++
			fate += fmt.Sprintf(", placed %s before the machine was back", x.healed.Sub(x.placed).Round(time.Millisecond))
		}
		slowest = max(slowest, x.again.Sub(x.healed))
		s.t.Logf("%s, cut for %6.2f s: %s", x.name, x.length.Seconds(), fate)
	}
	s.t.Logf("%d cuts: %d replacements, %d of them placed during the cut, the closest %s after the end before it; "+
		"the last job ran %s after its cut was over; two alive: %t", len(cuts), replaced, early,
		least.Round(time.Millisecond), slowest.Round(100*time.Millisecond), !proven)
	return proven
}

// life is a container from its start to its end.
type life struct {
	id           string
	began, ended time.Time
}

// lives are the lives of a job's containers by the engine's events, in the order of
// their starts. Each of them has ended.
func (e *engine) lives(job berth.JobID) []life {
	e.t.Helper()
	e.mu.Lock()
	defer e.mu.Unlock()
	found := map[string]*life{}
	for _, m := range e.seen {
		if m.Actor.Attributes[berth.LabelJob] != string(job) {
			continue
		}
		l := found[m.Actor.ID]
		if l == nil {
			l = &life{id: m.Actor.ID}
			found[m.Actor.ID] = l
		}
		switch m.Action {
		case events.ActionStart:
			l.began = time.Unix(0, m.TimeNano)
		case events.ActionDie:
			l.ended = time.Unix(0, m.TimeNano)
		}
	}
	var list []life
	for _, l := range found {
		if !l.began.IsZero() { // one that was created and never started has no life
			list = append(list, *l)
		}
	}
	slices.SortFunc(list, func(a, b life) int { return a.began.Compare(b.began) })
	if len(list) == 0 {
		e.t.Fatalf("the engine started no container of job %s", job)
	}
	return list
}
