package agent

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"

	"berth"
	"berth/activities/node"
	"berth/activities/node/fakeruntime"
)

// heldGPUs is an inventory with one process on each device.
type heldGPUs map[string]int

func (heldGPUs) Devices(context.Context) ([]berth.GPU, error) { return nil, nil }
func (heldGPUs) Declared() bool                               { return true }
func (heldGPUs) Close() error                                 { return nil }

func (g heldGPUs) Holders(_ context.Context, uuids []string) (list []node.GPUHolding, err error) {
	for _, uuid := range uuids {
		list = append(list, node.GPUHolding{UUID: uuid, MemoryBytes: 4 << 30,
			Processes: []node.GPUProcess{{PID: g[uuid], Bytes: 4 << 30}}})
	}
	return list, nil
}

// A proof finds the processes of containers by the containers' ids. So a container for which the engine gives no
// answer holds up neither its own device nor those of others, and only a foreign process costs a question.
func TestAProofNeedsNoAnswerAboutAContainer(t *testing.T) {
	t.Parallel()
	engine := fakeruntime.New(fakeruntime.Options{})
	defer engine.Shutdown()
	var asked atomic.Int32
	engine.Intercept(func(c fakeruntime.Call) error {
		asked.Add(1)
		return fmt.Errorf("%s %s: %w", c.Method, c.Subject, context.DeadlineExceeded)
	})
	inventory := heldGPUs{"gpu-a": 301, "gpu-b": 302, "gpu-c": 303}
	log := slog.New(slog.DiscardHandler)
	health := newGPUHealth(inventory, log)
	p := newDeviceProof(&Config{GPUs: inventory, Runtime: engine, Timing: Timing{}.withDefaults()}, health, log, func() {})
	dir := t.TempDir()
	p.procs = procs{dir}
	a, b, other := strings.Repeat("a", 64), strings.Repeat("b", 64), strings.Repeat("c", 64)
	process(t, dir, "301", "python", "0::/system.slice/docker-"+a+".scope/train\n", "pid:[10]")
	process(t, dir, "302", "python", "4:memory:/docker/"+b+"\n0::/\n", "pid:[11]")
	process(t, dir, "303", "python", "0::/docker/"+other+"\n", "pid:[12]")
	p.contains(1, a)
	p.contains(2, b)
	p.enter([]string{"gpu-a"}, 1, "one")
	p.enter([]string{"gpu-b"}, 2, "two")
	if faults := p.look(t.Context(), []string{"gpu-a", "gpu-b"}); len(faults) > 0 || asked.Load() > 0 {
		t.Errorf("devices with their own processes: %v after %d questions", faults, asked.Load())
	}
	// A process of one container is foreign on the device of another one, and so is one of no container.
	p.enter([]string{"gpu-c"}, 1, "one")
	if why := p.look(t.Context(), []string{"gpu-c"})["gpu-c"]; !strings.Contains(why, "outside of Berth by process 303") {
		t.Errorf("a device with a foreign process: %q", why)
	}
	// At the first proof of an agent, members of the listed containers may not have entered yet.
	also := node.Container{ID: other, State: node.ContainerUnknown}
	if faults := p.look(t.Context(), []string{"gpu-c"}, also); len(faults) > 0 {
		t.Errorf("a device with a process of a listed container: %v", faults)
	}
	p.leave([]string{"gpu-a"}, 1)
	if why := p.look(t.Context(), []string{"gpu-a"})["gpu-a"]; !strings.Contains(why, "process 301") {
		t.Errorf("a device with a process that outlived its member: %q", why)
	}
}
