package alarms_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"berth"
	"berth/e2e/rig"
	"berth/spec"
)

// backup ages a cluster without a backup by three days, and then creates a backup.
func (p *plant) backup() lane {
	return lane{{
		alert: "BerthBackupOld", fault: "no backup; the row of the cluster is made three days old",
		begin: func(ctx context.Context) error {
			_, err := p.DB.Exec(ctx, `UPDATE cluster SET created_at = created_at - interval '3 days'`)
			return err
		},
		end: func(ctx context.Context) error {
			cmd := exec.CommandContext(ctx, p.Programs.Path("berthd"), "backup", "create",
				filepath.Join(workshop.Dir, "backup"), "--settings-file=", "--database-url", p.DatabaseURL(),
				"--blob-url=file://"+p.objects, "--secret-key-file", p.key)
			if out, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("berthd backup create: %w: %s", err, out)
			}
			return nil
		},
		verify: "max(berth_backup_age_seconds) < 172800",
	}}
}

// certificates replaces the certificate of a replica by one that ends soon, and renews it.
func (p *plant) certificates() lane {
	try := func(alert, fault string, days int) alarm {
		return alarm{
			alert: alert, fault: fault, labels: map[string]string{"instance": p.tls},
			begin:  func(context.Context) error { return p.certificate.issue(time.Duration(days) * 24 * time.Hour) },
			end:    func(context.Context) error { return p.certificate.issue(valid) },
			verify: "min(berth_tls_certificate_end_seconds) - time() > 1209600",
		}
	}
	return lane{
		try("BerthCertificateEnds", "a certificate with one day left", 1),
		try("BerthCertificateEndsSoon", "a certificate with seven days left", 7),
	}
}

// disks fills the disk of a machine, and the disk of the object store.
func (p *plant) disks() lane {
	try := func(alert, fault, verify, dir string, labels map[string]string) alarm {
		return alarm{
			alert: alert, fault: fault, verify: verify, labels: labels,
			begin: func(context.Context) error { return fill(dir, 0.02) },
			end:   func(context.Context) error { return os.Remove(filepath.Join(dir, "filler")) },
		}
	}
	return lane{
		try("BerthMachineDiskFull", "the file system of an agent is filled to 2 %",
			`berth_machine_disk_free_ratio{machine="m004"} > 0.1`, p.diskOfM4, map[string]string{"machine": "m004"}),
		try("BerthObjectStoreFull", "the file system of the object store is filled to 2 %",
			"min(berth_object_store_free_ratio) > 0.1", filepath.Dir(p.objects), nil),
	}
}

// budget lets a tenant use up its GPU hours, and raises the budget.
func (p *plant) budget() lane {
	const tenant berth.TenantID = "training"
	quota := func(ctx context.Context, hours float64) error {
		b := &spec.GPUBudget{GPUHours: hours, Period: spec.Duration(720 * time.Hour)}
		_, err := p.API.SetQuota(ctx, spec.Quota{Tenant: tenant, Budget: b})
		return err
	}
	onGPU := func(name string, command ...string) spec.Job {
		j := job(name, command...)
		j.Resources.GPUs, j.Resources.GPUType = 1000, spec.StringList{"H100"}
		return j
	}
	return lane{{
		alert: "BerthBudgetSpent", fault: "a job uses up the GPU hours of its tenant, and a second one waits",
		begin: func(ctx context.Context) error {
			c, err := p.as(ctx, tenant)
			if err != nil {
				return err
			}
			if err := quota(ctx, 0.001); err != nil { // 3.6 s
				return err
			}
			first, _, err := c.Submit(ctx, onGPU("spends", "sleep", "8s"), "")
			if err == nil {
				err = reaches(ctx, c, first.ID, berth.Succeeded)
			}
			if err == nil {
				_, _, err = c.Submit(ctx, onGPU("waits", "exit", "0"), "")
			}
			return err
		},
		end:    func(ctx context.Context) error { return quota(ctx, 100) },
		verify: `max(berth_waiting_jobs{reason="quota_budget"}) == 0`,
	}, {
		alert: "BerthAdmissionPaused", fault: "an admin pauses new starts",
		begin: func(ctx context.Context) error { return p.pause(ctx, true) },
		end:   func(ctx context.Context) error { return p.pause(ctx, false) },
		// Nothing of this wave starts work so late.
		verify: "max(berth_admission_paused) == 0",
	}}
}

// pause pauses or resumes new starts.
func (p *plant) pause(ctx context.Context, paused bool) error {
	_, err := p.API.SetAdmission(ctx, spec.NewAdmission{Paused: &paused, Reason: "test of alerts"})
	return err
}

// wrongTokens calls with a wrong token, twenty times a second, until the end.
func (p *plant) wrongTokens() lane {
	var calls sync.WaitGroup
	var stop context.CancelFunc
	return lane{{
		alert: "BerthWrongTokens", fault: "a client calls twenty times a second with a wrong token",
		labels: map[string]string{"caller": "user"},
		begin: func(ctx context.Context) error {
			ctx, stop = context.WithCancel(ctx)
			c := rig.NewCaller("http://"+p.workers.Address(), "berth_000000000000_"+berth.NewSecret(), "127.0.0.9")
			calls.Go(func() {
				defer c.Close()
				_ = rig.AwaitEvery(ctx, time.Second/20, time.Hour, func(ctx context.Context) error {
					c.Call(ctx, "GET", "/v1/jobs", nil, nil)
					return errors.New("once more")
				})
			})
			return nil
		},
		end: func(context.Context) error {
			stop()
			calls.Wait()
			return nil
		},
		verify: `sum(rate(berth_http_wrong_tokens_total{status="429"}[25s])) == 0`,
	}}
}
