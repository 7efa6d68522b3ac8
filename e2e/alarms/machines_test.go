package alarms_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"berth"
	"berth/e2e/rig"
	"berth/spec"
	"berth/wire"
)

// The GPUs of m005, in the file that its agent reads. gpusOfM5 leaves the jobs of other alarms their model.
const (
	gpusOfM5   = "- {model: H100, memory: 80GiB, count: 1}\n- {model: L4, memory: 24GiB, count: 1}\n"
	brokenOfM5 = "- {model: H100, memory: 80GiB, count: 1}\n" +
		"- {model: L4, memory: 24GiB, count: 1, unhealthy: [0], reason: XID 79}\n"
)

// setGPUs replaces the GPUs of m005.
func (p *plant) setGPUs(text string) error {
	path := filepath.Join(workshop.Dir, "gpus.yaml")
	return errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path))
}

// gpus breaks a GPU.
func (p *plant) gpus() lane {
	return lane{{
		alert: "BerthGPUsUnhealthy", fault: "the inventory of an agent reports a broken GPU",
		labels: map[string]string{"model": "L4"},
		begin:  func(context.Context) error { return p.setGPUs(brokenOfM5) },
		looks: []look{
			p.command("berth top --gpus", "", `m005.*L4`),
			p.command("berth machine show m1", "m005", `L4.*XID 79`),
			p.command("berth machine events m1", "m005", `XID 79`),
		},
		end:    func(context.Context) error { return p.setGPUs(gpusOfM5) },
		verify: `max(berth_gpus{kind="unhealthy",model="L4"}) == 0`,
	}}
}

// engines suspends a container engine.
func (p *plant) engines() lane {
	return lane{{
		alert: "BerthEngineSilent", fault: "the Docker engine of a machine is suspended",
		begin:  func(context.Context) error { p.engine.Freeze(); return nil },
		looks:  []look{p.command("berth machine show m1", "m006", `engine`)},
		end:    func(context.Context) error { p.engine.Thaw(); return nil },
		verify: "max(berth_machines_engine_silent) == 0",
	}}
}

// counters changes the counter of a machine's reserved capacity, as a person could by hand.
func (p *plant) counters() lane {
	add := func(ctx context.Context, cpuMilli int) error {
		_, err := p.DB.Exec(ctx, `UPDATE machines SET cpu_m_used = cpu_m_used + $1 WHERE id = 'm002'`, cpuMilli)
		return err
	}
	return lane{{
		alert: "BerthMachineMarked", fault: "the counter of a machine's reserved cores is changed by hand",
		begin: func(ctx context.Context) error { return add(ctx, 1000) },
		looks: []look{p.logged(logOf(&p.leader), "machine excluded from placement")},
		end:   func(ctx context.Context) error { return add(ctx, -1000) },

		verify: "max(berth_scheduler_marked_machines) == 0",
	}}
}

// maintenance stops the agent of a machine in a maintenance window, beyond the end of the window.
func (p *plant) maintenance() lane {
	const machine berth.MachineID = "m003"
	agent := func(s syscall.Signal) { p.Agents()[2].Signal(s) }
	return lane{{
		alert: "BerthMaintenanceLate", fault: "an agent stays stopped after the maintenance window of its machine",
		begin: func(ctx context.Context) error {
			var grace spec.Duration
			_, err := p.API.CreateMaintenance(ctx, spec.NewMaintenance{
				Machines: []berth.MachineID{machine}, From: time.Now().Add(time.Second),
				For: spec.Duration(time.Minute), Reason: "new power supply", Grace: &grace, Lead: &grace,
			})
			if err != nil {
				return err
			}
			err = rig.Await(ctx, 50*time.Second, func(ctx context.Context) error {
				m, err := p.API.Machine(ctx, machine)
				if err == nil && m.State != wire.MachineDrained {
					err = fmt.Errorf("machine %s is %s", machine, m.State)
				}
				return err
			})
			if err == nil {
				agent(syscall.SIGSTOP)
			}
			return err
		},
		looks: []look{
			p.command("berth maintenance list", "", string(machine)),
			p.command("berth maintenance show 1", "", `m003 .*the machine has no contact`),
			p.command("berth machines", "", `m003 .*silent for`),
		},
		end:    func(context.Context) error { agent(syscall.SIGCONT); return nil },
		verify: "max(berth_scheduler_maintenance_waiting_machines) == 0",
	}}
}

// credentialAge is the time by which the credential of a machine is made older: it lasts a day, and less than a quarter
// of that is left then.
const credentialAge = 19 * time.Hour

// renewals takes an agent's key away, and makes its credential older.
func (p *plant) renewals() lane {
	const agent = 0 // of m001
	in := func(name string) string { return filepath.Join(p.StateDir("m001"), name) }
	var credential []byte
	return lane{{
		alert: "BerthRenewalsOverdue", fault: "an agent lacks its key, and its credential is made 19 hours older",
		begin: func(ctx context.Context) error {
			err := p.RestartAgent(agent, func() (err error) {
				if credential, err = os.ReadFile(in("credential.json")); err != nil {
					return err
				}
				return os.Rename(in("key.pem"), in("key.lost"))
			})
			if err != nil {
				return err
			}
			_, err = p.DB.Exec(ctx, `
				UPDATE tokens SET expires_at = expires_at - $1::interval WHERE machine_id = 'm001'`, credentialAge)
			return err
		},
		looks: []look{
			p.statement("BerthRenewalsOverdue", `m001`),
			p.logged(func() string { return "agent-m001.log" }, "machine credential not renewed"),
		},
		// From a copy of the folder, by a clock that is as far ahead as the credential is older.
		end: func(context.Context) error {
			return p.RestartAgent(agent, func() error {
				old, err := older(credential)
				return errors.Join(err, os.Rename(in("key.lost"), in("key.pem")),
					os.WriteFile(in("credential.json"), old, 0o600))
			})
		},
		verify: "max(berth_machine_renewals_overdue) == 0",
	}}
}

// older returns the content of credential.json with an earlier time of the next renewal.
func older(credential []byte) ([]byte, error) {
	var fields map[string]any
	if err := json.Unmarshal(credential, &fields); err != nil {
		return nil, err
	}
	text, _ := fields["renew_at"].(string)
	at, err := time.Parse(time.RFC3339, text)
	if err != nil {
		return nil, err
	}
	fields["renew_at"] = at.Add(-credentialAge)
	return json.Marshal(fields)
}
