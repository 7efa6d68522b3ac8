package agent_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/failure"
	"berth/spec"
)

// outputsInTheImage are outputs in folders that only root may write.
func outputsInTheImage(j *spec.Job) {
	j.Outputs = []spec.Output{
		{Name: "file", Path: "/model.pt"}, {Name: "folder", Path: "/out"}, {Name: "nested", Path: "/out/sub/x"},
		{Name: "mine", Path: "/workspace/mine"}, {Name: "etc", Path: "/etc/made"},
	}
}

// makeOutputs creates the outputs as root would.
var makeOutputs = []string{"do", "id", "write-file /model.pt weights", "make-folder /out", "make-folder /out/sub",
	"write-file /out/sub/x deep", "write-file /workspace/mine mine", "write-file /etc/made made"}

// checkOutputs compares the outputs of makeOutputs.
func (s *site) checkOutputs(m *machine) {
	s.t.Helper()
	id := s.submit(outputsInTheImage, makeOutputs...)
	req, w := m.run(id)
	u := s.usersOf("default").User().String()
	if x := w.exit(); x.Code != 0 || x.User != u || len(x.Unstored)+len(x.Refused) > 0 {
		s.t.Fatalf("exit is %+v, log %q", x, s.log(id, 1))
	}
	if log := s.log(id, 1); !slices.Equal(log, []string{u}) {
		s.t.Errorf("it prints %q, want %s", log, u)
	}
	for name, file := range map[string]string{"file": "model.pt", "folder": "sub/x", "nested": "x", "etc": "made"} {
		_, dir := s.output(id, name)
		if _, err := os.Stat(filepath.Join(dir, file)); err != nil {
			s.t.Errorf("output %s: %v", name, err)
		}
	}
	s.settle(id)
	m.cleared(req)
}

// A program whose user is not root creates its outputs wherever root could.
func TestOutputsInTheImageAreTheUsers(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.users = spec.UserTenant
	s.serves()
	s.checkOutputs(s.machine("m1"))
}

// The gift is repeated while the engine fails.
func TestTheGiftWaitsForTheEngine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.users = spec.UserTenant
	s.serves()
	m := s.machine("m1")
	var refusals atomic.Int32
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "GiveFolders" && refusals.Add(1) < 3 {
			return errors.New("the engine is busy")
		}
		return nil
	})
	s.checkOutputs(m)
	if n := refusals.Load(); n != 3 {
		t.Errorf("the gift was tried %d times", n)
	}
}

// An agent that dies between the creation of the container and the gift leaves a container that the next process
// adopts: it gives the folders before the start.
func TestRestartBeforeTheGift(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.users = spec.UserTenant
	s.serves()
	m := s.machine("m1")
	reached, free := make(chan struct{}, 10), make(chan struct{})
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method != "GiveFolders" {
			return nil
		}
		reached <- struct{}{}
		<-free
		return errors.New("the call was cut off")
	})
	id := s.submit(outputsInTheImage, makeOutputs...)
	req := m.place(id)
	<-reached
	m.cancel()
	m.until("the agent has released the member", func() bool {
		return strings.Contains(m.logs.text(), "agent stopping, containers keep running")
	})
	close(free)
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	before, err := m.container(req)
	if err != nil || before.State != node.ContainerCreated {
		t.Fatalf("the container is %+v, %v", before, err)
	}
	m.runtime.Intercept(nil)
	m.start()
	if x := m.wait(req).exit(); x.Code != 0 || len(x.Unstored)+len(x.Refused) > 0 {
		t.Errorf("exit is %+v, log %q", x, s.log(id, 1))
	}
	if j := s.settle(id); j.Status != berth.Succeeded || len(j.Attempts) != 1 {
		t.Errorf("job is %s after %d attempts, %+v", j.Status, len(j.Attempts), j.Reason)
	}
	m.cleared(req)
}

// A path that no container can give ends the job with the path named, and without a fault of the machine.
func TestAnOutputThatCannotBeGivenIsTheUsersFault(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.users = spec.UserTenant
	s.serves()
	m := s.machine("m1")
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "GiveFolders" {
			return fmt.Errorf("find the folder of /out: a link leads to /data/in: %w", node.ErrBadPath)
		}
		return nil
	})
	id := s.submit(outputsInTheImage, makeOutputs...)
	req, w := m.run(id)
	if x := w.exit(); x.Cause != failure.CauseOutputPath || x.Started() {
		t.Errorf("exit is %+v", x)
	}
	j := s.settle(id)
	if j.Status != berth.Failed || j.Reason.Code != berth.ReasonOutputLost || j.Reason.Rule != "output_path" ||
		!strings.Contains(j.Reason.Message, "/out: a link leads to /data/in") {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	m.cleared(req)
}

// A slow engine may start an adopted container on the request of the process before. A failed gift then does not end
// the member as one that never ran.
func TestAGiftThatFailsAfterTheStartEndsNoMember(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	s.users = spec.UserTenant
	s.serves()
	m := s.machine("m1")
	var started atomic.Bool
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method != "GiveFolders" || started.Swap(true) {
			return nil
		}
		if err := m.runtime.Start(t.Context(), c.Subject); err != nil {
			t.Error(err)
		}
		return fmt.Errorf("find the folder of /out: %w", node.ErrBadPath)
	})
	id := s.submit(func(j *spec.Job) {
		j.Outputs = []spec.Output{{Name: "out", Path: "/out", When: spec.OutputAlways}}
	}, "exit", "3")
	req, w := m.run(id)
	if x := w.exit(); !x.Started() || x.Code != 3 {
		t.Errorf("exit is %+v", x)
	}
	s.settle(id)
	m.cleared(req)
}

// Jobs whose outputs lie in mounts, and containers of the image's user or root, cost the engine no call.
func TestNoGiftWithoutNeed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	var gifts atomic.Int32
	m.runtime.Intercept(func(c fakeruntime.Call) error {
		if c.Method == "GiveFolders" {
			gifts.Add(1)
		}
		return nil
	})
	for user, path := range map[string]string{"image": "/out", "0": "/out", "tenant": "/workspace/out"} {
		id := s.submit(func(j *spec.Job) {
			j.User, j.Outputs = user, []spec.Output{{Name: "out", Path: path, When: spec.OutputAlways}}
		}, "exit", "3")
		req, w := m.run(id)
		if x := w.exit(); x.Code != 3 {
			t.Errorf("user %s: exit is %+v", user, x)
		}
		s.settle(id)
		m.cleared(req)
	}
	if n := gifts.Load(); n > 0 {
		t.Errorf("%d gifts", n)
	}
}

func TestDockerOutputsInTheImageAreTheUsers(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	s.users = spec.UserTenant
	s.serves()
	s.checkOutputs(m)

	id := s.submit(leaving("/out"), "exit", "0") // the gift is no output
	req, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("without an output the exit is %+v", x)
	}
	if j := s.settle(id); j.Reason.Code != berth.ReasonOutputLost {
		t.Errorf("without an output it is %s: %+v", j.Status, j.Reason)
	}
	m.cleared(req)

	id = s.submit(leaving("/out"), "write-file", "/etc/x", "y") // only the folder of the output is given
	req, w = m.run(id)
	if x := w.exit(); x.Code != 1 {
		t.Errorf("elsewhere it exits %+v, log %q", x, s.log(id, 1))
	}
	if j := s.settle(id); !strings.Contains(j.Reason.Hint, "and not as root, the user of its image: its log shows that it lacked a right") {
		t.Errorf("elsewhere the job is %s, %+v", j.Status, j.Reason)
	}
	m.cleared(req)
}
