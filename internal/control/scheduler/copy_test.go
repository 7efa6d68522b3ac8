package scheduler_test

import (
	"context"
	"testing"
	"time"

	"berth"
	"berth/db"
	"berth/internal/control/autoscale"
	"berth/internal/control/scheduler"
	"berth/spec"
)

// asker is a scaler that passes on copies of the mirror.
type asker chan autoscale.Mirror

func (a asker) Run(ctx context.Context, _ db.Term, mirror autoscale.CopyMirror) error {
	for {
		m, err := mirror(ctx, nil)
		if err != nil {
			return err
		}
		select {
		case a <- m:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func TestTheScalerGetsACopyOfTheMirror(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.machine("m", 4, 1)
	runs := r.queued(nil)
	waits := r.queued(func(j *spec.Job) {
		cpus := spec.MilliCPU(64_000)
		j.Resources.CPUs = &cpus
	})
	held := r.queued(func(j *spec.Job) {
		cpus := spec.MilliCPU(32_000)
		j.Resources.CPUs = &cpus
	})
	r.exec(`UPDATE jobs SET held = true WHERE id = $1`, held)
	copies := make(asker)
	r.lead(func(o *scheduler.Options) { o.Scaler = copies })
	r.awaitState(runs, berth.Scheduled)
	limit := time.After(waitLimit)
	for {
		select {
		case m := <-copies:
			if len(m.Running) != 1 || len(m.Waiting) != 1 || len(m.Machines) != 1 {
				continue // a moment before the commit
			}
			if m.Running[0].Job != runs || m.Waiting[0].ID != waits || m.Machines[0].ID != "m" || m.Machines[0].Used.CPUMilli == 0 {
				t.Errorf("mirror %+v; job %s is held", m, held)
			}
			if _, ok := m.Classes[m.Waiting[0].Class]; !ok || m.At.IsZero() || len(m.Tenants) == 0 {
				t.Errorf("mirror %+v has no class of a waiting job, or no tenants", m)
			}
			return
		case <-limit:
			t.Fatalf("no copy of the mirror has the jobs\n%s", r.log)
		}
	}
}

// Machines are launched for the hardware in force alone, and the copy has no classes of other hardware.
func TestTheScalerSeesTheHardwareInForce(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.modelled("h0", "H100", 1)
	id := r.queued(picky(2, "H100", "A100"))
	copies := make(asker)
	r.lead(func(o *scheduler.Options) { o.Scaler = copies })
	limit := time.After(waitLimit)
	for {
		select {
		case m := <-copies:
			if len(m.Waiting) != 1 {
				continue
			}
			if j := m.Waiting[0]; j.ID != id || j.Alternatives != nil || m.Classes[j.Class].GPUTypes[0] != "H100" || len(m.Classes) != 1 {
				t.Errorf("the copy has %+v and %+v", j, m.Classes)
			}
			return
		case <-limit:
			t.Fatalf("no copy of the mirror has the job\n%s", r.log)
		}
	}
}
