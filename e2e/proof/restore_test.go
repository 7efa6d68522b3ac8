package proof_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/db/dbtest"
	"berth/e2e/commands"
	"berth/spec"
)

// A backup is put back under programs as they are shipped: the agents live on, the
// control plane is stopped for it.
func TestF15ABackupIsPutBackUnderRunningAgents(t *testing.T) {
	t.Parallel()
	t.Run("pg_restore, store there", func(t *testing.T) {
		t.Parallel()
		file := filepath.Join(t.TempDir(), "dump")
		putBack(t, false,
			func(c *controlPlane) { dbtest.Dump(t, c.s.at.DatabaseURL, file) },
			func(c *controlPlane) { dbtest.Restore(t, c.s.at.DatabaseURL, file) })
	})
	t.Run("file copy, store emptied", func(t *testing.T) {
		t.Parallel()
		putBack(t, true,
			func(c *controlPlane) { c.withoutPostgres("cp -a data copy") },
			func(c *controlPlane) { c.withoutPostgres("rm -rf data && cp -a copy data") })
	})
}

// withoutPostgres runs a command in the folder of the stopped server.
func (c *controlPlane) withoutPostgres(command string) {
	c.s.t.Helper()
	if err := c.s.dev.end(syscall.SIGINT); err != nil {
		c.s.t.Fatalf("berth-dev ended with %v", err)
	}
	cmd := exec.Command("sh", "-c", command)
	cmd.Dir = filepath.Join(c.s.dir, "postgres")
	if out, err := cmd.CombinedOutput(); err != nil {
		c.s.t.Fatalf("%s: %v: %s", command, err, out)
	}
	c.s.startDev()
}

func putBack(t *testing.T, emptied bool, backUp, restore func(*controlPlane)) {
	s := newStack(t)
	temporal, err := commands.Address()
	if err != nil {
		t.Fatal(err)
	}
	_, port, _ := strings.Cut(temporal, ":")
	s.image, s.flags = "test", []string{"--only", "postgres,temporal", "--temporal-port", port}
	s.startDev()
	c := &controlPlane{s: s, listen: freeAddress(t), token: "berth_" + berth.NewSecret()[:12] + "_" + berth.NewSecret()}
	c.start()
	fake := []string{"--runtime", "fake", "--cpus", "2", "--no-gpus"}
	s.agent("m1", c.listen, fake...)
	s.machines = 1
	s.awaitMachines()

	two := spec.MilliCPU(1000)
	half := func(name string) spec.Job {
		j := s.endless(name, 0, nil)
		j.LostAfter, j.Resources.CPUs = 0, &two
		return j
	}
	kept := s.submit(half("kept"))
	s.becomes(kept, berth.Running)
	once := half("once")
	once.Execution = spec.AtMostOne
	held := s.submit(once)
	s.becomes(held, berth.Queued)

	if err := c.now.end(syscall.SIGTERM); err != nil {
		t.Fatalf("berthd ended with %v", err)
	}
	backUp(c)
	c.start()
	lost := s.submit(half("lost"))
	s.becomes(lost, berth.Running)
	number := s.watermark()
	until(t, "the machine hears of another watermark", func(context.Context) error {
		b, err := os.ReadFile(filepath.Join(s.agentDir("m1"), "watermark.json"))
		if err == nil && !strings.Contains(string(b), fmt.Sprintf(`"number":%d,`, s.watermark())) {
			err = fmt.Errorf("it has heard %s", b)
		}
		if err == nil && s.watermark() == number {
			err = errors.New("it is still the same")
		}
		return err
	})

	if err := c.now.end(syscall.SIGTERM); err != nil {
		t.Fatalf("berthd ended with %v", err)
	}
	restore(c)
	if emptied {
		if err := os.RemoveAll(filepath.Join(s.dir, "blobs")); err != nil {
			t.Fatal(err)
		}
		c.berthd("store", "adopt") // berthd refuses to start with another store than the cluster's
	}
	c.start()

	until(t, "the machine keeps what the database forgot", func(ctx context.Context) error {
		m, err := s.api.Machine(ctx, "m1")
		if err == nil && (m.State != berth.MachineJoining || !strings.Contains(m.Reason, "runs 1 containers that the database does not know")) {
			err = fmt.Errorf("it is %s: %s", m.State, m.Reason)
		}
		return err
	})
	until(t, "live at_most_one work is held", func(ctx context.Context) error { // the leader holds it, perhaps after the machine has registered
		j, err := s.api.Job(ctx, held)
		if err == nil && !j.Held {
			err = fmt.Errorf("it is %s, not held", j.Status)
		}
		return err
	})
	if j, err := s.api.Job(t.Context(), kept); err != nil || j.Status != berth.Running || j.Attempt != 1 || j.Held {
		t.Errorf("the job that runs since before the backup is %s, attempt %d: %v", j.Status, j.Attempt, err)
	}
	if _, err := s.api.Job(t.Context(), lost); berth.CodeOf(err) != berth.CodeNotFound {
		t.Errorf("the job that was lost: %v", err)
	}
	s.agent("m2", c.listen, fake...)
	next := s.submit(half("next"))
	s.becomes(next, berth.Running)
	alloc, err := pgx.CollectExactlyOneRow(s.query(`SELECT id FROM allocations WHERE job = $1 AND machine_id = 'm2'`, next), pgx.RowTo[int64])
	if err != nil || alloc < 10_000_000 {
		t.Errorf("allocation %d on m2 after the restore: %v", alloc, err)
	}
	if m := s.machine("m1"); m.State != berth.MachineJoining {
		t.Errorf("the machine with the forgotten container is %s: %s", m.State, m.Reason)
	}
}

// watermark is the newest one that the database has granted.
func (s *stack) watermark() int64 {
	s.t.Helper()
	conn, err := pgx.Connect(s.t.Context(), s.at.DatabaseURL)
	if err != nil {
		s.t.Fatal(err)
	}
	defer conn.Close(context.Background())
	var n int64
	if err := conn.QueryRow(s.t.Context(), `SELECT max(granted) FROM watermark_branches`).Scan(&n); err != nil {
		s.t.Fatal(err)
	}
	return n
}
