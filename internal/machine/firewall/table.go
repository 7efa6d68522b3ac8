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
	"net"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	"berth/internal/lib/netns"
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
	// Private are networks that are not public and in which listed names may have addresses.
	Private []netip.Prefix
	// NamesPort is the port of the machine's own resolver, on all addresses of the host. Containers with names reach
	// it in the place of Resolvers, which they cannot ask then; 0: the machine has none.
	NamesPort uint16
	// NetNS is the path of the network namespace of the bridges; "": the process's own.
	NetNS  string
	Logger *slog.Logger // nil: discard
}

// Network is a bridge on the host with the containers of one job.
type Network struct {
	Name   string       // the engine's
	Bridge string       // interface
	Subnet netip.Prefix // of the containers
	Policy spec.Network
	// AnyName is for policy list: the containers resolve all names, as on a machine without a resolver.
	AnyName bool
}

// Table is one table of nftables. All methods may be called concurrently.
type Table struct {
	name string
	opts Options
	log  *slog.Logger

	mu       sync.Mutex
	watch    *subscription
	networks map[string]entry // by bridge
	control  []netip.Addr     // addresses of the control plane
	version  uint64           // of networks and control
	adds     uint64           // calls of Add
	restored bool
	tokens   map[string]bool // chain names of own writes that the subscription has not seen yet

	writing sync.Mutex // held while nft runs
	written uint64     // version in the kernel; guarded by writing

	ownMu sync.Mutex
	own   ownAddresses // guarded by ownMu
}

// entry is a network with the version that has its present rules and the last call of Add.
type entry struct {
	Network
	version uint64
	added   Mark
	opened  openings // addresses of listed names
}

// Mark is a moment in the life of a Table: the number of calls of Add before it.
type Mark uint64

// Open subscribes to changes of the table and checks that the kernel takes it. It writes
// nothing: rules of an earlier process stay in force until Restore. The error wraps
// ErrUnsupported.
func Open(ctx context.Context, o Options) (*Table, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	t := &Table{
		name: nameOf(o.Owner), opts: o, log: o.Logger,
		networks: map[string]entry{}, tokens: map[string]bool{},
	}
	// One network of each policy makes the check cover every kind of rule.
	trial := []Network{
		{Bridge: "berth-a", Subnet: netip.MustParsePrefix("192.0.2.0/29")},
		{Bridge: "berth-b", Subnet: netip.MustParsePrefix("192.0.2.8/29"), Policy: spec.Network{Egress: spec.EgressList,
			Allow: []spec.Destination{{To: "192.0.2.0/24", Ports: "443"}, {To: "names.example.org", Ports: "443"}}}},
	}
	text := t.render(state{list: trial}, "check")
	if err := nft(ctx, o.NetNS, text, "--check"); err != nil {
		return nil, fmt.Errorf("check table %s: %w: %w", t.name, ErrUnsupported, err)
	}
	var err error
	if t.watch, err = subscribe(o.NetNS); err != nil {
		return nil, fmt.Errorf("watch table %s: %w: %w", t.name, ErrUnsupported, err)
	}
	return t, nil
}

// nameOf returns the name of an owner's table.
func nameOf(owner string) string {
	sum := sha256.Sum256([]byte(owner))
	return "berth_" + hex.EncodeToString(sum[:6])
}

// Delete deletes the table of an owner whose containers have ended and whose agent does not run, if there is one. A
// table that a killed agent leaves behind slows down every later run of nft and iptables on the host. The table is in
// the network namespace of a path; "": the process's own. Delete returns nil if nftables is not installed.
func Delete(ctx context.Context, owner, space string) error {
	if _, err := lookUp(); err != nil {
		return nil
	}
	name := nameOf(owner)
	// The first command makes the second one succeed if there is no such table.
	return nft(ctx, space, "add table inet "+name+"\ndelete table inet "+name+"\n")
}

// HasBridge reports whether the host has an interface of this name.
func (t *Table) HasBridge(name string) bool {
	return netns.Do(t.opts.NetNS, func() error {
		_, err := net.InterfaceByName(name)
		return err
	}) == nil
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
	return errors.Join(err, t.subscription().close())
}

// Mark returns the present moment, to be taken before the engine is asked for the list for
// Restore, or to remove a network.
func (t *Table) Mark() Mark {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Mark(t.adds)
}

// Restore makes the table hold exactly these networks, and those that were added after since.
// It writes the table even if nothing has changed here. The first call opens the table for changes.
func (t *Table) Restore(ctx context.Context, since Mark, list []Network) error {
	left := t.leftOpen(ctx)
	t.mu.Lock()
	t.restored = true
	listed := map[string]bool{}
	for _, n := range list {
		listed[n.Bridge] = true
		if e, known := t.networks[n.Bridge]; !known || e.added <= since {
			t.put(n, since)
		}
	}
	for bridge, e := range t.networks {
		if !listed[bridge] && e.added <= since {
			delete(t.networks, bridge)
			t.version++
		}
	}
	t.takeOver(left)
	t.mu.Unlock()
	t.writing.Lock()
	defer t.writing.Unlock()
	return t.writeNow(ctx)
}

// put sets the entry of a network, and returns the version that has its rules. t.mu is held.
func (t *Table) put(n Network, added Mark) uint64 {
	e, known := t.networks[n.Bridge]
	if !known || !reflect.DeepEqual(e.Network, n) {
		t.version++
		e.Network, e.version, e.opened = n, t.version, openings{}
	}
	e.added = added
	t.networks[n.Bridge] = e
	return e.version
}

// Add returns once the kernel holds the rules of a network, in place of the rules of an earlier
// network with this bridge. It is idempotent and cheap for a network that the table has.
func (t *Table) Add(ctx context.Context, n Network) error {
	t.mu.Lock()
	if !t.restored {
		t.mu.Unlock()
		return fmt.Errorf("add bridge %s to table %s: %w", n.Bridge, t.name, errNotRestored)
	}
	// Each call counts, since the network may have been removed and made again in between.
	t.adds++
	version := t.put(n, Mark(t.adds))
	t.mu.Unlock()
	return t.write(ctx, version)
}

// Remove drops the rules of a network that the engine has removed, unless the network was added
// after since, the moment before the removal: then it may exist again. It is idempotent.
func (t *Table) Remove(ctx context.Context, since Mark, bridge string) error {
	t.mu.Lock()
	if e, known := t.networks[bridge]; !known || e.added > since {
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

// state is the content of a table.
type state struct {
	list    []Network
	control []netip.Addr
	opened  map[string][]opening // by bridge
}

// writeNow writes the table as it should be. t.writing is held.
func (t *Table) writeNow(ctx context.Context) error {
	token := newToken()
	now := time.Now()
	t.mu.Lock()
	version := t.version
	is := state{control: slices.Clone(t.control), opened: map[string][]opening{}}
	for _, bridge := range slices.Sorted(maps.Keys(t.networks)) {
		is.list = append(is.list, t.networks[bridge].Network)
		is.opened[bridge] = t.networks[bridge].opened.present(now)
	}
	t.tokens[token] = true
	t.mu.Unlock()
	if err := nft(ctx, t.opts.NetNS, t.render(is, token)); err != nil {
		t.forget(token)
		return fmt.Errorf("write table %s: %w", t.name, err)
	}
	t.written = version
	t.mu.Lock()
	defer t.mu.Unlock()
	for bridge, list := range is.opened {
		if e, known := t.networks[bridge]; known {
			e.opened.written(list)
		}
	}
	return nil
}

// newToken returns the name of a chain that marks an own write.
func newToken() string { return "write_" + rand.Text()[:16] }

// forget drops the name of an own write and reports whether the name was known.
func (t *Table) forget(token string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.tokens[token]
	delete(t.tokens, token)
	return known
}

// Waits after a repair or a subscription that failed.
const (
	repairPause    = 100 * time.Millisecond
	subscribePause = 10 * time.Second // at most
)

// Run repairs the table after each change by another program, until ctx ends. A subscription that
// fails is replaced, and the table is written again, since changes may have been missed. repaired,
// if not nil, is called after each repair.
func (t *Table) Run(ctx context.Context, repaired func()) {
	defer context.AfterFunc(ctx, func() { _ = t.subscription().interrupt() })()
	for {
		foreign, err := t.subscription().next(t.name, t.forget)
		why := "were changed by another program"
		if err != nil && ctx.Err() == nil {
			t.log.Error("egress rules are not watched, will subscribe again", "table", t.name, "err", err)
			foreign, why = t.resubscribe(ctx), "were not watched for a moment"
		}
		if ctx.Err() != nil {
			return
		}
		if foreign {
			t.repair(ctx, why, repaired)
		}
	}
}

// subscription returns the present subscription.
func (t *Table) subscription() *subscription {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.watch
}

// resubscribe replaces the subscription, and reports false if ctx ended before it could.
func (t *Table) resubscribe(ctx context.Context) bool {
	_ = t.subscription().close()
	for wait := repairPause; ; wait = min(2*wait, subscribePause) {
		fresh, err := subscribe(t.opts.NetNS)
		if err == nil {
			t.mu.Lock()
			t.watch = fresh
			clear(t.tokens) // of writes that the old one has not seen
			t.mu.Unlock()
			return true
		}
		t.log.Error("cannot watch the egress rules, will retry", "table", t.name, "err", err)
		select {
		case <-ctx.Done():
			return false
		case <-time.After(wait):
		}
	}
}

// repair writes the table until it succeeds or ctx ends.
func (t *Table) repair(ctx context.Context, why string, repaired func()) {
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
			t.log.Warn("egress rules "+why+", wrote them again",
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
