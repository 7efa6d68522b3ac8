package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
)

// candidateName is one candidate of a completion: a name and its description.
type candidateName struct{ name, about string }

// completeNames offers names that one call of the API lists. Commands take one name unless
// many is set, so nothing is offered after the first.
func (a *app) completeNames(many bool,
	list func(context.Context, *client.Client) ([]candidateName, error)) completer {
	return func(_ *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 && !many {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return completing(a, func(ctx context.Context, c *client.Client) ([]string, cobra.ShellCompDirective) {
			return nameCandidates(ctx, c, list, word)
		})
	}
}

// nameCandidates lists the candidates of completeNames that begin with a word.
func nameCandidates(ctx context.Context, c *client.Client,
	list func(context.Context, *client.Client) ([]candidateName, error), word string) (
	[]string, cobra.ShellCompDirective) {
	found, err := list(ctx, c)
	if err != nil {
		return nil, cobra.ShellCompDirectiveError
	}
	var out []string
	for _, n := range found {
		if strings.HasPrefix(n.name, word) {
			out = append(out, n.name+"\t"+oneLine(n.about))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

// completeTenants offers the tenants that the caller sees, for flags and for arguments.
func (a *app) completeTenants(cmd *cobra.Command, _ []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.completeNames(true, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
		page, err := c.Tenants(ctx)
		var list []candidateName
		for _, t := range page.Items {
			list = append(list, candidateName{string(t.ID), "tenant"})
		}
		return list, err
	})(cmd, nil, word)
}

// completeTenant is completeTenants for commands that take one tenant as their argument.
func (a *app) completeTenant(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	if len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	return a.completeTenants(cmd, args, word)
}

// completePools offers the pools of the machines, for --pool.
func completePools(a *app) completer {
	return a.completeNames(true, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
		page, err := c.Machines(ctx)
		machines := map[string]int{}
		for _, m := range page.Items {
			if m.Pool != "" {
				machines[m.Pool]++
			}
		}
		var list []candidateName
		for _, pool := range slices.Sorted(maps.Keys(machines)) {
			list = append(list, candidateName{pool, plural(machines[pool], "machine", "machines")})
		}
		return list, err
	})
}

// completePool offers the pools that admins see, for commands that take one pool as their argument.
func completePool(a *app) completer {
	return func(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return a.completeNames(false, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
			page, err := c.Pools(ctx)
			var list []candidateName
			for _, p := range page.Items {
				list = append(list, candidateName{p.Name, plural(p.Machines, "machine", "machines")})
			}
			return list, err
		})(cmd, args, word)
	}
}

// completeSchedules offers the schedules of the caller's tenant.
func (a *app) completeSchedules(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.completeNames(false, scheduleNames)(cmd, args, word)
}

// scheduleNames lists the schedules of the caller's tenant.
func scheduleNames(ctx context.Context, c *client.Client) ([]candidateName, error) {
	page, err := c.Schedules(ctx)
	var list []candidateName
	for _, s := range page.Items {
		list = append(list, candidateName{s.Name, whenText(s.Schedule)})
	}
	return list, err
}

// completeSecrets offers the names of the secrets of the caller's tenant.
func (a *app) completeSecrets(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.completeNames(false, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
		page, err := c.Secrets(ctx)
		var list []candidateName
		for _, s := range page.Items {
			list = append(list, candidateName{s.Name, "secret"})
		}
		return list, err
	})(cmd, args, word)
}

// completeTokens offers the ids of the caller's own tokens that are not revoked.
func (a *app) completeTokens(cmd *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
	return a.completeNames(false, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
		page, err := c.OwnTokens(ctx)
		var list []candidateName
		for _, t := range page.Items {
			if t.RevokedAt == nil {
				list = append(list, candidateName{t.ID, t.Name})
			}
		}
		return list, err
	})(cmd, args, word)
}

// tenantID converts the text of a flag; the server validates it.
func tenantID(s string) berth.TenantID { return berth.TenantID(s) }
