package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// newTenant builds "berth tenant". Tenants form a tree, and a tenant's limits bind all
// tenants below it.
func newTenant(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "tenant", Short: "Create, list, show, change and remove tenants"}
	cmd.AddCommand(newTenantCreate(a), newTenantList(a), newTenantShow(a), newTenantSet(a), newTenantDelete(a))
	return cmd
}

// newTenantCreate builds "berth tenant create" over POST /v1/tenants.
func newTenantCreate(a *app) *cobra.Command {
	var n spec.NewTenant
	var parent string
	cmd := &cobra.Command{
		Use:     "create TENANT",
		Short:   "Create a tenant",
		Example: "  berth tenant create vision --parent lab --weight 2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			// The server validates the name and the parent. "" as the parent puts the
			// tenant at the top.
			n.ID, n.Parent = berth.TenantID(args[0]), berth.TenantID(parent)
			c, err := a.client()
			if err != nil {
				return err
			}
			t, err := c.CreateTenant(cmd.Context(), n)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showTenant(a, t)
		},
	}
	cmd.Flags().StringVar(&parent, "parent", "", "parent tenant, whose limits apply too")
	_ = cmd.RegisterFlagCompletionFunc("parent", a.completeTenants)
	cmd.Flags().Float64Var(&n.Weight, "weight", 1, "weight of the tenant's fair share among its siblings")
	cmd.Flags().BoolVar(&n.Untrusted, "untrusted", false, untrustedHelp)
	return cmd
}

// untrustedHelp describes the flag --untrusted.
const untrustedHelp = "start jobs of the tenant, and of tenants below it, only on machines that meet the security " +
	"floors"

// newTenantList builds "berth tenant list" over GET /v1/tenants. The server limits the list
// by the token's role: users see their own tenant.
func newTenantList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List tenants with their usage; users see their own",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Tenants(cmd.Context())
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showTenants(a, list)
		},
	}
}

// showTenants prints tenants with their use. GPU-HOURS and CPU-HOURS decay with time: they
// are the use that the fair share counts, not a bill.
func showTenants(a *app, list wire.Page[wire.Tenant]) error {
	names := make([]string, len(list.Items))
	for i, t := range list.Items {
		names[i] = string(t.ID)
	}
	return a.show(view{body: list, names: names, table: func(wide bool) error {
		t := table{screen: a.outTerm, head: []string{"TENANT", "PARENT", "WEIGHT", "RUNNING", "WAITING",
			"GPUS", "GPU-HOURS"}}
		if wide {
			t.head = append(t.head, "CPUS", "MEMORY", "CPU-HOURS", "AGE")
		}
		for _, n := range list.Items {
			// Running and waiting count jobs; Holding is the capacity reserved at present.
			u := n.Use
			cells := []any{string(n.ID), string(n.Parent), fmt.Sprintf("%g", n.Weight), fmt.Sprint(u.Running),
				fmt.Sprint(u.Waiting),
				amount(u.Holding.GPUs), fmt.Sprintf("%.1f", u.GPUHours)}
			if wide {
				cells = append(cells, amount(u.Holding.CPUs), amount(u.Holding.Memory),
					fmt.Sprintf("%.1f", u.CPUHours), since(&n.CreatedAt, a.now()))
			}
			t.add(cells...)
		}
		return t.write(a.out)
	}})
}

// newTenantShow builds "berth tenant show" over GET /v1/tenants/{id}.
func newTenantShow(a *app) *cobra.Command {
	return ofTenant(a, &cobra.Command{Use: "show TENANT", Short: "Show a tenant with its usage"},
		(*client.Client).Tenant, showTenant)
}

// showTenant prints one tenant with its use.
func showTenant(a *app, t wire.Tenant) error {
	return a.show(view{body: t, names: []string{string(t.ID)}, table: func(bool) error {
		s := sheet{screen: a.outTerm}
		s.add("tenant", string(t.ID))
		s.add("parent", string(t.Parent))
		s.add("weight", fmt.Sprintf("%g", t.Weight))
		if t.Untrusted {
			s.add("trust", "untrusted: jobs start only on machines that meet the security floors")
		}
		if !t.Users.IsZero() {
			s.add("users", t.Users.String()+", of its containers")
		}
		addUse(&s, t.Use)
		return s.write(a.out)
	}})
}

// addUse adds a tenant's present use and its decayed use of the past; see spec.TenantUse.
func addUse(s *sheet, u spec.TenantUse) {
	s.add("jobs", fmt.Sprintf("%d running, %d queued", u.Running, u.Waiting))
	s.add("in use", amountsText(&u.Holding))
	s.add("recent use", fmt.Sprintf("%.1f GPU-hours, %.1f CPU-hours (older use decays)", u.GPUHours, u.CPUHours))
}

// newTenantSet builds "berth tenant set" over PATCH /v1/tenants/{id}. Only given flags are
// sent, so two operators who change different settings do not undo each other's change.
func newTenantSet(a *app) *cobra.Command {
	var parent string
	var weight float64
	var untrusted bool
	cmd := &cobra.Command{
		Use:   "set TENANT",
		Short: "Change a tenant's weight, parent or trust",
		Example: "  berth tenant set vision --weight 3\n" +
			"  berth tenant set guests --untrusted\n" +
			"  berth tenant set guests --untrusted=false",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeTenant,
		RunE: func(cmd *cobra.Command, args []string) error {
			var p spec.TenantPatch
			// Changed, since "" is a value: it moves the tenant to the top of the tree.
			if cmd.Flags().Changed("parent") {
				p.Parent = new(berth.TenantID(parent))
			}
			if cmd.Flags().Changed("weight") {
				p.Weight = &weight
			}
			if cmd.Flags().Changed("untrusted") {
				p.Untrusted = &untrusted
			}
			// An empty patch would succeed and change nothing, which hides a lost argument
			// of a script.
			if p == (spec.TenantPatch{}) {
				return usagef("nothing to change: --weight, --parent or --untrusted is required")
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			t, err := c.UpdateTenant(cmd.Context(), berth.TenantID(args[0]), p)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showTenant(a, t)
		},
	}
	cmd.Flags().StringVar(&parent, "parent", "", `parent tenant; "" for none`)
	_ = cmd.RegisterFlagCompletionFunc("parent", a.completeTenants)
	cmd.Flags().Float64Var(&weight, "weight", 1, "weight of the tenant's fair share among its siblings")
	cmd.Flags().BoolVar(&untrusted, "untrusted", false, untrustedHelp)
	return cmd
}

// newTenantDelete builds "berth tenant delete" over DELETE /v1/tenants/{id}. The server
// refuses a tenant that is in use, and the default tenant, with a conflict (exit code 4).
func newTenantDelete(a *app) *cobra.Command {
	return deleteOfTenant(a, &cobra.Command{
		Short: "Remove an empty tenant",
		Long: "Delete removes a tenant without unarchived jobs, active tokens, schedules and child tenants, " +
			"together\n" +
			"with its secrets and uploads. The name of a tenant with archived jobs cannot be used again: a new\n" +
			"tenant would own them.",
	}, (*client.Client).DeleteTenant, "deleted tenant %s\n")
}
