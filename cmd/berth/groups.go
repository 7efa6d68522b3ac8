package main

import (
	"fmt"
	"slices"
	"strings"

	"berth/spec"
	"berth/wire"
)

// addMembers adds the resources of a job, the number of its members and, of a gang with groups, a line for
// each group.
func addMembers(s *sheet, j wire.Job) {
	full := j.Spec.WithDefaults()
	if len(full.Groups) > 0 {
		addGroups(s, full)
		return
	}
	// With defaults, where the spec leaves a field out.
	s.add("resources", resourcesText(j.Resources()))
	addAlternatives(s, j)
	if n := j.Spec.Members; n > 1 {
		s.add("members", fmt.Sprintf("%d, each with these resources", n))
	}
}

// addGroups adds the groups of a job with their members, by number, and their own commands. full has its
// defaults.
func addGroups(s *sheet, full spec.Job) {
	s.add("members", fmt.Sprint(full.Members))
	label, first := "groups", 0
	for _, g := range full.Groups {
		numbers := fmt.Sprintf("member %d", first)
		if g.Members > 1 {
			numbers = fmt.Sprintf("members %d-%d", first, first+g.Members-1)
		}
		text := fmt.Sprintf("%s: %s, %s", g.Name, numbers, resourcesText(spec.MemberResources(full, g)))
		if g.Leads {
			text += " (leads)"
		}
		s.add(label, oneLine(text))
		if len(g.Entrypoint)+len(g.Command) > 0 {
			m := spec.ChooseMember(full, first) // what the group leaves out is the job's
			s.add(" ", "  "+oneLine(shellLine(slices.Concat(m.Entrypoint, m.Command))))
		}
		label, first = " ", first+g.Members
	}
}

// requestText formats the resources of a job: of one member or, for a gang with groups, of a member of each
// group.
func requestText(s spec.Job) string {
	s = s.WithDefaults()
	if len(s.Groups) == 0 {
		return resourcesText(s.Resources)
	}
	list := make([]string, len(s.Groups))
	for i, g := range s.Groups {
		list[i] = fmt.Sprintf("%d %s: %s", g.Members, g.Name, resourcesText(spec.MemberResources(s, g)))
	}
	return strings.Join(list, "; ")
}
