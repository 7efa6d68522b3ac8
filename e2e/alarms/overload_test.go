package alarms_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"berth/api/client"
	"berth/e2e/rig"
	"berth/spec"
)

// repairs are the repairs of the faults of an alarm that have been injected so far.
type repairs []func(context.Context) error

// run repairs all faults.
func (r *repairs) run(ctx context.Context) (err error) {
	for _, repair := range *r {
		err = errors.Join(err, repair(ctx))
	}
	*r = nil
	return err
}

// submitAll submits a job n times, by a few calls at once.
func submitAll(ctx context.Context, c *client.Client, n int, j spec.Job) error {
	var all errgroup.Group
	all.SetLimit(8)
	for range n {
		all.Go(func() error {
			_, _, err := c.Submit(ctx, j, "")
			return err
		})
	}
	return all.Wait()
}

// slow lets each call of the dispatching replica to Temporal take longer than 1.5 s, the most that the limit of calls
// tolerates, also where Temporal is far away. The replica starts the workflows of a tenant's jobs meanwhile: for more
// than a minute at the lowest limit.
func (p *plant) slow() lane {
	const way, jobs = 900 * time.Millisecond, 100
	return lane{{
		alert:  "BerthDependencyOverloaded",
		fault:  "calls of one replica to Temporal take 1.8 s while a hundred jobs start",
		labels: map[string]string{"instance": p.dispatch.Address(), "dependency": "temporal"},
		begin: func(ctx context.Context) error {
			c, err := p.as(ctx, "starts")
			if err != nil {
				return err
			}
			_, temporal := p.dispatch.Links()
			temporal.Delay(way)
			return submitAll(ctx, c, jobs, job("starts", "exit", "0"))
		},
		looks: []look{
			p.metric(`berth_dependency_latency_seconds{dependency="temporal"}`, " > 0.15"),
			p.metric(`berth_dependency_queued{dependency="temporal"}`, " > 0"),
		},
		end: func(context.Context) error {
			_, temporal := p.dispatch.Links()
			temporal.Delay(0)
			return nil
		},
		verify: `min(berth_dependency_limit{dependency="temporal"}) >= 8
			and max(berth_dependency_queued{dependency="temporal"}) == 0`,
	}}
}

// locked locks the table of jobs against writes, as a migration or a person may, while users submit and many jobs end:
// submits wait, and then fail; the ends wait for connections, and cannot be settled.
func (p *plant) locked() lane {
	var faults repairs
	const ending, last = 160, 30 * time.Second // jobs that end, and their run time
	blockers := func(alert string) look { return p.statement(alert, `Lock ?\[\d+`) }
	return lane{{
		alert: "BerthSubmitsFail",
		fault: fmt.Sprintf("a session locks the table of jobs while sixteen users submit and %d jobs end", ending),
		begin: func(ctx context.Context) error {
			if err := p.startEnding(ctx, ending, last); err != nil {
				return err
			}
			unlock, err := p.session(ctx, "LOCK TABLE jobs IN SHARE MODE")
			if err != nil {
				return err
			}
			faults = append(faults, unlock)
			stop, err := p.submitAlways(ctx, 16)
			if err == nil {
				faults = append(faults, stop)
			}
			return err
		},
		end:    faults.run,
		looks:  []look{blockers("BerthSubmitsFail")},
		verify: `sum(rate(berth_http_request_seconds_count{method="POST",route="/v1/jobs",status=~"5.."}[25s])) == 0`,
		also: []alarm{{
			alert:  "BerthDatabaseCrowded",
			labels: map[string]string{"instance": p.workers.Address(), "dependency": "postgres"},
			looks: []look{
				p.metric("berth_dependency_latency_seconds", `{dependency="postgres"} > 0.5`),
				blockers("BerthDatabaseCrowded"),
			},
			verify: `max(berth_dependency_queued{dependency=~"postgres.*"}) < 5`,
		}, {
			alert:  "BerthEndsWait",
			looks:  []look{p.metric(`berth_dependency_queued{dependency="postgres",class="end"}`, " > 0")},
			verify: "max(berth_admission_unsettled) == 0 and min(berth_admission_rate) == Inf",
		}},
	}}
}

// startEnding starts n jobs that end by themselves, and returns once none of them waits for its start.
func (p *plant) startEnding(ctx context.Context, n int, last time.Duration) error {
	const tenant = "ends"
	c, err := p.as(ctx, tenant)
	if err == nil {
		err = submitAll(ctx, c, n, job("ends", "sleep", last.String()))
	}
	if err != nil {
		return err
	}
	return rig.Await(ctx, 2*time.Minute, func(ctx context.Context) error {
		var waiting int
		err := p.DB.QueryRow(ctx, `
			SELECT count(*) FROM jobs WHERE tenant = $1 AND state IN ('submitted', 'queued', 'scheduled')`,
			tenant).Scan(&waiting)
		if err == nil && waiting > 0 {
			err = fmt.Errorf("%d jobs have not started", waiting)
		}
		return err
	})
}
