package db_test

import (
	"testing"
	"time"

	"berth"
	"berth/failure"
	"berth/spec"
)

// A machine is declared lost after its member's exit was recorded and before the member's
// output is stored: the program is not at fault.
func TestAnOutputThatItsMachineTookAlongIsNotItsUsersLoss(t *testing.T) {
	t.Parallel()
	for name, giveUp := range map[string]func(s *stage){
		"it falls silent": func(s *stage) {
			s.quiet("m0", 2*time.Minute)
			s.judge(s.term(), "m0")
		},
		"it restarts": func(s *stage) { s.register("another boot", "agent2") },
		"it is confirmed dead": func(s *stage) {
			s.lease("m0", -time.Second)
			if _, err := s.db.Machines.ConfirmDead(s.t.Context(), "m0", "operator:test"); err != nil {
				s.t.Fatal(err)
			}
		},
		"it takes too long": func(s *stage) {
			s.ago(`UPDATE allocations SET exited_at = now() - interval '21 min'`)
			s.ago(`UPDATE machines SET state_at = now() - interval '21 min'`)
			repaired(s.t, "late", 1, s.giveUp(s.term()))
		},
	} {
		for _, stored := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				s := newStage(t)
				s.register("host1", "agent1")
				id, attempt := s.unsealed(func(j *spec.Job) { j.Outputs = []spec.Output{{Name: "model", Path: "/out"}} })
				if stored {
					s.leaves(id, attempt, 0, "model", "1")
				}
				giveUp(s)
				r, job := s.settle(id, attempt), s.job(id)
				if stored {
					if r.Next != berth.Succeeded {
						t.Errorf("with all stored it becomes %s: %+v", r.Next, job.Reason)
					}
					return
				}
				if r.Next != berth.Retrying || job.Reason == nil || job.Reason.Rule != "output_cut_off" || job.Failures != 0 || job.Losses != 1 {
					t.Errorf("it becomes %s with %d failures and %d losses: %+v", r.Next, job.Failures, job.Losses, job.Reason)
				}
			})
		}
	}
}

// halfStored is a gang on m0 and m1 that runs its first attempt: its first rank has
// ended well and stored its part of the output.
func (s *stage) halfStored() (id berth.JobID, attempt int) {
	s.t.Helper()
	id = s.submit(func(j *spec.Job) {
		j.Members, j.Outputs = 2, []spec.Output{{Name: "model", Path: "/out"}}
	})
	attempt = s.place(id, "m0", "m1")
	s.claim(id, attempt, 0)
	s.claim(id, attempt, 1)
	s.run(id)
	s.exit(id, attempt, 0, exited(0))
	s.leaves(id, attempt, 0, "model", "1")
	return id, attempt
}

// A lost member may have had an output part of its own.
func TestWhatOneRankHasStoredDoesNotSpeakForOneThatWasCutOff(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	id, attempt := s.halfStored()
	mustExec(t, s.pool, `UPDATE allocations SET state = 'exited', phase = 'exited', exit = $2, exited_at = now() WHERE job = $1 AND rank = 1`, id, exited(0))
	s.quiet("m1", 2*time.Minute)
	s.judge(s.term(), "m1")
	if r := s.settle(id, attempt); r.Next != berth.Retrying {
		t.Errorf("it becomes %s: %+v", r.Next, s.job(id).Reason)
	}
	if avoid := one[[]string](s, `SELECT avoid FROM jobs WHERE id = $1`, id); len(avoid) != 1 || avoid[0] != "m1" {
		t.Errorf("it avoids %v, want m1", avoid)
	}
}

// A rank that had a part and could not store it is another matter than one that
// had none.
func TestWhatOneRankHasStoredDoesNotSpeakForOneThatCouldNot(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim    string
		exit     func(*failure.Exit)
		rule     string
		next     berth.State
		failures int
	}{
		{"it had no part", func(*failure.Exit) {}, "", berth.Succeeded, 0},
		{"it could not store its part", func(x *failure.Exit) { x.Unstored = []string{"model"} }, "output_unstored", berth.Retrying, 0},
		{"its part was refused", func(x *failure.Exit) { x.Refused = []string{"model"} }, "output_lost", berth.Failed, 1},
	} {
		t.Run(c.claim, func(t *testing.T) {
			t.Parallel()
			s := newStage(t)
			id, attempt := s.halfStored()
			x := exited(0)
			c.exit(&x)
			s.exit(id, attempt, 1, x)
			r, job := s.settle(id, attempt), s.job(id)
			if r.Next != c.next || job.Failures != c.failures || c.rule != "" && (job.Reason == nil || job.Reason.Rule != c.rule) {
				t.Errorf("it becomes %s with %d failures: %+v", r.Next, job.Failures, job.Reason)
			}
			if c.next != berth.Retrying {
				return
			}
			if avoid := one[[]string](s, `SELECT avoid FROM jobs WHERE id = $1`, id); job.Losses != 1 || len(avoid) != 1 || avoid[0] != "m1" {
				t.Errorf("it has %d losses and avoids %v", job.Losses, avoid)
			}
		})
	}
}
