// Package connlimit bounds the connections of a server so that strangers cannot
// keep out the callers it knows. A connection is a stranger's until a call on it has
// carried a good token; strangers make room for newcomers, known callers never do.
//
//	state     counts towards              is closed for others
//	stranger  its address, the total      oldest first: for one of its address, or for any
//	user      its tenant, users, total    never; a call that would be one too many is refused
//	agent     its machine, the total      never
//
// A machine's connections beyond Limits.Machine stay strangers': their calls are
// served, and they make room as strangers do.
//
// Users have at most a part of the total, so that agents always find room.
package connlimit

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"

	"berth"
)

// Limits are numbers of connections at a time.
type Limits struct {
	Total      int // of all kinds
	Users      int // of users
	Tenant     int // of one tenant's users
	Machine    int // of one machine's agent
	PerAddress int // of strangers with one address

	// Proxies are networks whose connections carry many callers: PerAddress does not
	// bind them.
	Proxies []netip.Prefix
}

// ofMachine is Limits.Machine where the total has room for that many. The calls of an agent
// use far fewer than 64, and each of the 64 sessions that users may have on a machine uses one.
const ofMachine = 128

// Of returns limits in proportion to a total: half for users, and half of that for
// one tenant.
func Of(total int, proxies []netip.Prefix) Limits {
	return Limits{
		Total: total, Users: total / 2, Tenant: total / 4, Machine: max(1, min(ofMachine, total/8)),
		PerAddress: max(1, min(256, total/8)), Proxies: proxies,
	}
}

// Listener accepts connections within Limits.
type Listener struct {
	net.Listener
	limits Limits

	mu        sync.Mutex
	total     int
	users     int
	tenants   map[berth.TenantID]int
	machines  map[berth.MachineID]int
	strangers *list.List             // of *conn, the oldest in front
	addresses map[netip.Addr][]*conn // strangers by address, the oldest first
}

// New returns a Listener over another.
func New(inner net.Listener, l Limits) *Listener {
	return &Listener{
		Listener: inner, limits: l,
		tenants: map[berth.TenantID]int{}, machines: map[berth.MachineID]int{}, strangers: list.New(),
		addresses: map[netip.Addr][]*conn{},
	}
}

// kind is the class of a connection and decides its limits.
type kind int32

const (
	stranger kind = iota
	user
	agent
	gone // closed
)

// conn is a connection that the Listener counts; listener.mu guards its changes of
// kind.
type conn struct {
	net.Conn
	listener *Listener
	address  netip.Addr
	proxied  bool
	place    *list.Element   // among strangers
	tenant   berth.TenantID  // of a user
	machine  berth.MachineID // of an agent
	kind     atomic.Int32
}

// Accept returns the next connection. A stranger's connection may be closed to make room.
// If no stranger is left, Accept closes the new connection and waits for the next one.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		inner, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		from := addressOf(inner)
		c := &conn{Conn: inner, listener: l, address: host(from)}
		c.proxied = slices.ContainsFunc(l.limits.Proxies, func(p netip.Prefix) bool { return p.Contains(from) })
		victim, ok := l.enter(c)
		if victim != nil {
			_ = victim.Close()
		}
		if ok {
			return c, nil
		}
		_ = inner.Close()
	}
}

// enter counts a new connection. If the connection needs the room of a stranger's, enter returns
// that stranger's connection as victim, which the caller closes.
func (l *Listener) enter(c *conn) (victim *conn, ok bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch here := l.addresses[c.address]; {
	case !c.proxied && len(here) >= l.limits.PerAddress:
		victim = here[0]
	case l.total < l.limits.Total:
	case l.strangers.Len() > 0:
		victim = l.strangers.Front().Value.(*conn)
	default:
		return nil, false
	}
	if victim != nil {
		l.leave(victim)
	}
	l.total++
	c.place = l.strangers.PushBack(c)
	if !c.proxied {
		l.addresses[c.address] = append(l.addresses[c.address], c)
	}
	return victim, true
}

// leave uncounts a connection; l.mu is held.
func (l *Listener) leave(c *conn) {
	switch kind(c.kind.Load()) {
	case gone:
		return
	case stranger:
		l.known(c)
	case user:
		l.users--
		drop(l.tenants, c.tenant)
	case agent:
		drop(l.machines, c.machine)
	}
	l.total--
	c.kind.Store(int32(gone))
}

// known takes a connection from the strangers; l.mu is held.
func (l *Listener) known(c *conn) {
	l.strangers.Remove(c.place)
	if c.proxied {
		return
	}
	here := slices.DeleteFunc(l.addresses[c.address], func(x *conn) bool { return x == c })
	if len(here) == 0 {
		delete(l.addresses, c.address)
		return
	}
	l.addresses[c.address] = here
}

// Close closes the connection and frees its place. A second Close frees nothing.
func (c *conn) Close() error {
	c.listener.mu.Lock()
	c.listener.leave(c)
	c.listener.mu.Unlock()
	return c.Conn.Close()
}

// connKey is the context key of the connection.
type connKey struct{}

// Context returns a context that carries the connection, for the calls on that connection; see
// http.Server.ConnContext.
func Context(ctx context.Context, c net.Conn) context.Context {
	if t, ok := c.(interface{ NetConn() net.Conn }); ok { // TLS
		c = t.NetConn()
	}
	if known, ok := c.(*conn); ok {
		return context.WithValue(ctx, connKey{}, known)
	}
	return ctx
}

// ErrFull is that users have as many connections as they may.
var ErrFull = errors.New("connlimit: too many connections of users")

// Agent notes that a call of a machine's agent came on the connection, which is the
// agent's from then on if the machine has fewer than Limits.Machine.
func Agent(ctx context.Context, machine berth.MachineID) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok && kind(c.kind.Load()) != agent {
		c.listener.proveAgent(c, machine)
	}
}

// User records a call of a tenant's user on the connection. It returns ErrFull if
// all users, or the users of the tenant, have too many connections; the caller then
// refuses the call and closes the connection.
func User(ctx context.Context, tenant berth.TenantID) error {
	if c, ok := ctx.Value(connKey{}).(*conn); ok && kind(c.kind.Load()) == stranger {
		return c.listener.proveUser(c, tenant)
	}
	return nil
}

// Unread returns how many bytes of earlier answers the kernel still holds of the
// call's connection, since the client reads slowly or not at all. It returns 0 where
// that is not known: outside Linux, and for a connection of another listener.
func Unread(ctx context.Context) int {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		return unsent(c.Conn)
	}
	return 0
}

// Close closes the connection of a call, and drops data in the kernel's buffers.
func Close(ctx context.Context) {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return
	}
	if tcp, ok := c.Conn.(interface{ SetLinger(seconds int) error }); ok {
		_ = tcp.SetLinger(0) // an error: it is closed
	}
	_ = c.Close()
}

// proveUser counts the connection as a user's from now on, or returns ErrFull. A connection keeps
// the tenant of its first authenticated call.
func (l *Listener) proveUser(c *conn, tenant berth.TenantID) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if kind(c.kind.Load()) != stranger { // another call of the connection was faster
		return nil
	}
	if l.users >= l.limits.Users || l.tenants[tenant] >= l.limits.Tenant {
		return ErrFull
	}
	l.known(c)
	l.users++
	l.tenants[tenant]++
	c.tenant = tenant
	c.kind.Store(int32(user))
	return nil
}

// proveAgent counts the connection as an agent's from now on. Beyond the limit of its machine the
// connection keeps its former class.
func (l *Listener) proveAgent(c *conn, machine berth.MachineID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := kind(c.kind.Load())
	if was == gone || was == agent || l.machines[machine] >= l.limits.Machine {
		return
	}
	if was == user {
		l.users--
		drop(l.tenants, c.tenant)
	} else {
		l.known(c)
	}
	l.machines[machine]++
	c.machine = machine
	c.kind.Store(int32(agent))
}

// drop counts one less of key.
func drop[K comparable](counts map[K]int, key K) {
	if counts[key]--; counts[key] == 0 {
		delete(counts, key)
	}
}

// addressOf returns the client's address, or the zero Addr for a connection without an IP
// address.
func addressOf(c net.Conn) netip.Addr {
	at, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	return at.Addr().Unmap().WithZone("")
}

// host is the address by which connections are counted: of IPv6 the /64, since one
// host commonly has a whole one.
func host(ip netip.Addr) netip.Addr {
	if p, err := ip.Prefix(64); ip.Is6() && err == nil {
		return p.Addr()
	}
	return ip
}
