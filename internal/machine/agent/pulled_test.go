package agent_test

import (
	"errors"
	"testing"
	"time"

	"berth/activities/node"
	"berth/spec"
)

// On a machine whose disk counts as full, each image goes once no job needs it. No job fails because its
// image goes between the pull and the container, and a running job keeps its image.
func TestAFullDiskRemovesImagesBetweenJobsAndNeverUnderThem(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	m.cfg.ImageMark, m.cfg.Timing.ImageSweep = 100, time.Millisecond
	m.runtime.KeepsDataIn(t.TempDir())
	m.runtime.Absent(s.image)
	m.start()
	gone := func() bool {
		_, err := m.runtime.ImageBytes(t.Context(), s.image)
		return errors.Is(err, node.ErrNoImage)
	}
	for range 3 {
		m.ran(s.submit(nil, "exit", "0"))
		m.until("its image is removed", gone)
	}
	id := s.submit(nil, "trap-term", "0")
	req, w := m.run(id)
	s.until("the job runs", func() bool { return len(s.log(id, 1)) > 0 })
	other := s.submit(func(j *spec.Job) { j.Image = "registry.test/other:1" }, "exit", "0")
	m.runtime.Absent("registry.test/other:1")
	beside, end := m.runOn(1, other)
	if x := end.exit(); x.Code != 0 {
		t.Errorf("exit of the job beside it is %+v", x)
	}
	s.settle(other)
	m.cleared(beside)
	m.until("an image that no job needs is removed", func() bool {
		_, err := m.runtime.ImageBytes(t.Context(), "registry.test/other:1")
		return errors.Is(err, node.ErrNoImage)
	})
	if gone() {
		t.Error("the image of a running job is removed")
	}
	m.terminate(req)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
}
