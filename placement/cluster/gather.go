package cluster

import (
	"slices"
	"strings"
)

// gathering lists the matches of a class by group of machines. Every kind is in one group, since a class
// reads the network and the label that decide the group (Class.Reads).
type gathering struct {
	groups  []string // sorted
	matches map[string][]Match
}

// Gathers reports whether the class restricts its members to machines of one group.
func (c *Class) Gathers() bool { return c.isGang || c.Request.SameLabel != "" }

// GroupOf returns the group of a machine: for gangs its network, and its value of
// same_label. All members of a gang must be on machines of one group.
func (c *Class) GroupOf(m *Machine) string {
	if !c.isGang {
		return m.Labels[c.Request.SameLabel]
	}
	return m.Network + "\x00" + m.Labels[c.Request.SameLabel]
}

// InGroup reports whether GroupOf returns the group, without building its name.
func (c *Class) InGroup(m *Machine, group string) bool {
	label := m.Labels[c.Request.SameLabel]
	if !c.isGang {
		return label == group
	}
	n := len(m.Network)
	return len(group) == n+1+len(label) && group[n] == 0 && strings.HasPrefix(group, m.Network) && group[n+1:] == label
}

// MatchesIn returns the matches with machines of a group, in the order of Matches; "" stands for all
// machines.
func (c *Class) MatchesIn(group string) []Match {
	if group == "" {
		return c.Matches
	}
	return c.gather().matches[group]
}

// MatchOf returns the match of a kind; false if the class may not use the kind.
func (c *Class) MatchOf(k *Kind) (Match, bool) {
	i, found := slices.BinarySearchFunc(c.Matches, k.Index, func(m Match, at int) int { return m.Kind.Index - at })
	if !found || c.Matches[i].Kind != k {
		return Match{}, false
	}
	return c.Matches[i], true
}

// GroupNames lists the groups of the machines that the class, or a part of it, may use, sorted.
func (c *Class) GroupNames() []string {
	if c.Unlike() == nil {
		return c.gather().groups
	}
	var list []string
	for _, p := range c.Parts {
		list = append(list, p.Class.gather().groups...)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// gather returns the index by group. It is built once for each change of Matches.
func (c *Class) gather() *gathering {
	if c.gathered != nil {
		return c.gathered
	}
	g := &gathering{matches: map[string][]Match{}}
	for _, m := range c.Matches {
		name := c.GroupOf(m.Kind.Sample)
		if g.matches[name] == nil {
			g.groups = append(g.groups, name)
		}
		g.matches[name] = append(g.matches[name], m)
	}
	slices.Sort(g.groups)
	c.gathered = g
	return g
}
