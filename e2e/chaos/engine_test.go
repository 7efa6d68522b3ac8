package chaos_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	dockernetwork "github.com/docker/docker/api/types/network"
	docker "github.com/docker/docker/client"

	"berth"
	"berth/activities/node/runtimetest"
	"berth/internal/devstack/dockerd"
)

// engine is a private Docker engine, and its record of events, which Berth cannot influence.
type engine struct {
	name   string
	dir    string
	daemon *dockerd.Daemon
	api    *docker.Client
	image  string
	record *os.File // every event of it, one JSON object a line
	end    context.CancelFunc
	reader sync.WaitGroup

	mu   sync.Mutex
	seen map[string]map[events.Action]int // by container name
	told map[told]bool                    // recorded events
	last time.Time                        // of the newest event read
	hung time.Time                        // when tend last found that it does not answer, or had revived it
	fine time.Time                        // when tend last sent a call that was answered or refused
	err  error
}

// told is one event; the engine may send the same event several times.
type told struct {
	nanos     int64
	container string
	action    events.Action
}

// startEngine starts an engine whose containers outlive its death.
func startEngine(t *testing.T, dir, name string) *engine {
	t.Helper()
	d, err := dockerd.Start(t.Context(), dockerd.Options{Dir: filepath.Join(dir, "engine-"+name), Tied: true, LiveRestore: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := d.Remove(context.Background()); err != nil {
			t.Errorf("remove engine %s: %v", name, err)
		}
		if err := deleteTables(dir); err != nil {
			t.Errorf("delete tables: %v", err)
		}
	})
	e := &engine{name: name, dir: filepath.Join(dir, "engine-"+name), daemon: d, seen: map[string]map[events.Action]int{}, told: map[told]bool{}, last: time.Now().Add(-time.Minute)}
	if e.api, err = docker.NewClientWithOpts(docker.WithHost(d.Host()), docker.WithAPIVersionNegotiation()); err != nil {
		t.Fatal(err)
	}
	if e.record, err = os.Create(filepath.Join(dir, "events-"+name+".json")); err != nil {
		t.Fatal(err)
	}
	e.image = runtimetest.Image(t, d.Host())
	ctx, cancel := context.WithCancel(context.Background())
	e.end = cancel
	e.reader.Go(func() { e.watch(ctx) })
	e.reader.Go(func() { e.tend(ctx, t) })
	t.Cleanup(func() {
		e.close()
		_ = e.api.Close()
		_ = e.record.Close()
	})
	return e
}

func (e *engine) close() {
	e.end()
	e.reader.Wait()
}

// disorder is how far an engine's events may be out of order: each is stamped
// before it waits for its turn.
const disorder = 10 * time.Second

// watch reads events until ctx ends, again from the last one after the engine was away. An engine
// keeps its last events while it lives, and loses them when it dies. Events between the last read
// and a death may therefore be missing, never doubled.
func (e *engine) watch(ctx context.Context) {
	for ctx.Err() == nil {
		e.mu.Lock()
		since := e.last.Add(-disorder)
		e.mu.Unlock()
		messages, errs := e.api.Events(ctx, events.ListOptions{
			Since:   fmt.Sprintf("%d.%09d", since.Unix(), since.Nanosecond()),
			Filters: filters.NewArgs(filters.Arg("type", "container"), filters.Arg("label", berth.LabelCluster)),
		})
		for open := true; open; {
			select {
			case m := <-messages:
				e.note(m)
			case <-errs:
				open = false
			}
		}
		select {
		case <-ctx.Done():
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Docker 20.10, which Debian 12 ships, can deadlock when containers end while others join or
// leave the same network (https://github.com/moby/moby/pull/42545,
// https://github.com/moby/moby/issues/46661). From then on the engine answers no call that needs
// its networks. Two calls in a row without an answer are a hang: a busy engine answers later, one
// that a cell has killed refuses at once. One such call excuses the cells under way, because
// agents give up about as early.
const (
	tendEvery = 5 * time.Second
	tendLimit = 20 * time.Second // of one call; the slowest answer seen at a load of 25 took 0.6 s
)

// tend revives the engine whenever it hangs, and logs each revival.
func (e *engine) tend(ctx context.Context, t *testing.T) {
	for misses := 0; ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(tendEvery):
		}
		sent := time.Now()
		call, cancel := context.WithTimeout(ctx, tendLimit)
		_, err := e.api.NetworkList(call, dockernetwork.ListOptions{})
		late := err != nil && errors.Is(call.Err(), context.DeadlineExceeded)
		cancel()
		if ctx.Err() != nil {
			return
		}
		if e.answered(sent, late) {
			misses = 0
			continue
		}
		if misses++; misses < 2 {
			continue
		}
		misses = 0
		t.Logf("engine %s hangs: %v; it is revived", e.name, err)
		err = e.daemon.Revive(ctx)
		e.answered(sent, true)
		e.mu.Lock()
		e.err = errors.Join(e.err, err)
		e.mu.Unlock()
		t.Logf("engine %s was revived: %v; its stacks lie in %s", e.name, err, e.dir)
	}
}

// answered notes whether a call of tend's was in time, and returns it.
func (e *engine) answered(sent time.Time, late bool) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if late {
		e.hung = time.Now()
	} else {
		e.fine = sent
	}
	return !late
}

// hungSince reports whether the engine was found hung at that time or later. It
// returns once tend has asked the engine again, or knows already: a cell may fail
// before the hang that it fails of is found.
func (e *engine) hungSince(at time.Time) (hung bool) {
	now := time.Now()
	for known := false; !known; time.Sleep(firstLook) {
		e.mu.Lock()
		hung = !e.hung.Before(at)
		known = hung || e.fine.After(now)
		e.mu.Unlock()
	}
	return hung
}

func (e *engine) note(m events.Message) {
	e.mu.Lock()
	defer e.mu.Unlock()
	event := told{m.TimeNano, m.Actor.ID, m.Action}
	if e.told[event] {
		return // again, after the engine was away
	}
	e.told[event] = true
	if at := time.Unix(0, m.TimeNano); at.After(e.last) {
		e.last = at
	}
	name := m.Actor.Attributes["name"]
	if e.seen[name] == nil {
		e.seen[name] = map[events.Action]int{}
	}
	e.seen[name][m.Action]++
	line, err := json.Marshal(m)
	if err == nil {
		_, err = e.record.Write(append(line, '\n'))
	}
	e.err = errors.Join(e.err, err)
}

// wantOnce returns the containers that were created or started more than once.
func (e *engine) wantOnce() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	faults := []error{e.err}
	for name, did := range e.seen {
		if did[events.ActionCreate] > 1 || did[events.ActionStart] > 1 {
			faults = append(faults, fmt.Errorf("engine %s: %s was created %d times and started %d times", e.name, name, did[events.ActionCreate], did[events.ActionStart]))
		}
	}
	return errors.Join(faults...)
}

// wantStarted returns nil once the engine has started a container.
func (e *engine) wantStarted(name string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.seen[name][events.ActionStart] == 0 {
		return fmt.Errorf("engine %s has not started %s", e.name, name)
	}
	return nil
}

// wantEmpty returns nil once no container of Berth's is left.
func (e *engine) wantEmpty() error {
	left, err := e.api.ContainerList(context.Background(), container.ListOptions{All: true, Filters: filters.NewArgs(filters.Arg("label", berth.LabelCluster))})
	if err == nil && len(left) > 0 {
		err = fmt.Errorf("engine %s has %d containers, the first is %s, %s", e.name, len(left), left[0].Names, left[0].Status)
	}
	return err
}
