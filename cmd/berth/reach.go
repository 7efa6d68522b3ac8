package main

import (
	"strings"

	"berth/spec"
)

// reachText describes the addresses that the containers of a job may connect to.
func reachText(j spec.Job) string {
	var text string
	switch j.Network.Policy() {
	case spec.EgressNone:
		text = "nothing"
	case spec.EgressList:
		to := make([]string, len(j.Network.Allow))
		for i, d := range j.Network.Allow {
			to[i] = d.String()
		}
		text = strings.Join(to, ", ")
	default:
		text = "public addresses"
	}
	if j.Members > 1 {
		text += "; the other members"
	}
	return oneLine(text)
}

// addUser adds the user of a job's containers, and their root if it is read-only.
func addUser(s *sheet, j spec.Job) {
	s.add("user", j.User)
	if tmp := spec.TmpOf(j); tmp > 0 {
		s.add("root", "read-only, with a /tmp of "+tmp.String())
	}
}
