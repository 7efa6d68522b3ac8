package db

import (
	"fmt"

	"github.com/jackc/pgx/v5"

	"berth"
	"berth/wire"
)

// ports are those of a machine, for members of gangs.
type ports struct {
	wire.PortRange
	taken map[int]bool
}

// take takes the lowest port that is free; 0 if none is.
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

// queuePorts reads which ports are taken on the machines of gangs. It follows
// the locks of the machines: whoever takes a port holds that of its machine, so
// that none is taken meanwhile. A port is free again once its member is settled.
func (p *present) queuePorts(batch *pgx.Batch, starts []berth.Start) {
	var machines []berth.MachineID
	for _, s := range starts {
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

// takePorts takes a port for each member of a gang, or none.
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
		for k, before := range taken[:i] {
			delete(p.machines[s.Ranks[k].Machine].ports.taken, before)
		}
		return fmt.Errorf("rank %d on %s: every port for gangs is taken there (%s)", i, r.Machine, x.PortRange)
	}
	p.ports[s.Job] = taken
	return nil
}

// port is what was taken for a member; nil for none.
func (p *present) port(job berth.JobID, rank int) *int {
	if list := p.ports[job]; list != nil {
		return &list[rank]
	}
	return nil
}
