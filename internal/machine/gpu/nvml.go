//go:build cgo

package gpu

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"berth"
	"berth/activities/node"
)

// NVMLOptions tunes an NVML. The zero value is right outside tests.
type NVMLOptions struct {
	Library nvml.Interface // nil: the driver's own
	Logger  *slog.Logger   // nil: discard
}

// NVML is the inventory that the NVIDIA driver shows. It may be used
// concurrently.
type NVML struct {
	lib nvml.Interface
	log *slog.Logger

	events nvml.EventSet // Devices searches it for Xids; nil where the driver has none

	// A call into the driver cannot be interrupted and may hang with a broken
	// device, so calls are made by goroutines that callers need not outwait.
	calls sync.WaitGroup

	meter chan struct{} // holds one while Use or Holders asks the driver

	registered map[string]bool // devices whose events Devices takes; used by surveys only

	closed chan struct{}
	mu     sync.Mutex
	survey *survey           // under way, if any
	known  []device          // everything listed last, lost devices included
	faults map[string]string // by UUID: why an Xid condemned the device
	taken  []Event           // for TakeXids
}

var _ node.GPUs = (*NVML)(nil)

// OpenNVML loads the NVIDIA library. Without one the error is ErrNoNVML; a
// library without a working driver is another error, which a human should see.
func OpenNVML(o NVMLOptions) (*NVML, error) {
	if o.Library == nil {
		o.Library = nvml.New()
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	switch ret := o.Library.Init(); ret {
	case nvml.SUCCESS:
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return nil, ErrNoNVML
	default:
		return nil, fmt.Errorf("start NVML: %w", ret)
	}
	n := &NVML{
		lib:        o.Library,
		log:        o.Logger,
		meter:      make(chan struct{}, 1),
		registered: make(map[string]bool),
		closed:     make(chan struct{}),
		faults:     make(map[string]string),
	}
	if set, ret := n.lib.EventSetCreate(); ret == nvml.SUCCESS {
		n.events = set
	} else {
		n.log.Warn("NVML reports no events", "error", ret)
	}
	return n, nil
}

// Declared is false: these devices exist.
func (n *NVML) Declared() bool { return false }

// survey is one look at all devices, shared by all concurrent callers.
type survey struct {
	done    chan struct{}
	devices []berth.GPU
	err     error
}

var errClosed = errors.New("NVML is closed")

// Devices lists the devices, or in MIG mode their slices, with their present health. A device
// keeps its index while this process lives, and one that was seen before and has disappeared
// stays listed as lost.
func (n *NVML) Devices(ctx context.Context) ([]berth.GPU, error) {
	s := n.join()
	if s == nil {
		return nil, errClosed
	}
	select {
	case <-s.done:
		return slices.Clone(s.devices), s.err
	case <-ctx.Done():
		return nil, fmt.Errorf("list gpus: the NVIDIA driver does not answer: %w", ctx.Err())
	}
}

// join returns the survey under way, or begins one; nil after Close.
func (n *NVML) join() *survey {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.isClosed() {
		return nil
	}
	if n.survey != nil {
		return n.survey
	}
	s := &survey{done: make(chan struct{})}
	n.survey = s
	n.calls.Go(func() {
		s.devices, s.err = n.look()
		n.mu.Lock()
		n.survey = nil
		n.mu.Unlock()
		close(s.done)
	})
	return s
}

// isClosed reports whether Close has been called.
func (n *NVML) isClosed() bool {
	select {
	case <-n.closed:
		return true
	default:
		return false
	}
}

// look asks the driver about every device.
func (n *NVML) look() ([]berth.GPU, error) {
	present, alive, err := n.list()
	if err != nil {
		return nil, err
	}
	n.takePendingEvents()
	n.mu.Lock()
	defer n.mu.Unlock()
	n.known = merge(n.known, present, alive)
	gpus := make([]berth.GPU, len(n.known))
	for i, d := range n.known {
		gpus[i] = d.GPU
		for _, uuid := range []string{d.UUID, d.parent} {
			if reason := n.faults[uuid]; reason != "" && gpus[i].Healthy {
				gpus[i].Healthy, gpus[i].Reason = false, reason
			}
		}
	}
	return gpus, nil
}

// Close ends watching and releases the library. It gives a driver that hangs a
// few seconds.
func (n *NVML) Close() error {
	n.mu.Lock()
	if n.isClosed() {
		n.mu.Unlock()
		return nil
	}
	close(n.closed)
	n.mu.Unlock()

	idle := make(chan struct{})
	go func() { // ends with the last call; there is no way to wait with a limit otherwise
		n.calls.Wait()
		close(idle)
	}()
	patience := time.NewTimer(5 * time.Second)
	defer patience.Stop()
	select {
	case <-idle:
	case <-patience.C:
		return errors.New("close NVML: a call to the NVIDIA driver hangs")
	}
	if n.events != nil {
		if ret := n.events.Free(); ret != nvml.SUCCESS {
			n.log.Warn("cannot free the NVML event set", "error", ret)
		}
	}
	if ret := n.lib.Shutdown(); ret != nvml.SUCCESS {
		return fmt.Errorf("close NVML: %w", ret)
	}
	return nil
}
