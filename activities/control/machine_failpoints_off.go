//go:build !failpoints

package control

// withMachineFailpoints returns m unchanged in this build.
func withMachineFailpoints(m MachineSteps) *MachineSteps { return &m }
