package spec

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth"
)

// SpotRule decides whether machines of a cloud may be of the spot market, which a cloud may take back
// at short notice.
type SpotRule string

// The values of SpotRule.
const (
	SpotNever  SpotRule = "never"  // on demand alone
	SpotPrefer SpotRule = "prefer" // both; the lower price decides
	SpotOnly   SpotRule = "only"
)

// SpendPeriod is the length of the periods in which spend is limited. Periods begin at midnight UTC: each
// day, on Monday, or on the first of the month.
type SpendPeriod string

// The values of SpendPeriod.
const (
	SpendDay   SpendPeriod = "day"
	SpendWeek  SpendPeriod = "week"
	SpendMonth SpendPeriod = "month"
)

// spendPeriods lists the periods, the shortest first.
var spendPeriods = []SpendPeriod{SpendDay, SpendWeek, SpendMonth}

// Defaults of BurstSpend, as shares of its limit.
const (
	SpendWarn    = 0.8
	SpendStopNew = 0.9
	SpendDrain   = 1.0
)

// Limits on burst policies.
const (
	MaxBurstAllow  = 256
	maxBurstAmount = 1e9 // US dollars
	maxBurstCount  = 100_000
)

// Burst is the policy of a tenant, and of all tenants below it, for machines that Berth launches in
// clouds for waiting jobs. The policy of a tenant can only narrow the policies of the tenants above it;
// Narrow computes the result. A tenant without a policy on its path launches no machine. An unset
// setting adds no rule to the policies above.
type Burst struct {
	Allow     []string `json:"allow,omitzero" doc:"regions as provider/region; empty: no cloud; unset: as above"`
	Residency []string `json:"residency,omitzero" doc:"regions must begin with one of these, such as eu; unset: any"`

	When *BurstWhen `json:"when,omitempty" doc:"waits that are worth a machine; no policy has it: no job bursts"`
	Spot SpotRule   `json:"spot,omitempty" doc:"never, prefer or only; default at the top: never"`

	MaxPricePerHour float64 `json:"max_price_per_hour,omitempty" doc:"highest price of one machine, in US dollars"`

	Spend       *BurstSpend `json:"spend,omitempty" doc:"bounds the costs, tenants below included"`
	Grow        *BurstGrow  `json:"grow,omitempty" doc:"bounds the launches in a time, tenants below included"`
	MaxMachines int         `json:"max_machines,omitempty" doc:"machines at once, tenants below included; unset: any"`

	MinMachines []BurstMin `json:"min_machines,omitempty" doc:"machines to keep without jobs; not inherited"`

	Idle     Duration `json:"idle,omitempty" doc:"time for which an empty machine is kept"`
	IdleCost float64  `json:"idle_cost,omitempty" doc:"or until it has cost so much while empty, in US dollars"`

	Version int64 `json:"version,omitempty" doc:"base of the change; unset: any version"`
}

// BurstWhen selects the waits that are worth a machine of a cloud. An unset rule sends no job.
type BurstWhen struct {
	PlannedWaitOver Duration `json:"planned_wait_over,omitempty" doc:"a job that is planned to wait longer bursts"`
	HourOfWait      float64  `json:"hour_of_wait,omitempty" doc:"price of an hour of a job's wait, in US dollars"`

	Waiting []BurstWaiting `json:"waiting,omitempty" doc:"numbers of waiting jobs that burst; one rule suffices"`
}

// BurstSpend bounds the costs of each period. Warn, StopNew and Drain are shares of the limit.
type BurstSpend struct {
	Period  SpendPeriod `json:"period" doc:"day, week or month, in UTC"`
	Limit   float64     `json:"limit" doc:"in US dollars"`
	Warn    float64     `json:"warn,omitempty" doc:"share of the limit at which Berth warns; default 0.8"`
	StopNew float64     `json:"stop_new,omitempty" doc:"share up to which launches are reserved; default 0.9"`
	Drain   float64     `json:"drain,omitempty" doc:"share at which machines are drained; default 1.0"`
}

// BurstGrow bounds the number of machines that are launched within a time.
type BurstGrow struct {
	Machines int      `json:"machines"`
	Per      Duration `json:"per"`
}

// WithDefaults returns the policy with the defaults of its spend. The default of Spot depends on the
// policies above, see Narrow.
func (b Burst) WithDefaults() Burst {
	if b.Spend != nil {
		s := *b.Spend
		s.Period = cmp.Or(s.Period, SpendMonth)
		s.Warn, s.StopNew = cmp.Or(s.Warn, SpendWarn), cmp.Or(s.StopNew, SpendStopNew)
		s.Drain = cmp.Or(s.Drain, SpendDrain)
		b.Spend = &s
	}
	return b
}

// Validate returns all faults of the policy at once, or nil.
func (b Burst) Validate() []berth.FieldError {
	b = b.WithDefaults()
	v := &validation{}
	b.validateRegions(v)
	if b.Spot != "" {
		v.oneOf("spot", string(b.Spot), string(SpotNever), string(SpotPrefer), string(SpotOnly))
	}
	amount := func(field string, x float64) {
		v.require(x >= 0 && x <= maxBurstAmount, field, fmt.Sprintf("%g is out of range", x),
			"US dollars above 0, at most 1000000000; or leave it out")
	}
	amount("max_price_per_hour", b.MaxPricePerHour)
	amount("idle_cost", b.IdleCost)
	if w := b.When; w != nil {
		amount("when.hour_of_wait", w.HourOfWait)
		v.require(w.PlannedWaitOver >= 0, "when.planned_wait_over", "is negative", "a time such as 20m")
		v.require(w.PlannedWaitOver != 0 || w.HourOfWait != 0 || len(w.Waiting) > 0, "when", "has no rule",
			"planned_wait_over, hour_of_wait, waiting, or several of them")
		validateWaiting(v, w.Waiting)
	}
	b.Spend.validate(v)
	if g := b.Grow; g != nil {
		v.require(g.Machines >= 1 && g.Machines <= maxBurstCount, "grow.machines",
			fmt.Sprintf("%d is out of range", g.Machines), fmt.Sprintf("1 to %d", maxBurstCount))
		v.require(g.Per.Std() >= time.Minute && g.Per.Std() <= 24*time.Hour, "grow.per",
			fmt.Sprintf("%s is out of range", g.Per), "1m to 24h")
	}
	v.require(b.MaxMachines >= 0 && b.MaxMachines <= maxBurstCount, "max_machines",
		fmt.Sprintf("%d is out of range", b.MaxMachines), fmt.Sprintf("1 to %d; or leave it out", maxBurstCount))
	validateMin(v, b.MinMachines, b.MaxMachines)
	v.require(b.Idle >= 0 && b.Idle.Std() <= 24*time.Hour, "idle", fmt.Sprintf("%s is out of range", b.Idle),
		"0s to 24h")
	v.require(b.Version >= 0, "version", "is negative", "0 or more")
	return v.faults
}

// validateRegions checks allow and residency.
func (b Burst) validateRegions(v *validation) {
	v.require(len(b.Allow) <= MaxBurstAllow, "allow", "has too many regions", fmt.Sprintf("at most %d", MaxBurstAllow))
	v.require(len(b.Residency) <= MaxBurstAllow, "residency", "has too many entries",
		fmt.Sprintf("at most %d", MaxBurstAllow))
	v.require(b.Residency == nil || len(b.Residency) > 0, "residency", "is empty, which would allow no region",
		"at least one entry; leave it out to allow all regions")
	for i, a := range b.Allow[:min(len(b.Allow), MaxBurstAllow)] {
		provider, region, ok := strings.Cut(a, "/")
		v.require(ok && isPlace(provider) && isPlace(region), fmt.Sprintf("allow[%d]", i),
			fmt.Sprintf("%q does not name a provider and a region", a), "provider/region, such as aws/eu-west-1")
	}
	for i, r := range b.Residency[:min(len(b.Residency), MaxBurstAllow)] {
		v.require(isPlace(r), fmt.Sprintf("residency[%d]", i), fmt.Sprintf("%q does not begin a region", r),
			"the beginning of regions' names, such as eu")
	}
}

// isPlace reports whether a text is valid as a provider, as a region, or as the beginning of a region.
func isPlace(s string) bool {
	odd := func(c rune) bool { return c <= ' ' || c > '~' || c == '/' }
	return s != "" && len(s) <= 128 && !strings.ContainsFunc(s, odd)
}

func (s *BurstSpend) validate(v *validation) {
	if s == nil {
		return
	}
	v.oneOf("spend.period", string(s.Period), string(SpendDay), string(SpendWeek), string(SpendMonth))
	v.require(s.Limit > 0 && s.Limit <= maxBurstAmount, "spend.limit", fmt.Sprintf("%g is out of range", s.Limit),
		"US dollars above 0, at most 1000000000")
	for field, x := range map[string]float64{
		"spend.warn": s.Warn, "spend.stop_new": s.StopNew, "spend.drain": s.Drain,
	} {
		v.require(x > 0 && x <= 1, field, fmt.Sprintf("%g is out of range", x),
			"a share of the limit, above 0, at most 1")
	}
	v.require(!(s.StopNew > s.Drain), "spend.stop_new", "is above drain, so new machines would be drained",
		"at most the share of drain")
}

// Start returns the start of the period that contains a time.
func (p SpendPeriod) Start(at time.Time) time.Time {
	y, m, d := at.UTC().Date()
	switch p {
	case SpendDay:
	case SpendWeek:
		d -= (int(at.UTC().Weekday()) + 6) % 7 // since Monday
	default:
		d = 1
	}
	return time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
}

// End returns the start of the period after the one that contains a time.
func (p SpendPeriod) End(at time.Time) time.Time {
	start := p.Start(at)
	switch p {
	case SpendDay:
		return start.AddDate(0, 0, 1)
	case SpendWeek:
		return start.AddDate(0, 0, 7)
	}
	return start.AddDate(0, 1, 0)
}

// EffectiveBurst returns the policy that holds for a tenant, from the policies on its path, the topmost
// first. ok is false without a policy: the tenant then launches nothing.
func EffectiveBurst(path ...Burst) (b Burst, ok bool) {
	for i, p := range path {
		if i == 0 {
			b = p.WithDefaults()
			b.Spot, b.Residency = cmp.Or(b.Spot, SpotNever), sorted(p.Residency)
			b.When = narrowWhen(b.When, nil)
			continue
		}
		b = Narrow(b, p)
	}
	b.Version = 0
	return b, len(path) > 0
}

// Narrow returns the effective policy of a child below a parent with this effective policy. The result
// never permits a launch that the parent's policy refuses: each bound is the stricter one of both.
//
// The result has one limit of spend, that of the shorter period. The limits of all tenants on the path
// hold at the same time, see db.Spend.
func Narrow(parent, child Burst) Burst {
	parent, child = parent.WithDefaults(), child.WithDefaults()
	e := Burst{
		Residency:       narrowResidency(parent.Residency, child.Residency),
		When:            narrowWhen(parent.When, child.When),
		MaxPricePerHour: lesser(parent.MaxPricePerHour, child.MaxPricePerHour),
		Spend:           narrowSpend(parent.Spend, child.Spend),
		Grow:            narrowGrow(parent.Grow, child.Grow),
		MaxMachines:     lesser(parent.MaxMachines, child.MaxMachines),
		Idle:            lesser(parent.Idle, child.Idle),
		IdleCost:        lesser(parent.IdleCost, child.IdleCost),
		MinMachines:     child.MinMachines, // no bound: the tenant's own wish
	}
	e.Allow = slices.Clone(parent.Allow)
	if child.Allow != nil {
		e.Allow = slices.DeleteFunc(e.Allow, func(a string) bool { return !slices.Contains(child.Allow, a) })
	}
	spot, ok := narrowSpot(cmp.Or(parent.Spot, SpotNever), child.Spot)
	e.Spot = spot
	if !ok || parent.Residency != nil && e.Residency != nil && len(e.Residency) == 0 {
		e.Allow = []string{}
	}
	return e
}

// lesser returns the stricter one of two bounds. A bound of 0 is no bound.
func lesser[T cmp.Ordered](a, b T) T {
	var none T
	if a == none || b != none && b < a {
		return b
	}
	return a
}

// narrowSpot returns the stricter rule. ok is false if no market remains.
func narrowSpot(parent, child SpotRule) (rule SpotRule, ok bool) {
	switch {
	case child == "" || child == parent || child == SpotPrefer:
		return parent, true
	case parent == SpotPrefer:
		return child, true
	}
	return parent, false
}

// narrowResidency returns the entries under which a region is allowed by both lists. If one entry begins with
// the other, the longer one is narrower. A nil list allows all regions.
func narrowResidency(parent, child []string) []string {
	switch {
	case child == nil:
		return sorted(parent)
	case parent == nil:
		return sorted(child)
	}
	both := []string{}
	for _, p := range parent {
		for _, c := range child {
			switch {
			case strings.HasPrefix(c, p):
				both = append(both, c)
			case strings.HasPrefix(p, c):
				both = append(both, p)
			}
		}
	}
	slices.Sort(both)
	return slices.Compact(both)
}

// sorted returns each entry once, in order. A nil list stays nil, and an empty one empty.
func sorted(list []string) []string {
	list = slices.Clone(list)
	slices.Sort(list)
	return slices.Compact(list)
}

// narrowWhen returns rules that send a job to the cloud only if both policies do. A policy without
// When leaves the decision to the other one.
func narrowWhen(parent, child *BurstWhen) *BurstWhen {
	if parent == nil || child == nil {
		only := cmp.Or(parent, child)
		if only == nil || len(only.Waiting) == 0 {
			return only
		}
		e := *only
		e.Waiting = weakest(only.Waiting)
		return &e
	}
	e := &BurstWhen{HourOfWait: min(parent.HourOfWait, child.HourOfWait),
		Waiting: narrowWaiting(parent.Waiting, child.Waiting)}
	if parent.PlannedWaitOver > 0 && child.PlannedWaitOver > 0 {
		e.PlannedWaitOver = max(parent.PlannedWaitOver, child.PlannedWaitOver)
	}
	return e
}

// narrowSpend returns the smaller limit, for the shorter period.
func narrowSpend(parent, child *BurstSpend) *BurstSpend {
	if parent == nil || child == nil {
		return cmp.Or(parent, child)
	}
	shorter := min(slices.Index(spendPeriods, parent.Period), slices.Index(spendPeriods, child.Period))
	return &BurstSpend{
		Period: spendPeriods[max(0, shorter)], Limit: min(parent.Limit, child.Limit),
		Warn: min(parent.Warn, child.Warn), StopNew: min(parent.StopNew, child.StopNew),
		Drain: min(parent.Drain, child.Drain),
	}
}

// narrowGrow returns the smaller number of machines in the longer time.
func narrowGrow(parent, child *BurstGrow) *BurstGrow {
	if parent == nil || child == nil {
		return cmp.Or(parent, child)
	}
	return &BurstGrow{Machines: min(parent.Machines, child.Machines), Per: max(parent.Per, child.Per)}
}

// Refusal returns the reason for which an effective policy permits no machine of an offer, or "". An
// unknown price, 0, is refused: its costs could not be bounded.
func (b Burst) Refusal(provider, region string, spot bool, price float64) string {
	place := provider + "/" + region
	begins := func(r string) bool { return strings.HasPrefix(region, r) }
	switch {
	case !slices.Contains(b.Allow, place):
		return fmt.Sprintf("region %s is not allowed; allowed are %s", place, list(b.Allow))
	case b.Residency != nil && !slices.ContainsFunc(b.Residency, begins):
		return fmt.Sprintf("region %s is outside the residency %s", place, list(b.Residency))
	case spot && b.Spot != SpotPrefer && b.Spot != SpotOnly:
		return "spot machines are not allowed"
	case !spot && b.Spot == SpotOnly:
		return "only spot machines are allowed"
	case !(price > 0):
		return "the price of the offer is unknown"
	case b.MaxPricePerHour > 0 && price > b.MaxPricePerHour:
		return fmt.Sprintf("the price of $%.2f an hour is above max_price_per_hour, $%.2f", price, b.MaxPricePerHour)
	}
	return ""
}

// list renders names for a text.
func list(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}

// Widens returns the faults of a policy that permits more than the effective policy above it, by field,
// with the permitted values. Narrow would ignore these settings, so a call that stores one is refused.
func (b Burst) Widens(parent Burst) []berth.FieldError {
	v := &validation{}
	parent, b = parent.WithDefaults(), b.WithDefaults()
	for i, a := range b.Allow {
		v.require(slices.Contains(parent.Allow, a), fmt.Sprintf("allow[%d]", i),
			a+" is not allowed by the policy above", list(parent.Allow))
	}
	for i, r := range b.Residency {
		begins := func(p string) bool { return strings.HasPrefix(r, p) }
		v.require(parent.Residency == nil || slices.ContainsFunc(parent.Residency, begins),
			fmt.Sprintf("residency[%d]", i), r+" is wider than the policy above", "within "+list(parent.Residency))
	}
	if spot := cmp.Or(parent.Spot, SpotNever); b.Spot != "" && b.Spot != spot && spot != SpotPrefer {
		v.require(false, "spot", fmt.Sprintf("%s is not allowed by the policy above", b.Spot), string(spot))
	}
	dollars := func(field string, x, most float64) {
		v.require(most == 0 || x <= most, field, fmt.Sprintf("%g is more than the policy above allows", x),
			fmt.Sprintf("at most %g", most))
	}
	dollars("max_price_per_hour", b.MaxPricePerHour, parent.MaxPricePerHour)
	dollars("idle_cost", b.IdleCost, parent.IdleCost)
	v.require(parent.MaxMachines == 0 || b.MaxMachines <= parent.MaxMachines, "max_machines",
		fmt.Sprintf("%d is more than the policy above allows", b.MaxMachines),
		fmt.Sprintf("at most %d", parent.MaxMachines))
	widensMin(v, b.MinMachines, parent.MaxMachines)
	v.require(parent.Idle == 0 || b.Idle <= parent.Idle, "idle",
		fmt.Sprintf("%s is longer than the policy above allows", b.Idle), "at most "+parent.Idle.String())
	if w, p := b.When, parent.When; w != nil && p != nil {
		v.require(w.HourOfWait <= p.HourOfWait, "when.hour_of_wait",
			fmt.Sprintf("%g is more than the policy above allows", w.HourOfWait),
			fmt.Sprintf("at most %g", p.HourOfWait))
		v.require(w.PlannedWaitOver == 0 || p.PlannedWaitOver > 0 && w.PlannedWaitOver >= p.PlannedWaitOver,
			"when.planned_wait_over", fmt.Sprintf("%s is shorter than the policy above allows", w.PlannedWaitOver),
			atLeast(p.PlannedWaitOver))
		widensWaiting(v, w.Waiting, p.Waiting)
	}
	if s, p := b.Spend, parent.Spend; s != nil && p != nil {
		v.require(slices.Index(spendPeriods, s.Period) <= slices.Index(spendPeriods, p.Period), "spend.period",
			fmt.Sprintf("%s is longer than the period of the policy above", s.Period), "at most a "+string(p.Period))
		dollars("spend.limit", s.Limit, p.Limit)
		dollars("spend.stop_new", s.StopNew, p.StopNew)
		dollars("spend.drain", s.Drain, p.Drain)
	}
	if g, p := b.Grow, parent.Grow; g != nil && p != nil {
		v.require(g.Machines <= p.Machines && g.Per >= p.Per, "grow",
			fmt.Sprintf("%d machines in %s are more than the policy above allows", g.Machines, g.Per),
			fmt.Sprintf("at most %d machines, in %s or longer", p.Machines, p.Per))
	}
	return v.faults
}

// atLeast renders the shortest wait that a policy below may name. 0: the rule is off above.
func atLeast(d Duration) string {
	if d == 0 {
		return "none: the policy above has no planned_wait_over"
	}
	return "at least " + d.String()
}
