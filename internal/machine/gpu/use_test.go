//go:build cgo

package gpu_test

import (
	"context"
	"errors"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/google/go-cmp/cmp"

	"berth/internal/machine/gpu"
	"berth/wire"
)

func TestUseIsWhatTheDriverTells(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	b.LookupSymbolFunc = func(symbol string) error {
		if symbol == "nvmlDeviceGetMemoryInfo_v2" {
			return nil
		}
		return errors.New("an old library")
	}
	b.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		for i := range b.Devices {
			if d := b.device(i); d.UUID == uuid && i != 3 {
				return d, nvml.SUCCESS
			}
		}
		return nil, nvml.ERROR_NOT_FOUND
	}
	for i := range b.Devices {
		d := b.device(i)
		d.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) {
			return nvml.Utilization{Gpu: uint32(10 * i), Memory: 7}, nvml.SUCCESS
		}
		d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return uint32(i) * 100_500, nvml.SUCCESS }
		d.GetEnforcedPowerLimitFunc = func() (uint32, nvml.Return) { return 700_000, nvml.SUCCESS }
		d.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
			return nvml.Memory_v2{Used: uint64(i) << 30, Reserved: 1 << 20}, nvml.SUCCESS
		}
	}
	slice := b.device(2) // of a slice only the memory is known, and by the old call
	slice.GetUtilizationRatesFunc = func() (nvml.Utilization, nvml.Return) { return nvml.Utilization{}, nvml.ERROR_NOT_SUPPORTED }
	slice.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	slice.GetEnforcedPowerLimitFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	slice.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) { return nvml.Memory_v2{}, nvml.ERROR_NOT_SUPPORTED }
	slice.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { return nvml.Memory{Used: 7 << 30}, nvml.SUCCESS }
	id := func(i int) string { return b.device(i).UUID }
	got, err := n.Use(t.Context(), []string{id(1), id(2), id(3), "GPU-none", id(7)})
	memory, low, high, limit := 0.07, 100.5, 703.5, 700.0
	want := []wire.GPUUse{
		{UUID: id(1), Utilization: 0.1, MemoryBytes: 1 << 30, MemoryBusy: &memory, Watts: &low, LimitWatts: &limit},
		{UUID: id(2), Utilization: -1, MemoryBytes: 7 << 30},
		{UUID: id(7), Utilization: 0.7, MemoryBytes: 7 << 30, MemoryBusy: &memory, Watts: &high, LimitWatts: &limit},
	}
	if err != nil || !cmp.Equal(got, want) {
		t.Errorf("%v %s", err, cmp.Diff(want, got))
	}
	w := watch(t, &rack{}, newFeed(), t.TempDir()+"/faults", "boot-1")
	if use, err := w.Use(t.Context(), []string{"GPU-1"}); err != nil || len(use) > 0 {
		t.Errorf("an inventory that measures nothing says %v, %v", use, err)
	}
	var _ interface {
		Use(context.Context, []string) ([]wire.GPUUse, error)
	} = (*gpu.Watch)(nil)
}

// Callers do not wait for a driver that hangs, and however many ask, one call
// hangs.
func TestUseOutlivesADriverThatHangs(t *testing.T) {
	t.Parallel()
	b, n := newBox(t)
	entered, hang := make(chan struct{}, 10), make(chan struct{})
	b.DeviceGetHandleByUUIDFunc = func(string) (nvml.Device, nvml.Return) {
		entered <- struct{}{}
		<-hang
		return nil, nvml.ERROR_UNKNOWN
	}
	ctx, cancel := context.WithCancel(t.Context())
	answers := make(chan error)
	for range 3 {
		go func() {
			_, err := n.Use(ctx, []string{"GPU-1"})
			answers <- err
		}()
	}
	<-entered
	cancel()
	for range 3 {
		if err := <-answers; !errors.Is(err, context.Canceled) {
			t.Errorf("the answer is %v", err)
		}
	}
	if len(entered) > 0 {
		t.Error("more than one call hangs")
	}
	close(hang)
}
