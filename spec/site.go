package spec

import (
	"fmt"
	"slices"
	"strings"
)

// The values of Placement.Site.
const (
	SiteAny = "any" // the default, equal to SitePreferOnPrem
	// SitePreferOnPrem allows machines of clouds. Berth launches one only if the wait for machines that exist
	// costs more, by the burst policy of the tenant.
	SitePreferOnPrem = "prefer_on_prem"
	SiteOnPrem       = "on_prem" // never a machine of a cloud
	SiteCloud        = "cloud"   // never a machine on premises
)

// maxResidency is the largest number of entries of an input's residency.
const maxResidency = 64

// ResidencyOf returns the entries with one of which the region of each machine of a job must begin, from the
// residency of all its inputs together. nil: any region. Empty: the inputs contradict each other, which Validate
// refuses.
//
// The elements of an array, the steps of a pipeline and the retries of a job have the inputs of their file, so
// the same entries hold for them.
func ResidencyOf(inputs []Input) []string {
	var all []string
	for _, in := range inputs {
		if in.Residency != nil {
			all = narrowResidency(all, in.Residency)
		}
	}
	return all
}

// Resident reports whether a region begins with one of the entries of a residency. nil allows all regions.
func Resident(residency []string, region string) bool {
	begins := func(r string) bool { return strings.HasPrefix(region, r) }
	return residency == nil || slices.ContainsFunc(residency, begins)
}

// MayUse reports whether the job's own conditions allow a machine of a cloud, apart from its capacity.
func (r Request) MayUse(region string, spot bool, price float64) bool {
	return r.Site != SiteOnPrem && Resident(r.Residency, region) &&
		(r.MaxPrice == 0 || price > 0 && price <= r.MaxPrice) &&
		(!spot || r.Spot != SpotNever) && (spot || r.Spot != SpotOnly)
}

// validateCloud checks the conditions on machines of clouds, and the residency that the inputs demand.
func validateCloud(v *validation, p Placement, inputs []Input) {
	if p.Spot != "" {
		v.oneOf("placement.spot", string(p.Spot), string(SpotNever), string(SpotPrefer), string(SpotOnly))
	}
	v.require(p.MaxPricePerHour >= 0 && p.MaxPricePerHour <= maxBurstAmount, "placement.max_price_per_hour",
		fmt.Sprintf("%g is out of range", p.MaxPricePerHour), "US dollars above 0, at most 1000000000")
	if p.Site == SiteOnPrem {
		const detail, allowed = "has no effect with placement.site: on_prem", "leave one of them out"
		v.require(p.Spot == "", "placement.spot", detail, allowed)
		v.require(p.MaxPricePerHour == 0, "placement.max_price_per_hour", detail, allowed)
	}
	var all []string
	for i, in := range inputs[:min(len(inputs), maxInputs)] {
		field := fmt.Sprintf("inputs[%d].residency", i)
		v.require(in.Residency == nil || len(in.Residency) > 0, field, "is empty, which would allow no region",
			"at least one entry; leave it out to allow all regions")
		v.require(len(in.Residency) <= maxResidency, field, "has too many entries",
			fmt.Sprintf("at most %d", maxResidency))
		for j, r := range in.Residency[:min(len(in.Residency), maxResidency)] {
			v.require(isPlace(r), fmt.Sprintf("%s[%d]", field, j), fmt.Sprintf("%.100q does not begin a region", r),
				"the beginning of regions' names, such as eu")
		}
		if len(in.Residency) == 0 {
			continue
		}
		before := all
		all = narrowResidency(all, in.Residency)
		v.require(before == nil || len(all) > 0, field,
			"contradicts the residency of the inputs before it, "+list(before),
			"entries that share a region with these")
		if before != nil && len(all) == 0 {
			return // one fault names the contradiction
		}
	}
	outside := func(r string) bool { return !Resident(all, r) }
	v.require(len(p.Regions) == 0 || !allOf(p.Regions, outside), "placement.regions",
		"contradicts the residency of the inputs: none of the regions begins with "+list(all),
		"at least one region that begins with "+list(all))
}

// allOf reports whether a condition holds for all texts of a list.
func allOf(list []string, holds func(string) bool) bool {
	return !slices.ContainsFunc(list, func(s string) bool { return !holds(s) })
}
