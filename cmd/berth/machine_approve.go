package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// newMachineApprove builds "berth machine approve": GET, then POST /v1/machines/{id}/approve. The
// fingerprint in the POST prevents the approval of equipment that the command has not shown.
func newMachineApprove(a *app) *cobra.Command {
	var fingerprint string
	cmd := &cobra.Command{
		Use:   "approve MACHINE",
		Short: "Approve a pending machine, so that it gets work",
		Long: "Approve lets a pending machine get work, with the equipment that it reported last, and prints this\n" +
			"equipment. A machine of a pool with --approval waits until it is approved, and again when it reports\n" +
			"new GPUs, more CPUs or memory, or another label, region, site or pool.\n" +
			"With --fingerprint, as berth machine show prints it, a machine with other equipment is not approved,\n" +
			"and the exit code is 4.",
		Example: "  berth machine approve gpu-7\n" +
			"  berth machine approve gpu-7 --fingerprint 3f8a60b1c2d4",
	}
	cmd = onMachine(a, cmd, func(ctx context.Context, c *client.Client, id berth.MachineID) error {
		m, err := c.Machine(ctx, id)
		if err != nil {
			return err
		}
		expected := fingerprint
		switch {
		case expected != "":
		case m.Approval != nil:
			expected = m.Approval.Fingerprint
		default:
			expected = wire.NoFingerprint // nothing was shown, so nothing may be approved
		}
		m, err = c.Approve(ctx, id, expected)
		if err != nil {
			return err
		}
		said := fmt.Sprintf("%s is %s", id, m.State)
		if m.Approval != nil {
			said = fmt.Sprintf("approved %s with %s; it is %s", id, equipmentText(m.Approval.Equipment), m.State)
		}
		return showChanged(a, m, nil, said)
	})
	cmd.Flags().StringVar(&fingerprint, "fingerprint", "", "fingerprint that the equipment must have")
	return cmd
}

// equipmentText formats equipment in one line: "16 CPUs, 64GiB, 2 x A100, rack=r7".
func equipmentText(e wire.Equipment) string {
	parts := []string{fmt.Sprintf("%s CPUs", spec.MilliCPU(e.CPUMilli)), spec.MiB(e.MemoryMiB).String()}
	var models []string
	count := map[string]int{}
	for _, g := range e.GPUs {
		// The models keep the order of the devices, so that equal equipment has equal text.
		if count[g.Model]++; count[g.Model] == 1 {
			models = append(models, g.Model)
		}
	}
	for _, model := range models {
		parts = append(parts, fmt.Sprintf("%d x %s", count[model], model))
	}
	for _, t := range []string{e.Region, e.Site, pairs(e.Labels)} {
		if t != "" {
			parts = append(parts, t)
		}
	}
	return oneLine(strings.Join(parts, ", "))
}

// approvalText formats the approval of a machine: the equipment that waits for it, with the
// fingerprint, or the author and the time of the last one.
func approvalText(m wire.Machine, now time.Time) string {
	if m.Approval.Held != "" {
		return fmt.Sprintf("waits with %s (fingerprint %s): berth machine approve %s",
			equipmentText(m.Approval.Equipment), m.Approval.Fingerprint, m.ID)
	}
	return fmt.Sprintf("by %s, %s", oneLine(m.Approval.By), stamp(m.Approval.At, now))
}
