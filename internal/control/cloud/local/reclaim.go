package local

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"berth"
	"berth/internal/control/cloud"
)

// Reclaim ends the instance of a machine as a cloud ends a spot instance: it writes the notice, waits for lead,
// and then kills all processes and containers of the instance at once. killed is false if the instance had
// ended before. With a lead of 0 it writes no notice.
func (p Provider) Reclaim(ctx context.Context, name berth.MachineID, lead time.Duration) (killed bool, err error) {
	m, err := p.living(ctx, name)
	if err != nil {
		return false, err
	}
	if lead > 0 {
		deadline := time.Now().Add(lead)
		if err := m.writeNotice(deadline); err != nil {
			return false, fmt.Errorf("write the notice of machine %s: %w", name, err)
		}
		select {
		case <-ctx.Done():
			return false, context.Cause(ctx)
		case <-time.After(time.Until(deadline)):
		}
	}
	// The lock is not held during the wait, so that other calls go on. The instance may have ended
	// by then.
	doing := "reclaim machine " + string(name)
	unlock, err := p.lock(ctx, doing)
	if err != nil {
		return false, err
	}
	defer unlock()
	r, err := m.load()
	if err != nil {
		return false, unknown(doing, err)
	}
	i, _, err := m.state(ctx, &r)
	if err != nil {
		return false, unknown(doing, err)
	}
	if i.State == cloud.Terminated {
		return false, nil
	}
	if err := m.kill(ctx); err != nil {
		return false, unknown(doing, err)
	}
	if _, _, err := m.state(ctx, &r); err != nil { // ends the engine
		return false, unknown(doing, err)
	}
	return true, nil
}

// Machines returns the names of the machines that exist. Machines that are ending are included, since
// their engine may still exist.
func (p Provider) Machines(ctx context.Context) ([]berth.MachineID, error) {
	unlock, err := p.lock(ctx, "list machines")
	if err != nil {
		return nil, err
	}
	defer unlock()
	all, err := p.all(ctx)
	if err != nil {
		return nil, unknown("list machines", err)
	}
	var names []berth.MachineID
	for _, i := range all {
		if i.State != cloud.Terminated {
			names = append(names, i.Machine)
		}
	}
	return names, nil
}

// living returns the instance of a machine that exists. A machine has at most one, since a launch needs
// the end of the one before.
func (p Provider) living(ctx context.Context, name berth.MachineID) (machine, error) {
	doing := "find machine " + string(name)
	unlock, err := p.lock(ctx, doing)
	if err != nil {
		return machine{}, err
	}
	defer unlock()
	all, err := p.all(ctx)
	if err != nil {
		return machine{}, unknown(doing, err)
	}
	for _, i := range all {
		if i.Machine == name && i.State != cloud.Terminated {
			return p.machine(i.Token)
		}
	}
	return machine{}, refuse(cloud.NotFound, doing, fmt.Errorf("no instance of this machine exists in %s", p.o.Dir))
}

// writeNotice writes the notice, whole or not at all. The agent reads the file at any time, so it must
// never see a part. The form is that of EC2's metadata service.
func (m machine) writeNotice(at time.Time) error {
	text, err := json.Marshal(map[string]string{"action": "terminate", "time": at.UTC().Format(time.RFC3339)})
	if err != nil {
		return err
	}
	if err := os.WriteFile(m.path(NoticeFile+".new"), text, 0o600); err != nil {
		return err
	}
	return os.Rename(m.path(NoticeFile+".new"), m.path(NoticeFile))
}
