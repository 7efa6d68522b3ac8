package main

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/internal/lib/jobfile"
	"berth/spec"
	"berth/wire"
)

// newBurst builds "berth burst". A policy bounds the machines of clouds that Berth launches for the jobs of a
// tenant and of all tenants below it.
func newBurst(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "burst", Short: "Manage the policies of tenants for machines of clouds"}
	cmd.AddCommand(newBurstShow(a), newBurstSet(a), newBurstDelete(a))
	return cmd
}

// newBurstShow builds "berth burst show" over GET /v1/tenants/{tenant}/burst.
func newBurstShow(a *app) *cobra.Command {
	return ofTenant(a, &cobra.Command{
		Use:   "show TENANT",
		Short: "Show a tenant's policy, and the policy that holds with the tenants above it",
		Long: "Show prints the effective policy of a tenant: its own settings, narrowed by the policies of all\n" +
			"tenants above it. The JSON output contains both, and the tenant's own policy.",
	}, (*client.Client).Burst, showBurst)
}

// showBurst prints the policy of a tenant.
func showBurst(a *app, p wire.BurstPolicy) error {
	return a.show(view{body: p, names: []string{string(p.Tenant)}, table: func(bool) error {
		s := sheet{screen: a.outTerm}
		s.add("tenant", string(p.Tenant))
		s.add("own policy", burstOwner(a, p))
		if p.Effective == nil {
			s.add("effective", "no policy: no machines of clouds")
			return s.write(a.out)
		}
		for _, l := range burstLines(*p.Effective) {
			s.add(l[0], oneLine(l[1]))
		}
		return s.write(a.out)
	}})
}

// burstOwner returns who set the tenant's own policy, and when.
func burstOwner(a *app, p wire.BurstPolicy) string {
	if p.Own == nil {
		return "none"
	}
	return fmt.Sprintf("version %d, set by %s %s", p.Own.Version, p.UpdatedBy, stamp(p.UpdatedAt, a.now()))
}

// burstLines returns the settings of an effective policy as names and texts.
func burstLines(b spec.Burst) [][2]string {
	allow := strings.Join(b.Allow, ", ")
	if allow == "" {
		allow = "no cloud"
	}
	lines := [][2]string{{"allow", allow}, {"residency", strings.Join(b.Residency, ", ")}, {"spot", string(b.Spot)}}
	add := func(name string, set bool, format string, args ...any) {
		if set {
			lines = append(lines, [2]string{name, fmt.Sprintf(format, args...)})
		}
	}
	switch w := b.When; {
	case w == nil:
		add("when", true, "never: no policy has a rule")
	default:
		add("when", w.PlannedWaitOver > 0, "a planned wait is over %s", w.PlannedWaitOver)
		add("when", w.HourOfWait > 0, "it costs less than the wait, at $%.2f an hour", w.HourOfWait)
		for _, r := range w.Waiting {
			add("when", true, "at least %d jobs have waited for %s", r.Jobs, r.For)
		}
	}
	add("price", b.MaxPricePerHour > 0, "at most $%.2f an hour", b.MaxPricePerHour)
	if s := b.Spend; s != nil {
		add("spend", true, "at most $%.2f a %s; warn at %.0f %%, no new machines at %.0f %%, drain at %.0f %%", s.Limit,
			s.Period, 100*s.Warn, 100*s.StopNew, 100*s.Drain)
	}
	if g := b.Grow; g != nil {
		add("grow", true, "at most %d machines in %s", g.Machines, g.Per)
	}
	add("machines", b.MaxMachines > 0, "at most %d", b.MaxMachines)
	for _, m := range b.MinMachines {
		add("kept", true, "at least %d in pool %s%s", m.Machines, cmp.Or(m.Pool, spec.DefaultPool), ofTypes(m.Types))
	}
	add("idle", b.Idle > 0, "empty machines are kept for %s", b.Idle)
	add("idle cost", b.IdleCost > 0, "or until they have cost $%.2f while empty", b.IdleCost)
	return lines
}

// ofTypes renders the machine types that count for a least number of machines.
func ofTypes(types []string) string {
	if len(types) == 0 {
		return ""
	}
	return ", of " + strings.Join(types, " or ")
}

// burstFile is the file of "berth burst set".
type burstFile struct {
	Burst spec.Burst `json:"burst"`
}

// newBurstSet builds "berth burst set" over PUT /v1/tenants/{tenant}/burst.
func newBurstSet(a *app) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "set TENANT -f FILE|-",
		Short: "Replace a tenant's policy by the one in a file",
		Long: "Set replaces the policy of a tenant by the key burst of a YAML or JSON file. The policy can only\n" +
			"narrow the policies of the tenants above; a setting that permits more is refused with its line.\n" +
			"Machines that exist are not changed. With version in the file, a policy that was changed meanwhile\n" +
			"is not replaced, and the exit code is 4.",
		Example: "  berth burst set vision -f burst.yaml\n" +
			"  echo '{\"burst\": {\"allow\": []}}' | berth burst set speech -f -",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeTenant,
		RunE: func(cmd *cobra.Command, args []string) error {
			src, shown, err := a.readFile(cmd.Context(), "policy", name)
			if err != nil {
				return err
			}
			b, err := parseBurst(shown, src, func(b spec.Burst) []berth.FieldError { return b.Validate() })
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			after, err := c.SetBurst(cmd.Context(), berth.TenantID(args[0]), b)
			if e, ok := errors.AsType[*berth.Error](err); ok && len(e.Fields) > 0 {
				// The file was read before, so the server found the faults.
				_, err = parseBurst(shown, src, func(spec.Burst) []berth.FieldError { return e.Fields })
			}
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showBurst(a, after)
		},
	}
	cmd.Flags().StringVarP(&name, "file", "f", "", "file with the policy under the key burst; -: stdin (required)")
	_ = cmd.MarkFlagRequired("file")
	return cmd
}

// parseBurst reads a policy, and reports the faults of validate with their lines. The fields of these faults
// are relative to the policy.
func parseBurst(name string, src []byte, validate func(spec.Burst) []berth.FieldError) (spec.Burst, error) {
	var f burstFile
	err := jobfile.Decode(name, src, &f, func() []berth.FieldError {
		var faults []berth.FieldError
		for _, e := range validate(f.Burst) {
			e.Field = "burst." + e.Field
			faults = append(faults, e)
		}
		return faults
	})
	return f.Burst, err
}

// newBurstDelete builds "berth burst delete" over DELETE /v1/tenants/{tenant}/burst.
func newBurstDelete(a *app) *cobra.Command {
	return deleteOfTenant(a, &cobra.Command{Short: "Delete a tenant's own policy; the policies above then hold alone"},
		(*client.Client).DeleteBurst, "deleted the burst policy of tenant %s\n")
}

// newOffers builds "berth offers" over GET /v1/offers.
func newOffers(a *app) *cobra.Command {
	var provider, gpuType string
	cmd := &cobra.Command{
		Use:   "offers",
		Short: "List machine types of clouds with their prices",
		Long: "Offers lists the machine types in the offers file of berthd. NOTE names the refusal of a cloud, and\n" +
			"the time at which Berth tries the offer again. AS OF is the date of the price.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Offers(cmd.Context(), provider, gpuType)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showOffers(a, list)
		},
	}
	cmd.AddCommand(newOffersPrice(a))
	cmd.Flags().StringVar(&provider, "provider", "", "only offers of this provider")
	cmd.Flags().StringVar(&gpuType, "gpu-type", "", "only machines with GPUs of this type, such as H100")
	return cmd
}

// newOffersPrice builds "berth offers price" over PUT /v1/offers/price.
func newOffersPrice(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "price OFFER DOLLARS|none",
		Short: "Set your contract's price for an offer, in place of the price of the file",
		Long: "Price sets the price of an offer in US dollars an hour. It outlives new loads of the offers file;\n" +
			"none returns to the price of the file. OFFER is provider/region/type/market, or\n" +
			"provider/region/zone/type/market, as \"berth offers -o name\" prints it.",
		Example:           "  berth offers price aws/eu-west-1/eu-west-1a/p5.48xlarge/spot 31.50",
		Args:              cobra.ExactArgs(2),
		ValidArgsFunction: inTurn(completeOffers(a, wire.Offer.Name), cobra.NoFileCompletions),
		RunE: func(cmd *cobra.Command, args []string) error {
			p, err := parseOfferPrice(args[0], args[1])
			if err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			if err := c.SetOfferPrice(cmd.Context(), p); err != nil {
				return a.failed(cmd.Context(), err)
			}
			_, err = fmt.Fprintf(a.out, "set the price of %s to %s\n", args[0], args[1])
			return err
		},
	}
}

// parseOfferPrice reads the name of an offer and its price.
func parseOfferPrice(name, price string) (p wire.OfferPrice, err error) {
	parts := strings.Split(name, "/")
	if len(parts) == 4 { // without a zone
		parts = slices.Insert(parts, 2, "")
	}
	if len(parts) != 5 {
		return p, usagef("%q is not an offer; allowed: provider/region/type/market, or "+
			"provider/region/zone/type/market", name)
	}
	p = wire.OfferPrice{Provider: parts[0], Region: parts[1], Zone: parts[2], Type: parts[3], Market: parts[4]}
	if price == lifted {
		return p, nil
	}
	if p.Price, err = strconv.ParseFloat(price, 64); err != nil || !(p.Price > 0) {
		return p, usagef("%q is not a price; allowed: US dollars an hour above 0, or none", price)
	}
	return p, nil
}

// showOffers prints offers.
func showOffers(a *app, list wire.Page[wire.Offer]) error {
	names := make([]string, len(list.Items))
	for i, o := range list.Items {
		names[i] = o.Name()
	}
	return a.show(view{body: list, names: names, table: func(bool) error {
		t := table{screen: a.outTerm, head: []string{"OFFER", "REGION", "MACHINE", "CPUS", "MEMORY", "GPUS", "MARKET",
			"$/H", "AS OF", "NOTE"}}
		for _, o := range list.Items {
			gpus, price := "-", "unknown"
			if o.GPUs > 0 {
				gpus = fmt.Sprintf("%d %s", o.GPUs, o.GPUType)
			}
			if o.Price > 0 {
				price = fmt.Sprintf("%.2f", o.Price)
			}
			region := o.Region
			if o.Zone != "" {
				region += "/" + o.Zone
			}
			t.add(o.Provider, oneLine(region), oneLine(o.Type), fmt.Sprint(o.CPUs), spec.MiB(o.MemoryMiB).String(),
				oneLine(gpus), o.Market, price, o.AsOf.UTC().Format(time.DateOnly), offerNote(o))
		}
		return t.write(a.out)
	}})
}

// offerNote returns the reason why an offer is closed, with the time of the next try.
func offerNote(o wire.Offer) string {
	if o.Closed == "" {
		return "-"
	}
	return oneLine(closedText(o.ClosedPart, o.ClosedUntil, o.Closed))
}

// closedText says which part of a cloud is closed, until when and why. An empty part is the offer of the same row, and
// no time is one that only an operator can end.
func closedText(part string, until *time.Time, reason string) string {
	text := "closed until its settings change or a launch succeeds"
	if until != nil {
		text = "closed until " + until.UTC().Format("15:04:05Z")
	}
	if part != "" {
		text = part + ": " + text
	}
	return text + ": " + reason
}

// newUsage builds "berth usage" over GET /v1/usage.
func newUsage(a *app) *cobra.Command {
	var by, tenant, period, date string
	cmd := &cobra.Command{
		Use:   "usage",
		Short: "List the costs of machines of clouds by tenant or pool; users see their own tenant's",
		Long: "Usage lists the spend of tenants in a period, in US dollars. The figures of a tenant contain those\n" +
			"of all tenants below it. RESERVED belongs to machines that exist and is not spent yet. SHARE is the\n" +
			"part of the limit that is reserved or settled. The row (admin) has the machines that admins\n" +
			"requested by hand. With --by pool, for admins, each row is a pool of machines with its costs of all\n" +
			"tenants; pools have no limits.",
		Example: "  berth usage --tenant vision\n  berth usage --period day --date 2026-11-26",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.CloudUsage(cmd.Context(), by, berth.TenantID(tenant), spec.SpendPeriod(period), date)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showUsage(a, list, by)
		},
	}
	cmd.Flags().StringVar(&by, "by", "", "tenant (default) or pool")
	_ = cmd.RegisterFlagCompletionFunc("by",
		cobra.FixedCompletions([]string{"tenant", "pool"}, cobra.ShellCompDirectiveNoFileComp))
	cmd.Flags().StringVar(&tenant, "tenant", "", "this tenant and all tenants below it (default: all)")
	cmd.Flags().StringVar(&period, "period", "",
		"day, week or month, in UTC (default: that of all limits of spend if they have one, else month)")
	cmd.Flags().StringVar(&date, "date", "", "a day of the period, such as 2026-11-26 (default: today)")
	_ = cmd.RegisterFlagCompletionFunc("period",
		cobra.FixedCompletions([]string{"day", "week", "month"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// showUsage prints the spend of tenants or pools.
func showUsage(a *app, list wire.Page[wire.CloudUsage], by string) error {
	head := []string{cmp.Or(strings.ToUpper(by), "TENANT"), "FROM", "TO", "MACHINES", "RESERVED", "SETTLED", "LIMIT",
		"SHARE", "REACHED"}
	names := make([]string, len(list.Items))
	for i, u := range list.Items {
		names[i] = usageName(u)
	}
	return a.show(view{body: list, names: names, table: func(bool) error {
		t := table{screen: a.outTerm, head: head}
		for _, u := range list.Items {
			limit, share := "-", "-"
			if u.Share != nil {
				limit, share = fmt.Sprintf("%.2f", u.Limit), fmt.Sprintf("%.0f%%", 100**u.Share)
			}
			var levels []string
			for _, x := range u.Alerts {
				levels = append(levels, x.Level)
			}
			from, to := u.From.UTC(), u.To.UTC().AddDate(0, 0, -1)
			t.add(usageName(u), from.Format(time.DateOnly), to.Format(time.DateOnly),
				fmt.Sprint(u.Machines), fmt.Sprintf("%.2f", u.Reserved), fmt.Sprintf("%.2f", u.Settled), limit, share,
				orDash(strings.Join(levels, ", ")))
		}
		return t.write(a.out)
	}})
}

// usageName returns the pool or the tenant of a row of usage, or "(admin)", which is no name of a tenant.
func usageName(u wire.CloudUsage) string { return cmp.Or(u.Pool, string(u.Tenant), "(admin)") }
