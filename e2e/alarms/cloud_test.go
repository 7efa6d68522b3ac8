package alarms_test

import (
	"context"
	"errors"
	"slices"
	"time"

	"berth"
	"berth/e2e/rig"
	"berth/internal/control/cloud"
	"berth/internal/control/cloud/faultcloud"
	"berth/spec"
	"berth/wire"
)

// spend launches a machine for a job of a tenant, and lowers the limit of the tenant's spend to a level.
func (p *plant) spend() lane {
	const tenant berth.TenantID = "vision"
	var reserved float64
	limit := func(ctx context.Context, dollars float64) error {
		_, err := p.API.SetBurst(ctx, tenant, spec.Burst{
			Allow: []string{"lab/here"}, When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Second)},
			Idle: spec.Duration(time.Hour), Spend: &spec.BurstSpend{Period: spec.SpendMonth, Limit: dollars},
		})
		return err
	}
	launch := func(ctx context.Context) error {
		if reserved > 0 {
			return nil
		}
		c, err := p.as(ctx, tenant)
		if err == nil {
			err = limit(ctx, 1000)
		}
		if err != nil {
			return err
		}
		j, cpus := job("large", "exit", "0"), spec.MilliCPU(100_000)
		j.Resources.CPUs = &cpus
		if _, _, err := c.Submit(ctx, j, ""); err != nil {
			return err
		}
		return rig.Await(ctx, 3*time.Minute, func(ctx context.Context) error {
			err := p.DB.QueryRow(ctx, `
				SELECT coalesce(sum(reserved), 0)::float8 / 1e6 FROM launches WHERE tenant = $1`, tenant).Scan(&reserved)
			if err == nil && reserved == 0 {
				err = errors.New("nothing is reserved for the tenant")
			}
			return err
		})
	}
	try := func(alert, fault string, share float64) alarm {
		return alarm{
			alert: alert, fault: fault, labels: map[string]string{"tenant": string(tenant)},
			begin: func(ctx context.Context) error {
				if err := launch(ctx); err != nil {
					return err
				}
				return limit(ctx, reserved/share)
			},
			end: func(ctx context.Context) error { return limit(ctx, 1000) },
			// The shares are those of a policy without levels of its own.
			verify: `sum(max by (kind) (berth_cloud_spend_dollars{tenant="vision",kind=~"reserved|settled"})) > 0
				< sum(max by (kind) (berth_cloud_spend_dollars{tenant="vision",kind="warn"}))`,
		}
	}
	return lane{
		try("BerthCloudSpendNearsLimit", "a launch reserves 85 % of the limit of its tenant", 0.85),
		try("BerthCloudSpendExceeds", "the limit is lowered below the reservation of a launch", 1.1),
	}
}

// launch requests a machine of a provider, also after a refusal.
func (p *plant) launch(ctx context.Context, provider string, m berth.MachineID) error {
	_, err := p.API.Launch(ctx, wire.LaunchRequest{
		Pool: "default", Provider: provider, Region: "here", Type: "large", Machine: m, Key: string(m), Force: true,
	})
	return err
}

// unresolved lets a cloud create an instance, answer with a failure, and not show the instance. A launch in doubt
// becomes unresolved after five minutes.
func (p *plant) unresolved() lane {
	return lane{{
		alert: "BerthLaunchUnresolved", fault: "a cloud creates an instance, answers with a failure, and hides it",
		begin: func(ctx context.Context) error {
			err := p.hides.Change(func(s *faultcloud.State) {
				s.Creates = slices.Repeat([]faultcloud.Fault{{Kind: cloud.Unknown, After: true}}, 20)
			})
			return errors.Join(err, p.launch(ctx, "hides", "hidden"))
		},
		end: func(context.Context) error {
			return p.hides.Change(func(s *faultcloud.State) {
				for i := range s.Instances {
					s.Instances[i].Visible = time.Now()
				}
			})
		},
		verify: `max(berth_cloud_launches{state="unresolved"}) == 0`,
	}}
}

// refusals lets a cloud refuse a launch, and then ignore a termination.
func (p *plant) refusals() lane {
	change := func(f func(s *faultcloud.State)) error { return p.refuses.Change(f) }
	return lane{{
		alert: "BerthCloudRefuses", fault: "a cloud refuses the credentials of its provider",
		labels: map[string]string{"scope": "provider"},
		begin: func(ctx context.Context) error {
			err := change(func(s *faultcloud.State) { s.Creates = []faultcloud.Fault{{Kind: cloud.Auth}} })
			return errors.Join(err, p.launch(ctx, "refuses", "refused"))
		},
		end:    func(ctx context.Context) error { return p.launch(ctx, "refuses", "created") },
		verify: "max(berth_cloud_breakers_lasting) == 0",
	}, {
		alert: "BerthInstanceDoesNotEnd", fault: "a cloud accepts a termination and does not carry it out",
		begin: func(ctx context.Context) error {
			err := change(func(s *faultcloud.State) { s.Ignore = 1000 })
			_, stop := p.API.Terminate(ctx, "created", wire.TerminateRequest{Reason: "not needed"})
			return errors.Join(err, stop)
		},
		end:    func(context.Context) error { return change(func(s *faultcloud.State) { s.Ignore = 0 }) },
		verify: `max(berth_cloud_launch_state_seconds{state="terminating"}) < 150`,
	}}
}

// listing lets a cloud refuse the list of its instances. A sweep that has failed is tried again after three minutes.
func (p *plant) listing() lane {
	refuse := func(on bool) func(context.Context) error {
		return func(context.Context) error {
			return p.unlisted.Change(func(s *faultcloud.State) { s.Unlisted = on })
		}
	}
	return lane{{
		alert: "BerthCloudNotSwept", fault: "a cloud refuses to list the instances of its provider",
		labels: map[string]string{"provider": "unlisted"},
		begin:  refuse(true), end: refuse(false),
		looks:  []look{p.logged(logOf(&p.leader), "cannot sweep a provider")},
		verify: `sum(increase(berth_cloud_sweeps_total{provider="unlisted",result="done"}[5m])) > 0`,
	}}
}
