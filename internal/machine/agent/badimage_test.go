package agent_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/failure"
	"berth/spec"
)

// An image that no engine can start ends the job with the image named, in one attempt and without a fault of the
// machine, whichever call finds out.
func TestAnImageThatNoMachineStartsIsTheUsersFault(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.users = spec.UserTenant
	s.serves()
	m := s.machine("m1")
	for _, call := range []string{"Create", "GiveFolders", "Start"} {
		m.runtime.Intercept(func(c fakeruntime.Call) error {
			if c.Method == call {
				return fmt.Errorf("USER ghost of the image: %w", node.ErrBadImage)
			}
			return nil
		})
		id := s.submit(outputsInTheImage, makeOutputs...)
		req, w := m.run(id)
		if x := w.exit(); x.Cause != failure.CauseImageInvalid || x.Started() {
			t.Errorf("%s: exit is %+v", call, x)
		}
		j := s.settle(id)
		if j.Status != berth.Failed || len(j.Attempts) != 1 || j.Reason.Rule != "image_invalid" ||
			!strings.Contains(j.Reason.Message, "USER ghost of the image") || !strings.Contains(j.Reason.Hint, "/etc/passwd") {
			t.Errorf("%s: job is %s after %d attempts, %+v", call, j.Status, len(j.Attempts), j.Reason)
		}
		m.cleared(req)
	}
}

// An engine that does not give the accounts of an image is at fault, and the member releases its turns.
func TestAccountsThatDoNotComeAreTheMachinesFault(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.users = spec.UserTenant
	s.serves()
	m := s.machine("m1")
	m.cfg.Timing.EnginePatience = 10 * time.Millisecond
	m.restart()
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "Accounts" {
			return fmt.Errorf("read the accounts of image: %w", context.DeadlineExceeded)
		}
		return nil
	})
	for range 10 { // more than there are turns
		id := s.submit(nil, "exit", "0")
		req, w := m.run(id)
		if x := w.exit(); x.Cause != failure.CauseEngine || x.Started() {
			t.Errorf("exit is %+v", x)
		}
		s.settle(id)
		m.cleared(req)
	}
}

// An engine whose mapping of users lacks the container's user works for other users. Its machine must not be drained
// for it, and the job needs another machine.
func TestAnUnmappedUserIsNoFaultOfItsMachine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	for _, call := range []string{"Create", "Start"} {
		m.runtime.Intercept(func(c fakeruntime.Call) error {
			if c.Method == call {
				return fmt.Errorf("%w: cannot set uid to unmapped user in user namespace", node.ErrUnmappedUser)
			}
			return nil
		})
		id := s.submit(nil, "exit", "0")
		req, w := m.run(id)
		if x := w.exit(); x.Cause != failure.CauseUnmappedUser || x.Started() {
			t.Errorf("%s: exit is %+v", call, x)
		}
		j := s.settle(id)
		if a := j.Attempts[0]; a.Next != berth.Retrying || a.Outcome == nil || a.Outcome.Rule != "unmapped_user" ||
			!strings.Contains(a.Outcome.Message, "unmapped") {
			t.Errorf("%s: job is %s after %+v", call, j.Status, a)
		}
		m.cleared(req)
	}
}
