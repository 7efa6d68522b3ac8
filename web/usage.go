package web

import (
	"cmp"
	"context"
	"encoding/csv"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/spec"
	"berth/wire"
)

// usageView is the data of the page of costs.
type usageView struct {
	From, To time.Time // first and last day of the period; zero without rows
	Period   spec.SpendPeriod
	Pools    bool // the rows are pools
	Choices  []usageChoice
	ByTenant string // addresses of the two lists; "": the reader may not see pools
	ByPool   string
	Earlier  string // "": no usage is listed of an earlier period
	Later    string // "": the period is not over
	CSV      string
	Total    float64 // costs of all rows, each once, in US dollars
	Reserved float64
	Machines int
	Rows     []usageRow
	None     string
	Command  string
}

// usageChoice is a period to choose, with the address of its page.
type usageChoice struct {
	Label   string
	Link    string
	Current bool
}

// usageRow is the spend of a tenant or a pool.
type usageRow struct {
	wire.CloudUsage
	Name    string
	Jobs    string // address of its jobs; "": it has no list
	Indent  string // of its depth in the tree
	Percent int    // of the limit, at most 100; -1: no limit
	Bar     int    // of the greatest cost of a row, in percent
	Reached string
}

// usagePage shows the costs of machines of clouds in a period: by tenant as a tree, or by pool for admins.
func usagePage(ctx context.Context, v *visit) (result, error) {
	list, err := v.usage(ctx)
	if err != nil {
		return result{}, err
	}
	view := usageView{Pools: v.query("by") == "pool", Period: spec.SpendPeriod(v.query("period")),
		Rows: usageRows(list), CSV: v.csvOfUsage(), Command: usageCommand(v)}
	if v.page.Reader.Operates() {
		view.ByTenant, view.ByPool = v.link("by", ""), v.link("by", "pool")
	}
	for i, r := range view.Rows {
		view.Rows[i].Bar = percent(cents(r.Settled), cents(costliest(view.Rows)))
	}
	view.add(list)
	view.navigate(v)
	switch {
	case len(list) > 0:
	case view.Pools:
		view.None = "No pool had machines of clouds in this period."
	default:
		view.None = "Your token can see no tenants."
	}
	return result{template: "usage", title: "Usage", data: view}, nil
}

// usage reads all rows of the period that the address names.
func (v *visit) usage(ctx context.Context) ([]wire.CloudUsage, error) {
	list, err := v.api.CloudUsage(ctx, v.query("by"), "", spec.SpendPeriod(v.query("period")), v.query("date"))
	return list.Items, err
}

// add sums the rows. The figures of a tenant contain the ones of the tenants below it, so reserved and machines
// are summed over the rows whose parent is not in the list.
func (u *usageView) add(list []wire.CloudUsage) {
	known := map[berth.TenantID]bool{}
	for _, r := range list {
		known[r.Tenant] = true
	}
	for _, r := range list {
		u.From, u.To = r.From.UTC(), r.To.UTC().AddDate(0, 0, -1)
		if u.Pools || r.Parent == "" || !known[r.Parent] {
			u.Total, u.Reserved, u.Machines = u.Total+r.Settled, u.Reserved+r.Reserved, u.Machines+r.Machines
		}
		// Without a period in the address, the server has chosen the one of the limits.
		u.Period = cmp.Or(u.Period, periodOf(r))
	}
}

// navigate sets the links to other periods. Rows tell the days of the period; without rows, the date of the
// address does.
func (u *usageView) navigate(v *visit) {
	period := cmp.Or(u.Period, spec.SpendMonth)
	at, err := time.Parse(time.DateOnly, v.query("date"))
	if err != nil {
		at = v.page.Now
	}
	from, to := period.Start(at), period.End(at)
	if before := from.AddDate(0, 0, -1); before.Year() >= wire.FirstUsageYear {
		u.Earlier = v.link("period", string(period), "date", before.Format(time.DateOnly))
	}
	if to.Before(v.page.Now) {
		u.Later = v.link("period", string(period), "date", to.Format(time.DateOnly))
	}
	for _, c := range []struct {
		label  string
		period spec.SpendPeriod
	}{{"Day", spec.SpendDay}, {"Week", spec.SpendWeek}, {"Month", spec.SpendMonth}} {
		u.Choices = append(u.Choices, usageChoice{c.label, v.link("period", string(c.period)), c.period == period})
	}
}

// periodOf returns the length of the period of a row.
func periodOf(r wire.CloudUsage) spec.SpendPeriod {
	switch days := int(r.To.Sub(r.From).Hours() / 24); {
	case days <= 1:
		return spec.SpendDay
	case days <= 7:
		return spec.SpendWeek
	}
	return spec.SpendMonth
}

// usageRows puts each tenant below its parent, and orders siblings by their costs. Pools, and tenants whose
// parent is not in the list, are at the top.
func usageRows(list []wire.CloudUsage) (rows []usageRow) {
	known, children := map[berth.TenantID]bool{}, map[berth.TenantID][]wire.CloudUsage{}
	for _, u := range list {
		known[u.Tenant] = u.Tenant != ""
	}
	for _, u := range list {
		above := u.Parent
		if !known[above] {
			above = ""
		}
		children[above] = append(children[above], u)
	}
	var add func(above berth.TenantID, indent string)
	add = func(above berth.TenantID, indent string) {
		if len(indent) > 8*spec.MaxTenantDepth { // a bound for faulty documents
			return
		}
		slices.SortStableFunc(children[above], func(a, b wire.CloudUsage) int {
			return cmp.Or(cmp.Compare(b.Settled+b.Reserved, a.Settled+a.Reserved),
				cmp.Compare(usageName(a), usageName(b)))
		})
		for _, u := range children[above] {
			rows = append(rows, rowOfUsage(u, indent))
			if u.Tenant != "" {
				add(u.Tenant, indent+"\u2003")
			}
		}
	}
	add("", "")
	return rows
}

// rowOfUsage renders the share of the limit and the levels that the spend has reached.
func rowOfUsage(u wire.CloudUsage, indent string) usageRow {
	row := usageRow{CloudUsage: u, Name: usageName(u), Indent: indent, Percent: -1}
	if u.Tenant != "" {
		row.Jobs = "/jobs?q=tenant:" + string(u.Tenant)
	}
	if u.Share != nil {
		row.Percent = int(min(100, max(0, 100**u.Share)))
	}
	var levels []string
	for _, a := range u.Alerts {
		levels = append(levels, a.Level)
	}
	row.Reached = strings.Join(levels, ", ")
	return row
}

// usageName returns the pool or the tenant of a row, or "(admin)", which is no name of a tenant.
func usageName(u wire.CloudUsage) string { return cmp.Or(u.Pool, string(u.Tenant), "(admin)") }

// costliest returns the greatest cost of a row in US dollars.
func costliest(rows []usageRow) (most float64) {
	for _, r := range rows {
		most = max(most, r.Settled)
	}
	return most
}

// cents returns an amount in hundredths of a US dollar.
func cents(dollars float64) int64 { return int64(100*dollars + 0.5) }

// dollars writes an amount of US dollars.
func dollars(amount float64) string { return fmt.Sprintf("$%.2f", amount) }

// usageCommand returns the command that prints the same rows.
func usageCommand(v *visit) string {
	text := "berth usage"
	for _, name := range []string{"by", "period", "date"} {
		if value := v.query(name); value != "" {
			text += " --" + name + " " + clip(20, value)
		}
	}
	return text
}

// csvOfUsage returns the address of the same rows as a file.
func (v *visit) csvOfUsage() string {
	_, query, _ := strings.Cut(v.link(), "?")
	if query == "" {
		return "/usage.csv"
	}
	return "/usage.csv?" + query
}

// usageFile sends the rows as CSV (RFC 4180), with full amounts in US dollars and days in UTC.
func usageFile(ctx context.Context, v *visit) (result, error) {
	list, err := v.usage(ctx)
	if err != nil {
		return result{}, err
	}
	h := v.w.Header()
	h.Set("Content-Type", "text/csv; charset=utf-8")
	h.Set("Content-Disposition", `attachment; filename="berth-usage.csv"`)
	out := csv.NewWriter(v.w)
	_ = out.Write([]string{"tenant", "parent", "pool", "from", "to", "machines", "reserved_usd", "settled_usd",
		"own_usd", "limit_usd"})
	amount := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	for _, u := range list {
		limit := ""
		if u.Share != nil {
			limit = amount(u.Limit)
		}
		_ = out.Write([]string{string(u.Tenant), string(u.Parent), u.Pool, u.From.UTC().Format(time.DateOnly),
			u.To.UTC().AddDate(0, 0, -1).Format(time.DateOnly), strconv.Itoa(u.Machines), amount(u.Reserved),
			amount(u.Settled), amount(u.Own), limit})
	}
	out.Flush() // a browser that is gone needs no rows
	return result{}, errWritten
}
