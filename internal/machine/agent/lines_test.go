package agent_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
	"berth/api/client"
	"berth/wire"
)

// barEngine is an engine whose readers of unfinished lines the test plays.
type barEngine struct {
	*fakeruntime.Fake
	begun chan *barReader
}

// barReader is one reader of a container's unfinished line.
type barReader struct {
	name string
	ctx  context.Context
	emit func(node.UnfinishedLine)
	end  chan error
}

// UnfinishedLines hands the reader to the test, until the test or the agent ends it.
func (e *barEngine) UnfinishedLines(ctx context.Context, name string, emit func(node.UnfinishedLine)) error {
	r := &barReader{name, ctx, emit, make(chan error, 1)}
	e.begun <- r
	select {
	case err := <-r.end:
		return err
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// barMachine is a machine with a running job, and its engine.
func (s *site) barMachine() (*machine, *barEngine, berth.JobID) {
	s.t.Helper()
	fake := fakeruntime.New(fakeruntime.Options{CPUMilli: 64000})
	s.t.Cleanup(fake.Shutdown)
	e := &barEngine{fake, make(chan *barReader, 100)}
	m := s.machineOn("m1", e)
	id := s.submit(nil, "do", "echo begun", "sleep 1h")
	m.place(id)
	m.until("job runs", func() bool { return s.job(id).Status == berth.Running })
	return m, e, id
}

// next returns the next reader.
func (e *barEngine) next(t *testing.T) *barReader {
	t.Helper()
	select {
	case r := <-e.begun:
		return r
	case <-time.After(patience):
		t.Fatal("no reader begins")
		return nil
	}
}

// barFollower follows a job with its unfinished lines.
type barFollower struct {
	cancel context.CancelFunc
	ended  chan error

	mu   sync.Mutex
	bars []string
}

func (s *site) followBar(c *client.Client, id berth.JobID) *barFollower {
	ctx, cancel := context.WithCancel(context.Background())
	s.t.Cleanup(cancel)
	f := &barFollower{cancel: cancel, ended: make(chan error, 1)}
	record := func(l wire.LogLine) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.bars = append(f.bars, fmt.Sprintf("%s %d.%d %s", l.Stream, l.Attempt, l.Member, l.Text))
		return nil
	}
	go func() {
		q := client.LogsQuery{Follow: true, Unfinished: record}
		f.ended <- c.Logs(ctx, id, q, func(wire.LogLine) error { return nil })
	}()
	return f
}

// last returns the last unfinished line that has come.
func (f *barFollower) last() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.bars) == 0 {
		return ""
	}
	return f.bars[len(f.bars)-1]
}

// expireFollowers ends the leases of followers that have left.
func (s *site) expireFollowers() {
	s.t.Helper()
	if _, err := s.db.Pool().Exec(s.t.Context(), `UPDATE followed_members SET until = now()`); err != nil {
		s.t.Fatal(err)
	}
}

func TestFollowersSeeTheUnfinishedLine(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, e, id := s.barMachine()
	c := s.user()
	plain := make(chan error, 1)
	var seen atomic.Int64
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	go func() {
		plain <- c.Logs(ctx, id, client.LogsQuery{Follow: true}, func(wire.LogLine) error {
			seen.Add(1)
			return nil
		})
	}()
	m.until("the stored log is followed", func() bool { return seen.Load() > 0 })
	var leases int
	if err := s.db.Pool().QueryRow(t.Context(), `SELECT count(*) FROM followed_members`).Scan(&leases); err != nil {
		t.Fatal(err)
	}
	if leases > 0 || len(e.begun) > 0 {
		t.Errorf("a follower of the stored log alone has %d leases and %d readers, want none", leases, len(e.begun))
	}

	f := s.followBar(c, id)
	r := e.next(t)
	if want := berth.ContainerName(id, 0, 1); r.name != want {
		t.Errorf("reader of container %s, want %s", r.name, want)
	}
	r.emit(node.UnfinishedLine{})
	r.emit(node.UnfinishedLine{At: time.Now(), Stderr: true, Text: "50%"})
	m.until("the bar is shown", func() bool { return f.last() == "stderr 1.0 50%" })
	r.emit(node.UnfinishedLine{At: time.Now(), Stderr: true, Text: "60%"})
	m.until("the bar moves", func() bool { return f.last() == "stderr 1.0 60%" })

	second := s.followBar(c, id)
	m.until("a second follower sees the bar", func() bool { return second.last() == "stderr 1.0 60%" })
	r.emit(node.UnfinishedLine{At: time.Now()})
	m.until("the bar ends", func() bool { return f.last() == "stdout 1.0 " && second.last() == "stdout 1.0 " })
	if len(e.begun) > 0 {
		t.Error("a second follower starts a second reader")
	}
	if log := s.log(id, 1); len(log) != 1 {
		t.Errorf("the log has the lines %q, want one: a bar is no part of it", log)
	}

	f.cancel()
	second.cancel()
	<-f.ended
	<-second.ended
	s.expireFollowers()
	m.until("the reader ends after the last follower", func() bool { return r.ctx.Err() != nil })
	leave()
	<-plain
}

func TestReaderThatDiesThriceIsGivenUp(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, e, id := s.barMachine()
	f := s.followBar(s.user(), id)
	r := e.next(t)
	r.emit(node.UnfinishedLine{At: time.Now(), Text: "bar"})
	m.until("the bar is shown", func() bool { return f.last() == "stdout 1.0 bar" })
	r.end <- fmt.Errorf("%w (signal: killed)", node.ErrReaderKilled)
	m.until("the bar of a dead reader goes", func() bool { return f.last() == "stdout 1.0 " })
	r = e.next(t)
	r.end <- node.ErrOutputTooFast // not counted
	r = e.next(t)
	r.end <- nil // the engine was restarted
	for range 2 {
		r = e.next(t)
		r.end <- node.ErrReaderKilled
	}
	m.until("the reader is given up", func() bool { return strings.Contains(m.logs.text(), `now="given up"`) })
	r.emit(node.UnfinishedLine{At: time.Now(), Text: "late"})

	// Everything that the agent does for another member from now on, it would also do for this one: start readers after
	// their pause, and send lines.
	other := s.submit(nil, "do", "echo begun", "sleep 1h")
	m.placeOn(1, other)
	m.until("another job runs", func() bool { return s.job(other).Status == berth.Running })
	g := s.followBar(s.user(), other)
	for i := range 4 {
		r := e.next(t)
		if want := berth.ContainerName(other, 0, 1); r.name != want {
			t.Fatalf("after three deaths a reader of %s begins", r.name)
		}
		if i < 3 {
			r.end <- node.ErrOutputTooFast
		} else {
			r.emit(node.UnfinishedLine{At: time.Now(), Text: "other"})
		}
	}
	m.until("the bar of the other job is shown", func() bool { return g.last() == "stdout 1.0 other" })
	if line := s.storedLine(id); line != "" || f.last() != "stdout 1.0 " {
		t.Errorf("after three deaths the bar is %q, and the follower sees %q", line, f.last())
	}
}

// storedLine returns the unfinished line of a job that the server has.
func (s *site) storedLine(id berth.JobID) (line string) {
	s.t.Helper()
	err := s.db.Pool().QueryRow(s.t.Context(), `SELECT line FROM followed_members WHERE job = $1`, id).Scan(&line)
	if err != nil {
		s.t.Fatal(err)
	}
	return line
}

// The server forgets a line with the lease of its followers. Followers who come back before the agent learns of the end
// find the reader running, and its line as before.
func TestLineIsThereForFollowersWhoReturn(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, e, id := s.barMachine()
	c := s.user()
	f := s.followBar(c, id)
	r := e.next(t)
	r.emit(node.UnfinishedLine{At: time.Now(), Text: "Password: "})
	m.until("the prompt is shown", func() bool { return f.last() == "stdout 1.0 Password: " })
	f.cancel()
	<-f.ended
	if _, err := s.db.Pool().Exec(t.Context(), `UPDATE followed_members SET line = '', at = NULL`); err != nil {
		t.Fatal(err)
	}
	back := s.followBar(c, id)
	m.until("the prompt is shown again", func() bool {
		return back.last() == "stdout 1.0 Password: " && s.storedLine(id) == "Password: "
	})
	if r.ctx.Err() != nil || len(e.begun) > 0 {
		t.Error("the reader was replaced")
	}
}

func TestNewAgentReadsWhatIsFollowed(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, e, id := s.barMachine()
	f := s.followBar(s.user(), id)
	first := e.next(t)
	m.restart()
	if first.ctx.Err() == nil {
		t.Error("the reader outlives its agent")
	}
	second := e.next(t)
	second.emit(node.UnfinishedLine{At: time.Now(), Text: "bar"})
	m.until("the bar is shown", func() bool { return f.last() == "stdout 1.0 bar" })
	m.restart()
	e.next(t).emit(node.UnfinishedLine{}) // the bar has ended meanwhile
	m.until("the bar of the former process goes", func() bool { return f.last() == "stdout 1.0 " })
}

// An engine that does not answer holds up no container, so the reader is tried until the engine is back.
func TestReaderThatCannotAttachIsNotGivenUp(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	m, e, id := s.barMachine()
	f := s.followBar(s.user(), id)
	for range 5 {
		e.next(t).end <- errors.New("cannot connect to the engine")
	}
	r := e.next(t)
	r.emit(node.UnfinishedLine{At: time.Now(), Text: "bar"})
	m.until("the bar is shown", func() bool { return f.last() == "stdout 1.0 bar" })
	r.end <- errors.New("connection reset") // counts, since the reader was attached
	for range 2 {
		e.next(t).end <- node.ErrReaderKilled
	}
	m.until("the reader is given up", func() bool { return strings.Contains(m.logs.text(), `now="given up"`) })
}
