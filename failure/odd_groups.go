package failure

import (
	"fmt"
	"slices"
	"strings"
)

// HungGroup is the evidence of one group of a hung gang whose members are alike.
type HungGroup struct {
	Name    string // "": the gang has no groups
	List    []HangEvidence
	Members int // of the group, also those without evidence
}

// NameOddOf returns the member of a gang that differs from the others of its group: members of unlike groups
// differ in any case. A group of one is judged by its own signs alone, a stopped or a blocked process.
//
//	names of the groups                          the answer
//	one                                          this name
//	several, one of them sure                    the sure one, as likely
//	several otherwise                            unsure, with all of them as candidates
//	none                                         unsure
//
// NameOddOf is pure. Evidence that is missing in any group lowers sure to likely.
func NameOddOf(groups []HungGroup) OddMember {
	if len(groups) == 1 {
		return NameOdd(groups[0].List, groups[0].Members)
	}
	var names []OddMember
	var details []string
	missing := 0
	for _, g := range groups {
		o := g.odd()
		missing += o.Missing
		switch {
		case o.Rank != nil:
			o.Detail += " (group " + g.Name + ")"
			names = append(names, o)
		case len(o.Candidates) > 0: // two names at once speak against every other one
			first, second := o, o
			first.Rank, second.Rank = &o.Candidates[0], &o.Candidates[1]
			first.Confidence, second.Confidence = Likely, Likely
			names = append(names, first, second)
		}
		details = append(details, "group "+g.Name+": "+o.Detail)
	}
	if len(names) == 0 {
		return OddMember{Confidence: Unsure, Missing: missing, Detail: strings.Join(details, "; ")}
	}
	slices.SortStableFunc(names, func(a, b OddMember) int { return rankOf(a.Confidence) - rankOf(b.Confidence) })
	first := names[0]
	first.Missing = missing
	if len(names) == 1 {
		return withMissing(first)
	}
	if first.Confidence == Sure && names[1].Confidence != Sure {
		first.Confidence = Likely
		return withMissing(first)
	}
	o := OddMember{Confidence: Unsure, Missing: missing, Detail: strings.Join(details, "; ")}
	for _, n := range names {
		o.Candidates = append(o.Candidates, *n.Rank)
	}
	return o
}

// rankOf orders degrees of confidence, the highest first.
func rankOf(c Confidence) int { return slices.Index([]Confidence{Sure, Likely, Unsure}, c) }

// odd returns the odd member of one group. The missing evidence is counted in the answer, and lowers its
// confidence in NameOddOf.
func (g HungGroup) odd() OddMember {
	if g.Members > 1 {
		return NameOdd(g.List, g.Members)
	}
	if len(g.List) == 0 {
		return OddMember{Confidence: Unsure, Missing: g.Members, Detail: "no evidence arrived"}
	}
	for _, by := range []func([]HangEvidence) *OddMember{oddStopped, oddBlocked} {
		if o := by(g.List); o != nil {
			return *o
		}
	}
	return OddMember{Confidence: Unsure, Detail: fmt.Sprintf("member %d is alone and shows no sign of its own",
		g.List[0].Rank)}
}
