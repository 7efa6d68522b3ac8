package agent_test

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/iotest"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/db"
	"berth/internal/lib/archive"
	"berth/spec"
	"berth/wire"
)

func leaving(path string) func(*spec.Job) {
	return func(j *spec.Job) { j.Outputs = []spec.Output{{Name: "model", Path: path}} }
}

// output unpacks a job's stored output of that name.
func (s *site) output(id berth.JobID, name string) (wire.StoredOutput, string) {
	s.t.Helper()
	list, _, err := s.db.Objects.Outputs(s.t.Context(), id, db.Paging{})
	if err != nil {
		s.t.Fatal(err)
	}
	for _, o := range list {
		if o.Name != name {
			continue
		}
		in, size, err := s.blobs.Open(s.t.Context(), o.Object)
		if err != nil {
			s.t.Fatal(err)
		}
		defer in.Close()
		dir := s.t.TempDir()
		root, err := os.OpenRoot(dir)
		if err != nil {
			s.t.Fatal(err)
		}
		defer root.Close()
		sum, err := archive.Unpack(in, root, archive.Output)
		if err != nil || sum.Address != o.Address || sum.Files != o.Files || sum.Bytes != o.Bytes || size != o.Stored {
			s.t.Fatalf("stored %+v of %d bytes, unpacked %+v, %v", o, size, sum, err)
		}
		return o.StoredOutput, dir
	}
	s.t.Fatalf("outputs are %+v", list)
	return wire.StoredOutput{}, ""
}

func TestOutputsAreStoredBeforeTheJobHasSucceeded(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(leaving("/workspace/model.pt"), "write-file", "/workspace/model.pt", "weights")
	req, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Fatalf("exit is %+v", x)
	}
	o, dir := s.output(id, "model")
	if text, err := os.ReadFile(filepath.Join(dir, "model.pt")); err != nil || string(text) != "weights" || o.Attempt != 1 || o.Member != 0 {
		t.Errorf("%+v holds %q, %v", o, text, err)
	}
	if j := s.settle(id); j.Status != berth.Succeeded {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	m.cleared(req)
}

func TestAMissingOutputIsAFailure(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(func(j *spec.Job) {
		leaving("/workspace/none")(j)
		j.Retry.MaxAttempts = 2
	}, "exit", "0")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Fatalf("exit is %+v", x)
	}
	if j := s.settle(id); j.Status != berth.Retrying || j.Reason.Code != berth.ReasonOutputLost || !strings.Contains(j.Reason.Message, "model") {
		t.Fatalf("job is %s, %+v", j.Status, j.Reason)
	}
	if !s.hasEvent(id, wire.EventWarning, "output model was not stored: /workspace/none does not exist") {
		t.Errorf("events: %+v", s.events(id))
	}
	s.eligible(id)
	_, w = m.run(id)
	w.exit()
	if j := s.settle(id); j.Status != berth.Failed || j.Reason.Code != berth.ReasonOutputLost || !j.DeadLetter {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
}

// The outputs of a failed job are not stored, and its exit code decides its result.
func TestAFailedJobHasNoOutputs(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(leaving("/workspace/x"), "do", "write-file /workspace/x 1", "exit 3")
	_, w := m.run(id)
	w.exit()
	if j := s.settle(id); j.Reason.Code != berth.ReasonExitCode {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	if list, _, err := s.db.Objects.Outputs(t.Context(), id, db.Paging{}); err != nil || len(list) > 0 {
		t.Errorf("outputs are %+v, %v", list, err)
	}
}

// A store that is away for a while loses nothing; one that refuses for longer
// than the patience loses the output, and says so. That is not the program's
// fault: its user pays nothing, and it runs again.
func TestOutputsWaitForTheStore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	on, met := s.answers(http.StatusServiceUnavailable, http.MethodPut, "/outputs/")
	id := s.submit(leaving("/workspace/x"), "write-file", "/workspace/x", "1")
	req, w := m.run(id)
	s.until("an output is refused", func() bool { return met.Load() > 0 })
	on.Store(false)
	w.exit()
	s.output(id, "model")
	s.settle(id)
	m.cleared(req)
	m.impatient()
	on.Store(true)
	lost := s.submit(leaving("/workspace/x"), "write-file", "/workspace/x", "1")
	_, w = m.run(lost)
	w.exit()
	if j := s.settle(lost); j.Status != berth.Retrying || j.Reason.Code != berth.ReasonOutputLost || j.Reason.Rule != "output_unstored" {
		t.Errorf("job is %s, %+v", j.Status, j.Reason)
	}
	if !s.hasEvent(lost, wire.EventWarning, "output model was not stored") {
		t.Errorf("events: %+v", s.events(lost))
	}
}

// A machine whose disk is full, or whose engine has lost the container, is to
// blame; the end may be on record before that is known.
func TestAnOutputThatTheMachineCannotReadIsNotItsUsersLoss(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]error{
		"its disk is full":        &os.PathError{Op: "write", Path: "output", Err: syscall.ENOSPC},
		"the container is gone":   node.ErrNoContainer,
		"the engine says no":      errors.New("mount failed"),
		"the program broke rules": berth.Errorf(berth.CodeInvalid, "archive: too much"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			m.cfg.Timing.EnginePatience = time.Millisecond
			m.restart()
			told := make(chan struct{})
			m.runtime.Intercept(func(c fakeruntime.Call) error {
				if c.Method != "CopyOut" {
					return nil
				}
				<-told
				return fault
			})
			id := s.submit(leaving("/workspace/x"), "write-file", "/workspace/x", "1")
			_, w := m.run(id)
			s.until("its exit is on record", func() bool {
				v, err := s.db.Jobs.View(t.Context(), id)
				return err == nil && len(v.Slots) == 1 && v.Slots[0].State == berth.AllocExited
			})
			close(told)
			w.exit()
			want := "output_unstored"
			if berth.CodeOf(fault) == berth.CodeInvalid {
				want = "output_lost"
			}
			if j := s.settle(id); j.Reason == nil || j.Reason.Rule != want {
				t.Errorf("job is %s, %+v, want rule %s", j.Status, j.Reason, want)
			}
		})
	}
}

// breaking is an engine of which so many streams break off, after more than the
// output comes to.
type breaking struct {
	*fakeruntime.Fake
	streams int64
	opened  atomic.Int64
}

func (b *breaking) CopyOut(ctx context.Context, name, path string) (io.ReadCloser, error) {
	if b.opened.Add(1) > b.streams {
		return b.Fake.CopyOut(ctx, name, path)
	}
	var text bytes.Buffer
	if err := tar.NewWriter(&text).WriteHeader(&tar.Header{Name: "x", Typeflag: tar.TypeReg, Mode: 0o600, Size: 8 << 20}); err != nil {
		return nil, err
	}
	return io.NopCloser(io.MultiReader(&text, io.LimitReader(rand.Reader, 4<<20), iotest.ErrReader(io.ErrUnexpectedEOF))), nil
}

// A container that has ended waits for its engine: its work is not done again
// for a stream that broke off, but for a disk that is full.
func TestAnOutputIsReadAgainWhenItsStreamBreaksOff(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		streams, opened int64
		full            bool // the disk
		rule            string
	}{
		"twice":               {streams: 2, opened: 3},
		"each time":           {streams: 1000, opened: 5, rule: "output_unstored"},
		"as the disk is full": {opened: 1, full: true, rule: "output_unstored"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			engine := &breaking{Fake: fakeruntime.New(fakeruntime.Options{CPUMilli: 64000}), streams: c.streams}
			t.Cleanup(engine.Shutdown)
			m := s.machineOn("m1", engine)
			engine.Intercept(func(call fakeruntime.Call) error {
				if c.full && call.Method == "Create" {
					return os.Symlink("/dev/full", filepath.Join(m.cfg.StateDir, "ranks", call.Subject, "output-model.tar.zst"))
				}
				return nil
			})
			id := s.submit(leaving("/workspace/x"), "write-file", "/workspace/x", "1")
			_, w := m.run(id)
			w.exit()
			if n := engine.opened.Load(); n != c.opened {
				t.Errorf("the engine was asked %d times, want %d", n, c.opened)
			}
			j := s.settle(id)
			if c.rule != "" {
				if j.Reason == nil || j.Reason.Rule != c.rule {
					t.Errorf("job is %s, %+v, want rule %s", j.Status, j.Reason, c.rule)
				}
				return
			}
			_, dir := s.output(id, "model")
			if text, err := os.ReadFile(filepath.Join(dir, "x")); err != nil || string(text) != "1" || j.Status != berth.Succeeded {
				t.Errorf("job is %s; it holds %q, %v", j.Status, text, err)
			}
		})
	}
}

// A member that has stored its part does not hide that another member's part is too large.
func TestAPartOfAGangsOutputThatIsRefusedIsItsUsersLoss(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	engine := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	t.Cleanup(engine.Shutdown)
	m := s.pair(engine)
	told := make(chan struct{})
	engine.Intercept(func(c fakeruntime.Call) error {
		if c.Method != "CopyOut" || !strings.HasSuffix(c.Subject, "-1-1") {
			return nil
		}
		<-told
		return berth.Errorf(berth.CodeInvalid, "archive: too much")
	})
	id := s.submit(func(j *spec.Job) {
		gangOf(2)(j)
		leaving("/workspace/x")(j)
	}, "write-file", "/workspace/x", "1")
	attempt := s.placeGang(id, m[0], m[1])
	s.until("the exits are on record", func() bool {
		v, err := s.db.Jobs.View(t.Context(), id)
		return err == nil && len(v.Slots) == 2 && v.Slots[0].State == berth.AllocExited && v.Slots[1].State == berth.AllocExited
	})
	close(told)
	s.gangEnds(id, attempt)
	if j := s.settle(id); j.Status != berth.Failed || j.Reason == nil || j.Reason.Rule != "output_lost" {
		t.Errorf("the gang is %s: %+v", j.Status, j.Reason)
	}
	if o, _ := s.output(id, "model"); o.Member != 0 {
		t.Errorf("member %d has stored it", o.Member)
	}
}

// An agent that is killed between the end and the seal stores the outputs again from the start.
func TestOutputsOutliveTheirAgent(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	on, met := s.answers(http.StatusServiceUnavailable, http.MethodPut, "/outputs/")
	id := s.submit(leaving("/workspace/x"), "write-file", "/workspace/x", "1")
	req, _ := m.run(id)
	s.until("an output is refused", func() bool { return met.Load() > 0 })
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	on.Store(false)
	m.start()
	if x := m.wait(req).exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	s.output(id, "model")
}

func TestDockerOutputsComeFromAnywhereInTheContainer(t *testing.T) {
	t.Parallel()
	s, m := dockerMachine(t)
	id := s.submit(leaving("/model.pt"), "write-file", "/model.pt", "weights")
	_, w := m.run(id)
	if x := w.exit(); x.Code != 0 {
		t.Fatalf("exit is %+v, log %q", x, s.log(id, 1))
	}
	_, dir := s.output(id, "model")
	if text, err := os.ReadFile(filepath.Join(dir, "model.pt")); err != nil || string(text) != "weights" {
		t.Errorf("it holds %q, %v", text, err)
	}
}
