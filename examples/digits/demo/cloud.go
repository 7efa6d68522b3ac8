package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// cloudDemo is one run of the demonstration of cloud machines. scripts/demo-cloud.sh starts the stack with one
// machine on premises, sets the burst policy, and then starts this program with -cloud.
type cloudDemo struct {
	demo
	program  string        // berth-cloud
	machines string        // folder of the cloud's machines
	lead     time.Duration // from the cloud's notice to the end of the machine

	reclaimed berth.MachineID // the machine that the cloud takes back
	ends      chan error      // the result of the reclaim
	deadline  time.Time       // at which the machine ends
	before    int64           // newest checkpoint before the notice

	saved map[int64]time.Time // when the checkpoints of the first attempt were verified, by step
}

// site is the machine on premises, as berth-dev names it.
const site = berth.MachineID("m1")

// epochs is the length of the training.
const epochs = "60"

// tenant pays for the machines.
const tenant = berth.TenantID("default")

func (d *cloudDemo) run(ctx context.Context) error {
	d.saved = map[int64]time.Time{}
	if err := d.awaitMachines(ctx, 1); err != nil {
		return err
	}
	step("1. the same training, undisturbed, on the machine on premises: its accuracy is the reference")
	reference, err := d.reference(ctx)
	if err != nil {
		return err
	}
	step("2. a job of an hour fills the machine on premises")
	long, err := d.fill(ctx)
	if err != nil {
		return err
	}
	step("3. a training job: its planned wait of an hour exceeds the 10 minutes of the burst policy")
	job, err := d.burst(ctx)
	if err != nil {
		return err
	}
	step("4. the job trains on the new machine, until the cloud takes the machine back")
	job, err = d.watch(ctx, job.ID, d.reclaim)
	if err != nil {
		return err
	}
	step("5. what happened")
	if err := d.check(ctx, job, reference); err != nil {
		return err
	}
	step("6. idle machines are drained and terminated; the job on premises is not disturbed")
	launches, err := d.awaitGone(ctx)
	if err != nil {
		return err
	}
	if err := d.checkLong(ctx, long); err != nil {
		return err
	}
	step("7. the bill")
	return d.bill(ctx, launches, job.ID)
}

// step prints the heading of a step.
func step(text string) { fmt.Printf("\ndemo: == %s\n", text) }

// training returns the job of the file, with changes.
func (d *cloudDemo) training(name, pace string) (spec.Job, error) {
	job, err := d.load()
	if err != nil {
		return job, err
	}
	job.Name, job.Env["EPOCHS"], job.Env["PACE_SECONDS"] = name, epochs, pace
	job.Checkpoint.Signal = "SIGUSR1"
	return job, nil
}

// reference runs the training without any disturbance, and returns its accuracy.
func (d *cloudDemo) reference(ctx context.Context) (string, error) {
	s, err := d.training("digits-reference", "0")
	if err != nil {
		return "", err
	}
	job, _, err := d.api.Submit(ctx, s, "")
	if err != nil {
		return "", fmt.Errorf("submit: %w", err)
	}
	if job, err = d.watch(ctx, job.ID, none); err != nil {
		return "", err
	}
	if job.Status != berth.Succeeded || len(job.Attempts) != 1 || job.Attempts[0].Machines[0] != site {
		return "", fmt.Errorf("job %s ended %s after %d attempts, want one on %s", job.ID, job.Status,
			len(job.Attempts), site)
	}
	accuracy, err := d.accuracy(ctx, job.ID)
	if err == nil {
		say("accuracy of the undisturbed run: %s", accuracy)
	}
	return accuracy, err
}

// none is a reaction to the progress of a job that does nothing.
func none(context.Context, wire.Job) error { return nil }

// fill starts a job that needs the whole machine on premises for an hour.
func (d *cloudDemo) fill(ctx context.Context) (berth.JobID, error) {
	s := spec.Job{
		Name: "long", Image: "berth-digits:1", TimeLimit: spec.Duration(time.Hour),
		Command:   []string{"python3", "-c", "import time; time.sleep(3600)"},
		Resources: spec.Resources{CPUs: new(spec.MilliCPU(2000)), Memory: new(spec.MiB(512))},
	}
	job, _, err := d.api.Submit(ctx, s, "")
	if err != nil {
		return "", fmt.Errorf("submit: %w", err)
	}
	return job.ID, d.await(ctx, "the long job to run on "+string(site), func() (bool, error) {
		job, err := d.api.Job(ctx, job.ID)
		if err != nil || job.Status != berth.Running {
			return false, err
		}
		say("job %s runs on %s and has all of its CPUs", job.ID, job.Attempts[0].Machines[0])
		return true, nil
	})
}

// await repeats a look until it is done, fails, or ctx ends.
func (d *cloudDemo) await(ctx context.Context, what string, look func() (bool, error)) error {
	for {
		done, err := look()
		if done || err != nil {
			return err
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("waited in vain for %s: %w", what, err)
		}
	}
}

// burst submits the training job and waits until it runs on a machine that Berth launched for it.
func (d *cloudDemo) burst(ctx context.Context) (wire.Job, error) {
	s, err := d.training("digits", "0.5")
	if err != nil {
		return wire.Job{}, err
	}
	job, _, err := d.api.Submit(ctx, s, "")
	if err != nil {
		return job, fmt.Errorf("submit: %w", err)
	}
	say("submitted job %s", job.ID)
	shown, provisioned := "", false
	err = d.await(ctx, "a machine of the cloud for the job", func() (bool, error) {
		if job, err = d.api.Job(ctx, job.ID); err != nil || job.Status.Terminal() {
			return true, errors.Join(err, unless(!job.Status.Terminal(), "job %s ended %s", job.ID, job.Status))
		}
		if job.Status == berth.Running {
			return true, nil
		}
		e, err := d.api.Explain(ctx, job.ID)
		if err != nil || e.Cloud == nil {
			return false, err
		}
		provisioned = provisioned || e.Cloud.Code == "provisioning"
		state := e.Cloud.Code // the message has the age of the launch, and changes each second
		for _, m := range e.Cloud.Machines {
			state += " " + m.State
		}
		if state != shown {
			shown = state
			say("berth explain: %s", e.Cloud.Message)
		}
		return false, nil
	})
	if err != nil {
		return job, err
	}
	machine := job.Attempts[0].Machines[0]
	launch, err := d.launchOf(ctx, machine)
	if err != nil {
		return job, err
	}
	say("launched %s of type %s in %s, market %s, $%.2f an hour", machine, launch.Type, launch.Zone, launch.Market,
		launch.Price)
	return job, errors.Join(
		unless(provisioned, "the job never showed that a machine was provisioned for it"),
		unless(launch.Market == "spot", "the machine is %s, want the cheapest offer, a spot machine", launch.Market),
		unless(launch.Tenant == tenant, "tenant %q pays, want %s", launch.Tenant, tenant))
}

// unless returns an error if a condition does not hold.
func unless(holds bool, format string, args ...any) error {
	if holds {
		return nil
	}
	return fmt.Errorf(format, args...)
}

// launchOf returns the launch of a machine.
func (d *cloudDemo) launchOf(ctx context.Context, machine berth.MachineID) (wire.Launch, error) {
	list, err := d.api.Launches(ctx, machine, true)
	if err != nil {
		return wire.Launch{}, err
	}
	if len(list.Items) != 1 {
		return wire.Launch{}, fmt.Errorf("machine %s has %d launches, want 1", machine, len(list.Items))
	}
	return list.Items[0], nil
}

// reclaim lets the cloud take the machine back once steps after a verified checkpoint would be lost.
func (d *cloudDemo) reclaim(ctx context.Context, job wire.Job) error {
	for _, c := range job.Checkpoints {
		if c.Attempt == 1 && c.State == berth.CheckpointVerified {
			d.saved[c.Step] = c.CreatedAt
		}
	}
	if d.reclaimed != "" || !ripe(job) {
		return nil
	}
	d.reclaimed, d.before = job.Attempts[0].Machines[0], newestStep(job)
	d.ends, d.deadline = make(chan error, 1), time.Now().Add(d.lead)
	say("the cloud announces the end of %s in %s; the newest checkpoint is of step %d, the job is at step %d",
		d.reclaimed, d.lead, d.before, job.Progress.Step)
	cmd := exec.CommandContext(ctx, d.program, "reclaim", "--dir", d.machines, "--lead", d.lead.String(),
		string(d.reclaimed))
	go func() {
		out, err := cmd.CombinedOutput()
		if err != nil {
			err = fmt.Errorf("reclaim machine %s: %w: %s", d.reclaimed, err, out)
		} else {
			say("the cloud: %s", strings.TrimSpace(string(out)))
		}
		d.ends <- err
	}()
	return nil
}

// check asserts that the job survived the loss of its machine by the checkpoint that it saved after the notice.
func (d *cloudDemo) check(ctx context.Context, job wire.Job, reference string) error {
	if job.Status != berth.Succeeded || d.reclaimed == "" || len(job.Attempts) != 2 {
		return fmt.Errorf("job %s ended %s (%+v) after %d attempts, want success after 2", job.ID, job.Status,
			job.Reason, len(job.Attempts))
	}
	if err := <-d.ends; err != nil {
		return err
	}
	first, second := job.Attempts[0], job.Attempts[1]
	if second.ResumeFrom == nil || first.LastStep == nil {
		return errors.New("the second attempt did not resume from a checkpoint")
	}
	saved := d.saved[*second.ResumeFrom]
	left, err := d.machineFiles()
	if err != nil {
		return err
	}
	accuracy, err := d.accuracy(ctx, job.ID)
	if err != nil {
		return err
	}
	replaced, err := d.launchOf(ctx, second.Machines[0])
	if err != nil {
		return err
	}
	say("checkpoint saved    step %d, %.1f s before the end of %s", *second.ResumeFrom, d.deadline.Sub(saved).Seconds(),
		d.reclaimed)
	say("resumed on          %s (%s, %s, $%.2f an hour), from step %d", second.Machines[0], replaced.Zone,
		replaced.Market, replaced.Price, *second.ResumeFrom)
	say("steps lost          %d of %d", max(0, *first.LastStep-*second.ResumeFrom), *first.LastStep)
	say("retry budget        %d failures", job.Failures)
	say("accuracy            %s, and %s without disturbance", accuracy, reference)
	return errors.Join(
		unless(first.Machines[0] == d.reclaimed && second.Machines[0] != d.reclaimed && second.Machines[0] != site,
			"the attempts ran on %s and %s, want the machine that ended and its replacement", first.Machines[0],
			second.Machines[0]),
		unless(*second.ResumeFrom > d.before, "the attempt resumed from step %d, want a checkpoint that was saved "+
			"after the notice, newer than step %d", *second.ResumeFrom, d.before),
		unless(!saved.IsZero() && saved.Before(d.deadline), "the checkpoint was saved at %s, after the end of the "+
			"machine at %s", saved, d.deadline),
		unless(job.Failures == 0, "the job has %d failures, want 0: the loss of a machine is none", job.Failures),
		unless(left == 0, "%d processes of the machine %s live after its end", left, d.reclaimed),
		unless(accuracy == reference, "accuracy is %s, and %s without disturbance, want the same", accuracy, reference))
}

// machineFiles returns the number of processes that name a folder of the machine that ended.
func (d *cloudDemo) machineFiles() (int, error) {
	launch, err := d.launchOf(context.Background(), d.reclaimed)
	if err != nil {
		return 0, err
	}
	folder := filepath.Join(d.machines, strings.TrimPrefix(launch.Instance, "local-"))
	out, err := exec.Command("pgrep", "--full", "--count", folder+"/").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 1 { // none
		return 0, nil
	}
	count := 0
	if err == nil {
		_, err = fmt.Sscan(string(out), &count)
	}
	return count, err
}

// awaitGone waits until each launch has its proven end, and returns all launches.
func (d *cloudDemo) awaitGone(ctx context.Context) (all []wire.Launch, err error) {
	shown := map[string]string{}
	err = d.await(ctx, "the end of all machines of the cloud", func() (bool, error) {
		list, err := d.api.Launches(ctx, "", true)
		if err != nil {
			return false, err
		}
		all = list.Items
		gone := 0
		for _, l := range all {
			if line := l.State + " " + l.Reason; shown[string(l.Machine)] != line {
				shown[string(l.Machine)] = line
				say("%s is %s", l.Machine, strings.TrimSpace(line))
			}
			if l.State == "gone" {
				gone++
			}
			if l.State == "failed" {
				return false, fmt.Errorf("launch of %s failed: %s", l.Machine, l.Reason)
			}
		}
		return gone == len(all), nil
	})
	return all, errors.Join(err, unless(len(all) == 2, "%d machines were launched, want 2", len(all)))
}

// checkLong asserts that the job on premises still runs where it started, and cancels it.
func (d *cloudDemo) checkLong(ctx context.Context, id berth.JobID) error {
	job, err := d.api.Job(ctx, id)
	if err != nil {
		return err
	}
	if job.Status != berth.Running || len(job.Attempts) != 1 {
		return fmt.Errorf("job %s is %s after %d attempts, want one that runs", id, job.Status, len(job.Attempts))
	}
	say("job %s still runs on %s", id, job.Attempts[0].Machines[0])
	_, err = d.api.Cancel(ctx, id)
	return err
}

// bill computes the costs from the times and prices of the launches, and compares them with Berth's figures.
func (d *cloudDemo) bill(ctx context.Context, launches []wire.Launch, id berth.JobID) error {
	var faults []error
	total := 0.0
	for _, l := range launches {
		if l.SentAt == nil || l.EndedAt == nil {
			return fmt.Errorf("launch of %s has no start or no end", l.Machine)
		}
		ran := l.EndedAt.Sub(*l.SentAt)
		cost := l.Price * ran.Hours()
		total += cost
		say("%s  %6.1f s x $%5.2f an hour = $%.6f; Berth: $%.6f", l.Machine, ran.Seconds(), l.Price, cost, l.Cost)
		faults = append(faults, unless(same(cost, l.Cost), "the cost of %s is $%.6f, want $%.6f", l.Machine, l.Cost,
			cost))
	}
	usage, err := d.api.CloudUsage(ctx, "", tenant, spec.SpendMonth, "")
	if err != nil {
		return err
	}
	job, err := d.api.Job(ctx, id)
	if err != nil {
		return err
	}
	if len(usage.Items) == 0 || usage.Items[0].Tenant != tenant || job.Cost == nil {
		return errors.New("berth usage has no row of the tenant, or the job has no cost")
	}
	u, attempts := usage.Items[0], 0.0
	for _, a := range job.Attempts {
		if a.Cost == nil {
			return fmt.Errorf("attempt %d has no cost", a.Number)
		}
		attempts += *a.Cost
		say("attempt %d of the job: $%.6f for its share of %s", a.Number, *a.Cost, a.Machines[0])
	}
	say("sum of the machines $%.6f; berth usage: $%.6f settled, $%.6f reserved", total, u.Settled, u.Reserved)
	say("the job             $%.6f; the machines were idle, or had room for others, for the rest", *job.Cost)
	return errors.Join(append(faults,
		unless(same(total, u.Settled), "berth usage has $%.6f, want $%.6f", u.Settled, total),
		unless(u.Reserved == 0 && u.Machines == 0, "berth usage has $%.6f reserved for %d machines, want none",
			u.Reserved, u.Machines),
		unless(same(attempts, *job.Cost), "the job costs $%.6f, and its attempts $%.6f", *job.Cost, attempts),
		unless(*job.Cost > 0 && *job.Cost < total, "the job costs $%.6f, want less than its machines, $%.6f", *job.Cost,
			total))...)
}

// same reports whether two amounts differ by less than the rounding of a few launches to micro-dollars.
func same(a, b float64) bool { return math.Abs(a-b) < 5e-6 }
