package main

import (
	"strings"

	"berth"
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

// userText describes the user of a job's containers: runsAs is the server's answer, "" for an ended job and from an
// older server, which leave the job's own choice.
func userText(chosen, runsAs string) string {
	switch {
	case runsAs == "":
		return oneLine(chosen)
	case runsAs == spec.UserImage:
		return "the one that the image names, often root"
	case runsAs == spec.UserTenant:
		return "one of the tenant, not root; its number comes with the first container"
	case chosen == "" || chosen == spec.UserTenant:
		return oneLine(runsAs) + ", of the tenant, not root"
	}
	return oneLine(runsAs)
}

// addUser adds the user of a job's containers, and their root if it is read-only. The server's answer follows the
// rules of now: a container that has started may run as another user.
func addUser(s *sheet, j spec.Job, runsAs string, status berth.State) {
	text := userText(j.User, runsAs)
	switch status {
	case berth.Scheduled, berth.Running, berth.Preempting, berth.Canceling:
		if runsAs != "" {
			text += " (for containers that start now)"
		}
	}
	s.add("user", text)
	if tmp := spec.TmpOf(j); tmp > 0 {
		s.add("root", "read-only, with a /tmp of "+tmp.String())
	}
}
