package agent

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os/exec"
	"strings"
	"testing"
	"time"

	"berth/activities/node/fakeruntime"
	"berth/internal/machine/gpu"
)

var (
	realGPU = flag.Bool("gpu", false, "use the first GPU of this machine for a minute")
	python  = flag.String("python", "python3", "interpreter with PyTorch")
)

// holdScript holds 4 GiB of the first GPU until its input ends.
const holdScript = `
import sys, torch
t = torch.empty(4 << 30, dtype=torch.uint8, device="cuda").fill_(1)
torch.cuda.synchronize()
print("holds", flush=True)
sys.stdin.read()
`

// TestProofOnARealGPU holds a real device with a process outside of Berth. It is skipped without a
// driver, and without -gpu, since another program on the device would spoil it.
func TestProofOnARealGPU(t *testing.T) {
	inventory, err := gpu.OpenNVML(gpu.NVMLOptions{})
	if errors.Is(err, gpu.ErrNoNVML) {
		t.Skip("no NVML on this machine: it has no NVIDIA driver")
	}
	if err != nil {
		t.Fatal(err)
	}
	defer inventory.Close()
	if !*realGPU {
		t.Skip("uses a GPU: run make proof-gpu, on a machine whose GPU is free")
	}
	log := slog.New(slog.DiscardHandler)
	health := newGPUHealth(inventory, log)
	gpus, err := inventory.Devices(t.Context())
	if err != nil || len(gpus) == 0 {
		t.Fatalf("devices: %v, %v", gpus, err)
	}
	health.note(gpus)
	engine := fakeruntime.New(fakeruntime.Options{})
	defer engine.Shutdown()
	p := newDeviceProof(&Config{GPUs: inventory, Runtime: engine, Timing: Timing{}.withDefaults()}, health, log, func() {})
	uuids := []string{gpus[0].UUID}
	prove := func() (string, time.Duration) {
		begun := time.Now()
		why, err := p.insist(t.Context(), uuids)
		if err != nil {
			t.Fatal(err)
		}
		return why, time.Since(begun)
	}
	why, took := prove()
	t.Logf("free device: %q after %s", why, took)
	if why != "" {
		t.Fatalf("the device is not free: %s", why)
	}
	cmd := exec.Command(*python, "-c", holdScript)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	if !bufio.NewScanner(out).Scan() {
		t.Fatal("the program holds no memory")
	}
	why, took = prove()
	t.Logf("device in use: %q after %s", why, took)
	if !strings.Contains(why, fmt.Sprintf("process %d (", cmd.Process.Pid)) || !strings.Contains(why, "GiB since 20") {
		t.Errorf("the proof names %q", why)
	}
	if shown := health.report(gpus)[0]; shown.Healthy || shown.Reason == "" {
		t.Errorf("reported as %+v", shown)
	}
	comm, _, _ := strings.Cut(why[strings.Index(why, "(")+1:], ")")
	p.allow = []string{comm}
	if why, took = prove(); why != "" {
		t.Errorf("with the program %s allowed: %q after %s", comm, why, took)
	}
	p.allow = nil
	if why, _ = prove(); why == "" {
		t.Error("the program is allowed no longer, and the proof passes")
	}
	ctx, stop := context.WithCancel(t.Context())
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		p.watch(ctx, nil)
	}()
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	ended := time.Now()
	for !health.report(gpus)[0].Healthy && time.Since(ended) < 20*time.Second {
		_ = sleep(ctx, proofPause)
	}
	t.Logf("healthy again %s after the process was killed", time.Since(ended))
	if shown := health.report(gpus)[0]; !shown.Healthy {
		t.Errorf("20 s after the process has ended: %+v", shown)
	}
	stop()
	<-watched
}
