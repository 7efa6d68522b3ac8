package db

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// ports allocates the ports of one machine to members of gangs. It is not safe for
// concurrent use; the zero value allocates from wire.DefaultPorts.
type ports struct {
	wire.PortRange              // as registered by the agent; First 0: wire.DefaultPorts
	taken          map[int]bool // by members that are not released
}

// take returns the lowest free port and marks it as taken, or returns 0 if all ports are
// taken.
func (x *ports) take() int {
	all := x.PortRange
	if all.First == 0 {
		all = wire.DefaultPorts
	}
	if x.taken == nil {
		x.taken = map[int]bool{}
	}
	for port := all.First; port <= all.Last; port++ {
		if !x.taken[port] {
			x.taken[port] = true
			return port
		}
	}
	return 0
}

// queuePorts queues a query for the taken ports on the machines of gangs. The query must
// follow the locks of the machines in the batch: a transaction that takes a port holds the
// lock of the port's machine, so no port is taken after the query. A port is free again
// once its member is settled.
func (p *present) queuePorts(batch *pgx.Batch, starts []berth.Start) {
	var machines []berth.MachineID
	for _, s := range starts {
		// Only members of gangs have a port, to reach each other.
		if len(s.Ranks) > 1 {
			for _, r := range s.Ranks {
				machines = append(machines, r.Machine)
			}
		}
	}
	if len(machines) == 0 {
		return
	}
	batch.Queue(`
		SELECT machine_id, port
		FROM allocations
		WHERE machine_id = ANY($1) AND port IS NOT NULL
			AND state <> 'released'`, machines).Query(func(rows pgx.Rows) error {
		var id berth.MachineID
		var port int
		_, err := pgx.ForEachRow(rows, []any{&id, &port}, func() error {
			m := p.machines[id]
			if m.ports.taken == nil {
				m.ports.taken = map[int]bool{}
			}
			m.ports.taken[port] = true
			return nil
		})
		return err
	})
}

// takePorts takes a port for each member of a gang. On an error it has taken none.
func (p *present) takePorts(s berth.Start) error {
	if len(s.Ranks) == 1 {
		return nil
	}
	taken := make([]int, len(s.Ranks))
	for i, r := range s.Ranks {
		x := &p.machines[r.Machine].ports
		if taken[i] = x.take(); taken[i] != 0 {
			continue
		}
		// The gang is not started, so later decisions of the batch may have the ports of
		// its members.
		for k, before := range taken[:i] {
			delete(p.machines[s.Ranks[k].Machine].ports.taken, before)
		}
		return fmt.Errorf("member %d on %s: all gang ports of the machine are in use (%s)", i, r.Machine, x.PortRange)
	}
	p.ports[s.Job] = taken
	return nil
}

// port returns the port that takePorts took for a member, or nil if the job is no gang.
func (p *present) port(job berth.JobID, rank int) *int {
	if list := p.ports[job]; list != nil {
		return &list[rank]
	}
	return nil
}
