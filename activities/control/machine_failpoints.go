//go:build failpoints

package control

import (
	"context"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/lib/failpoint"
)

// withMachineFailpoints returns steps that may die around each call to a cloud.
func withMachineFailpoints(m MachineSteps) *MachineSteps {
	m.Launches = failingLaunches{m.Launches}
	providers := map[string]cloud.Account{}
	for name, a := range m.Accounts.Providers {
		a.Provider = failingProvider{a.Provider}
		providers[name] = a
	}
	m.Accounts.Providers = providers
	return &m
}

// failingLaunches has the failpoints of the rows of launches.
type failingLaunches struct{ Launches }

func (f failingLaunches) Send(ctx context.Context, ref cloud.Ref, l cloud.Limits, clock func(time.Time) time.Time,
	build func(r cloud.Record, joinSecret string) (cloud.Sealed, error)) (cloud.Record, cloud.Sealed, error) {
	if err := failpoint.Hit("worker.launch.before"); err != nil {
		return cloud.Record{}, cloud.Sealed{}, err
	}
	r, s, err := f.Launches.Send(ctx, ref, l, clock, build)
	if err != nil {
		return r, s, err
	}
	return r, s, failpoint.Hit("worker.launch.committed")
}

func (f failingLaunches) Change(ctx context.Context, ref cloud.Ref,
	change func(r cloud.Record, now time.Time) (cloud.Record, error)) (cloud.Record, error) {
	r, err := f.Launches.Change(ctx, ref, change)
	if err != nil {
		return r, err
	}
	return r, failpoint.Hit("worker.launch.changed")
}

// failingProvider has the failpoints after calls to a cloud.
type failingProvider struct{ cloud.Provider }

func (f failingProvider) Create(ctx context.Context, l cloud.Launch) (cloud.Instance, error) {
	i, err := f.Provider.Create(ctx, l)
	if err != nil {
		return i, err
	}
	return i, failpoint.Hit("worker.launch.created")
}

func (f failingProvider) Terminate(ctx context.Context, i cloud.Instance) error {
	if err := f.Provider.Terminate(ctx, i); err != nil {
		return err
	}
	return failpoint.Hit("worker.terminate.after")
}
