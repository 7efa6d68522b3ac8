package faultproxy

import (
	"fmt"
	"net"
	"sync"
	"time"
)

// Direction is the way bytes go.
type Direction int

// The two ways.
const (
	ToServer Direction = iota
	ToClient
)

// String returns the direction in words.
func (d Direction) String() string {
	switch d {
	case ToServer:
		return "to server"
	case ToClient:
		return "to client"
	}
	panic(fmt.Sprintf("faultproxy: direction %d", int(d)))
}

// Proxy forwards connections to a server until Close. Its methods may be called
// concurrently, and act at once on the connections that are open.
type Proxy struct {
	listener net.Listener
	serving  sync.WaitGroup

	mu      sync.Mutex
	closed  bool
	targets []string
	rules   rules
	changed chan struct{} // closed and replaced when rules change
	links   map[*link]struct{}
	trap    *trap
}

// rules are the present faults of the link; the zero value is a good link.
type rules struct {
	delay time.Duration
	down  bool
	cut   [2]bool // by direction
}

// Start listens on a free loopback port and forwards to the first of the
// targets that takes the connection, as a load balancer does. None need answer
// yet: a connection made while none does is reset.
func Start(targets ...string) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("faultproxy for %s: %w", targets, err)
	}
	p := &Proxy{listener: l, targets: targets, changed: make(chan struct{}), links: map[*link]struct{}{}}
	p.serving.Go(p.accept)
	return p, nil
}

// Address is where clients connect, as host:port.
func (p *Proxy) Address() string { return p.listener.Addr().String() }

// SetTargets sends later connections to other servers. Open connections stay.
func (p *Proxy) SetTargets(targets ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets = targets
}

// Delay holds every byte back for d, each way; 0 ends that.
func (p *Proxy) Delay(d time.Duration) { p.change(func(r *rules) { r.delay = d }) }

// Drop resets all connections, and new ones as soon as they are made, until
// Heal.
func (p *Proxy) Drop() {
	p.change(func(r *rules) { r.down = true })
	p.Reset()
}

// Reset breaks the connections that are open; new ones are not affected.
func (p *Proxy) Reset() {
	p.mu.Lock()
	open := make([]*link, 0, len(p.links))
	for l := range p.links {
		open = append(open, l)
	}
	p.mu.Unlock()
	for _, l := range open {
		l.reset()
	}
}

// Cut lets nothing more pass in these directions, in both if none is named,
// until Heal. Bytes wait; connections stay open and new ones can be made.
func (p *Proxy) Cut(directions ...Direction) {
	if len(directions) == 0 {
		directions = []Direction{ToServer, ToClient}
	}
	p.change(func(r *rules) {
		for _, d := range directions {
			r.cut[d] = true
		}
	})
}

// CutReply waits, once, for a request that contains these bytes (nil: for the next request). It
// lets the request through to the server, and resets the connection when the server begins to
// answer: the write was applied and its author does not know. The channel is closed when that has
// happened. Another CutReply, or Heal, cancels a cut that has not met its request.
//
// The server's answer is the next chunk that the server sends on that connection, so the protocol
// must be one of requests and replies in turn, such as PostgreSQL's and HTTP/1.1.
func (p *Proxy) CutReply(request []byte) <-chan struct{} {
	t := &trap{match: request, done: make(chan struct{})}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.trap = t
	return t.done
}

// Heal makes the link a good one again and delivers the waiting bytes.
func (p *Proxy) Heal() {
	p.mu.Lock()
	p.trap = nil
	p.mu.Unlock()
	p.change(func(r *rules) { *r = rules{} })
}

// Open returns the number of open connections.
func (p *Proxy) Open() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.links)
}

// Close ends the proxy, its port and all connections.
func (p *Proxy) Close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	err := p.listener.Close()
	p.Reset()
	p.serving.Wait()
	return err
}

// change changes the rules and wakes every link that waits for a change.
func (p *Proxy) change(f func(*rules)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f(&p.rules)
	close(p.changed)
	p.changed = make(chan struct{})
}

// state returns the rules, and a channel that is closed when they change.
func (p *Proxy) state() (rules, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rules, p.changed
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return // closed
		}
		p.serving.Go(func() { p.serve(client.(*net.TCPConn)) })
	}
}

func (p *Proxy) serve(client *net.TCPConn) {
	p.mu.Lock()
	targets, refuse := p.targets, p.rules.down || p.closed
	p.mu.Unlock()
	if refuse {
		reset(client)
		return
	}
	server := dial(targets)
	if server == nil {
		reset(client)
		return
	}
	l := &link{proxy: p, client: client, server: server, gone: make(chan struct{})}
	p.mu.Lock()
	refuse = p.rules.down || p.closed // since it was dialed
	if !refuse {
		p.links[l] = struct{}{}
	}
	p.mu.Unlock()
	if refuse {
		l.reset()
		return
	}
	l.run()
	p.mu.Lock()
	delete(p.links, l)
	p.mu.Unlock()
}

// dial connects to the first target that accepts, and returns nil if none does.
func dial(targets []string) *net.TCPConn {
	for _, t := range targets {
		if c, err := net.DialTimeout("tcp", t, 5*time.Second); err == nil {
			return c.(*net.TCPConn)
		}
	}
	return nil
}
