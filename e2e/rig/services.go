package rig

import (
	"errors"
	"fmt"
	"path/filepath"
	"sync"
)

// Names of the services whose processes get a group of their own. Each berthd has the name of its replica.
const (
	temporalService   = "temporal"
	postgresqlService = "postgresql"
	agentsService     = "agents"
	probeService      = "probe"
)

// services puts the processes of each service of a stack into a control group of its own, as systemd does with units.
// All groups have the same weight, so a service with a hundred processes gets no more of a busy CPU than a service with
// one. A nil services moves nothing. It may be used concurrently.
type services struct {
	tree  *cgroups // nil: the host has no groups that this process can create
	stack string   // name of the stack, since one process may run several

	mu     sync.Mutex
	groups map[string]*cgroup
	fault  error // of the first process that was not moved
}

func newServices(tree *cgroups, dir string) *services {
	return &services{tree: tree, stack: filepath.Base(dir), groups: map[string]*cgroup{}}
}

// add moves processes into the group of a service.
func (s *services) add(service string, pids ...int) {
	if s == nil || s.tree == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	g, err := s.groups[service], error(nil)
	if g == nil {
		if g, err = s.tree.create(s.stack + "-" + service); err == nil {
			s.groups[service] = g
		}
	}
	if err == nil {
		err = g.add(pids...)
	}
	if err != nil && s.fault == nil {
		s.fault = fmt.Errorf("move %s into a control group: %w", service, err)
	}
}

// apart returns nil if every process of the services is in the group of its service, and otherwise the reason.
func (s *services) apart(processes map[string][]int) error {
	if s == nil {
		return errors.New("they were not asked for")
	}
	if s.tree == nil {
		return errors.New("this process can create no control group for the CPU on this host")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != nil {
		return s.fault
	}
	for service, pids := range processes {
		if len(pids) == 0 {
			continue
		}
		g := s.groups[service]
		if g == nil {
			return fmt.Errorf("%s has no group", service)
		}
		pid, err := g.missing(pids)
		if err != nil {
			return fmt.Errorf("read the group of %s: %w", service, err)
		}
		if pid != 0 {
			return fmt.Errorf("process %d of %s is not in its group", pid, service)
		}
	}
	return nil
}

// close removes the groups, which must be empty by then.
func (s *services) close() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.groups {
		g.remove()
	}
	clear(s.groups)
}

// ServicesApart returns nil if each service of the stack runs in a control group of its own, and otherwise the reason
// why not. The host or Options.Apart may rule groups out.
func (s *Stack) ServicesApart() error {
	of := map[string][]int{
		temporalService: s.pids(Temporal), postgresqlService: s.pids(PostgreSQL), agentsService: s.pids(Agents),
	}
	for _, r := range s.replicas {
		of[r.Name] = []int{r.process.PID}
	}
	return s.services.apart(of)
}

// ApartText says whether each service runs in a control group of its own, for the text below a table.
func (s *Stack) ApartText() string {
	if err := s.ServicesApart(); err != nil {
		return "services in groups of their own: no (" + err.Error() + ")"
	}
	return "services in groups of their own: yes"
}
