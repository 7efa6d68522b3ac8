package main

import (
	"github.com/spf13/cobra"

	"berth/wire"
)

// newWhoami builds "berth whoami" over GET /v1/whoami.
func newWhoami(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "whoami",
		Short: "Show the server and the token's name, tenant and role",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			w, err := c.Whoami(cmd.Context())
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			// The server is the resolved one, from a flag, the environment or the context of the configuration: a
			// wrong server is the usual surprise.
			server, err := a.target()
			if err != nil {
				return err
			}
			return showCaller(a, server.URL, w)
		},
	}
}

// showCaller prints the identity of a token. -o name prints the token's name.
func showCaller(a *app, server string, w wire.Caller) error {
	return a.show(view{body: w, names: []string{w.Name}, table: func(bool) error {
		s := sheet{screen: a.outTerm}
		s.add("server", server)
		s.add("name", oneLine(w.Name))
		s.add("tenant", string(w.Tenant))
		s.add("role", string(w.Role))
		s.add("token", w.TokenID)
		s.add("expires", stamp(w.ExpiresAt, a.now()))
		return s.write(a.out)
	}})
}
