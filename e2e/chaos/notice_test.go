package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"berth"
	"berth/wire"
)

// noticeLead is the time between the notice of a cloud and the end of the machine. The agent's job must stop 10 s earlier.
const noticeLead = 20 * time.Second

// noticePath returns the file in which the agent of a machine reads the notices of its cloud.
func (s *stack) noticePath(machine string) string {
	return filepath.Join(s.dir, "notices", machine+".json")
}

// drainedFor reports whether a notice of its cloud drains or has drained a machine.
func (s *stack) drainedFor(m wire.Machine) bool {
	_, err := os.Stat(s.noticePath(string(m.ID)))
	return err == nil && drains(m)
}

// drains reports whether a machine gets no new work: it drains, or has drained.
func drains(m wire.Machine) bool {
	return m.State == berth.MachineDraining || m.State == wire.MachineDrained
}

// announced is a job on a machine whose cloud announces the machine's end.
type announced struct {
	*stack
	work    *work
	machine berth.MachineID // "": no notice yet
	notice  wire.CloudNotice

	signals, withdrawals int // in the agent's log, before the notice
}

// noticed is a training that gets a checkpoint signal for a notice, and whose agent dies before or after the signal. The
// job moves to another machine, on no one's account, and no container is signaled twice.
func (s *stack) noticed(c cell, lane string) *work {
	jobSpec := s.training(lane, endless)
	jobSpec.Checkpoint.Signal = "SIGUSR1"
	w := &work{attempt: 1}
	a := &announced{stack: s, work: w}
	w.submit = func() (err error) {
		w.job, err = s.submit(jobSpec)
		return err
	}
	w.drive = a.announce
	w.gone = func() error { return s.forgotten(w.job) }
	w.ended = func() error {
		return inTurn(a.wantMoved, a.withdrawn, func() error { return s.wantResumed(w.job, 2, c) }, a.wantOneSignal)
	}
	w.undo = func() error { return errors.Join(a.withdrawn(), s.cancelAll(jobSpec.Name)) }
	return w
}

// logged counts a message in the log of the machine's agent.
func (a *announced) logged(message string) (int, error) {
	b, err := os.ReadFile((&program{name: string(a.machine), dir: a.dir}).log())
	return strings.Count(string(b), message), err
}

// Messages of an agent.
const (
	signalLogged   = "signaling the job to save before the end of the machine"
	withdrawLogged = "cloud withdrew its notice"
)

// announce writes the notice once the job runs and has a checkpoint.
func (a *announced) announce() error {
	err := await("job "+string(a.work.job)+" has a checkpoint", func() error {
		job, err := a.api.Job(context.Background(), a.work.job)
		if err == nil && len(job.Checkpoints) == 0 {
			err = fmt.Errorf("it is %s and has none", job.Status)
		}
		return err
	})
	if err != nil {
		return err
	}
	job, err := a.running(a.work.job, 1)
	if err != nil {
		return err
	}
	a.machine = job.Attempts[len(job.Attempts)-1].Machines[0]
	if a.signals, err = a.logged(signalLogged); err != nil {
		return err
	}
	if a.withdrawals, err = a.logged(withdrawLogged); err != nil {
		return err
	}
	a.notice = wire.CloudNotice{Kind: wire.NoticeFile, Deadline: time.Now().Add(noticeLead).UTC().Truncate(time.Second)}
	path := a.noticePath(string(a.machine))
	text := fmt.Sprintf(`{"action": "terminate", "time": %q}`, a.notice.Deadline.Format(time.RFC3339))
	return errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path))
}

// wantMoved waits until the job has left the machine, which the notice drains.
func (a *announced) wantMoved() error {
	return await(fmt.Sprintf("job %s has left machine %s", a.work.job, a.machine), func() error {
		m, err := a.api.Machine(context.Background(), a.machine)
		if err != nil {
			return err
		}
		if !drains(m) || m.Reason != a.notice.Reason() {
			return fmt.Errorf("the machine is %s for %q", m.State, m.Reason)
		}
		job, err := a.api.Job(context.Background(), a.work.job)
		if err == nil && job.Attempt < 2 {
			err = fmt.Errorf("the job is %s in attempt %d", job.Status, job.Attempt)
		}
		return err
	})
}

// withdrawn removes the notice, and opens the machine again once the agent has seen that.
func (a *announced) withdrawn() error {
	if a.machine == "" {
		return nil
	}
	if err := os.Remove(a.noticePath(string(a.machine))); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return inTurn(func() error {
		return await("the agent of machine "+string(a.machine)+" sees no notice", func() error {
			n, err := a.logged(withdrawLogged)
			if err == nil && n <= a.withdrawals {
				err = errors.New("it has not logged that")
			}
			return err
		})
	}, func() error {
		return await("machine "+string(a.machine)+" is open again", func() error {
			_, err := a.api.Undrain(context.Background(), a.machine)
			return lasting(err)
		})
	})
}

// wantOneSignal wants one signal for the notice: the next process of the agent repeats none.
func (a *announced) wantOneSignal() error {
	n, err := a.logged(signalLogged)
	if err == nil && n != a.signals+1 {
		err = fmt.Errorf("the agent of machine %s signaled its job %d times for one notice", a.machine, n-a.signals)
	}
	return err
}
