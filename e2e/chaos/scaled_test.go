package chaos_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/api/client"
	"berth/internal/control/cloud"
	"berth/spec"
)

// cellOffers are the machines that the cloud of the cells sells.
const cellOffers = "provider,region,zone,type,market,cpus,memory_mib,gpus,gpu_type,price_per_hour,source,as_of\n" +
	"chaos,here,,small,on_demand,2,2048,0,,0.7654321,example value,2026-11-26\n"

// sells writes the file of offers of the cells.
func (s *stack) sells() error {
	return os.WriteFile(filepath.Join(s.dir, "offers.csv"), []byte(cellOffers), 0o600)
}

// ofScaler reports whether only jobs that wait for machines of a cloud hit the failpoint.
func (c cell) ofScaler() bool { return c.under("leader.launch.") }

// order is a job of a tenant of its own that fits no machine of the stack, and for which the leader launches a machine.
type order struct {
	*stack
	tenant berth.TenantID
	job    berth.JobID
	api    *client.Client
	after  berth.MachineID // launched for the job
}

// scaled is a job for which the leader launches a machine. However the leader dies, the job gets one machine, and the
// next leader knows the machine. No agent starts on the machine.
func (s *stack) scaled() *work {
	o := &order{stack: s, tenant: berth.TenantID(fmt.Sprintf("cell-%d", jobNumber.Add(1)))}
	w := &work{attempt: 1, submit: o.submitted, drive: func() error { return nil }}
	w.ended = func() error { return inTurn(o.wantOneMachine, o.canceled, o.ends) }
	w.undo = func() error { return inTurn(o.canceled, o.ends) }
	return w
}

// submitted creates the tenant with its policy, and submits the job. All but the last call may be repeated.
func (o *order) submitted() error {
	ctx := context.Background()
	var secret string
	err := await("tenant "+string(o.tenant)+" has a policy", func() error {
		_, err := o.stack.api.CreateTenant(ctx, spec.NewTenant{ID: o.tenant})
		if err != nil && berth.CodeOf(err) != berth.CodeConflict { // the answer of an earlier call is lost
			return lasting(err)
		}
		if _, err = o.stack.api.SetBurst(ctx, o.tenant, spec.Burst{Allow: []string{"chaos/here"},
			When: &spec.BurstWhen{PlannedWaitOver: spec.Duration(time.Second)}}); err != nil {
			return lasting(err)
		}
		token, err := o.stack.api.CreateToken(ctx, spec.NewToken{Name: "cell-" + berth.NewSecret()[:8], Tenant: o.tenant})
		secret = token.Secret
		return lasting(err)
	})
	if err != nil {
		return err
	}
	o.api = client.New("http://"+o.front.Address(), secret)
	o.t.Cleanup(o.api.Close)
	cpus, memory := spec.MilliCPU(2000), spec.MiB(64)
	j := spec.Job{Name: string(o.tenant), Image: "testprog", Command: []string{"trap-term", "0"},
		Resources: spec.Resources{CPUs: &cpus, Memory: &memory}, Placement: spec.Placement{Regions: []string{"here"}}}
	return await("the submit is answered", func() error {
		job, _, err := o.api.Submit(ctx, j, j.Name)
		o.job = job.ID
		return lasting(err)
	})
}

// wantOneMachine waits until a machine boots for the job and a leader has noted it, and wants no other one.
func (o *order) wantOneMachine() error {
	return await("a machine boots for job "+string(o.job), func() error {
		var noted []berth.MachineID
		err := o.database.QueryRow(context.Background(), `
			SELECT coalesce((SELECT machines FROM burst_notes WHERE job = $1), '{}')`, o.job).Scan(&noted)
		if err != nil {
			return err
		}
		launched, err := o.launched()
		switch {
		case err != nil:
			return err
		case len(launched) > 1:
			return fatal{fmt.Errorf("%d machines were launched for one job: %v", len(launched), launched)}
		case len(launched) == 0:
			return errors.New("none is launched")
		case !slices.Contains(noted, launched[0]):
			return fmt.Errorf("machine %s is launched, and the note of the job names %v", launched[0], noted)
		}
		o.after = launched[0]
		return o.wantBooting()
	})
}

// launched returns the machines that were ever launched for the tenant.
func (o *order) launched() ([]berth.MachineID, error) {
	rows, err := o.database.Query(context.Background(), `SELECT machine FROM launches WHERE tenant = $1`, o.tenant)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowTo[berth.MachineID])
}

// wantBooting returns nil if the machine's instance exists.
func (o *order) wantBooting() error {
	var state cloud.LaunchState
	err := o.database.QueryRow(context.Background(), `SELECT state FROM launches WHERE machine = $1`, o.after).Scan(&state)
	if err == nil && state != cloud.LaunchRunning {
		err = fmt.Errorf("the launch of machine %s is %s", o.after, state)
	}
	return err
}

// canceled cancels the job, for which no machine is launched then.
func (o *order) canceled() error {
	if o.job == "" {
		return nil
	}
	return o.cancel(o.job)
}

// ends ends the machines of the tenant. A cell that was slow may have one of which it does not know.
func (o *order) ends() error {
	machines, err := o.launched()
	if err != nil {
		return err
	}
	for _, m := range machines {
		if err := inTurn(o.terminate(m), o.wantEnding(m)); err != nil {
			return err
		}
	}
	return nil
}
