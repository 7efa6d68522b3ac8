package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"berth"
	"berth/spec"
	"berth/wire"
)

func newTenant(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "tenant", Short: "Create, list, show, change and remove tenants"}
	cmd.AddCommand(newTenantCreate(a), newTenantList(a), newTenantShow(a), newTenantSet(a), newTenantDelete(a))
	return cmd
}

func newTenantCreate(a *app) *cobra.Command {
	var n spec.NewTenant
	var parent string
	cmd := &cobra.Command{
		Use:     "create TENANT",
		Short:   "Create a tenant",
		Example: "  berth tenant create vision --parent lab --weight 2",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
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
	cmd.Flags().Float64Var(&n.Weight, "weight", 1, "weight of the tenant's fair share among its siblings")
	return cmd
}

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

func newTenantShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "show TENANT",
		Short: "Show a tenant with its usage",
		Args:  cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			t, err := c.Tenant(cmd.Context(), berth.TenantID(args[0]))
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showTenant(a, t)
		},
	}
}

func showTenant(a *app, t wire.Tenant) error {
	return a.show(view{body: t, names: []string{string(t.ID)}, table: func(bool) error {
		s := sheet{screen: a.outTerm}
		s.add("tenant", string(t.ID))
		s.add("parent", string(t.Parent))
		s.add("weight", fmt.Sprintf("%g", t.Weight))
		addUse(&s, t.Use)
		return s.write(a.out)
	}})
}

// addUse adds a tenant's current and past use.
func addUse(s *sheet, u spec.TenantUse) {
	s.add("jobs", fmt.Sprintf("%d running, %d waiting", u.Running, u.Waiting))
	s.add("holding", amountsText(&u.Holding))
	s.add("of late", fmt.Sprintf("%.1f GPU-hours, %.1f CPU-hours; older use counts less", u.GPUHours, u.CPUHours))
}

func newTenantSet(a *app) *cobra.Command {
	var parent string
	var weight float64
	cmd := &cobra.Command{
		Use:     "set TENANT",
		Short:   "Change a tenant's weight or parent",
		Example: "  berth tenant set vision --weight 3",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			var p spec.TenantPatch
			if cmd.Flags().Changed("parent") {
				p.Parent = new(berth.TenantID(parent))
			}
			if cmd.Flags().Changed("weight") {
				p.Weight = &weight
			}
			if p == (spec.TenantPatch{}) {
				return usagef("nothing to change: give --weight or --parent")
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
	cmd.Flags().StringVar(&parent, "parent", "", `tenant above it; "" for none`)
	cmd.Flags().Float64Var(&weight, "weight", 1, "weight of the tenant's fair share among its siblings")
	return cmd
}

func newTenantDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "delete TENANT",
		Short: "Remove an empty tenant",
		Long: "Delete removes a tenant that has no job that is not archived, no token that is good, no schedule " +
			"and no tenant below it. Its secrets and uploads go with it. A tenant that has archived jobs cannot be " +
			"made again: they would be the new one's.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if err := c.DeleteTenant(cmd.Context(), berth.TenantID(args[0])); err != nil {
				return a.failed(cmd.Context(), err)
			}
			_, err = fmt.Fprintf(a.out, "tenant %s is removed\n", args[0])
			return err
		},
	}
}
