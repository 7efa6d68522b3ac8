package dispatch

import (
	"context"
	"log/slog"
	"sync"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/sdk/client"

	"berth"
	"berth/db"
	"berth/internal/lib/overload"
	"berth/wire"
)

// MachineTemporal is the part of a Temporal client that starts and pokes workflows of machines.
type MachineTemporal interface {
	SignalWithStartWorkflow(ctx context.Context, workflowID, signal string, arg any, o client.StartWorkflowOptions,
		workflow any, args ...any) (client.WorkflowRun, error)
}

// LaunchRows are the rows whose workflows Machines drives.
type LaunchRows interface {
	// Overdue returns machines whose next step is overdue by that much.
	Overdue(ctx context.Context, by time.Duration, limit int) ([]berth.MachineID, error)
}

const (
	machineSweep = 5 * time.Second
	// overdueBy is the delay of a step after which its workflow counts as lost. A lost hint delays a step by this.
	overdueBy = 15 * time.Second
	// repoke is the least time between two pokes of one overdue machine: each adds to a history.
	repoke       = time.Minute
	machineBatch = 500
	// machinesAbreast bounds the calls for machines that a process makes at a time. A slow call then delays
	// no other machine, unless as many are slow.
	machinesAbreast = 8
)

// Machines starts the workflows of launches and pokes them. One call does both, so it needs to know
// no state, and any number of replicas may run it.
type Machines struct {
	calls    *Calls
	temporal MachineTemporal
	rows     LaunchRows
	hub      *db.Hub
	log      *slog.Logger
	every    time.Duration
	places   chan struct{} // one for each call
	calling  sync.WaitGroup

	mu    sync.Mutex
	poked map[berth.MachineID]time.Time // overdue machines
}

// NewMachines returns Machines, which do nothing before Run.
func NewMachines(calls *Calls, t MachineTemporal, rows LaunchRows, hub *db.Hub, log *slog.Logger) *Machines {
	return &Machines{calls: calls, temporal: t, rows: rows, hub: hub, log: log, every: machineSweep,
		places: make(chan struct{}, machinesAbreast), poked: map[berth.MachineID]time.Time{}}
}

// Run starts and pokes workflows until ctx ends: at once after a hint, and otherwise for
// overdue rows.
func (m *Machines) Run(ctx context.Context) error {
	sub := m.hub.SubscribeFrom(db.TopicLaunch, "*", db.Here)
	defer sub.Close()
	defer m.calling.Wait()
	tick := time.NewTicker(m.every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-sub.C:
			for _, key := range sub.Keys() {
				if id, err := berth.ParseMachineID(key); err == nil {
					m.start(ctx, id)
				}
			}
		case <-tick.C:
			m.sweep(ctx)
		}
	}
}

// sweep pokes the workflows of overdue rows.
func (m *Machines) sweep(ctx context.Context) {
	overdue, err := m.rows.Overdue(overload.As(ctx, overload.Sweep), overdueBy, machineBatch)
	if err != nil {
		if ctx.Err() == nil {
			m.log.Warn("cannot read overdue launches, will retry", "err", err)
		}
		return
	}
	for _, id := range m.due(overdue, time.Now()) {
		m.start(ctx, id)
	}
}

// due returns the overdue machines that were not poked for a while, and counts them as poked.
func (m *Machines) due(overdue []berth.MachineID, now time.Time) (due []berth.MachineID) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for id, at := range m.poked {
		if now.Sub(at) >= repoke {
			delete(m.poked, id)
		}
	}
	for _, id := range overdue {
		if _, done := m.poked[id]; !done {
			m.poked[id] = now
			due = append(due, id)
		}
	}
	return due
}

// start pokes the workflow of a machine at the same time as others, as soon as there is a place. After a failure
// the next sweep may try again.
func (m *Machines) start(ctx context.Context, id berth.MachineID) {
	select {
	case m.places <- struct{}{}:
	case <-ctx.Done():
		return
	}
	m.calling.Go(func() {
		defer func() { <-m.places }()
		if m.poke(ctx, id) {
			return
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.poked, id)
	})
}

// poke signals the workflow of a machine, and starts it if it does not run.
func (m *Machines) poke(ctx context.Context, id berth.MachineID) bool {
	workflowID := wire.MachineWorkflowID(id)
	err := m.calls.Call(ctx, overload.Start, func(ctx context.Context) error {
		o := client.StartWorkflowOptions{
			ID: workflowID, TaskQueue: berth.QueueControl, StaticSummary: string(id),
			WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_ALLOW_DUPLICATE,
		}
		_, err := m.temporal.SignalWithStartWorkflow(ctx, workflowID, berth.SignalPoke, nil, o, wire.WorkflowMachine,
			wire.MachineInput{Machine: id})
		return err
	})
	if err != nil && ctx.Err() == nil {
		m.log.Warn("cannot start or poke a machine's workflow, will retry", "machine", id, "err", err)
	}
	return err == nil
}
