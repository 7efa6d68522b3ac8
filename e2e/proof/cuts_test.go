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
	"berth/spec"
)

var (
	cutCount  = flag.Int("cuts", 4, "machines that are cut off with a running at_most_one container, side by side")
	cutFence  = flag.Duration("cut-fence", 12*time.Second, "fence of the machines that are cut off")
	cutMargin = flag.Duration("cut-margin", 6*time.Second, "margin after which their jobs run elsewhere")
	cutSeed   = flag.Uint64("cut-seed", 0, "choices of the lengths of cuts; 0: others each time")
)

// cut is one machine behind a link of its own, with one job.
type cut struct {
	name   string
	job    berth.JobID
	delay  time.Duration // before the link is cut
	length time.Duration // of the cut
	healed time.Time
	again  time.Time // when the job was seen running with its machine back
	placed time.Time // when its second attempt was placed
}

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
	t.Logf("seed %d: %d cuts, fence %s, margin %s", seed, *cutCount, *cutFence, *cutMargin)
	const grace = time.Second // of the jobs
	flags := []string{"--fence-margin", cutMargin.String()}
	if *cutFence == berth.DefaultFence { // everything else at its default, too
		flags = append(flags, "--suspect-after", berth.MachineLeaseTTL.String(), "--grace", time.Minute.String(), "--reconcile-every", "10s")
	}
	s, c := onLinks(t, flags...)
	s.query(fmt.Sprintf(`INSERT INTO machines (id, state, reason)
		SELECT 'crowd-' || i, 'draining', 'stands for a larger fleet' FROM generate_series(1, %d) i`, 20**cutCount))
	fence := []string{"--no-gpus", "--fence-after", cutFence.String(), "--cpus"}
	r := rand.New(rand.NewPCG(seed, 0))
	shortest, longest := *cutFence-*cutMargin, *cutFence+grace+2**cutMargin
	cuts := make([]*cut, *cutCount)
	heals := make([]func(), *cutCount)
	severs := make([]func(), *cutCount)
	for i := range cuts {
		link := s.link(c.listen)
		cuts[i] = &cut{
			name:   fmt.Sprintf("m%02d", i),
			delay:  time.Duration(r.Int64N(int64(*cutMargin))),
			length: shortest + time.Duration(r.Int64N(int64(longest-shortest))),
		}
		severs[i], heals[i] = func() { link.Cut() }, link.Heal
		s.agent(cuts[i].name, link.Address(), append(fence, "1")...)
	}
	s.ready(*cutCount)
	for _, x := range cuts {
		x.job = s.submit(s.endless(x.name, partLost, func(j *spec.Job) {
			j.Execution = spec.AtMostOne
			j.Placement.Constraint = fmt.Sprintf("machine.id in [%q, %q]", x.name, "spare")
		}))
	}
	for _, x := range cuts {
		s.runsOn(x.job, 1, berth.MachineID(x.name))
	}
	s.agent("spare", c.listen, append(fence, strconv.Itoa(*cutCount))...) // only now: the first attempts are where the cuts will be
	s.ready(*cutCount + 1)

	var all sync.WaitGroup
	for i, x := range cuts {
		all.Go(func() {
			<-time.After(x.delay)
			severs[i]()
			<-time.After(x.length)
			heals[i]()
			x.healed = time.Now()
		})
	}
	all.Wait()
	s.ready(*cutCount + 1)
	until(t, "every job runs again", func(ctx context.Context) error {
		live := s.engine.running()
		var missing []error
		for _, x := range cuts {
			job, err := s.api.Job(ctx, x.job)
			if err == nil && (job.Status != berth.Running || live[x.job] == "") {
				err = fmt.Errorf("the job of %s is %s in attempt %d: %+v", x.name, job.Status, job.Attempt, job.Reason)
			}
			if err == nil && x.again.IsZero() {
				x.again = time.Now()
			}
			if err == nil && job.Attempt > 1 {
				x.placed = job.Attempts[1].PlacedAt
			}
			missing = append(missing, err)
		}
		return errors.Join(missing...)
	})
	for _, x := range cuts {
		s.dismiss(x.job)
	}
	s.engine.wantEmpty()
	s.wantNothingReserved()
	s.wantNeverTwo(cuts)
}

// wantNeverTwo reads from the engine's events the lifetimes of each job's containers, which must
// follow each other, and prints the results of the cuts.
func (s *stack) wantNeverTwo(cuts []*cut) {
	s.t.Helper()
	until(s.t, "the engine has noted the end of every container", func(context.Context) error {
		if began, died := s.engine.count(events.ActionStart, ""), s.engine.count(events.ActionDie, ""); began != died {
			return fmt.Errorf("%d containers were started and %d died", began, died)
		}
		return nil
	})
	replaced, early, least := 0, 0, time.Duration(0)
	var slowest time.Duration
	for _, x := range slices.SortedFunc(slices.Values(cuts), func(a, b *cut) int { return cmp.Compare(a.length, b.length) }) {
		lives := s.engine.lives(x.job)
		fate := "kept its container"
		for i, l := range lives[1:] {
			gap := l.began.Sub(lives[i].ended)
			fate = fmt.Sprintf("had %d containers, the next one %s after the end of the one before", len(lives), gap.Round(time.Millisecond))
			if gap <= 0 {
				s.t.Errorf("%s, cut for %s: container %s was started at %s, and the one before lived until %s", x.name, x.length, l.id, l.began, lives[i].ended)
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
	s.t.Logf("%d cuts: %d replacements, %d of them placed during the cut, the closest %s after the end before it; the last job ran %s after its cut was over; never two alive",
		len(cuts), replaced, early, least.Round(time.Millisecond), slowest.Round(100*time.Millisecond))
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
