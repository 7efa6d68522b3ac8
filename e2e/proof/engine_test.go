package proof_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/docker/docker/api/types/container"
	"github.com/docker/docker/api/types/events"
	"github.com/docker/docker/api/types/filters"
	"github.com/docker/docker/client"
	"github.com/docker/docker/pkg/stdcopy"

	"berth"
)

// engine is the machine's own Docker engine, limited to one cluster's containers: a witness of
// Berth's actions that Berth cannot influence.
type engine struct {
	t       testing.TB
	api     *client.Client
	cluster string

	mu   sync.Mutex
	seen []events.Message
}

func openEngine() (*client.Client, error) {
	return client.NewClientWithOpts(client.WithHost(client.DefaultDockerHost), client.WithAPIVersionNegotiation())
}

// watchEngine records every event of the containers of the cluster whose
// machine has joined in this folder.
func watchEngine(t testing.TB, dir string) *engine {
	t.Helper()
	clusters := clustersOf(dir)
	if len(clusters) != 1 {
		t.Fatalf("clusters in %s are %q, want one", dir, clusters)
	}
	api, err := openEngine()
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{t: t, api: api, cluster: clusters[0]}
	ctx, cancel := context.WithCancel(context.Background())
	began := time.Now().Add(-time.Minute) // the engine remembers; nothing of this cluster is older
	messages, errs := api.Events(ctx, events.ListOptions{Since: fmt.Sprint(began.Unix()), Filters: e.mine()})
	var reading sync.WaitGroup
	reading.Go(func() {
		for {
			select {
			case m := <-messages:
				e.mu.Lock()
				e.seen = append(e.seen, m)
				e.mu.Unlock()
			case err := <-errs:
				if ctx.Err() == nil {
					t.Errorf("the record of the engine's events broke off: %v", err)
				}
				return
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		reading.Wait()
		_ = api.Close()
	})
	return e
}

func (e *engine) mine() filters.Args {
	return filters.NewArgs(filters.Arg("type", "container"), filters.Arg("label", berth.LabelCluster+"="+e.cluster))
}

// count returns how often an action was applied to a job's containers, "" for the containers of
// all jobs.
func (e *engine) count(action events.Action, job berth.JobID) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, m := range e.seen {
		if m.Action == action && (job == "" || m.Actor.Attributes[berth.LabelJob] == string(job)) {
			n++
		}
	}
	return n
}

// containers returns the number of a job's containers in the record, "" for all jobs. Any event shows its container:
// an engine that gets no processor time for a tenth of a second may drop single events.
func (e *engine) containers(job berth.JobID) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := map[string]bool{}
	for _, m := range e.seen {
		if job == "" || m.Actor.Attributes[berth.LabelJob] == string(job) {
			ids[m.Actor.ID] = true
		}
	}
	return len(ids)
}

// wantOneEach checks that every job had one container in all, started at most once.
func (e *engine) wantOneEach(jobs []berth.JobID) {
	e.t.Helper()
	for _, id := range jobs {
		until(e.t, "the record has the container of job "+string(id), func(context.Context) error {
			if e.containers(id) == 0 {
				return errNotYet
			}
			return nil
		})
		if had, started := e.containers(id), e.count(events.ActionStart, id); had != 1 || started > 1 {
			e.t.Errorf("job %s: it had %d containers, started %d times, want one that started once", id, had, started)
		}
	}
}

// list returns the cluster's containers, of one job unless it is "".
func (e *engine) list(ctx context.Context, job berth.JobID) ([]container.Summary, error) {
	want := filters.NewArgs(filters.Arg("label", berth.LabelCluster+"="+e.cluster))
	if job != "" {
		want.Add("label", berth.LabelJob+"="+string(job))
	}
	return e.api.ContainerList(ctx, container.ListOptions{All: true, Filters: want})
}

// running returns the ids of the containers that run, by job.
func (e *engine) running() map[berth.JobID]string {
	e.t.Helper()
	all, err := e.list(e.t.Context(), "")
	if err != nil {
		e.t.Fatal(err)
	}
	found := map[berth.JobID]string{}
	for _, c := range all {
		if c.State == container.StateRunning {
			found[berth.JobID(c.Labels[berth.LabelJob])] = c.ID
		}
	}
	return found
}

// wantEmpty waits until no container of the cluster is left and the recorded events
// are complete: events arrive on another connection, and may lag behind the list.
func (e *engine) wantEmpty() {
	e.t.Helper()
	until(e.t, "no container is left behind", func(ctx context.Context) error {
		left, err := e.list(ctx, "")
		if err == nil && len(left) > 0 {
			err = fmt.Errorf("%d are, the first is %s, %s", len(left), left[0].Names, left[0].Status)
		}
		return err
	})
	until(e.t, "the record has the removal of every container", func(context.Context) error {
		had, removed := e.containers(""), e.count(events.ActionDestroy, "")
		if had != removed {
			return fmt.Errorf("it has %d containers and %d removals", had, removed)
		}
		return nil
	})
}

// signal sends a signal to a job's one running container.
func (e *engine) signal(job berth.JobID, signal string) {
	e.t.Helper()
	id, ok := e.running()[job]
	if !ok {
		e.t.Fatalf("job %s has no running container to send %s", job, signal)
	}
	if err := e.api.ContainerKill(e.t.Context(), id, signal); err != nil {
		e.t.Fatal(err)
	}
}

// program returns the process of a job's program, which is the child of the container's init process.
func (e *engine) program(job berth.JobID) (pid int) {
	e.t.Helper()
	c, err := e.api.ContainerInspect(e.t.Context(), e.running()[job])
	if err != nil {
		e.t.Fatal(err)
	}
	children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", c.State.Pid))
	if err == nil {
		_, err = fmt.Sscan(string(children), &pid)
	}
	if err != nil {
		e.t.Fatalf("find the program of job %s: %v", job, err)
	}
	return pid
}

// awaitLine waits until a job's running container has printed a line.
func (e *engine) awaitLine(job berth.JobID, text string) {
	e.t.Helper()
	until(e.t, fmt.Sprintf("job %s prints %q", job, text), func(ctx context.Context) error {
		out, err := e.api.ContainerLogs(ctx, e.running()[job], container.LogsOptions{ShowStdout: true, Tail: "5"})
		if err != nil {
			return err
		}
		defer out.Close()
		var lines bytes.Buffer
		if _, err := stdcopy.StdCopy(&lines, io.Discard, out); err != nil {
			return err
		}
		if !slices.Contains(strings.Split(lines.String(), "\n"), text) {
			return fmt.Errorf("its last lines are %q", lines.String())
		}
		return nil
	})
}
