package wire

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"time"

	"berth"
)

// MachinePending is the shown state of a machine that gets no work until an operator approves it.
// Its stored state is joining (docs/adr/0068-machines-wait-for-approval.md).
const MachinePending berth.MachineState = "pending"

// Equipment is the part of a machine's inventory that an approval covers. Constraints, prices and
// the residency of data depend on it. Free disk space is not part of it, as it changes with use.
type Equipment struct {
	CPUMilli  int64             `json:"cpu_milli"` // thousandths of a core
	MemoryMiB int64             `json:"memory_mib"`
	GPUs      []EquipmentGPU    `json:"gpus,omitempty"`
	Labels    map[string]string `json:"labels,omitempty"`
	Region    string            `json:"region,omitempty"`
	Site      string            `json:"site,omitempty"`
	Pool      string            `json:"pool,omitempty"`
}

// EquipmentGPU is one device of a machine.
type EquipmentGPU struct {
	UUID      string `json:"uuid"`
	Model     string `json:"model"`
	MemoryMiB int64  `json:"memory_mib"`
}

// Fingerprint returns 12 hex digits that differ, with near certainty, for other equipment.
func (e Equipment) Fingerprint() string {
	body, err := json.Marshal(e) // maps are written in the order of their keys
	if err != nil {
		panic("equipment has no encoding: " + err.Error()) // numbers and texts only
	}
	sum := sha256.Sum256(body)
	return hex.EncodeToString(sum[:6])
}

// Approval is the part of a machine's document about its approval.
type Approval struct {
	// Held is the reason for which the machine waits for an approval; empty: it does not wait.
	Held string `json:"held,omitempty" doc:"reason for which the machine waits for an approval"`
	// Equipment is the part of the last report that an approval covers.
	Equipment Equipment `json:"equipment" doc:"reported by the last registration"`
	// Fingerprint identifies Equipment; see ApproveRequest.
	Fingerprint string     `json:"fingerprint"`
	By          string     `json:"by,omitempty" doc:"author of the last approval: operator:NAME or join-token:ID"`
	At          *time.Time `json:"at,omitempty" doc:"time of the last approval"`
}

// NoFingerprint is the fingerprint of no equipment, for callers that have seen none.
const NoFingerprint = "none"

// ApproveRequest is the body of a call that approves a machine.
type ApproveRequest struct {
	// Fingerprint must be the one of the equipment that the machine reported last; empty: any.
	Fingerprint string `json:"fingerprint,omitempty" doc:"from the machine's document; another one is a conflict"`
}
