package failure

import (
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
// differ in any case. The answer of each group is that of NameOdd, so a group of one is judged by its own signs
// alone, a stopped or a blocked process.
//
//	names of the groups                          the answer
//	one                                          this name
//	several, one of them sure                    the sure one, as likely
//	several otherwise                            unsure, with all of them as candidates
//	none                                         unsure
//
// NameOddOf is pure. Evidence that is missing in any group lowers sure to likely, only after the names of the
// groups were compared.
func NameOddOf(groups []HungGroup) OddMember {
	if len(groups) == 1 && groups[0].Name == "" {
		return NameOdd(groups[0].List, groups[0].Members)
	}
	return withMissing(nameOddOf(groups))
}

// nameOddOf is NameOddOf before missing evidence lowers the confidence.
func nameOddOf(groups []HungGroup) OddMember {
	var names []OddMember
	var details []string
	missing := 0
	for _, g := range groups {
		o := nameOdd(g.List, g.Members)
		missing += o.Missing
		details = append(details, "group "+g.Name+": "+o.Detail)
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
	}
	if len(names) == 0 {
		return OddMember{Confidence: Unsure, Missing: missing, Detail: strings.Join(details, "; ")}
	}
	slices.SortStableFunc(names, func(a, b OddMember) int { return rankOf(a.Confidence) - rankOf(b.Confidence) })
	first := names[0]
	first.Missing = missing
	if len(names) == 1 {
		return first
	}
	if first.Confidence == Sure && names[1].Confidence != Sure {
		first.Confidence = Likely
		return first
	}
	o := OddMember{Confidence: Unsure, Missing: missing, Detail: strings.Join(details, "; ")}
	for _, n := range names {
		o.Candidates = append(o.Candidates, *n.Rank)
	}
	return o
}

// rankOf orders degrees of confidence, the highest first.
func rankOf(c Confidence) int { return slices.Index([]Confidence{Sure, Likely, Unsure}, c) }
