package agent_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/internal/machine/agent"
	"berth/internal/machine/deadman"
	"berth/spec"
)

// fences restarts the machine with a deadman. The result ends it.
func (m *machine) fences() (end func()) {
	m.s.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- deadman.Run(ctx, deadman.Options{Dir: deadman.Dir(m.cfg.StateDir), Beat: 10 * time.Millisecond})
	}()
	ended := false
	end = func() {
		if cancel(); !ended {
			ended = true
			<-done
		}
	}
	m.s.t.Cleanup(end)
	m.until("the deadman answers", func() bool { _, err := deadman.Answer(deadman.Dir(m.cfg.StateDir)); return err == nil })
	m.cfg.Fence = agent.Fence{After: time.Minute}
	m.restart()
	m.until("the server knows of the fence", func() bool {
		got, err := m.s.db.Machines.Get(m.s.t.Context(), "", m.id)
		return err == nil && got.Fence > 0
	})
	return end
}

// An engine that does not answer a start may carry it out later. A member of at_most_one work that may not start any
// more, since the deadman is gone or the job was canceled, has not ended before the engine says that it does not run.
func TestAStartWithoutAnAnswerIsNoMemberThatNeverRan(t *testing.T) {
	t.Parallel()
	for name, stop := range map[string]func(s *site, id berth.JobID){
		"canceled":        func(s *site, id berth.JobID) { s.cancel(id) },
		"without deadman": func(*site, berth.JobID) {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			m := s.machine("m1")
			m.cfg.Timing.EnginePatience = 10 * time.Millisecond
			end := m.fences()
			var silent atomic.Bool
			var starts, asked atomic.Int32
			silent.Store(true)
			m.runtime.Intercept(func(c fakeruntime.Call) error {
				if !silent.Load() {
					return nil
				}
				switch c.Method {
				case "Start":
					starts.Add(1)
				case "Inspect":
					if starts.Load() == 0 {
						return nil
					}
					asked.Add(1)
				default:
					return nil
				}
				return fmt.Errorf("the engine does not answer: %w", context.DeadlineExceeded)
			})
			id := s.submit(func(j *spec.Job) { j.Execution = spec.AtMostOne }, "sleep", "1h")
			req, w := m.run(id)
			m.until("a start was sent", func() bool { return starts.Load() > 0 })
			end()
			stop(s, id)
			before := asked.Load()
			m.until("the engine was asked again", func() bool {
				select {
				case <-w.done:
					t.Fatalf("the member has ended before the engine answered: %+v", w.exit())
				default:
				}
				return asked.Load() > before+3
			})
			silent.Store(false)
			if err := m.runtime.Start(t.Context(), berth.ContainerName(id, 0, 1)); err != nil { // the late one
				t.Fatal(err)
			}
			x := w.exit()
			if !x.Started() {
				t.Errorf("the container ran, and the exit is %+v", x)
			}
			if c, err := m.container(req); err == nil && c.State == node.ContainerRunning {
				t.Errorf("the member has ended, and its container runs: %+v", c)
			}
		})
	}
}
