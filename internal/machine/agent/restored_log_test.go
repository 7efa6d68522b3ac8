package agent_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/wire"
)

// loseLog makes the database one that was restored from a backup which had only so many
// pieces of a job's log. objects says whether the store was restored with it.
func (s *site) loseLog(id berth.JobID, pieces int, objects bool) {
	s.t.Helper()
	ctx := s.t.Context()
	var offsets []int64
	if err := s.db.Pool().QueryRow(ctx, `SELECT array_agg(off ORDER BY off) FROM log_chunks WHERE job = $1`, id).Scan(&offsets); err != nil {
		s.t.Fatal(err)
	}
	kept := offsets[pieces]
	tx, err := s.db.Pool().Begin(ctx)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(ctx) }()
	for _, sql := range []string{ // in the order in which appends lock
		`UPDATE allocations SET log_bytes = $2 WHERE job = $1`,
		`DELETE FROM log_chunks WHERE job = $1 AND off >= $2`,
	} {
		if _, err := tx.Exec(ctx, sql, id, kept); err != nil {
			s.t.Fatal(err)
		}
	}
	// While the rows are locked no append can find an object again that is about to go.
	if objects {
		for _, off := range offsets {
			if off >= kept {
				if err := s.blobs.Delete(ctx, berth.LogChunkKey("default", id, 1, 0, off)); err != nil {
					s.t.Fatal(err)
				}
			}
		}
	}
	if err := tx.Commit(ctx); err != nil {
		s.t.Fatal(err)
	}
}

// newSession ends the agent's session, as the first order after a restore does.
func (m *machine) newSession() {
	m.s.t.Helper()
	if _, err := m.s.db.Pool().Exec(m.s.t.Context(), `UPDATE machines SET agent_boot = 'another' WHERE id = $1`, m.id); err != nil {
		m.s.t.Fatal(err)
	}
}

// burst is how many lines a program prints at once that prints in bursts.
const burst = 40

// inBursts is a program that prints numbered lines in bursts, and then does the
// rest. Before each burst but the first the program waits for letOn, so that each
// is stored by itself, however slowly logs are stored, and no engine that keeps few
// lines overtakes its reader.
func inBursts(bursts int, rest ...string) []string {
	commands := []string{"do"}
	for b := range bursts {
		if b > 0 {
			commands = append(commands, fmt.Sprintf("await-file /workspace/burst-%d", b))
		}
		commands = append(commands, "echo "+strings.Join(numbered(bursts)[b*burst:(b+1)*burst], " "))
	}
	return append(commands, rest...)
}

// numbered are the lines of so many bursts.
func numbered(bursts int) (lines []string) {
	for i := range bursts * burst {
		lines = append(lines, fmt.Sprintf("line-%d", i+1))
	}
	return lines
}

// letOn has a program print so many bursts, and returns when they are stored.
func (m *machine) letOn(req wire.RunRequest, bursts int) {
	m.s.t.Helper()
	for b := 1; ; b++ {
		m.until(fmt.Sprintf("burst %d is stored", b), func() bool { return len(m.s.log(req.Job, req.Attempt)) >= b*burst })
		if b == bursts {
			return
		}
		if err := os.WriteFile(filepath.Join(m.scratch(req), "workspace", fmt.Sprintf("burst-%d", b)), nil, 0o600); err != nil {
			m.s.t.Fatal(err)
		}
	}
}

// The rest of the log is still in the engine.
func TestTheLogOfARunningJobGoesOnAfterARestore(t *testing.T) {
	t.Parallel()
	for _, objects := range []bool{false, true} {
		t.Run(fmt.Sprintf("store restored %v", objects), func(t *testing.T) {
			t.Parallel()
			const bursts, lines = 4, 300
			s := newSite(t)
			m := s.machine("m1")
			id := s.submit(nil, inBursts(bursts, fmt.Sprintf("lines %d 2ms", lines), "trap-term 5")...)
			req, w := m.run(id)
			m.letOn(req, bursts)
			s.loseLog(id, 2, objects)
			m.endsWhenReady(req)
			if x := w.exit(); x.Code != 5 {
				t.Errorf("exit is %+v", x)
			}
			s.wantLines(id, lines, numbered(bursts)...)
		})
	}
}

// A job that prints nothing more gives the sender no occasion to notice.
func TestAQuietLogIsWholeAgainAfterARestore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, inBursts(3, "sleep 1h")...)
	req, _ := m.run(id)
	m.letOn(req, 3)
	s.loseLog(id, 1, true)
	m.newSession()
	s.until("the log is stored again", func() bool { return len(s.log(id, 1)) == 3*burst })
	if got := s.log(id, 1); !slices.Equal(got, numbered(3)) {
		t.Errorf("the log is %q", got)
	}
}

// A container that ends during the restore is not sealed with half a log.
func TestALogIsWholeWhenItsRankIsSealedAfterARestore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	id := s.submit(nil, inBursts(3, "trap-term 0")...)
	req, w := m.run(id)
	m.letOn(req, 3)
	s.until("the log is stored", func() bool { return slices.Contains(s.log(id, 1), "ready") })
	s.gate.closed.Store(true)
	s.loseLog(id, 1, true)
	m.newSession()
	m.terminate(req)
	m.until("container ended", func() bool {
		c, err := m.container(req)
		return err == nil && c.State == node.ContainerExited
	})
	s.gate.closed.Store(false)
	if x := w.exit(); x.Code != 0 {
		t.Errorf("exit is %+v", x)
	}
	s.wantLines(id, 0, numbered(3)...)
}

// An engine keeps a limited part of a log. The part that it has dropped is lost, the rest is
// stored again.
func TestWhatTheEngineHasLeftOfALogIsStoredAfterARestore(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m := s.machine("m1")
	if err := m.stop(); err != nil {
		t.Fatal(err)
	}
	short := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000, MaxLogLines: 50})
	t.Cleanup(short.Shutdown)
	m.cfg.Runtime, m.runtime = short, short
	m.start()
	const bursts = 6
	id := s.submit(nil, inBursts(bursts, "sleep 1h")...)
	req, _ := m.run(id)
	m.letOn(req, bursts)
	s.loseLog(id, 1, true)
	m.newSession()
	whole := numbered(bursts)
	s.until("the end of the log is stored again", func() bool { return slices.Contains(s.log(id, 1), whole[len(whole)-1]) })
	got := s.log(id, 1)
	if once := slices.Compact(slices.Clone(got)); len(once) != len(got) || len(got) == len(whole) || got[0] != whole[0] {
		t.Errorf("%d lines are stored: %q", len(got), got)
	}
	s.until("it is told", func() bool { return s.hasEvent(id, wire.EventWarning, "some log lines are lost") })
}
