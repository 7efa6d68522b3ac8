package rig

import (
	"context"
	"fmt"
	"net/url"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"

	"berth/api/client"
	"berth/e2e/commands"
	"berth/e2e/faultproxy"
)

// Replica is one berthd of a stack. Its methods are not safe for concurrent use.
type Replica struct {
	Name string
	API  *client.Client // of this replica alone

	stack   *Stack
	listen  string
	args    []string
	links   []*faultproxy.Proxy // to PostgreSQL and Temporal; none unless Options.Linked
	process *Process
	caller  *Caller
}

// AddReplica starts one more berthd with the flags of the stack, and with the given flags, which go last. The caller
// puts it behind the stack's address by Front.
func (s *Stack) AddReplica(ctx context.Context, flags ...string) (*Replica, error) {
	r := &Replica{Name: fmt.Sprintf("berthd-%d", len(s.replicas)+1), stack: s}
	if len(s.replicas) == 0 {
		r.Name = "berthd"
	}
	var err error
	if r.listen, err = commands.Address(); err != nil {
		return nil, err
	}
	database, temporal := s.database, s.Temporal
	if s.linked {
		if database, temporal, err = r.link(); err != nil {
			return nil, err
		}
	}
	r.args = append([]string{
		"--listen", r.listen, "--database-url", database, "--temporal-address", temporal,
		"--blob-url", "file://" + filepath.Join(s.Dir, "blobs"),
	}, slices.Concat(s.flags, flags)...)
	r.API = client.New("http://"+r.listen, s.Token)
	r.caller = NewCaller("http://"+r.listen, s.Token, "")
	s.replicas = append(s.replicas, r)
	return r, r.Start(ctx)
}

// link puts proxies between the replica and its servers, and returns the
// addresses to use.
func (r *Replica) link() (database, temporal string, err error) {
	u, err := url.Parse(r.stack.database)
	if err != nil {
		return "", "", err
	}
	for _, target := range []string{u.Host, r.stack.Temporal} {
		p, err := faultproxy.Start(target)
		if err != nil {
			return "", "", err
		}
		r.links = append(r.links, p)
	}
	u.Host = r.links[0].Address()
	return u.String(), r.links[1].Address(), nil
}

// Start starts the process, also after an earlier end, and returns once the process answers
// calls.
func (r *Replica) Start(ctx context.Context) (err error) {
	s := r.stack
	log := filepath.Join(s.Dir, r.Name+".log")
	if r.process, err = run(log, []string{"BERTH_ADMIN_TOKEN=" + s.Token}, s.Programs.Path("berthd"),
		r.args...); err != nil {
		return err
	}
	s.services.add(r.Name, r.process.PID)
	err = Await(ctx, Patience, func(ctx context.Context) error {
		if !r.process.Running() {
			return fatal{fmt.Errorf("it ended: %w", r.process.err)}
		}
		_, err := r.API.Machines(ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("start %s: %w: %s", r.Name, err, Tail(log))
	}
	return nil
}

// Address returns the address of the API, as host:port.
func (r *Replica) Address() string { return r.listen }

// Links returns the proxies between the replica and its servers. It needs Options.Linked.
func (r *Replica) Links() (database, temporal *faultproxy.Proxy) { return r.links[0], r.links[1] }

// Process returns the present process.
func (r *Replica) Process() *Process { return r.process }

// Stop ends the process in order, as an upgrade does. It returns nil for a process
// that has ended before.
func (r *Replica) Stop() error {
	if !r.process.Running() {
		return nil
	}
	return r.process.end(syscall.SIGTERM)
}

// Freeze stops the threads of the process until Thaw; its connections stay open.
func (r *Replica) Freeze() { r.process.Signal(syscall.SIGSTOP) }

// Thaw ends a freeze.
func (r *Replica) Thaw() { r.process.Signal(syscall.SIGCONT) }

// Cut lets no byte pass between the replica and its servers until Heal. It needs
// Options.Linked.
func (r *Replica) Cut() {
	for _, l := range r.links {
		l.Cut()
	}
}

// Heal ends a cut.
func (r *Replica) Heal() {
	for _, l := range r.links {
		l.Heal()
	}
}

var (
	waitersWaiting = regexp.MustCompile(`(?m)^berth_waiters\{state="waiting"\} (\d+)$`)
	schedulerLeads = regexp.MustCompile(`(?m)^berth_scheduler_leader (\d+)$`)
)

// Waiters returns for how many members the replica waits.
func (r *Replica) Waiters(ctx context.Context) (int, error) { return r.figure(ctx, waitersWaiting) }

// Leads reports whether the replica counts itself as the leader.
func (r *Replica) Leads(ctx context.Context) (bool, error) {
	n, err := r.figure(ctx, schedulerLeads)
	return n == 1, err
}

// figure reads one whole number of the replica's metrics.
func (r *Replica) figure(ctx context.Context, line *regexp.Regexp) (int, error) {
	a := r.caller.Call(ctx, "GET", "/metrics", nil, nil)
	found := line.FindSubmatch(a.Body)
	switch {
	case a.Err != nil:
		return 0, fmt.Errorf("metrics of %s: %w", r.Name, a.Err)
	case !a.Good() || found == nil:
		return 0, fmt.Errorf("metrics of %s: status %d, no figure %s", r.Name, a.Status, line)
	}
	return strconv.Atoi(string(found[1]))
}

// close ends the process and the links, in order unless the process is frozen or
// cut off.
func (r *Replica) close() error {
	var err error
	if r.process != nil {
		r.Heal()
		r.Thaw()
		err = r.Stop()
	}
	r.API.Close()
	r.caller.Close()
	for _, l := range r.links {
		_ = l.Close() // its process has ended
	}
	return err
}

// Replicas returns the replicas in the order of their start.
func (s *Stack) Replicas() []*Replica { return s.replicas }

// Front leads the stack's address to these replicas, as a load balancer does
// after its health checks: connections to others are reset. It needs
// Options.Linked.
func (s *Stack) Front(to ...*Replica) {
	var targets []string
	for _, r := range to {
		targets = append(targets, r.listen)
	}
	s.front.SetTargets(targets...)
	s.front.Reset()
}

// StartExtra starts one more berthd with flags of its own besides those about the stack's servers. It stands
// behind no address of the stack. The caller ends the process by the returned function.
func (s *Stack) StartExtra(name string, flags ...string) (stop func(), err error) {
	args := append([]string{"--database-url", s.database, "--temporal-address", s.Temporal,
		"--blob-url", "file://" + filepath.Join(s.Dir, "blobs")}, flags...)
	env := []string{"BERTH_ADMIN_TOKEN=" + s.Token}
	p, err := run(filepath.Join(s.Dir, name+".log"), env, s.Programs.Path("berthd"), args...)
	if err != nil {
		return nil, err
	}
	s.services.add(name, p.PID)
	return p.Kill, nil
}
