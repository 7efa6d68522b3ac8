package web

import (
	"context"
	"fmt"

	"berth"
	"berth/spec"
	"berth/wire"
)

// schedulesView is the data of the list of schedules.
type schedulesView struct {
	Rows []scheduleRow
	None string
}

// scheduleRow is a schedule with its rule in words.
type scheduleRow struct {
	wire.Schedule
	Rule string
}

// ruleText is the times of a schedule in one line. Exactly one of the three kinds is set; otherwise the
// text is empty.
func ruleText(s spec.Schedule) string {
	switch {
	case s.Cron != "":
		return s.Cron + " " + s.TimeZone
	case s.Every > 0:
		return "every " + s.Every.String()
	case s.At != nil:
		return "once"
	}
	return ""
}

// schedulesPage lists schedules with their last fire and their next one.
func schedulesPage(ctx context.Context, v *visit) (result, error) {
	list, err := v.api.Schedules(ctx)
	if err != nil {
		return result{}, err
	}
	var view schedulesView
	for _, s := range list.Items {
		view.Rows = append(view.Rows, scheduleRow{s, ruleText(s.Schedule)})
	}
	if len(view.Rows) == 0 {
		view.None = "Tenant " + string(v.page.Reader.Tenant) + " has no schedules."
		if v.page.Reader.Operates() {
			view.None = "There are no schedules."
		}
	}
	return result{template: "schedules", title: "Schedules", data: view}, nil
}

// firesShown is the number of the last fires on the page of a schedule.
const firesShown = 60

// scheduleView is the data of the page of a schedule.
type scheduleView struct {
	scheduleRow
	Acts bool
}

// schedulePage shows one schedule: its next times, and its last fires as a strip.
func schedulePage(ctx context.Context, v *visit) (result, error) {
	s, err := v.api.Schedule(ctx, v.r.PathValue("name"), firesShown)
	if err != nil {
		return result{}, err
	}
	return result{template: "schedule", title: s.Name,
		data: scheduleView{scheduleRow{s, ruleText(s.Schedule)}, v.page.Reader.Acts()}}, nil
}

// actOnSchedule pauses, resumes or runs a schedule. Each can be undone or repeated, so the page asks no
// further question.
func actOnSchedule(ctx context.Context, v *visit) (result, error) {
	name, do := v.r.PathValue("name"), v.r.PostFormValue("do")
	var err error
	switch do {
	case "pause":
		_, err = v.api.PauseSchedule(ctx, name, v.r.PostFormValue("note"))
	case "resume":
		_, err = v.api.ResumeSchedule(ctx, name, v.r.PostFormValue("note"))
	case "run":
		_, err = v.api.RunSchedule(ctx, name, "")
	default:
		err = berth.Errorf(berth.CodeInvalid, "action %q is not known; allowed are pause, resume, run", clip(40, do))
	}
	return result{redirect: v.r.URL.EscapedPath()}, err
}

// tenantsView is the data of the tree of tenants.
type tenantsView struct {
	Rows []tenantRow
	None string
}

// tenantRow is a tenant of the tree, with the quota that binds it.
type tenantRow struct {
	wire.Tenant
	Indent  string // of its depth in the tree
	Holds   string
	Quota   *spec.Quota
	Limit   string
	Share   int // percent of the GPU limit in use; -1: no limit
	Budget  string
	Spent   int
	GPUHour string
}

// tenantsPage shows the tenants that the reader sees as a tree, with their holdings and limits. A
// tenant whose parent the reader does not see is at the top of the tree.
func tenantsPage(ctx context.Context, v *visit) (result, error) {
	tenants, err := v.api.Tenants(ctx)
	if err != nil {
		return result{}, err
	}
	quotas, err := v.api.Quotas(ctx)
	if err != nil {
		return result{}, err
	}
	byTenant := map[berth.TenantID]spec.Quota{}
	for _, q := range quotas.Items {
		byTenant[q.Tenant] = q
	}
	known, children := map[berth.TenantID]bool{}, map[berth.TenantID][]wire.Tenant{}
	for _, t := range tenants.Items {
		known[t.ID] = true
	}
	for _, t := range tenants.Items {
		above := t.Parent
		if !known[above] { // its parent is not the reader's to see
			above = ""
		}
		children[above] = append(children[above], t)
	}
	view := tenantsView{}
	var add func(above berth.TenantID, indent string)
	add = func(above berth.TenantID, indent string) {
		// A bound for faulty documents. Each level adds a space of three bytes to the indent.
		if len(indent) > 8*spec.MaxTenantDepth {
			return
		}
		for _, t := range children[above] {
			q, ok := byTenant[t.ID]
			view.Rows = append(view.Rows, rowOfTenant(t, q, ok, indent))
			add(t.ID, indent+"\u2003")
		}
	}
	add("", "")
	if len(view.Rows) == 0 {
		view.None = "Your token can see no tenants."
	}
	return result{template: "tenants", title: "Tenants", data: view}, nil
}

// rowOfTenant renders the holdings and limits of a tenant. Shares are in percent, at most 100. ok is
// false for a tenant without a quota of its own.
func rowOfTenant(t wire.Tenant, q spec.Quota, ok bool, indent string) tenantRow {
	row := tenantRow{Tenant: t, Indent: indent, Holds: amountsText(&t.Use.Holding), Share: -1,
		GPUHour: number(t.Use.GPUHours)}
	if !ok {
		return row
	}
	row.Quota, row.Limit = &q, amountsText(q.Limit)
	if q.Limit != nil && q.Limit.GPUs != nil && t.Use.Holding.GPUs != nil {
		row.Share = percent(int64(*t.Use.Holding.GPUs), int64(*q.Limit.GPUs))
	}
	if b := q.Budget; b != nil {
		row.Budget = fmt.Sprintf("%s of %s GPU hours in %s", number(t.Use.SpentGPUs), number(b.GPUHours), b.Period)
		// A budget of 0 hours must not divide by 0.
		row.Spent = int(min(100, 100*t.Use.SpentGPUs/max(b.GPUHours, 1e-9)))
	}
	return row
}

// amountsText writes amounts in a few words; "" for none. A resource without an amount does not appear.
func amountsText(a *spec.Amounts) string {
	if a == nil {
		return ""
	}
	text := ""
	add := func(part string) {
		if text != "" {
			text += ", "
		}
		text += part
	}
	if a.GPUs != nil {
		add(a.GPUs.String() + " GPU")
	}
	if a.CPUs != nil {
		add(a.CPUs.String() + " CPU")
	}
	if a.Memory != nil {
		add(a.Memory.String())
	}
	return text
}
