package main

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/spec"
	"berth/wire"
)

// newToken builds "berth token", which manages the tokens of users. Machines join with join
// tokens.
func newToken(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Create, list and revoke tokens"}
	cmd.AddCommand(newTokenCreate(a), newTokenList(a), newTokenRevoke(a), newTokenEvents(a))
	return cmd
}

// newTokenCreate builds "berth token create" over POST /v1/tokens. Only this answer
// contains the token's text. The client does not repeat the call after a lost answer, since
// a second one would create a second token.
func newTokenCreate(a *app) *cobra.Command {
	var n spec.NewToken
	var tenant, role string
	var ttl time.Duration
	cmd := &cobra.Command{
		Use:     "create NAME",
		Short:   "Create a token; its secret is shown once",
		Example: "  berth token create alice --role user --tenant vision --ttl 720h",
		Args:    cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			n.Name, n.Tenant, n.Role, n.TTL = args[0], berth.TenantID(tenant), spec.Role(role), spec.Duration(ttl)
			if ttl < 0 {
				return usagef("--ttl %s is negative", ttl)
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			t, err := c.CreateToken(cmd.Context(), n)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			// On standard error, apart from the secret, which alone goes to standard
			// output.
			a.say("created token %s (%s: tenant %s, role %s%s). Copy it now; it is not shown again", t.Name, t.ID,
				t.Tenant, t.Role, expiry(t.ExpiresAt, a.now()))
			return showSecret(a, t, t.ID, t.Secret)
		},
	}
	cmd.Flags().StringVar(&role, "role", string(spec.RoleUser),
		"role: admin, user, viewer or metrics (only GET /metrics)")
	cmd.Flags().StringVar(&tenant, "tenant", "", "tenant (default: your own)")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "lifetime, such as 720h (default: until revoked)")
	_ = cmd.RegisterFlagCompletionFunc("role",
		cobra.FixedCompletions([]string{"admin", "user", "viewer", "metrics"}, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// showSecret prints a new secret alone on standard output, for pipes. -o name prints its
// id, with which it is revoked; -o json and -o yaml print both.
func showSecret(a *app, body any, id, secret string) error {
	return a.show(view{body: body, names: []string{id}, table: func(bool) error {
		_, err := fmt.Fprintln(a.out, secret)
		return err
	}})
}

// expiry formats the lifetime of a token for a message, "" for one that does not expire.
func expiry(at *time.Time, now time.Time) string {
	if at == nil {
		return ""
	}
	return ", expires in " + span(at.Sub(now).Round(time.Minute))
}

// newTokenList builds "berth token list" over GET /v1/tokens.
func newTokenList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List tokens without their secrets; users see the tokens of their own name",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Tokens(cmd.Context())
			// The tokens of everybody are for admins.
			if berth.CodeOf(err) == berth.CodeForbidden {
				list, err = c.OwnTokens(cmd.Context())
			}
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showTokens(a, list)
		},
	}
}

// showTokens prints tokens with their state. A revoked token is listed as revoked even if
// it has also expired.
func showTokens(a *app, list wire.Page[wire.Token]) error {
	names := make([]string, len(list.Items))
	for i, t := range list.Items {
		names[i] = t.ID
	}
	return a.show(view{body: list, names: names, table: func(bool) error {
		t := table{screen: a.outTerm, head: []string{"ID", "NAME", "TENANT", "ROLE", "AGE", "STATE"}}
		for _, token := range list.Items {
			state := cell{"good", good}
			switch {
			case token.RevokedAt != nil:
				state = cell{"revoked " + ago(*token.RevokedAt, a.now()), faint}
			// By this machine's clock; the server's clock decides whether the token is
			// accepted.
			case token.ExpiresAt != nil && token.ExpiresAt.Before(a.now()):
				state = cell{"expired " + ago(*token.ExpiresAt, a.now()), faint}
			case token.ExpiresAt != nil:
				state.text = "expires " + ago(*token.ExpiresAt, a.now())
			}
			t.add(token.ID, token.Name, string(token.Tenant), string(token.Role),
				since(&token.CreatedAt, a.now()), state)
		}
		return t.write(a.out)
	}})
}

// newTokenRevoke builds "berth token revoke" over DELETE /v1/tokens/{id}. The argument is
// the token's id: its text is a secret and stays out of arguments.
func newTokenRevoke(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "revoke ID",
		Short:             "Revoke a token immediately; users may revoke the tokens of their own name",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeTokens,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			err = c.RevokeToken(cmd.Context(), args[0])
			if berth.CodeOf(err) == berth.CodeForbidden {
				err = c.RevokeOwnToken(cmd.Context(), args[0])
			}
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			_, err = fmt.Fprintf(a.out, "revoked token %s\n", args[0])
			return err
		},
	}
}

// newTokenEvents builds "berth token events" over GET /v1/tokens/events.
func newTokenEvents(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "events",
		Short: "List creations and revocations of tokens, oldest first, with who caused them",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.TokenEvents(cmd.Context())
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			names := make([]string, len(list.Items))
			for i, e := range list.Items {
				names[i] = e.Token
			}
			return a.show(view{body: list, names: names, table: func(bool) error {
				t := table{screen: a.outTerm, head: []string{"AGE", "EVENT", "ID", "NAME", "TENANT", "ROLE", "BY"}}
				for _, e := range list.Items {
					t.add(since(&e.At, a.now()), e.Event, e.Token, e.Name, string(e.Tenant), string(e.Role), e.Actor)
				}
				return t.write(a.out)
			}})
		},
	}
}

// newJoinToken builds "berth join-token".
func newJoinToken(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "join-token", Short: "Create, list and revoke join tokens of machines"}
	cmd.AddCommand(newJoinTokenCreate(a))
	return cmd
}

// newJoinTokenCreate builds "berth join-token create" over POST /v1/join-tokens. The token
// is good for one machine, once, and for a short time; the machine then has a credential of
// its own.
func newJoinTokenCreate(a *app) *cobra.Command {
	var n spec.NewJoinToken
	var ttl time.Duration
	var cpus, memory string
	var gpus int
	cmd := &cobra.Command{
		Use:     "create",
		Short:   "Create a one-time token for joining a machine",
		Example: "  berth-agent --server https://berth.example.com --join-token $(berth join-token create)",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if ttl < 0 {
				return usagef("--ttl %s is negative", ttl)
			}
			n.TTL = spec.Duration(ttl)
			var err error
			if n.Most, err = machineBounds(cpus, memory, gpus); err != nil {
				return err
			}
			c, err := a.client()
			if err != nil {
				return err
			}
			t, err := c.CreateJoinToken(cmd.Context(), n)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			server, err := a.target()
			if err != nil {
				return err
			}
			a.say("one-time join token, valid %s; on the machine: berth-agent --server %s --join-token TOKEN",
				span(t.ExpiresAt.Sub(a.now()).Round(time.Minute)), server.URL)
			return showSecret(a, t, t.ID, t.Secret)
		},
	}
	cmd.Flags().StringVar(&n.Pool, "pool", "", "pool of the machine")
	pairsVar(cmd.Flags(), &n.Labels, "label", "l", "labels of the machine, which override its own: KEY=VALUE")
	cmd.Flags().StringVar(&n.Machines, "machines", "",
		"pattern of the names that may join, such as 'gpu-*' (default any name)")
	cmd.Flags().BoolVar(&n.Approves, "approves", false,
		"approve the machine at its join, in a pool that requires approvals")
	cmd.Flags().StringVar(&cpus, "max-cpus", "", "most CPUs that the machine may report, such as 64 (default no limit)")
	cmd.Flags().StringVar(&memory, "max-memory", "",
		"most memory that the machine may report, such as 512GiB (default no limit)")
	cmd.Flags().IntVar(&gpus, "max-gpus", 0, "most GPUs that the machine may report (default no limit)")
	cmd.Flags().DurationVar(&ttl, "ttl", 0, "lifetime, at most 24h (default 10m)")
	return cmd
}

// machineBounds parses the greatest capacity of a machine; nil means no bounds.
func machineBounds(cpus, memory string, gpus int) (*spec.MachineBounds, error) {
	if cpus == "" && memory == "" && gpus == 0 {
		return nil, nil
	}
	b := spec.MachineBounds{GPUs: gpus}
	var err error
	if cpus != "" {
		if err := b.CPUs.UnmarshalJSON([]byte(cpus)); err != nil {
			return nil, usagef("--max-cpus: %v", err)
		}
	}
	if memory != "" {
		if b.Memory, err = spec.ParseMiB(memory); err != nil {
			return nil, usagef("--max-memory: %v", err)
		}
	}
	return &b, nil
}
