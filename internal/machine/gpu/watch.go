package gpu

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth"
	"berth/activities/node"
	"berth/failure"
	"berth/internal/machine/kernellog"
	"berth/wire"
)

// KernelLog is the log of the kernel.
type KernelLog interface {
	// Open returns the log from the oldest record that the kernel has; each read
	// gives one record, and waits for one. Closing it ends a read that waits.
	Open() (io.ReadCloser, error)
	// Now is the log's clock: the time since the boot.
	Now() time.Duration
}

// WatchOptions configure the sources and the file of GPU errors.
type WatchOptions struct {
	File   string // keeps fatal errors; required
	Boot   string // of the host: a new one clears kept errors; required
	Kernel KernelLog
	Logger *slog.Logger // nil: discard
}

// Watch is an inventory that receives XIDs and carries out the required reactions (failure.Xids).
// XIDs come from the driver's events where the inventory supports events, and from the kernel's
// log. A device is unhealthy after a fatal XID, and some XIDs put the whole machine into
// quarantine. Fatal errors outlive the process: they last until the host has booted again, or
// until an operator who has reset the device removes the file while no agent runs. All methods
// may be called concurrently.
type Watch struct {
	node.GPUs
	file    string
	log     *slog.Logger
	kernel  io.Closer // nil without a kernel log
	reading sync.WaitGroup
	changed chan struct{}

	mu     sync.Mutex
	closed bool
	kept   keptFaults
	notes  map[string][]Event // by device: the latest that were not fatal
}

// keptFaults is the file.
type keptFaults struct {
	Boot   string           `json:"boot"`
	Since  time.Duration    `json:"since"` // after that boot; earlier messages of the kernel do not count
	Faults map[string]fault `json:"faults,omitempty"`
}

// fault condemns a device.
type fault struct {
	Xid     uint64             `json:"xid"`
	Verdict failure.XidVerdict `json:"verdict"`
	At      time.Time          `json:"at"`
}

// String returns the fault as text for operators, with the required reaction.
func (f fault) String() string {
	return fmt.Sprintf("XID %d: %s; to do: %s", f.Xid, failure.XidMeaning(f.Xid), f.Verdict)
}

// maxNotes is the number of errors kept for each device that leave the device usable.
const maxNotes = 16

// driver is an inventory with access to the driver's events.
type driver interface {
	// TakeXids returns the XIDs received since the last call, one for each listed
	// device concerned.
	TakeXids() []Event
	// Located lists the devices at a PCI address such as 0000:3b:00.
	Located(pci string) []string
}

// OpenWatch starts to watch. It owns the inventory: closing the Watch closes it. If the kernel
// log cannot be read, OpenWatch logs the error, and the Watch goes on with the events of the
// driver.
func OpenWatch(gpus node.GPUs, o WatchOptions) (*Watch, error) {
	if o.File == "" || o.Boot == "" {
		return nil, errors.New("watch GPUs: a file and the host's boot id are required")
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	w := &Watch{GPUs: gpus, file: o.File, log: o.Logger, changed: make(chan struct{}, 1), notes: map[string][]Event{}}
	b, err := os.ReadFile(o.File)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("read GPU faults: %w", err)
	default:
		if err := json.Unmarshal(b, &w.kept); err != nil {
			return nil, fmt.Errorf("GPU faults in %s are damaged (%w): look at the devices, then remove the file",
				o.File, err)
		}
	}
	if w.kept.Boot != o.Boot {
		w.kept = keptFaults{Boot: o.Boot}
		if o.Kernel != nil {
			w.kept.Since = o.Kernel.Now()
		}
		if err := w.store(); err != nil {
			return nil, err
		}
	}
	for uuid, f := range w.kept.Faults {
		w.log.Warn("GPU still out of use", "gpu", uuid, "fault", f.String())
	}
	if o.Kernel == nil {
		return w, nil
	}
	records, err := o.Kernel.Open()
	if err != nil {
		w.log.Warn("cannot read the kernel log; only the driver reports GPU errors", "err", err)
		return w, nil
	}
	w.kernel = records
	w.reading.Go(func() { w.follow(o.Kernel, records) })
	return w, nil
}

// store writes the file; the caller holds mu, or is the only user so far.
func (w *Watch) store() error {
	b, err := json.Marshal(w.kept)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(w.file), 0o700); err != nil {
		return fmt.Errorf("keep GPU faults: %w", err)
	}
	if err := os.WriteFile(w.file+".new", b, 0o600); err != nil {
		return fmt.Errorf("keep GPU faults: %w", err)
	}
	if err := os.Rename(w.file+".new", w.file); err != nil {
		return fmt.Errorf("keep GPU faults: %w", err)
	}
	return nil
}

// Devices lists the devices. Devices with a fatal XID are unhealthy.
func (w *Watch) Devices(ctx context.Context) ([]berth.GPU, error) {
	gpus, err := w.GPUs.Devices(ctx)
	if err != nil {
		return nil, err
	}
	if d, ok := w.GPUs.(driver); ok {
		for _, e := range d.TakeXids() {
			w.note([]string{e.UUID}, e.Xid, "", e.At)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, g := range gpus {
		if f, sick := w.kept.Faults[g.UUID]; sick {
			gpus[i].Healthy, gpus[i].Reason, gpus[i].Quarantine = false, f.String(), f.Verdict.Quarantines()
		}
	}
	return gpus, nil
}

// Use returns the inventory's measurements, nil for an inventory that cannot measure.
func (w *Watch) Use(ctx context.Context, uuids []string) ([]wire.GPUUse, error) {
	if m, ok := w.GPUs.(node.GPUMeter); ok {
		return m.Use(ctx, uuids)
	}
	return nil, nil
}

// Holders returns the inventory's list of holders, nil for an inventory that does not know them.
func (w *Watch) Holders(ctx context.Context, uuids []string) ([]node.GPUHolding, error) {
	if h, ok := w.GPUs.(node.GPUHolders); ok {
		return h.Holders(ctx, uuids)
	}
	return nil, nil
}

// Changes signals that Devices would give another answer now.
func (w *Watch) Changes() <-chan struct{} { return w.changed }

// ApplicationXid returns the latest XID since then that left its device usable, on any of the
// devices, 0 for none.
func (w *Watch) ApplicationXid(uuids []string, since time.Time) uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	var last Event
	for _, uuid := range uuids {
		for _, e := range w.notes[uuid] {
			if !e.At.Before(since) && e.At.After(last.At) {
				last = e
			}
		}
	}
	return last.Xid
}

// Close ends watching and closes the inventory. It may be called more than once.
func (w *Watch) Close() error {
	w.mu.Lock()
	again := w.closed
	w.closed = true
	w.mu.Unlock()
	if again {
		return nil
	}
	if w.kernel != nil {
		_ = w.kernel.Close()
		w.reading.Wait()
	}
	return w.GPUs.Close()
}

// note takes an XID of some devices.
func (w *Watch) note(uuids []string, xid uint64, words string, at time.Time) {
	verdict := failure.XidWanted(xid, words)
	w.mu.Lock()
	defer w.mu.Unlock()
	news := false
	for _, uuid := range uuids {
		if !verdict.Fatal() {
			w.log.Info("GPU reported an error", "gpu", uuid, "xid", xid, "to_do", verdict.String())
			w.notes[uuid] = append(w.notes[uuid], Event{At: at, UUID: uuid, Xid: xid})
			w.notes[uuid] = w.notes[uuid][max(0, len(w.notes[uuid])-maxNotes):]
			continue
		}
		if was, sick := w.kept.Faults[uuid]; sick && was.Verdict >= verdict {
			continue
		}
		faults := maps.Clone(w.kept.Faults)
		if faults == nil {
			faults = map[string]fault{}
		}
		faults[uuid] = fault{Xid: xid, Verdict: verdict, At: at.UTC()}
		w.kept.Faults, news = faults, true
		w.log.Error("GPU taken out of use", "gpu", uuid, "fault", faults[uuid].String())
	}
	if !news {
		return
	}
	if err := w.store(); err != nil {
		w.log.Error("cannot store GPU fault, it is forgotten on agent restart", "err", err)
	}
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// follow reads the kernel's log until the log is closed.
func (w *Watch) follow(kernel KernelLog, records io.Reader) {
	buf := make([]byte, kernellog.RecordSize)
	for {
		n, err := records.Read(buf)
		if err != nil && !kernellog.Overwritten(err) {
			w.mu.Lock()
			closed := w.closed
			w.mu.Unlock()
			if !closed {
				w.log.Warn("kernel log interrupted", "err", err)
			}
			return
		}
		x, ok := parseXid(buf[:n])
		if !ok || x.since < w.kept.Since {
			continue
		}
		at := time.Now().Add(x.since - kernel.Now())
		d, ok := w.GPUs.(driver)
		if !ok {
			w.log.Warn("kernel reports a GPU outside this machine's inventory", "pci", x.pci, "xid", x.xid)
			continue
		}
		uuids := d.Located(x.pci)
		if len(uuids) == 0 {
			w.log.Error("kernel reports a GPU that the driver does not list", "pci", x.pci, "xid", x.xid,
				"words", x.words)
			continue
		}
		w.note(uuids, x.xid, x.words, at)
	}
}

// kernelXid is an XID in a message of the kernel log.
type kernelXid struct {
	since time.Duration // of the boot
	pci   string
	xid   uint64
	words string
}

// parseXid reads a record of /dev/kmsg, such as
//
//	4,1234,5678901,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, GPU has fallen off the bus.
func parseXid(record []byte) (x kernelXid, ok bool) {
	r, ok := kernellog.Parse(record)
	if !ok {
		return x, false
	}
	line, ok := strings.CutPrefix(r.Text, "NVRM: Xid (PCI:")
	if !ok {
		return x, false
	}
	pci, rest, ok := strings.Cut(line, "): ")
	if !ok {
		return x, false
	}
	digits, words, _ := strings.Cut(rest, ",")
	xid, err := strconv.ParseUint(strings.TrimSpace(digits), 10, 64)
	if err != nil {
		return x, false
	}
	return kernelXid{r.Since, pciAddress(pci), xid, strings.TrimSpace(words)}, true
}

// pciAddress is the one spelling of an address: 0000:3b:00, without a function
// and with four digits of the domain.
func pciAddress(s string) string {
	s, _, _ = strings.Cut(strings.ToLower(s), ".")
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) > 4 {
		s = domain[len(domain)-4:] + ":" + rest
	}
	return s
}
