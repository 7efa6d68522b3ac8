package alarms_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"syscall"

	"berth"
	"berth/e2e/faultproxy"
	"berth/e2e/rig"
	"berth/spec"
)

// waves lists all faults; absences lists the alerts without one. The first wave has faults of details, which leave the
// rest of the stack at work; its longest lane lasts seven minutes. The later waves stop parts of the control plane.
func (p *plant) waves() []wave {
	return []wave{
		{p.backup(), p.certificates(), p.disks(), p.budget(), p.wrongTokens(), p.spend(), p.unresolved(),
			p.refusals(), p.listing(), p.mail(), p.gpus(), p.counters(), p.maintenance(), p.renewals(),
			p.engines()},
		{p.messages(), p.machines()},
		{p.queue(), p.slow()},
		{p.locked()},
		{p.others()},
		{p.processes()},
		{p.links()},
	}
}

// messages stops the only process that calls webhooks and delivers notifications while a job runs, so its end
// causes no notification.
func (p *plant) messages() lane {
	const channel = "receiver"
	return lane{{
		alert: "BerthWebhookBacklog",
		fault: "the process with the role dispatch is stopped, and a job ends that has a webhook and names a channel",
		begin: func(ctx context.Context) error {
			secret := spec.NewSecretValue{Name: spec.WebhookSecret, Value: "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"}
			if _, _, err := p.API.SetSecret(ctx, secret); err != nil {
				return err
			}
			if err := p.setChannel(ctx, channel); err != nil {
				return err
			}
			j := job("notifies", "sleep", "5s")
			j.Notify = []spec.Notify{{URL: p.receiver.URL}, {Channel: channel}}
			made, _, err := p.API.Submit(ctx, j, "")
			if err == nil {
				err = reaches(ctx, p.API, made.ID, berth.Running)
			}
			return errors.Join(err, p.dispatch.Stop())
		},
		end:    p.dispatch.Start,
		looks:  []look{p.statement("BerthWebhookBacklog", "default ?1")},
		verify: "max(berth_webhooks_overdue_seconds) < 10",
		also: []alarm{{
			alert:  "BerthNotificationBacklog",
			looks:  []look{p.statement("BerthNotificationBacklog", "default ?receiver ?webhook")},
			verify: "max(berth_notifications_overdue_seconds) < 10",
		}},
	}}
}

// setChannel creates a channel to the receiver.
func (p *plant) setChannel(ctx context.Context, name string) error {
	_, _, err := p.API.SetChannel(ctx, name, spec.Channel{Kind: spec.ChannelWebhook, URL: p.receiver.URL})
	return err
}

// machines stops the agent of m006, which has no jobs.
func (p *plant) machines() lane {
	send := func(s syscall.Signal) func(context.Context) error {
		return func(context.Context) error {
			p.Agents()[agents-1].Signal(s)
			return nil
		}
	}
	return lane{{
		alert: "BerthMachinesSilent", fault: fmt.Sprintf("one agent of %d is stopped", agents),
		begin: send(syscall.SIGSTOP), end: send(syscall.SIGCONT),
		verify: "max(berth_machines_silent) == 0",
	}}
}

// queue holds a lock that keeps the leader from placing a job.
func (p *plant) queue() lane {
	var end func(context.Context) error
	return lane{{
		alert: "BerthQueueStuck", fault: "a session locks the table of reservations; a job waits, and machines are free",
		begin: func(ctx context.Context) (err error) {
			if end, err = p.session(ctx, "LOCK TABLE allocations IN SHARE MODE"); err == nil {
				_, _, err = p.API.Submit(ctx, job("stuck", "exit", "0"), "")
			}
			return err
		},
		end:    func(ctx context.Context) error { return end(ctx) },
		verify: `max(berth_waiting_jobs{reason="ready"}) == 0 and sum(rate(berth_scheduler_placements_total[25s])) > 0`,
	}}
}

// submitAlways submits jobs by so many callers at once, each of them without a pause and without a retry, until stop is
// called.
func (p *plant) submitAlways(ctx context.Context, callers int) (stop func(context.Context) error, err error) {
	body, err := json.Marshal(job("submitted", "exit", "0"))
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	c := rig.NewCaller("http://"+p.workers.Address(), p.Token, "")
	var all sync.WaitGroup
	for range callers {
		all.Go(func() {
			for ctx.Err() == nil {
				c.Call(ctx, "POST", "/v1/jobs", nil, body)
			}
		})
	}
	return func(context.Context) error {
		cancel()
		all.Wait()
		c.Close()
		return nil
	}, nil
}

// others leaves a transaction open, mounts another file system over the object store, and stops more than a third of the
// agents.
func (p *plant) others() lane {
	var end func(context.Context) error
	return lane{{
		alert: "BerthFeedLags", fault: "a transaction with a transaction id stays open",
		begin: func(ctx context.Context) (err error) {
			end, err = p.session(ctx, "SELECT pg_current_xact_id()")
			return err
		},
		end:    func(ctx context.Context) error { return end(ctx) },
		verify: "max(berth_scheduler_feed_lag_seconds) < 1",
	}, {
		alert: "BerthObjectStoreDown", fault: "another file system is mounted in place of the object store",
		begin:  func(context.Context) error { return syscall.Mount("tmpfs", p.objects, "tmpfs", 0, "size=1m") },
		end:    func(context.Context) error { return syscall.Unmount(p.objects, syscall.MNT_DETACH) },
		verify: `min(berth_dependency_up{dependency="object_store"}) == 1`,
	}, {
		alert: "BerthVerdictsFrozen", fault: fmt.Sprintf("three agents of %d are stopped", agents),
		begin: p.signal(3, syscall.SIGSTOP), end: p.signal(3, syscall.SIGCONT),
		verify: "max(berth_scheduler_verdicts_frozen) == 0",
	}}
}

// processes stops the leader, and then all replicas.
func (p *plant) processes() lane {
	return lane{{
		alert: "BerthNoLeader", fault: "the process with the role leader is stopped",
		begin: func(context.Context) error { return p.leader.Stop() }, end: p.leader.Start,
		verify: "max(berth_leader_present) == 1",
	}, {
		alert: "BerthDown", fault: "all replicas are stopped",
		begin: func(context.Context) error { return p.each((*rig.Replica).Stop) },
		end: func(ctx context.Context) error {
			return p.each(func(r *rig.Replica) error { return r.Start(ctx) })
		},
		verify: "count(berth_build_info) == 3",
	}}
}

// each calls f for each replica with links, and ends the one without.
func (p *plant) each(f func(*rig.Replica) error) (err error) {
	p.stopTLS()
	for _, r := range p.Replicas() {
		err = errors.Join(err, f(r))
	}
	return err
}

// links cuts the connections of replicas to their servers.
func (p *plant) links() lane {
	all := func(f func(database, temporal *faultproxy.Proxy)) func(context.Context) error {
		return func(context.Context) error {
			return p.each(func(r *rig.Replica) error {
				f(r.Links())
				return nil
			})
		}
	}
	one := func() *faultproxy.Proxy {
		_, temporal := p.dispatch.Links()
		return temporal
	}
	return lane{{
		alert: "BerthDependencyUnreachable", fault: "the network between one replica and Temporal drops everything",
		labels: map[string]string{"instance": p.dispatch.Address(), "dependency": "temporal"},
		begin:  func(context.Context) error { one().Cut(); return nil },
		end:    func(context.Context) error { one().Heal(); return nil },
		verify: "min(berth_dependency_up) == 1",
	}, {
		alert: "BerthTemporalDown", fault: "Temporal refuses all connections",
		begin:  all(func(_, temporal *faultproxy.Proxy) { temporal.Drop() }),
		end:    all(func(_, temporal *faultproxy.Proxy) { temporal.Heal() }),
		verify: `min(berth_dependency_up{dependency="temporal"}) == 1`,
	}, {
		alert: "BerthDatabaseDown", fault: "PostgreSQL refuses all connections",
		begin:  all(func(database, _ *faultproxy.Proxy) { database.Drop() }),
		end:    all(func(database, _ *faultproxy.Proxy) { database.Heal() }),
		verify: `min(berth_dependency_up{dependency="postgres"}) == 1`,
	}}
}
