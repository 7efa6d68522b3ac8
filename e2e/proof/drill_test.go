package proof_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/internal/control/backup"
	"berth/spec"
)

// TestDrill loses a control plane with its database, its object store and its Temporal, and restores a backup
// elsewhere: on another PostgreSQL with an empty Temporal. The machines live on. It is make drill, and prints how
// long the cluster was away (RTO) and how much time it lost (RPO).
func TestDrill(t *testing.T) {
	t.Parallel()
	s := newStack(t)
	s.image, s.flags = "test", []string{"--only", "postgres,temporal"}
	s.startDev()
	c := &controlPlane{s: s, listen: freeAddress(t), token: "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret()}
	c.start()
	fake := []string{"--runtime", "fake", "--cpus", "2", "--no-gpus"}
	s.agent("m1", c.listen, fake...)
	s.machines = 1
	s.awaitMachines()
	kept := s.submit(s.whole("kept"))
	s.becomes(kept, berth.Running)
	once := s.whole("once")
	once.Execution = spec.AtMostOne // no machine has a fence, so it waits
	held := s.submit(once)
	s.becomes(held, berth.Queued)

	dir := filepath.Join(s.dir, "backup")
	c.berthd("backup", "create", dir)
	m, err := backup.ReadManifest(dir)
	if err != nil || m.Objects.Kind != backup.ObjectsCopied {
		t.Fatalf("the manifest is %+v, %v", m, err)
	}
	lost := s.submit(s.whole("lost"))
	s.becomes(lost, berth.Running)
	unseen := s.submit(s.whole("unseen")) // lost, and on no machine
	s.becomes(unseen, berth.Queued)

	c.kill()
	failed := time.Now()
	if err := s.dev.end(syscall.SIGINT); err != nil {
		t.Errorf("berth-dev ended with %v", err)
	}
	if err := os.RemoveAll(filepath.Join(s.dir, "blobs")); err != nil {
		t.Fatal(err)
	}

	e := newStack(t)
	e.image, e.flags = s.image, s.flags
	e.startDev()
	d := &controlPlane{s: e, listen: c.listen, token: c.token}
	d.berthd("backup", "restore", dir)
	d.start()
	until(t, "the machine has registered", func(ctx context.Context) error {
		m, err := e.api.Machine(ctx, "m1")
		if err == nil && m.State != berth.MachineJoining { // it runs a container that no row knows
			err = fmt.Errorf("it is %s", m.State)
		}
		return err
	})
	next := e.submit(e.whole("next"))
	d.wantQuarantine(next)

	out := d.berthd("backup", "adopt")
	if !strings.Contains(out, "1 containers were started after the backup") || !strings.Contains(out, string(lost)) ||
		strings.Contains(out, string(kept)) || !strings.Contains(out, "1 at_most_one jobs are held") || !strings.Contains(out, string(held)) {
		t.Errorf("the adoption says:\n%s", out)
	}
	e.agent("m2", d.listen, fake...)
	e.becomes(next, berth.Running)
	t.Logf("RTO %s, until a new job runs; RPO %s, since the begin of the backup", time.Since(failed).Round(time.Second),
		failed.Sub(m.StartedAt).Round(time.Second))
	if j, err := e.api.Job(t.Context(), kept); err != nil || j.Status != berth.Running || j.Attempt != 1 {
		t.Errorf("the job that runs since before the backup is %s, attempt %d: %v", j.Status, j.Attempt, err)
	}
	if j, err := e.api.Job(t.Context(), held); err != nil || !j.Held {
		t.Errorf("the at_most_one job is %s, held %v: %v", j.Status, j.Held, err)
	}
	for _, id := range []berth.JobID{lost, unseen} {
		if _, err := e.api.Job(t.Context(), id); berth.CodeOf(err) != berth.CodeNotFound {
			t.Errorf("job %s of the time after the backup: %v", id, err)
		}
	}
	until(t, "the forgotten container keeps its machine out of service", func(ctx context.Context) error {
		m, err := e.api.Machine(ctx, "m1")
		if err == nil && (m.State != berth.MachineJoining || !strings.Contains(m.Reason, "runs 1 containers that the database does not know")) {
			err = fmt.Errorf("it is %s: %s", m.State, m.Reason)
		}
		return err
	})
}

// whole is an endless job that takes half of a machine.
func (s *stack) whole(name string) spec.Job {
	j, cpus := s.endless(name, 0, nil), spec.MilliCPU(1000)
	j.LostAfter, j.Resources.CPUs = 0, &cpus
	return j
}

// berthd runs a command of berthd with the settings of the control plane and returns its output.
func (c *controlPlane) berthd(args ...string) string {
	c.s.t.Helper()
	cmd := exec.Command(program(c.s.t, "berthd"), args...)
	cmd.Env = append(os.Environ(), "BERTH_DATABASE_URL="+c.s.at.DatabaseURL, "BERTH_BLOB_URL=file://"+filepath.Join(c.s.dir, "blobs"),
		"BERTH_SETTINGS_FILE=")
	out, err := cmd.CombinedOutput()
	if err != nil {
		c.s.t.Fatalf("berthd %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// wantQuarantine checks that a waiting job, admission and readiness say that the cluster waits, and that there is
// no leader.
func (c *controlPlane) wantQuarantine(waits berth.JobID) {
	c.s.t.Helper()
	t := c.s.t
	until(t, "the job says that the cluster waits", func(ctx context.Context) error {
		j, err := c.s.api.Job(ctx, waits)
		if err == nil && (j.Reason == nil || j.Reason.Code != berth.ReasonAdmissionPaused || !strings.Contains(j.Reason.Hint, "berthd backup adopt")) {
			err = fmt.Errorf("it is %s: %+v", j.Status, j.Reason)
		}
		return err
	})
	if a, err := c.s.api.Admission(t.Context()); err != nil || !a.Quarantined || !a.Paused {
		t.Errorf("admission is %+v, %v", a, err)
	}
	res, err := http.Get(c.s.url + "/readyz")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if body, err := io.ReadAll(res.Body); err != nil || res.StatusCode != http.StatusOK ||
		!strings.Contains(string(body), "waits for berthd backup adopt") {
		t.Errorf("readiness is %s %q, %v", res.Status, body, err)
	}
	n, err := pgx.CollectExactlyOneRow(c.s.query(`SELECT count(*) FROM leases WHERE name = 'leader' AND expires_at > now()`), pgx.RowTo[int])
	if err != nil || n != 0 {
		t.Errorf("there are %d leaders, %v", n, err)
	}
}
