package wire

import (
	"fmt"
	"strconv"
	"strings"

	"berth"
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

// Peer is where the members of a gang find one of them.
type Peer struct {
	Rank    int             `json:"rank"`
	Machine berth.MachineID `json:"machine"`
	Address string          `json:"address,omitempty"` // of its machine
	Network string          `json:"network,omitempty"` // of its machine; see Inventory
	Port    int             `json:"port"`              // reserved for it there
}

// Host is the name or address under which the other members reach the peer: on
// the hosts' own network its machine's, on one of containers its container's.
func (p Peer) Host(job berth.JobID, attempt int) string {
	if p.Network == NetworkHost {
		return p.Address
	}
	return berth.ContainerName(job, p.Rank, attempt)
}

// Endpoint is the peer as host:port.
func (p Peer) Endpoint(job berth.JobID, attempt int) string {
	host := p.Host(job, attempt)
	if strings.Contains(host, ":") { // IPv6
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(p.Port)
}

// PortRange are ports of a machine, first and last included. The zero value is
// none.
type PortRange struct {
	First int `json:"first"`
	Last  int `json:"last"`
}

func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// DefaultPorts are given to members of gangs where an agent says nothing else:
// below the ports that Linux gives to outgoing connections.
var DefaultPorts = PortRange{First: 29500, Last: 30499}

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
