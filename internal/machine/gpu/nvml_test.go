//go:build cgo

package gpu_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"

	"berth"
	"berth/internal/machine/gpu"
)

// box is the module's simulated DGX, with the parts that it leaves out: health and
// events.
type box struct {
	*dgxa100.Server
	mu    sync.Mutex
	gone  map[string]bool // UUIDs that fell off the bus
	queue []nvml.EventData
	sets  int // event sets that are open
}

func newBox(t *testing.T) (*box, *gpu.NVML) {
	t.Helper()
	b := &box{Server: dgxa100.New(), gone: make(map[string]bool)}
	for i := range b.Devices {
		b.equip(b.device(i))
	}
	b.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		d := b.device(i)
		if b.lost(d.UUID) {
			return nil, nvml.ERROR_GPU_IS_LOST
		}
		return d, nvml.SUCCESS
	}
	b.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return b.newSet(), nvml.SUCCESS }
	n, err := gpu.OpenNVML(gpu.NVMLOptions{Library: b})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.sets != 0 || len(b.ShutdownCalls()) != 1 {
			t.Errorf("after closing, %d event sets are open and the library was shut down %d times", b.sets, len(b.ShutdownCalls()))
		}
	})
	return b, n
}

// The mock server embeds two interfaces that both have these.
func (b *box) Extensions() nvml.ExtendedInterface { return b.Server }

func (b *box) device(i int) *dgxa100.Device { return b.Devices[i].(*dgxa100.Device) }

func (b *box) lost(uuid string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.gone[uuid]
}

func (b *box) equip(d *dgxa100.Device) {
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 0, nvml.SUCCESS }
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 0, 0, false, false, nvml.SUCCESS }
	d.GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	d.RegisterEventsFunc = func(uint64, nvml.EventSet) nvml.Return { return nvml.SUCCESS }
}

// newSet hands out queued events; a set that waits polls, which is all a mock
// without the driver can do.
func (b *box) newSet() nvml.EventSet {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sets++
	at := len(b.queue)
	return &mock.EventSet{
		WaitFunc: func(uint32) (nvml.EventData, nvml.Return) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if at == len(b.queue) {
				return nvml.EventData{}, nvml.ERROR_TIMEOUT
			}
			at++
			return b.queue[at-1], nvml.SUCCESS
		},
		FreeFunc: func() nvml.Return {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.sets--
			return nvml.SUCCESS
		},
	}
}

func (b *box) xid(number uint64, d nvml.Device, instance ...uint32) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e := nvml.EventData{Device: d, EventType: nvml.EventTypeXidCriticalError, EventData: number, GpuInstanceId: 0xFFFFFFFF, ComputeInstanceId: 0xFFFFFFFF}
	if len(instance) == 2 {
		e.GpuInstanceId, e.ComputeInstanceId = instance[0], instance[1]
	}
	b.queue = append(b.queue, e)
}

// slice is a MIG device of the given instances.
func slice(uuid string, gi, ci int) *mock.Device {
	return &mock.Device{
		GetUUIDFunc:              func() (string, nvml.Return) { return uuid, nvml.SUCCESS },
		GetNameFunc:              func() (string, nvml.Return) { return "NVIDIA A100-SXM4-40GB MIG 1g.5gb", nvml.SUCCESS },
		GetMemoryInfoFunc:        func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 4864 << 20}, nvml.SUCCESS },
		GetGpuInstanceIdFunc:     func() (int, nvml.Return) { return gi, nvml.SUCCESS },
		GetComputeInstanceIdFunc: func() (int, nvml.Return) { return ci, nvml.SUCCESS },
	}
}

// cut puts a device into MIG mode with these slices.
func cut(d *dgxa100.Device, slices ...*mock.Device) {
	d.MigMode = nvml.DEVICE_MIG_ENABLE
	d.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	d.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i >= len(slices) || slices[i] == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return slices[i], nvml.SUCCESS
	}
}

func list(t *testing.T, n *gpu.NVML) []berth.GPU {
	t.Helper()
	gpus, err := n.Devices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return gpus
}

func TestNVMLListsTheDevices(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	if n.Declared() {
		t.Error("the inventory passes for declared")
	}
	gpus := list(t, n)
	if len(gpus) != 8 {
		t.Fatalf("%d devices, want 8", len(gpus))
	}
	for i, g := range gpus {
		want := berth.GPU{Index: i, UUID: b.device(i).UUID, Model: "A100", MemoryMiB: 40960, Healthy: true}
		if g != want {
			t.Errorf("device %d is %+v, want %+v", i, g, want)
		}
	}
}

func TestMachineWithoutLibraryIsToldApart(t *testing.T) {
	t.Parallel()
	_, err := gpu.OpenNVML(gpu.NVMLOptions{Library: nvml.New(nvml.WithLibraryPath("/no/such/libnvidia-ml.so.1"))})
	if !errors.Is(err, gpu.ErrNoNVML) {
		t.Errorf("error is %v, want %v", err, gpu.ErrNoNVML)
	}
	broken := &mock.Interface{InitFunc: func() nvml.Return { return nvml.ERROR_DRIVER_NOT_LOADED }}
	if _, err := gpu.OpenNVML(gpu.NVMLOptions{Library: broken}); err == nil || errors.Is(err, gpu.ErrNoNVML) {
		t.Errorf("a library without its driver: error is %v", err)
	}
}

func TestSickDevicesAreUnhealthy(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	b.device(0).GetTotalEccErrorsFunc = func(kind nvml.MemoryErrorType, since nvml.EccCounterType) (uint64, nvml.Return) {
		if kind != nvml.MEMORY_ERROR_TYPE_UNCORRECTED || since != nvml.VOLATILE_ECC {
			return 0, nvml.SUCCESS
		}
		return 3, nvml.SUCCESS
	}
	b.device(1).GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 1, true, false, nvml.SUCCESS }
	b.device(2).GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) { return 1, 1, true, true, nvml.SUCCESS }
	b.device(3).GetRetiredPagesPendingStatusFunc = func() (nvml.EnableState, nvml.Return) { return nvml.FEATURE_ENABLED, nvml.SUCCESS }
	b.device(4).GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
		return 0, nvml.ERROR_RESET_REQUIRED
	}
	b.device(5).GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{}, nvml.ERROR_UNKNOWN }
	unsupported(b.device(6))
	gpus := list(t, n)
	for i, want := range []string{"3 uncorrected memory errors", "waits to be remapped", "could not be remapped", "wait to be retired", "lost", "memory size cannot be read", "", ""} {
		if g := gpus[i]; g.Healthy != (want == "") || !strings.Contains(g.Reason, want) || (want == "") != (g.Reason == "") {
			t.Errorf("device %d: healthy %v, reason %q, want %q", i, g.Healthy, g.Reason, want)
		}
	}
}

// unsupported makes a device of the consumer kind, without error correction.
func unsupported(d *dgxa100.Device) {
	d.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) {
		return 0, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetRemappedRowsFunc = func() (int, int, bool, bool, nvml.Return) {
		return 0, 0, false, false, nvml.ERROR_NOT_SUPPORTED
	}
	d.GetMigModeFunc = func() (int, int, nvml.Return) { return 0, 0, nvml.ERROR_NOT_SUPPORTED }
}

func TestOldDriverIsAskedOnlyWhatItKnows(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	b.LookupSymbolFunc = func(symbol string) error { return fmt.Errorf("no %s", symbol) }
	list(t, n)
	for i := range b.Devices {
		d := b.device(i)
		if len(d.GetRemappedRowsCalls())+len(d.GetMigModeCalls()) > 0 {
			t.Fatalf("device %d was asked by functions that its driver lacks", i)
		}
	}
}

func TestLostDeviceStaysListed(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	before := list(t, n)
	b.mu.Lock()
	b.gone[before[2].UUID] = true
	b.mu.Unlock()
	after := list(t, n)
	if len(after) != 8 || after[2].UUID != before[2].UUID || after[2].Healthy || !strings.HasPrefix(after[2].Reason, "lost") {
		t.Fatalf("after the loss: %+v", after)
	}
	for i, g := range after {
		if i != 2 && g != before[i] {
			t.Errorf("device %d became %+v", i, g)
		}
	}
	b.mu.Lock()
	delete(b.gone, before[2].UUID)
	b.mu.Unlock()
	if again := list(t, n); again[2] != before[2] {
		t.Errorf("back again: %+v", again[2])
	}
}

func TestMIGSlicesAreDevices(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	cut(b.device(0), slice("MIG-a", 7, 0), nil, slice("MIG-b", 8, 0))
	cut(b.device(7))
	gpus := list(t, n)
	if len(gpus) != 8 { // two slices, six whole ones, and one that is cut but empty
		t.Fatalf("devices are %+v", gpus)
	}
	want := berth.GPU{Index: 0, UUID: "MIG-a", Model: "A100-1g.5gb", MemoryMiB: 4864, Healthy: true}
	if gpus[0] != want {
		t.Errorf("the first slice is %+v, want %+v", gpus[0], want)
	}

	// Other slices: the remaining slice keeps its index, the other one is forgotten.
	cut(b.device(0), slice("MIG-c", 9, 0), slice("MIG-b", 8, 0))
	gpus = list(t, n)
	if len(gpus) != 8 || gpus[0].UUID != "MIG-c" || gpus[1].UUID != "MIG-b" || gpus[2].UUID != b.device(1).UUID {
		t.Errorf("after another cut: %+v", gpus)
	}

	// A fault of the whole device is a fault of its slices.
	b.device(0).GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 1, nvml.SUCCESS }
	gpus = list(t, n)
	if gpus[0].Healthy || gpus[1].Healthy || !gpus[2].Healthy {
		t.Errorf("with memory errors: %+v", gpus[:3])
	}
	b.mu.Lock()
	b.gone[b.device(0).UUID] = true
	b.mu.Unlock()
	if gpus = list(t, n); len(gpus) != 8 || gpus[0].Healthy || gpus[1].Healthy {
		t.Errorf("with its device lost: %+v", gpus)
	}
}

func TestFatalXidCondemnsItsDevice(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	cut(b.device(0), slice("MIG-a", 7, 0), slice("MIG-b", 8, 0))
	list(t, n)
	b.xid(13, b.device(1)) // an application's fault
	b.xid(79, b.device(2))
	b.xid(95, b.device(0), 8, 0)
	for range 2 {
		for i, g := range list(t, n) {
			want := map[string]string{b.device(2).UUID: "XID 79", "MIG-b": "XID 95"}[g.UUID]
			if g.Healthy != (want == "") || g.Reason != want {
				t.Errorf("device %d (%s): healthy %v, reason %q, want %q", i, g.UUID, g.Healthy, g.Reason, want)
			}
		}
	}
}

func TestEventsArriveUntilTheContextEnds(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	ctx, cancel := context.WithCancel(t.Context())
	events, err := n.Events(ctx)
	if err != nil {
		t.Fatal(err)
	}
	b.xid(31, b.device(3))
	b.xid(48, b.device(4))
	for _, want := range []gpu.Event{
		{UUID: b.device(3).UUID, Xid: 31},
		{UUID: b.device(4).UUID, Xid: 48, Fatal: true},
	} {
		got := <-events
		if got.At.IsZero() || got.UUID != want.UUID || got.Xid != want.Xid || got.Fatal != want.Fatal {
			t.Errorf("event is %+v, want %+v", got, want)
		}
	}
	if g := list(t, n)[4]; g.Healthy || g.Reason != "XID 48" {
		t.Errorf("the condemned device is %+v", g)
	}
	cancel()
	for range events { // until it is closed
	}
}

// F38: the content of driver events outlives the process that received it, and a
// message of the kernel is assigned by the device's place on the bus.
func TestF38WatchHearsTheDriverAndTheKernel(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	for i := range b.Devices {
		b.device(i).GetPciInfoFunc = func() (nvml.PciInfo, nvml.Return) {
			return nvml.PciInfo{Domain: 0, Bus: uint32(0x3b + i), Device: 0}, nvml.SUCCESS
		}
	}
	list(t, n)
	b.xid(48, b.device(0))
	b.xid(31, b.device(1))
	list(t, n)
	var got []string
	for _, e := range n.TakeXids() {
		got = append(got, fmt.Sprintf("%s %d", e.UUID, e.Xid))
	}
	if want := []string{b.device(0).UUID + " 48", b.device(1).UUID + " 31"}; !slices.Equal(got, want) {
		t.Errorf("took %v, want %v", got, want)
	}
	if again := n.TakeXids(); len(again) != 0 {
		t.Errorf("took %v twice", again)
	}
	if at := n.Located("0000:3d:00"); !slices.Equal(at, []string{b.device(2).UUID}) {
		t.Errorf("at 0000:3d:00 is %v", at)
	}
}

func TestHangingDriverDoesNotHoldCallers(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	asked, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	b.DeviceGetCountFunc = func() (int, nvml.Return) {
		once.Do(func() { close(asked) })
		<-release
		return 8, nvml.SUCCESS
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := n.Devices(ctx)
		done <- err
	}()
	<-asked
	cancel()
	if err := <-done; !errors.Is(err, context.Canceled) {
		t.Errorf("error is %v, want %v", err, context.Canceled)
	}
	close(release)
	if got := list(t, n); len(got) != 8 {
		t.Errorf("afterwards %d devices", len(got))
	}
}

func TestClosedInventoryAnswersNothing(t *testing.T) {
	t.Parallel()
	_, n := newBox(t)
	events, err := n.Events(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Close(); err != nil {
			t.Fatal(err)
		}
	}
	for range events { // closed too
	}
	if _, err := n.Devices(t.Context()); err == nil {
		t.Error("a closed inventory lists devices")
	}
	if _, err := n.Events(t.Context()); err == nil {
		t.Error("a closed inventory watches")
	}
}
