package controlplane

import (
	"context"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"go.temporal.io/sdk/client"

	"berth"
	"berth/db"
	"berth/db/dbtest"
	"berth/internal/control/cloud"
)

// startedWorkflows is a Temporal client that can only start workflows with a signal.
type startedWorkflows struct {
	client.Client
	ids chan string
}

func (s *startedWorkflows) SignalWithStartWorkflow(_ context.Context, id, _ string, _ any, _ client.StartWorkflowOptions, _ any,
	_ ...any) (client.WorkflowRun, error) {
	select {
	case s.ids <- id:
	default: // the sweep has started it again
	}
	return nil, nil
}

// A process with one role starts the workflows of the launches that it requests, since other processes ignore its
// hints. The sweep of another process would start them 15 s later.
func TestALeaderWithoutOtherRolesStartsItsLaunches(t *testing.T) {
	t.Parallel()
	d := dbtest.DB(t, db.Options{})
	cfg := Default()
	cfg.DatabaseURL, cfg.Roles = "postgres://localhost/berth", []Role{RoleLeader}
	cfg.BlobURL = "file://" + filepath.Join(t.TempDir(), "blobs")
	c, err := New(cfg, Options{})
	if err != nil {
		t.Fatal(err)
	}
	started := &startedWorkflows{ids: make(chan string, 10)}
	a := &assembly{ControlPlane: c, db: d, temporal: started}
	defer a.close()
	if err := a.assemble(t.Context()); err != nil {
		t.Fatal(err)
	}
	// No row is overdue while the test waits, so no sweep starts a workflow.
	if _, err := d.Pool().Exec(t.Context(), `ALTER TABLE launches ALTER due_at SET DEFAULT now() + interval '1 day'`); err != nil {
		t.Fatal(err)
	}
	// The last part of the middle stage; the others need a server of Temporal.
	last := a.middle[len(a.middle)-1]
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() { _ = a.adoption.watch(ctx) }) // the part waits for a cluster in service
	done.Go(func() { _ = last(ctx) })
	defer done.Wait()
	defer cancel()
	// The part may not listen to hints yet, so there are launches until one is started.
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for began := time.Now(); time.Since(began) < 5*time.Minute; {
		id := berth.MachineID("m-" + berth.NewSecret()[:8])
		_, err := d.Launches.Request(t.Context(), cloud.Request{Pool: "p", Provider: "test",
			Offering: cloud.Offering{Region: "r", Type: "x", Market: cloud.Spot}}, []berth.MachineID{id}, "", "user:test")
		if err != nil {
			t.Fatal(err)
		}
		select {
		case <-started.ids:
			return
		case <-tick.C:
		}
	}
	t.Error("no workflow was started")
}
