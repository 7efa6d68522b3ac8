package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/internal/lib/jobfile"
	"berth/spec"
	"berth/wire"
)

func main() {
	var d demo
	flag.StringVar(&d.file, "file", "examples/digits/job.yaml", "job file")
	flag.StringVar(&d.stack, "stack", "", "folder of the running berth-dev")
	flag.StringVar(&d.program, "berth-dev", "bin/berth-dev", "the berth-dev program, asked to kill the machine")
	url := flag.String("url", "http://127.0.0.1:7070", "address of the API")
	tokenFile := flag.String("token-file", "", "file that holds a token")
	limit := flag.Duration("limit", 8*time.Minute, "how long it may take")
	cloud := flag.Bool("cloud", false, "demonstrate machines of a cloud")
	var c cloudDemo
	flag.StringVar(&c.program, "berth-cloud", "bin/berth-cloud", "the berth-cloud program, which takes a machine back")
	flag.StringVar(&c.machines, "cloud-machines", "", "folder of the cloud's machines")
	flag.DurationVar(&c.lead, "lead", 20*time.Second, "time from the cloud's notice to the end of the machine")
	flag.Parse()

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	ctx, cancel := context.WithTimeout(ctx, *limit)
	defer cancel()
	token, err := os.ReadFile(*tokenFile)
	if err == nil {
		d.api = client.New(*url, strings.TrimSpace(string(token)))
		if c.demo = d; *cloud {
			err = c.run(ctx)
		} else {
			err = d.run(ctx)
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "demo: FAILED:", err)
		os.Exit(1)
	}
}

// demo is one run of the demonstration.
type demo struct {
	api     *client.Client
	file    string
	stack   string
	program string

	killed berth.MachineID // the machine that was taken away
	shown  string          // the last line of progress, not to repeat it
}

func (d *demo) run(ctx context.Context) error {
	if err := d.awaitMachines(ctx, 2); err != nil {
		return err
	}
	job, err := d.submit(ctx)
	if err != nil {
		return err
	}
	job, err = d.watch(ctx, job.ID, d.takeMachine)
	if err != nil {
		return err
	}
	accuracy, err := d.check(ctx, job)
	if err != nil {
		return err
	}
	return d.resume(ctx, accuracy)
}

// load reads the job file.
func (d *demo) load() (spec.Job, error) {
	source, err := os.ReadFile(d.file)
	if err != nil {
		return spec.Job{}, err
	}
	file, err := jobfile.Parse(d.file, source)
	if err != nil {
		return spec.Job{}, err
	}
	return file.Spec, nil
}

func (d *demo) submit(ctx context.Context) (wire.Job, error) {
	s, err := d.load()
	if err != nil {
		return wire.Job{}, err
	}
	job, _, err := d.api.Submit(ctx, s, "")
	if err != nil {
		return job, fmt.Errorf("submit: %w", err)
	}
	say("submitted %s as job %s", d.file, job.ID)
	return job, nil
}

// resume cancels a second run after its first checkpoint, and retries it.
func (d *demo) resume(ctx context.Context, accuracy string) error {
	say("")
	first, err := d.submit(ctx)
	if err != nil {
		return err
	}
	canceled := false
	first, err = d.watch(ctx, first.ID, func(ctx context.Context, job wire.Job) error {
		if canceled || job.Progress == nil || job.Progress.Step < 17 || newestStep(job) < 10 {
			return nil
		}
		canceled = true
		say("canceling the job, as if by mistake")
		_, err := d.api.Cancel(ctx, job.ID)
		return err
	})
	if err != nil {
		return err
	}
	if first.Status != berth.Canceled {
		return fmt.Errorf("job %s ended %s, want canceled", first.ID, first.Status)
	}
	saved := newestStep(first)
	second, err := d.api.Retry(ctx, first.ID, client.RetryOptions{})
	if err != nil {
		return fmt.Errorf("retry: %w", err)
	}
	say("retried as job %s", second.ID)
	second, err = d.watch(ctx, second.ID, func(context.Context, wire.Job) error { return nil })
	if err != nil {
		return err
	}
	if second.Status != berth.Succeeded {
		return fmt.Errorf("job %s ended %s (%+v)", second.ID, second.Status, second.Reason)
	}
	if from := second.StartedFrom; from == nil || from.Job != first.ID || from.Step != saved {
		return fmt.Errorf("job %s started from %+v, want step %d of job %s", second.ID, from, saved, first.ID)
	}
	got, err := d.accuracy(ctx, second.ID)
	if err != nil {
		return err
	}
	if got != accuracy {
		return fmt.Errorf("accuracy is %s after the retry and %s in the first run, want the same", got, accuracy)
	}
	say("")
	say("retry resumed       from the verified checkpoint of step %d of the canceled job", saved)
	say("accuracy            %s, as in the first run", got)
	return nil
}

// newestStep returns the newest verified checkpoint of a job, 0 if it has none.
func newestStep(job wire.Job) int64 {
	newest := int64(0)
	for _, c := range job.Checkpoints {
		if c.State == berth.CheckpointVerified {
			newest = max(newest, c.Step)
		}
	}
	return newest
}

func (d *demo) awaitMachines(ctx context.Context, n int) error {
	for {
		page, err := d.api.Machines(ctx)
		if err != nil {
			return err
		}
		ready := 0
		for _, m := range page.Items {
			if m.State == berth.MachineReady {
				ready++
			}
		}
		if ready >= n {
			return nil
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return fmt.Errorf("%d of %d machines are ready: %w", ready, n, err)
		}
	}
}

// watch shows a job's progress until the job ends. It calls act with each
// version of the job before that.
func (d *demo) watch(ctx context.Context, id berth.JobID, act func(context.Context, wire.Job) error) (wire.Job, error) {
	for {
		job, err := d.api.Job(ctx, id)
		if err != nil {
			return job, fmt.Errorf("job %s: %w", id, err)
		}
		d.show(job)
		if job.Status.Terminal() {
			return job, nil
		}
		if err := act(ctx, job); err != nil {
			return job, err
		}
		if err := pause(ctx, 200*time.Millisecond); err != nil {
			return job, fmt.Errorf("job %s is %s: %w", id, job.Status, err)
		}
	}
}

// takeMachine kills the machine of the job once two checkpoints are verified
// and steps after them would be lost.
func (d *demo) takeMachine(ctx context.Context, job wire.Job) error {
	if d.killed != "" || !ripe(job) {
		return nil
	}
	d.killed = job.Attempts[0].Machines[0]
	say("taking machine %s away: agent, Docker engine and containers die together (SIGKILL)", d.killed)
	if out, err := exec.CommandContext(ctx, d.program, "kill-machine", string(d.killed), "--dir",
		d.stack).CombinedOutput(); err != nil {
		return fmt.Errorf("kill machine %s: %w: %s", d.killed, err, out)
	}
	say("machine %s is dead; the job counts it as lost after %s of silence", d.killed, job.Spec.LostAfter)
	return nil
}

// ripe reports whether there is something to lose and something to resume from.
func ripe(job wire.Job) bool {
	newest := newestStep(job)
	return job.Status == berth.Running && len(job.Attempts) == 1 && newest >= 10 && job.Progress != nil &&
		job.Progress.Step > newest+1
}

func (d *demo) show(job wire.Job) {
	line := string(job.Status)
	if n := len(job.Attempts); n > 0 && job.Status.HoldsCapacity() {
		line += fmt.Sprintf(" on %s, attempt %d", job.Attempts[n-1].Machines[0], n)
	}
	if job.Reason != nil {
		line += ": " + job.Reason.Message
	}
	if p := job.Progress; p != nil && p.Total > 0 && job.Status == berth.Running {
		const width = 24
		full := int(p.Step * width / p.Total)
		line += fmt.Sprintf("  [%s%s] %d/%d %s", strings.Repeat("=", full), strings.Repeat(" ", width-full), p.Step,
			p.Total, p.Message)
	}
	if line != d.shown {
		d.shown = line
		say("%s", line)
	}
}

// check asserts that the run survived the loss of its machine. It returns the accuracy.
func (d *demo) check(ctx context.Context, job wire.Job) (string, error) {
	if job.Status != berth.Succeeded {
		return "", fmt.Errorf("job %s ended %s (%+v)", job.ID, job.Status, job.Reason)
	}
	if len(job.Attempts) != 2 || d.killed == "" {
		return "", fmt.Errorf("job %s took %d attempts, want 2: one that was taken away, one that resumed", job.ID,
			len(job.Attempts))
	}
	first, second := job.Attempts[0], job.Attempts[1]
	switch {
	case first.LastStep == nil || second.ResumeFrom == nil || *second.ResumeFrom <= 0:
		return "", errors.New("the second attempt did not resume from a checkpoint")
	case second.Machines[0] == d.killed:
		return "", fmt.Errorf("the second attempt ran on the dead machine %s", d.killed)
	}
	// A checkpoint may be registered a moment before the machine reports its step.
	lost := max(0, *first.LastStep-*second.ResumeFrom)
	if lost >= *first.LastStep {
		return "", fmt.Errorf("steps lost %d of %d: the checkpoint saved nothing", lost, *first.LastStep)
	}
	accuracy, err := d.accuracy(ctx, job.ID)
	if err != nil {
		return "", err
	}
	say("")
	say("machine lost        %s, at step %d", d.killed, *first.LastStep)
	say("resumed on          %s, from the verified checkpoint of step %d", second.Machines[0], *second.ResumeFrom)
	say("steps lost          %d of %d", lost, *first.LastStep)
	say("accuracy            %s", accuracy)
	return accuracy, nil
}

// accuracy reads the final accuracy from a job's log.
func (d *demo) accuracy(ctx context.Context, id berth.JobID) (string, error) {
	accuracy := ""
	err := d.api.Logs(ctx, id, client.LogsQuery{}, func(l wire.LogLine) error {
		if v, ok := strings.CutPrefix(l.Text, "accuracy="); ok {
			accuracy = v
		}
		return nil
	})
	if err != nil {
		return "", fmt.Errorf("logs: %w", err)
	}
	var value float64
	if _, err := fmt.Sscanf(accuracy, "%f", &value); err != nil || value < 0.95 {
		return "", fmt.Errorf("accuracy %q is not at least 0.95", accuracy)
	}
	return accuracy, nil
}

func say(format string, args ...any) { fmt.Printf("demo: "+format+"\n", args...) }

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}
