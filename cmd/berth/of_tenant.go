package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
)

// ofTenant completes a command with one argument, a tenant: it reads a document of the tenant and shows it.
func ofTenant[T any](a *app, cmd *cobra.Command,
	read func(*client.Client, context.Context, berth.TenantID) (T, error), show func(*app, T) error) *cobra.Command {
	// The tenant is not checked here: the server refuses a wrong name and names the allowed form.
	cmd.Args, cmd.ValidArgsFunction = cobra.ExactArgs(1), a.completeTenant
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := a.client()
		if err != nil {
			return err
		}
		doc, err := read(c, cmd.Context(), berth.TenantID(args[0]))
		if err != nil {
			return a.failed(cmd.Context(), err)
		}
		return show(a, doc)
	}
	return cmd
}

// deleteOfTenant completes a command "delete TENANT". format is the message of success, with a verb for the tenant.
func deleteOfTenant(a *app, cmd *cobra.Command,
	remove func(*client.Client, context.Context, berth.TenantID) error, format string) *cobra.Command {
	cmd.Use = "delete TENANT"
	return ofTenant(a, cmd, func(c *client.Client, ctx context.Context, t berth.TenantID) (berth.TenantID, error) {
		return t, remove(c, ctx, t)
	}, func(a *app, t berth.TenantID) error {
		_, err := fmt.Fprintf(a.out, format, t)
		return err
	})
}
