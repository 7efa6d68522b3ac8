package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/spec"
	"berth/wire"
)

// newPool builds "berth pool". Each machine is in one pool, which may have rules.
func newPool(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "pool", Short: "Manage pools of machines and their rules"}
	cmd.AddCommand(newPoolList(a), newPoolShow(a), newPoolSet(a), newPoolDelete(a))
	return cmd
}

// newPoolList builds "berth pool list" over GET /v1/pools.
func newPoolList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List pools with their rules",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Pools(cmd.Context())
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			names := make([]string, len(list.Items))
			for i, p := range list.Items {
				names[i] = p.Name
			}
			return a.show(view{body: list, names: names, table: func(bool) error {
				t := table{screen: a.outTerm, head: []string{"POOL", "MACHINES", "APPROVAL", "TENANTS", "DESCRIPTION"}}
				for _, p := range list.Items {
					t.add(p.Name, fmt.Sprint(p.Machines), poolApproval(p), poolTenants(p), oneLine(p.Description))
				}
				return t.write(a.out)
			}})
		},
	}
}

// poolTenants formats the rules of a pool about tenants.
func poolTenants(p wire.Pool) string {
	text := "all"
	if p.Tenants != nil {
		names := make([]string, len(p.Tenants))
		for i, t := range p.Tenants {
			names[i] = string(t)
		}
		text = strings.Join(names, ", ")
	}
	if p.OneTenant {
		text += ", one per machine"
	}
	return text
}

// poolApproval formats the rule about approvals of a pool's machines.
func poolApproval(p wire.Pool) string {
	switch {
	case !p.Approval:
		return "-"
	case p.Pending > 0:
		return fmt.Sprintf("required, %d pending", p.Pending)
	default:
		return "required"
	}
}

// newPoolShow builds "berth pool show" over GET /v1/pools/{pool}.
func newPoolShow(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "show POOL",
		Short:             "Show a pool and its rules",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePool(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			p, err := c.Pool(cmd.Context(), args[0])
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showPool(a, p)
		},
	}
}

// showPool prints one pool.
func showPool(a *app, p wire.Pool) error {
	return a.show(view{body: p, names: []string{p.Name}, table: func(bool) error {
		s := sheet{screen: a.outTerm}
		s.add("pool", p.Name)
		if p.Description != "" {
			s.add("description", oneLine(p.Description))
		}
		s.add("machines", fmt.Sprint(p.Machines))
		s.add("tenants", poolTenants(p))
		s.add("approval", poolApproval(p))
		s.add("taints", strings.Join(p.Taints, ", "))
		s.add("changed", stamp(&p.UpdatedAt, a.now()))
		for _, c := range p.Closed {
			s.add("closed", oneLine(closedText(c.Part, c.Until, c.Reason)))
		}
		return s.write(a.out)
	}})
}

// poolFlags are the values of the flags of "berth pool set".
type poolFlags struct {
	tenants, taints     []string
	description         string
	approval, oneTenant bool
}

// newPoolSet builds "berth pool set": GET, then PUT /v1/pools/{pool}. PUT replaces all rules, so the
// flags are applied to the present rules. The version in the PUT prevents the loss of a change that
// another caller made in between.
func newPoolSet(a *app) *cobra.Command {
	var f poolFlags
	cmd := &cobra.Command{
		Use:   "set POOL",
		Short: "Change the rules of a pool, or create a pool",
		Long: "Set changes the rules of the given flags and keeps the others. A missing pool is created.\n" +
			"Jobs that run in the pool keep their machines.\n" +
			"If the pool was changed by another call meanwhile, nothing is changed and the exit code is 4.",
		Example: "  berth pool set gpu-a --tenants vision,speech\n" +
			"  berth pool set gpu-a --tenants all --description 'A100, room 3'\n" +
			"  berth pool set gpu-a --approval\n" +
			"  berth pool set gpu-a --one-tenant-per-machine\n" +
			"  berth pool set gpu-a --taints team=ml",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePool(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			now, err := c.Pool(cmd.Context(), args[0])
			// A missing pool has no rules and version 0: the PUT then creates it.
			if err != nil && berth.CodeOf(err) != berth.CodeNotFound {
				return a.failed(cmd.Context(), err)
			}
			after, err := c.SetPool(cmd.Context(), args[0], f.apply(now, cmd.Flags().Changed))
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showPool(a, after)
		},
	}
	cmd.Flags().StringSliceVar(&f.tenants, "tenants", nil,
		"tenants whose jobs the pool accepts, with all tenants below them; all: every tenant")
	cmd.Flags().BoolVar(&f.approval, "approval", false,
		"require the approval of each machine that joins, or changes its equipment, before it gets work")
	cmd.Flags().BoolVar(&f.oneTenant, "one-tenant-per-machine", false,
		"start no job on a machine while jobs of another tenant are on it")
	cmd.Flags().StringSliceVar(&f.taints, "taints", nil,
		"taints of each machine of the pool, KEY or KEY=VALUE, in place of the present ones; none: no taints")
	cmd.Flags().StringVar(&f.description, "description", "", "description for people")
	return cmd
}

// apply returns the present rules of a pool with the values of the flags that are set.
func (f poolFlags) apply(now wire.Pool, isSet func(flag string) bool) spec.PoolRules {
	// Every rule is copied, since PUT removes a rule that the body lacks.
	p := spec.PoolRules{Tenants: now.Tenants, Description: now.Description, Approval: now.Approval,
		OneTenant: now.OneTenant, Taints: now.Taints, Version: now.Version}
	if isSet("tenants") {
		p.Tenants = tenantList(f.tenants)
	}
	if isSet("approval") {
		p.Approval = f.approval
	}
	if isSet("one-tenant-per-machine") {
		p.OneTenant = f.oneTenant
	}
	if isSet("taints") {
		p.Taints = taintList(f.taints)
	}
	if isSet("description") {
		p.Description = f.description
	}
	return p
}

// tenantList parses --tenants: nil stands for all tenants.
func tenantList(names []string) []berth.TenantID {
	if len(names) == 1 && names[0] == "all" {
		return nil
	}
	list := make([]berth.TenantID, len(names))
	for i, n := range names {
		list[i] = berth.TenantID(n)
	}
	return list
}

// taintList parses --taints: nil stands for no taints.
func taintList(taints []string) []string {
	if len(taints) == 1 && taints[0] == "none" {
		return nil
	}
	return taints
}

// newPoolDelete builds "berth pool delete" over DELETE /v1/pools/{pool}.
func newPoolDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "delete POOL",
		Short:             "Delete a pool without machines",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completePool(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if err := c.DeletePool(cmd.Context(), args[0]); err != nil {
				return a.failed(cmd.Context(), err)
			}
			_, err = fmt.Fprintf(a.out, "deleted pool %s\n", args[0])
			return err
		},
	}
}
