package chaos_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	cerrdefs "github.com/containerd/errdefs"

	"berth"
	"berth/api/client"
	"berth/spec"
)

// Sessions of cells. The first one runs until something ends it, and its argument is not one of any
// other process; the second one ends with a code that is no other's.
const (
	sessionFor  = "1h11m11s"
	sessionExit = 7
	// sessionTry bounds the first session, which another cell may cut before it comes by.
	sessionTry = 20 * time.Second
)

// entered is a job in which a user runs a command while a process dies. The user must get an error,
// never an exit code; no process may be left of the command; and the next session must work.
func (s *stack) entered(c cell, lane string) *work {
	jobSpec := s.spec(lane, "trap-term", "0")
	jobSpec.Checkpoint = nil
	if c.loses() {
		jobSpec.LostAfter = spec.Duration(lost)
	}
	w := &work{attempt: 1}
	w.submit = func() (err error) {
		w.job, err = s.submit(jobSpec)
		return err
	}
	attempt := 1
	w.drive = func() error {
		if err := s.started(w.job, 0); err != nil {
			return err
		}
		if err := s.wantCut(w.job); err != nil {
			return err
		}
		if c.loses() { // its machine is lost; the job goes on elsewhere
			attempt = attemptsBeyond(c.point)
		}
		job, err := s.running(w.job, attempt)
		if err != nil {
			return err
		}
		if attempt = job.Attempt; s.started(w.job, 0) != nil {
			return s.started(w.job, 0)
		}
		if err := s.wantNoCommand(w.job, job.Attempt); err != nil {
			return err
		}
		if err := s.wantExit(w.job); err != nil {
			return err
		}
		return s.endInside(w.job, 0)
	}
	w.ended = func() error { return s.wantEnded(w.job, tries{attempt, c.loses()}) }
	w.gone = func() error { return s.forgotten(w.job) }
	w.left = func() error { return s.givenUp(w.job, 1) }
	w.undo = func() error { return s.cancelAll(jobSpec.Name) }
	return w
}

// session runs a command of the test program in member 0, and returns its exit code.
func (s *stack) session(ctx context.Context, id berth.JobID, command ...string) (int, error) {
	var out bytes.Buffer
	return s.api.Sessions().Run(ctx, id, spec.NewSession{Kind: spec.SessionExec, Command: append([]string{"/testprog"}, command...)},
		client.Streams{Stdout: &out, Stderr: &out})
}

// wantCut runs a command that ends by no code. It must return an error.
func (s *stack) wantCut(id berth.JobID) error {
	ctx, cancel := context.WithTimeout(context.Background(), sessionTry)
	defer cancel()
	if code, err := s.session(ctx, id, "sleep", sessionFor); err == nil {
		return fmt.Errorf("a session of job %s that was cut returned exit code %d", id, code)
	}
	return nil
}

// wantNoCommand waits until the container has no process of the first session.
func (s *stack) wantNoCommand(id berth.JobID, attempt int) error {
	name := berth.ContainerName(id, 0, attempt)
	return await("container "+name+" has no process of a session", func() error {
		top, err := s.shared.api.ContainerTop(context.Background(), name, nil)
		if cerrdefs.IsNotFound(err) || cerrdefs.IsConflict(err) {
			return fatal{fmt.Errorf("container %s does not run: %w", name, err)}
		}
		if err != nil {
			return err
		}
		for _, p := range top.Processes {
			if slices.ContainsFunc(p, func(text string) bool { return strings.Contains(text, sessionFor) }) {
				return fmt.Errorf("it has %v", p)
			}
		}
		return nil
	})
}

// wantExit runs a command with an exit code, as often as connections are cut.
func (s *stack) wantExit(id berth.JobID) error {
	return await("a session of job "+string(id)+" works", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), sessionTry)
		defer cancel()
		code, err := s.session(ctx, id, "exit", fmt.Sprint(sessionExit))
		if err == nil && code != sessionExit {
			err = fatal{fmt.Errorf("it returned %d, want %d", code, sessionExit)}
		}
		return err
	})
}

// endInside ends a rank from within its container with a SIGTERM, as often as the program does not
// listen yet.
func (s *stack) endInside(id berth.JobID, rank int) error {
	if err := s.started(id, rank); err != nil {
		return err
	}
	job, err := s.running(id, 1)
	if err != nil {
		return err
	}
	return s.endContainer(berth.ContainerName(id, rank, job.Attempt))
}

// endContainer sends SIGTERM to the first process of a container until it has ended.
func (s *stack) endContainer(name string) error {
	return await("container "+name+" ends", func() error {
		c, err := s.shared.api.ContainerInspect(context.Background(), name)
		if err != nil || !c.State.Running {
			return nil // it may be removed by now
		}
		if err := syscall.Kill(c.State.Pid, syscall.SIGTERM); err != nil && !errors.Is(err, syscall.ESRCH) {
			return err
		}
		return fmt.Errorf("container %s is %s", name, c.State.Status)
	})
}
