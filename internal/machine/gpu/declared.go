package gpu

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"

	"github.com/goccy/go-yaml"

	"berth"
	"berth/activities/node"
	"berth/spec"
	"berth/wire"
)

// Declared is an inventory written down in a file instead of read from
// hardware, for tests, demonstrations and simulated machines. The file is a
// YAML or JSON list:
//
//   - {model: H100, memory: 80GiB, count: 8}
//   - {model: A100, memory: 40GiB, count: 2, unhealthy: [1], reason: XID 79}
//   - {model: L4, memory: 24GiB, utilization: 0.8, memory_used: 3GiB}
//   - {model: L4, memory: 24GiB, utilization: 1, memory_busy: 0.01, power: 30, power_limit: 72}
//   - {model: L4, memory: 24GiB, held: 4GiB, held_by: 4711}
//
// count is 1 if absent; unhealthy names devices of its entry, from 0; Use reports
// utilization, memory_used, memory_busy and power in watts for each, nothing if they are
// absent. held is memory in use by the process held_by, and by no listed process without it;
// Holders reports both. The file is read again whenever it has changed, so that a device can become
// unhealthy.
type Declared struct {
	path    string
	machine berth.MachineID
	log     *slog.Logger

	mu        sync.Mutex
	text      []byte // the file's content when it was last looked at
	inventory        // that the file declares
}

// inventory is the content of a file.
type inventory struct {
	devices []berth.GPU
	use     map[string]wire.GPUUse     // by UUID, for devices with declared use
	holders map[string]node.GPUHolding // by UUID
}

var (
	_ node.GPUs     = (*Declared)(nil)
	_ node.GPUMeter = (*Declared)(nil)

	_ node.GPUHolders = (*Declared)(nil)
)

// entry is one line of the file.
type entry struct {
	Model     string   `yaml:"model"`
	Memory    spec.MiB `yaml:"memory"`
	Count     int      `yaml:"count"`
	Unhealthy []int    `yaml:"unhealthy"`
	Reason    string   `yaml:"reason"`

	Utilization *float64  `yaml:"utilization"`
	MemoryUsed  *spec.MiB `yaml:"memory_used"`
	MemoryBusy  *float64  `yaml:"memory_busy"`
	Power       *float64  `yaml:"power"`
	PowerLimit  *float64  `yaml:"power_limit"`

	Held   spec.MiB `yaml:"held"`
	HeldBy int      `yaml:"held_by"`
}

// maxDevices is more than any machine holds, MIG slices included.
const maxDevices = 1024

// OpenDeclared reads the inventory of the given machine from a file. Errors
// name the line at fault. A nil logger discards.
func OpenDeclared(path string, machine berth.MachineID, log *slog.Logger) (*Declared, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	d := &Declared{path: path, machine: machine, log: log}
	if err := d.read(); err != nil {
		return nil, err
	}
	return d, nil
}

// Devices lists the devices that the file declares now. While the file cannot be read or is
// invalid, as in the middle of an edit, the last inventory stays in force.
func (d *Declared) Devices(ctx context.Context) ([]berth.GPU, error) {
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("list declared gpus: %w", err)
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	if err := d.read(); err != nil {
		d.log.WarnContext(ctx, "cannot reload declared GPUs", "path", d.path, "error", err)
	}
	return slices.Clone(d.devices), nil
}

// Use returns the declared use of these devices.
func (d *Declared) Use(ctx context.Context, uuids []string) ([]wire.GPUUse, error) {
	if _, err := d.Devices(ctx); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []wire.GPUUse
	for _, uuid := range uuids {
		if u, ok := d.use[uuid]; ok {
			list = append(list, u)
		}
	}
	return list, nil
}

// Holders returns the declared holders of these devices.
func (d *Declared) Holders(ctx context.Context, uuids []string) ([]node.GPUHolding, error) {
	if _, err := d.Devices(ctx); err != nil {
		return nil, err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	var list []node.GPUHolding
	for _, uuid := range uuids {
		h := d.holders[uuid]
		h.UUID = uuid
		list = append(list, h)
	}
	return list, nil
}

// holding returns the declared holder of each device of an entry.
func (e entry) holding() node.GPUHolding {
	h := node.GPUHolding{MemoryBytes: int64(e.Held) << 20}
	if e.HeldBy > 0 {
		h.Processes = []node.GPUProcess{{PID: e.HeldBy, Bytes: h.MemoryBytes}}
	}
	return h
}

// Declared is true.
func (d *Declared) Declared() bool { return true }

// Close does nothing.
func (d *Declared) Close() error { return nil }

// read takes over the file's content if the content has changed. An unchanged broken file is not
// parsed again, so that one broken edit is one error.
func (d *Declared) read() error {
	text, err := os.ReadFile(d.path)
	if err != nil {
		return fmt.Errorf("read declared gpus: %w", err)
	}
	if d.text != nil && bytes.Equal(text, d.text) {
		return nil
	}
	d.text = text
	found := inventory{use: map[string]wire.GPUUse{}, holders: map[string]node.GPUHolding{}}
	if err := found.parse(text, d.machine); err != nil {
		return fmt.Errorf("declared gpus in %s: %w", d.path, err)
	}
	d.inventory = found
	return nil
}

// parse reads the file. Devices are numbered in the order of the entries, and their UUIDs follow
// from the machine and the number: inserting an entry renames the devices after it.
func (v *inventory) parse(text []byte, machine berth.MachineID) error {
	var entries []entry
	if err := yaml.UnmarshalWithOptions(text, &entries, yaml.Strict(), yaml.UseJSONUnmarshaler()); err != nil {
		return err
	}
	for i, e := range entries {
		count, err := e.check(len(v.devices))
		if err != nil {
			return fmt.Errorf("entry %d %w", i+1, err)
		}
		for n := range count {
			g := berth.GPU{
				Index:     len(v.devices),
				UUID:      declaredUUID(machine, len(v.devices)),
				Model:     e.Model,
				MemoryMiB: int64(e.Memory),
				Healthy:   true,
			}
			if slices.Contains(e.Unhealthy, n) {
				g.Healthy, g.Reason = false, cmp.Or(e.Reason, "declared unhealthy")
			}
			v.devices = append(v.devices, g)
			v.holders[g.UUID] = e.holding()
			if u, ok := e.used(g.UUID); ok {
				v.use[g.UUID] = u
			}
		}
	}
	return nil
}

// check returns the number of devices that an entry declares after the devices before.
func (e entry) check(before int) (count int, err error) {
	count = cmp.Or(e.Count, 1)
	switch {
	case e.Model == "":
		return 0, errors.New("has no model, such as H100")
	case e.Memory <= 0:
		return 0, fmt.Errorf("(%s) has no memory, such as 80GiB", e.Model)
	case count < 0 || before+count > maxDevices:
		return 0, fmt.Errorf("(%s) has count %d: allowed are up to %d devices in all", e.Model, e.Count, maxDevices)
	case e.Utilization != nil && !(*e.Utilization >= 0 && *e.Utilization <= 1):
		return 0, fmt.Errorf("(%s) has utilization %g: allowed are 0 to 1", e.Model, *e.Utilization)
	case e.MemoryBusy != nil && !(*e.MemoryBusy >= 0 && *e.MemoryBusy <= 1):
		return 0, fmt.Errorf("(%s) has memory_busy %g: allowed are 0 to 1", e.Model, *e.MemoryBusy)
	case !isPower(e.Power) || !isPower(e.PowerLimit):
		return 0, fmt.Errorf("(%s) has a power that no device has: allowed are 0 to 10000 watts", e.Model)
	case e.Held < 0 || e.Held > e.Memory || e.HeldBy < 0:
		return 0, fmt.Errorf("(%s) is held by process %d with %s: allowed is up to its memory, %s", e.Model, e.HeldBy,
			e.Held, e.Memory)
	case e.MemoryUsed != nil && *e.MemoryUsed > e.Memory:
		return 0, fmt.Errorf("(%s) has memory_used %s: allowed is up to its memory, %s", e.Model,
			e.MemoryUsed, e.Memory)
	}
	for _, n := range e.Unhealthy {
		if n < 0 || n >= count {
			return 0, fmt.Errorf("(%s) has unhealthy device %d: allowed are 0 to %d", e.Model, n, count-1)
		}
	}
	return count, nil
}

// used returns the declared use of each device of an entry.
func (e entry) used(uuid string) (u wire.GPUUse, ok bool) {
	u = wire.GPUUse{UUID: uuid, Utilization: -1, MemoryBytes: -1,
		MemoryBusy: e.MemoryBusy, Watts: e.Power, LimitWatts: e.PowerLimit}
	if e.Utilization != nil {
		u.Utilization = *e.Utilization
	}
	if e.MemoryUsed != nil {
		u.MemoryBytes = int64(*e.MemoryUsed) << 20
	}
	return u, e.Utilization != nil || e.MemoryUsed != nil || e.MemoryBusy != nil || e.Power != nil
}

// isPower reports whether a power is one of a device, or absent.
func isPower(watts *float64) bool { return watts == nil || *watts >= 0 && *watts <= 10_000 }

// declaredUUID is constant for a machine and an index, and differs from every real
// device's.
func declaredUUID(machine berth.MachineID, index int) string {
	h := sha256.Sum256(fmt.Appendf(nil, "berth declared gpu\n%s\n%d", machine, index))
	return fmt.Sprintf("declared-%x-%x-%x-%x-%x", h[:4], h[4:6], h[6:8], h[8:10], h[10:16])
}
