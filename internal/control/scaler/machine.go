package scaler

import (
	"slices"

	"berth"
	"berth/internal/control/cloud"
	"berth/placement"
	"berth/spec"
)

// Machine returns the row that a machine of the offer will have when it has joined, without a pool: like the one that
// is known, or by the nominal values less nominalLoss.
func (o Offer) Machine(id berth.MachineID) placement.Machine {
	if o.Known == nil {
		m := MachineOf(o.Offer, id)
		m.Total.MemoryMiB -= m.Total.MemoryMiB / nominalLoss
		return m
	}
	m := *o.Known
	m.ID, m.Epoch, m.State, m.Blocked, m.Region, m.Used = id, 1, berth.MachineReady, "", o.Region, berth.Capacity{}
	m.Market, m.Price, m.Taints = string(o.Market), o.Price, nil
	m.GPUs = slices.Clone(m.GPUs)
	for i := range m.GPUs {
		m.GPUs[i].UsedMilli = 0
	}
	return m
}

const (
	// unknownDisk is the disk of a machine that does not exist yet: offers do not name it.
	unknownDisk = 1 << 40
	// nominalLoss is the part of the nominal memory, 1/16, that firmware and kernel keep.
	nominalLoss = 16
)

// MachineOf returns the row of a machine with the nominal capacity of an offer.
func MachineOf(o cloud.Offer, id berth.MachineID) placement.Machine {
	m := placement.Machine{ID: id, Epoch: 1, State: berth.MachineReady, Region: o.Region, Site: spec.SiteCloud,
		Market: string(o.Market), Price: o.Price, Fences: true}
	m.Total = berth.Capacity{CPUMilli: int64(o.CPUs) * 1000, MemoryMiB: o.MemoryMiB, DiskMiB: unknownDisk,
		GPUMilli: int64(o.GPUs) * 1000}
	for i := range o.GPUs {
		m.GPUs = append(m.GPUs, placement.Device{Index: i, Model: o.GPUType, Healthy: true})
	}
	return m
}
