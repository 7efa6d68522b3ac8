package explain

import (
	"fmt"

	"berth/placement/cluster"
	"berth/placement/fit"
)

// unlike explains a gang of unlike members by one of its groups, which the texts name: the first that no
// machine could ever hold, else the first without room now, else the one with the largest members.
// Members counts the members of all groups.
func unlike(s *fit.State, c *cluster.Class) Explanation {
	var e Explanation
	name, worst, ever := "", -1, 0
	for _, p := range c.Parts {
		one := Class(s, p.Class)
		if rank := obstacle(one); rank > worst {
			e, name, worst = one, p.Name, rank
		}
		ever += everOf(one, p.Members)
	}
	e.Group = name
	e.Members = &Members{Asked: c.Members(), Now: fit.MembersNow(s, c), Ever: ever,
		apart: e.Members != nil && e.Members.apart}
	if e.Summary != "" {
		e.Summary = fmt.Sprintf("group %s: %s", name, e.Summary)
	}
	if e.Short != "" {
		e.Short = fmt.Sprintf("group %s: %s", name, e.Short)
	}
	if worst == 0 && e.Members.Now < e.Members.Asked {
		e.Short = fmt.Sprintf("no room: %d of %d members have room now", e.Members.Now, e.Members.Asked)
		e.Summary += fmt.Sprintf("; room for %d of %d members", e.Members.Now, e.Members.Asked)
	}
	return e
}

// obstacle ranks groups by their share in the wait of a gang: 2 if no machine could ever hold the group,
// 1 if it has no room now, 0 if it has room as long as no other group takes it.
func obstacle(e Explanation) int {
	switch {
	case e.Unsatisfiable():
		return 2
	case e.FitNow == 0, e.Members != nil && e.Members.Now < e.Members.Asked:
		return 1
	}
	return 0
}

// everOf returns the number of members of a group that fit if no job ran, as if the group were alone.
func everOf(e Explanation, members int) int {
	switch {
	case e.Members != nil:
		return e.Members.Ever
	case e.FitEver > 0:
		return members
	}
	return 0
}
