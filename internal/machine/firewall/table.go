package firewall

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"berth/spec"
)

// ErrUnsupported reports that this machine cannot hold a table: the program nft is missing, or
// the kernel or the process's rights do not suffice.
var ErrUnsupported = errors.New("nftables cannot be used here")

// errNotRestored reports a change before the first Restore.
var errNotRestored = errors.New("the networks of earlier processes are not known yet")

// Options configures a Table. Only Owner is required.
type Options struct {
	// Owner names the table: two owners on one host have two tables.
	Owner string
	// Never are networks that no job reaches, in addition to link-local ones.
	Never []netip.Prefix
	// Resolvers are the name servers that jobs with names may ask, at port 53 alone. They may
	// lie in Never.
	Resolvers []netip.Addr
	// NetNS is the path of the network namespace of the bridges; "": the process's own.
	NetNS  string
	Logger *slog.Logger // nil: discard
}

// Network is a bridge on the host with the containers of one job.
type Network struct {
	Bridge string       // interface
	Subnet netip.Prefix // of the containers
	Policy spec.Network
}

// Table is one table of nftables. All methods may be called concurrently.
type Table struct {
	name  string
	opts  Options
	log   *slog.Logger
	watch *subscription

	mu       sync.Mutex
	networks map[string]entry // by bridge
	control  []netip.Addr     // addresses of the control plane
	version  uint64           // of networks and control
	restored bool
	tokens   map[string]bool // chain names of own writes that the subscription has not seen yet

	writing sync.Mutex // held while nft runs
	written uint64     // version in the kernel; guarded by writing
}

// entry is a network with the version in which it was added.
type entry struct {
	Network
	added uint64
}

// Mark is a moment in the life of a Table, see Restore.
type Mark uint64

// Open subscribes to changes of the table and checks that the kernel takes it. It writes
// nothing: rules of an earlier process stay in force until Restore. The error wraps
// ErrUnsupported.
func Open(ctx context.Context, o Options) (*Table, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	sum := sha256.Sum256([]byte(o.Owner))
	t := &Table{
		name: "berth_" + hex.EncodeToString(sum[:6]), opts: o, log: o.Logger,
		networks: map[string]entry{}, tokens: map[string]bool{},
	}
	// One network of each policy makes the check cover every kind of rule.
	trial := []Network{
		{"berth-a", netip.MustParsePrefix("192.0.2.0/29"), spec.Network{}},
		{"berth-b", netip.MustParsePrefix("192.0.2.8/29"), spec.Network{Egress: spec.EgressList,
			Allow: []spec.Destination{{To: "192.0.2.0/24", Ports: "443"}}}},
	}
	text := t.render(trial, nil, "check")
	if err := nft(ctx, o.NetNS, text, "--check"); err != nil {
		return nil, fmt.Errorf("check table %s: %w: %w", t.name, ErrUnsupported, err)
	}
	var err error
	if t.watch, err = subscribe(o.NetNS); err != nil {
		return nil, fmt.Errorf("watch table %s: %w: %w", t.name, ErrUnsupported, err)
	}
	return t, nil
}

// Name returns the table's name, for operators: nft list table inet NAME.
func (t *Table) Name() string { return t.name }

// Close ends the subscription. The table stays in the kernel, since containers outlive the agent;
// only a table without networks is deleted. Run must have returned.
func (t *Table) Close() error {
	t.writing.Lock()
	defer t.writing.Unlock()
	t.mu.Lock()
	empty := t.restored && len(t.networks) == 0
	t.restored = false // a second call deletes nothing, and no later Add succeeds
	t.mu.Unlock()
	var err error
	if empty {
		err = nft(context.Background(), t.opts.NetNS, "delete table inet "+t.name+"\n")
	}
	return errors.Join(err, t.watch.close())
}

// Mark returns the present moment, to be taken before the list for Restore is asked for.
func (t *Table) Mark() Mark {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Mark(t.version)
}

// Restore makes the table hold exactly these networks, and those that were added after since.
// The first call opens the table for changes.
func (t *Table) Restore(ctx context.Context, since Mark, list []Network) error {
	t.mu.Lock()
	changed := !t.restored
	t.restored = true
	listed := map[string]bool{}
	for _, n := range list {
		listed[n.Bridge] = true
		if _, known := t.networks[n.Bridge]; !known {
			t.networks[n.Bridge] = entry{n, t.version}
			changed = true
		}
	}
	for bridge, e := range t.networks {
		if !listed[bridge] && e.added <= uint64(since) {
			delete(t.networks, bridge)
			changed = true
		}
	}
	if changed {
		t.version++
	}
	version := t.version
	t.mu.Unlock()
	return t.write(ctx, version)
}

// Add returns once the kernel holds the rules of a network. It is idempotent and cheap for a
// network that the table has.
func (t *Table) Add(ctx context.Context, n Network) error {
	t.mu.Lock()
	if !t.restored {
		t.mu.Unlock()
		return fmt.Errorf("add bridge %s to table %s: %w", n.Bridge, t.name, errNotRestored)
	}
	e, known := t.networks[n.Bridge]
	if !known {
		t.version++
		e = entry{n, t.version}
		t.networks[n.Bridge] = e
	}
	version := e.added
	t.mu.Unlock()
	return t.write(ctx, version)
}

// Remove drops the rules of a network that the engine has removed. It is idempotent.
func (t *Table) Remove(ctx context.Context, bridge string) error {
	t.mu.Lock()
	if _, known := t.networks[bridge]; !known {
		t.mu.Unlock()
		return nil
	}
	delete(t.networks, bridge)
	t.version++
	version := t.version
	t.mu.Unlock()
	return t.write(ctx, version)
}

// Protect puts the control plane's addresses out of reach of all jobs, in place of the addresses
// of the call before. Addresses of IPv6 need no rule.
func (t *Table) Protect(ctx context.Context, control []netip.Addr) error {
	var kept []netip.Addr
	for _, a := range control {
		if a = a.Unmap(); a.Is4() {
			kept = append(kept, a)
		}
	}
	slices.SortFunc(kept, netip.Addr.Compare)
	kept = slices.Compact(kept)
	t.mu.Lock()
	if slices.Equal(kept, t.control) {
		t.mu.Unlock()
		return nil
	}
	t.control = kept
	t.version++
	version, restored := t.version, t.restored
	t.mu.Unlock()
	if !restored {
		return nil // Restore will write it
	}
	return t.write(ctx, version)
}

// write brings the kernel to a version at least. Calls that wait for a running write share the
// next one.
func (t *Table) write(ctx context.Context, version uint64) error {
	t.writing.Lock()
	defer t.writing.Unlock()
	if t.written >= version && version > 0 {
		return nil
	}
	return t.writeNow(ctx)
}

// writeNow writes the table as it should be. t.writing is held.
func (t *Table) writeNow(ctx context.Context) error {
	token := "write_" + rand.Text()[:16]
	t.mu.Lock()
	version, control := t.version, slices.Clone(t.control)
	var list []Network
	for _, bridge := range slices.Sorted(maps.Keys(t.networks)) {
		list = append(list, t.networks[bridge].Network)
	}
	t.tokens[token] = true
	t.mu.Unlock()
	if err := nft(ctx, t.opts.NetNS, t.render(list, control, token)); err != nil {
		t.forget(token)
		return fmt.Errorf("write table %s: %w", t.name, err)
	}
	t.written = version
	return nil
}

// forget drops the name of an own write and reports whether the name was known.
func (t *Table) forget(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.tokens[token]
	delete(t.tokens, token)
	return known
}

// repairPause is the wait after a repair that failed.
const repairPause = 100 * time.Millisecond

// Run repairs the table after each change by another program, until ctx ends. repaired, if not
// nil, is called after each repair.
func (t *Table) Run(ctx context.Context, repaired func()) error {
	defer context.AfterFunc(ctx, func() { _ = t.watch.interrupt() })()
	for {
		foreign, err := t.watch.next(t.name, t.forget)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("watch table %s: %w", t.name, err)
		}
		if foreign {
			t.repair(ctx, repaired)
		}
	}
}

// repair writes the table until it succeeds or ctx ends.
func (t *Table) repair(ctx context.Context, repaired func()) {
	began := time.Now()
	for ctx.Err() == nil {
		t.mu.Lock()
		restored := t.restored
		t.mu.Unlock()
		if !restored {
			return // Restore will write it
		}
		t.writing.Lock()
		err := t.writeNow(ctx)
		t.writing.Unlock()
		if err == nil {
			t.log.Warn("egress rules were changed by another program, wrote them again",
				"table", t.name, "took", time.Since(began).Round(time.Millisecond))
			if repaired != nil {
				repaired()
			}
			return
		}
		t.log.Error("cannot write the egress rules again, will retry", "table", t.name, "err", err)
		select {
		case <-ctx.Done():
		case <-time.After(repairPause):
		}
	}
}
