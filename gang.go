package berth

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// A gang is a job of several members: N ranks that are placed, started and restarted
// together.

const (
	// GangGrace bounds the time between SIGTERM and SIGKILL of ranks that stop
	// because another rank of their gang has ended: they wait for it as a rule,
	// and would do so for all of a long stop_grace.
	GangGrace = 20 * time.Second
	// GangBarrier is how long ranks that are ready to start wait for the last one
	// before it is given up and its machine avoided.
	GangBarrier = 15 * time.Minute
	// RepairHold is how long the capacity of a gang's healthy members is kept for it
	// after an attempt, so that only the lost member needs a new place.
	RepairHold = time.Minute
)

// NetworkHost is the network of machines that give gangs the host's own. Other
// machines have a network that only containers on it can use: that of their
// container engine, or one that spans machines.
const NetworkHost = "host"

// EngineNetwork is the network of gangs within one container engine.
func EngineNetwork(engine string) string { return "engine/" + engine }

// NamedNetwork is a network that the operator has made on the engines of
// several machines, such as an overlay.
func NamedNetwork(name string) string { return "network/" + name }

// GangNetworkName is the Docker network of one attempt of a gang, on the engine
// that its members share. Each attempt has its own, so that a straggler of an
// earlier attempt reaches no member.
func GangNetworkName(job JobID, attempt int) string {
	return fmt.Sprintf("berth-%s-%d", job, attempt)
}

// Peer is where the ranks of a gang find one of them.
type Peer struct {
	Rank    int       `json:"rank"`
	Machine MachineID `json:"machine"`
	Address string    `json:"address,omitempty"` // of its machine
	Network string    `json:"network,omitempty"` // of its machine; see Inventory
	Port    int       `json:"port"`              // reserved for it there
}

// PortRange are ports of a machine, first and last included. The zero value is
// none.
type PortRange struct {
	First int `json:"first"`
	Last  int `json:"last"`
}

// DefaultPorts are given to members of gangs where an agent says nothing else:
// below the ports that Linux gives to outgoing connections.
var DefaultPorts = PortRange{First: 29500, Last: 30499}

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// ParsePortRange reads FIRST-LAST.
func ParsePortRange(s string) (PortRange, error) {
	from, to, _ := strings.Cut(s, "-")
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if err1 != nil || err2 != nil || first < 1024 || last > 65535 || first > last {
		return PortRange{}, fmt.Errorf("ports %q: allowed is a range such as %s, from 1024 to 65535", s, DefaultPorts)
	}
	return PortRange{first, last}, nil
}

// Host is the name or address under which the other ranks reach the peer: on
// the hosts' own network its machine's, on one of containers its container's.
func (p Peer) Host(job JobID, attempt int) string {
	if p.Network == NetworkHost {
		return p.Address
	}
	return ContainerName(job, p.Rank, attempt)
}

// Endpoint is the peer as host:port.
func (p Peer) Endpoint(job JobID, attempt int) string {
	host := p.Host(job, attempt)
	if strings.Contains(host, ":") { // IPv6
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(p.Port)
}
