package web

import (
	"fmt"
	"net/url"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/api/client"
)

// searchHelp names the terms of a search line, for the page and for errors.
const searchHelp = "status:STATUS, name:NAME, label:KEY=VALUE, owner:NAME or owner:me, tenant:TENANT, " +
	"since:7d, dead:yes, parent:ID"

// stateGroups are words for several states in a search line.
var stateGroups = map[string][]berth.State{
	"waiting": {berth.Submitted, berth.Queued, berth.Retrying},
	"active":  {berth.Scheduled, berth.Running, berth.Preempting, berth.Canceling},
	"ended":   {berth.Succeeded, berth.Failed, berth.Canceled},
}

// parseSearch reads a search line such as "status:failed label:project=vision owner:me since:7d". A
// word without a colon is a name. me is the reader as an actor. The error is of code invalid and
// names the word.
func parseSearch(line, me string, now time.Time) (q client.JobsQuery, err error) {
	for _, word := range strings.Fields(line) {
		key, value, ok := strings.Cut(word, ":")
		if !ok {
			key, value = "name", word
		}
		if value == "" {
			return q, badSearch(word, "has no value")
		}
		switch key {
		case "status":
			err = searchStates(&q, value)
		case "name":
			if q.Name != "" {
				return q, badSearch(word, "is a second name, and only one is allowed")
			}
			q.Name = value
		case "label":
			k, val, ok := strings.Cut(value, "=")
			if !ok || k == "" {
				return q, badSearch(word, "must be label:KEY=VALUE")
			}
			if q.Labels == nil {
				q.Labels = map[string]string{}
			}
			q.Labels[k] = val
		case "owner":
			q.SubmittedBy = searchOwner(value, me)
		case "tenant":
			q.Tenant = berth.TenantID(value)
		case "parent":
			q.Parent = berth.JobID(value)
		case "since":
			q.Since, err = searchSince(value, now)
		case "dead":
			q.DeadLetter = value == "yes" || value == "true"
		default:
			err = badSearch(word, "is not known")
		}
		if err != nil {
			return q, err
		}
	}
	return q, nil
}

// badSearch is the refusal of a word of a search line. The word is clipped, since it may be as long as
// an address.
func badSearch(word, fault string) error {
	return berth.Errorf(berth.CodeInvalid, "search: %q %s; allowed are a name, or %s", clip(80, word), fault,
		searchHelp)
}

// searchStates adds states, written as a list of states and groups.
func searchStates(q *client.JobsQuery, value string) error {
	for word := range strings.SplitSeq(value, ",") {
		switch group, ok := stateGroups[word]; {
		case ok:
			q.Status = append(q.Status, group...)
		case slices.Contains(berth.States, berth.State(word)):
			q.Status = append(q.Status, berth.State(word))
		default:
			return berth.Errorf(berth.CodeInvalid,
				"search: status %q is not known; allowed are %s, waiting, active, ended", clip(40, word), joinStates())
		}
	}
	return nil
}

// joinStates lists all states of jobs, for errors.
func joinStates() string {
	words := make([]string, len(berth.States))
	for i, s := range berth.States {
		words[i] = string(s)
	}
	return strings.Join(words, ", ")
}

// searchOwner completes the name of an owner to an actor. An actor has the form KIND:NAME; a name alone
// is that of a user.
func searchOwner(value, me string) string {
	switch {
	case value == "me":
		return me
	case strings.Contains(value, ":"):
		return value
	}
	return "user:" + value
}

// searchSince reads an age such as 7d, 36h or 90m, or a date.
func searchSince(value string, now time.Time) (time.Time, error) {
	if days, ok := strings.CutSuffix(value, "d"); ok {
		var n int
		// Sscanf ignores text after the number. The bar makes it refuse such text.
		if _, err := fmt.Sscanf(days+"|", "%d|", &n); err == nil && n >= 0 && n <= 36500 {
			return now.AddDate(0, 0, -n), nil
		}
	}
	if d, err := time.ParseDuration(value); err == nil && d >= 0 {
		return now.Add(-d), nil
	}
	for _, layout := range []string{time.DateOnly, time.RFC3339} {
		if at, err := time.Parse(layout, value); err == nil {
			return at, nil
		}
	}
	return time.Time{}, berth.Errorf(berth.CodeInvalid,
		"search: since %q is not a time; allowed are ages such as 7d, 36h or 90m, and dates such as 2026-01-31",
		clip(40, value))
}

// searchAddress is the address of the list for a search line.
func searchAddress(line string) string { return "/jobs?" + url.Values{"q": {line}}.Encode() }
