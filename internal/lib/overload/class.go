package overload

import "fmt"

// Class is the priority of a call. Lower values go first.
type Class int

// Classes, in the order of service by a Limiter.
const (
	Vital    Class = iota // renewals of leases, probes of health, and look-ups of tokens, which all calls wait for
	End                   // work that has begun moves on or ends: pokes, cancels
	Start                 // new work begins
	Reattach              // waiters of running members subscribe again after the loss of a replica
	Read                  // answers to users
	Write                 // changes by users, who wait for the answer
	Sweep                 // repeats and comparisons that can wait
	classes  = iota
)

// Classes lists all classes, the most urgent first.
func Classes() []Class { return []Class{Vital, End, Start, Reattach, Read, Write, Sweep} }

// String returns the name that metrics use.
func (c Class) String() string {
	switch c {
	case Vital:
		return "vital"
	case End:
		return "end"
	case Start:
		return "start"
	case Reattach:
		return "reattach"
	case Read:
		return "read"
	case Write:
		return "write"
	case Sweep:
		return "sweep"
	default:
		panic(fmt.Sprintf("unknown class %d", int(c)))
	}
}
