package wire

import (
	"fmt"
	"strconv"
	"strings"

	"berth"
)

// NetworkHost is the network of machines on which members of gangs use the host's own
// network. Other machines have a network that only containers on it can use: the network
// of their container engine, or one that spans machines.
const NetworkHost = "host"

// EngineNetwork returns the network of gangs within one container engine. Such a gang
// cannot span machines.
func EngineNetwork(engine string) string { return "engine/" + engine }

// NamedNetwork returns the network that the operator has created on the engines of
// several machines, such as an overlay.
func NamedNetwork(name string) string { return "network/" + name }

// Peer is one member of a gang, as the other members reach it.
type Peer struct {
	Rank    int             `json:"rank"`
	Machine berth.MachineID `json:"machine"`
	Address string          `json:"address,omitempty"` // of the member's machine
	Network string          `json:"network,omitempty"` // of the member's machine; see Inventory
	Port    int             `json:"port"`              // reserved for the member on its machine
}

// Host returns the name or address under which the other members reach the peer. On the
// hosts' own network this is the machine's address, on a network of containers the
// container's name.
func (p Peer) Host(job berth.JobID, attempt int) string {
	if p.Network == NetworkHost {
		return p.Address
	}
	return berth.ContainerName(job, p.Rank, attempt)
}

// Endpoint returns the peer as host:port, with an IPv6 address in brackets.
func (p Peer) Endpoint(job berth.JobID, attempt int) string {
	host := p.Host(job, attempt)
	if strings.Contains(host, ":") { // IPv6
		host = "[" + host + "]"
	}
	return host + ":" + strconv.Itoa(p.Port)
}

// PortRange is a range of ports of a machine, First and Last included. The zero value is
// no range.
type PortRange struct {
	First int `json:"first"`
	Last  int `json:"last"`
}

// String returns the range in the form of ParsePortRange.
func (r PortRange) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

// DefaultPorts are the ports for members of gangs on machines whose agent reports no
// range. They lie below the ports that Linux uses for outgoing connections.
var DefaultPorts = PortRange{First: 29500, Last: 30499}

// ParsePortRange parses FIRST-LAST, with ports from 1024 to 65535.
func ParsePortRange(s string) (PortRange, error) {
	from, to, _ := strings.Cut(s, "-")
	first, err1 := strconv.Atoi(from)
	last, err2 := strconv.Atoi(to)
	if err1 != nil || err2 != nil || first < 1024 || last > 65535 || first > last {
		return PortRange{}, fmt.Errorf("ports %q: allowed is a range such as %s, from 1024 to 65535", s, DefaultPorts)
	}
	return PortRange{first, last}, nil
}
