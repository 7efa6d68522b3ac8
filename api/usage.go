package api

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"time"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// usageHandlers serve the calls about the costs of machines of clouds. Users read the spend of their
// own tenant, admins of all.
type usageHandlers struct {
	spend    *db.Spend
	policies *db.Burst
}

func (h *usageHandlers) mount(r *router) {
	o := r.operation("list-usage", http.MethodGet, "/v1/usage", "administration",
		"List the spend of tenants for machines of clouds in a period; users see their own tenant's")
	o.Description = "The figures of a tenant contain those of all tenants below it. They are computed from the " +
		"prices of the launches, and are no invoice of a cloud."
	register(r, o, h.list)
}

// usageInput selects the spend of tenants. A period is the one that contains the date.
type usageInput struct {
	Tenant string `query:"tenant" maxLength:"64" doc:"this tenant and all tenants below it; unset: all"`
	Period string `query:"period" maxLength:"16" doc:"day, week or month; unset: that of all limits, else month"`
	By     string `query:"by" maxLength:"16" doc:"tenant (default), or pool (admins, and without tenant)"`
	Date   string `query:"date" maxLength:"16" doc:"a day of the period, such as 2026-11-26; unset: today, in UTC"`
	Paging
}

type usageOutput struct{ Body wire.Page[wire.CloudUsage] }

// list returns a page of the spend of tenants. Another tenant is answered like one that does not exist.
// Dates are in UTC, as the periods of the limits are.
func (h *usageHandlers) list(ctx context.Context, in *usageInput) (*usageOutput, error) {
	f := db.UsageFilter{Tenant: berth.TenantID(in.Tenant), Period: spec.SpendPeriod(in.Period), At: time.Now()}
	if in.Period == "" {
		var err error
		if f.Period, err = h.usualPeriod(ctx); err != nil {
			return nil, err
		}
	}
	if f.Period != spec.SpendDay && f.Period != spec.SpendWeek && f.Period != spec.SpendMonth {
		return nil, badQuery("period", in.Period, "day, week, month")
	}
	if err := in.setDate(&f); err != nil {
		return nil, err
	}
	// Costs by pool contain all tenants, so only admins may see them.
	switch in.By {
	case "", "tenant":
	case "pool":
		if scope(ctx) != "" {
			return nil, berth.Errorf(berth.CodeForbidden, "by=pool shows the costs of all tenants: it needs an admin")
		}
		if in.Tenant != "" {
			return nil, badQuery("tenant", in.Tenant, "none with by=pool")
		}
		list, next, err := h.spend.UsageByPool(ctx, f, in.long())
		if err != nil {
			return nil, err
		}
		return &usageOutput{page(list, next)}, nil
	default:
		return nil, badQuery("by", in.By, "tenant, pool")
	}
	if own := scope(ctx); own != "" {
		if in.Tenant != "" && in.Tenant != string(own) {
			return nil, berth.Errorf(berth.CodeNotFound, "no such tenant %s", in.Tenant)
		}
		f.Tenant, f.Only = own, true
	}
	list, next, err := h.spend.Usage(ctx, f, in.long())
	if err != nil {
		return nil, err
	}
	return &usageOutput{page(list, next)}, nil
}

// setDate sets the time of the filter to the date of the input, if it has one. The period of a date in
// another year may begin or end in a year that JSON cannot hold.
func (in *usageInput) setDate(f *db.UsageFilter) error {
	if in.Date == "" {
		return nil
	}
	at, err := time.Parse(time.DateOnly, in.Date)
	if err != nil || at.Year() < wire.FirstUsageYear || at.Year() > wire.LastUsageYear {
		return badQuery("date", in.Date, fmt.Sprintf("a date such as 2026-11-26, from the years %d to %d",
			wire.FirstUsageYear, wire.LastUsageYear))
	}
	f.At = at
	return nil
}

// usualPeriod returns the period of all limits of spend if they have the same, so that the usage shows
// its limits, and else a month. Limits of different periods cannot be shown in one table.
func (h *usageHandlers) usualPeriod(ctx context.Context) (spec.SpendPeriod, error) {
	policies, err := h.policies.Policies(ctx)
	if err != nil {
		return "", err
	}
	var usual spec.SpendPeriod
	for _, p := range policies {
		switch {
		case p.Spend == nil || p.Spend.Period == usual:
		case usual != "":
			return spec.SpendMonth, nil
		default:
			usual = p.Spend.Period
		}
	}
	return cmp.Or(usual, spec.SpendMonth), nil
}

// badQuery returns the error for a value of a query parameter that is not allowed. The value is
// clipped, since it comes from the address.
func badQuery(field, value, allowed string) error {
	detail := fmt.Sprintf("%.40q is not known", value)
	return &berth.Error{Code: berth.CodeInvalid, Message: field + " " + detail + ": allowed are " + allowed,
		Fields: []berth.FieldError{{Field: field, Detail: detail, Allowed: allowed}}}
}
