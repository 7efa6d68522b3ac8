package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/url"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"berth/api/client"
)

// newLogin builds "berth login". A token is stored only after a call with it has succeeded,
// so a stored context worked at least once.
func newLogin(a *app) *cobra.Command {
	var name string
	cmd := &cobra.Command{
		Use:   "login [URL]",
		Short: "Store a server's URL and token",
		Long: "Login asks for a token, verifies it, and stores it with the server's URL as a context, which " +
			"becomes the\n" +
			"current one. The token is read without echo from a terminal, else from standard input, or is " +
			"BERTH_TOKEN.\n" +
			"Contexts are stored in ~/.config/berth/config.yaml (BERTH_CONFIG), readable only by you.",
		Example: "  berth login https://berth.example.com --name work\n" +
			"  berth login http://127.0.0.1:7070 < admin.token",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			server := a.URL
			if len(args) == 1 {
				server = args[0]
			}
			if server == "" {
				server = defaultURL
			}
			server, err := serverURL(server)
			if err != nil {
				return err
			}
			if name == "" {
				name = "default"
			}
			token, err := askToken(cmd.Context(), a, server)
			if err != nil {
				return err
			}
			// failed names the server that target resolves: from here on the new one, not a
			// stored one.
			a.URL, a.Token, a.Context = server, token, ""
			// GET /v1/jobs with one item is a cheap call that every role may make.
			if _, err := client.New(server, token).Jobs(cmd.Context(), client.JobsQuery{Limit: 1}); err != nil {
				return a.failed(cmd.Context(), err)
			}
			return storeContext(a, name, target{URL: server, Token: token})
		},
	}
	cmd.Flags().StringVar(&name, "name", "", `name of the context (default "default")`)
	return cmd
}

// askToken returns the token: BERTH_TOKEN, else the line typed at the terminal without
// echo, else the first line of standard input.
func askToken(ctx context.Context, a *app, server string) (string, error) {
	// A warning only: a proxy with TLS on the same host, or a private network, is a valid
	// setup.
	if u, err := url.Parse(server); err == nil && u.Scheme == "http" && !loopback(u.Hostname()) {
		a.say("berth: the connection to %s is not encrypted; others on the network can read the token", server)
	}
	if a.Token != "" {
		return a.Token, nil
	}
	if a.readSecret != nil {
		fmt.Fprintf(a.err, "token for %s: ", server)
		b, err := a.readSecret(ctx)
		fmt.Fprintln(a.err)
		if ctx.Err() != nil {
			return "", ctx.Err()
		}
		if err != nil {
			return "", usagef("read token: %v", err)
		}
		return checkToken(string(b))
	}
	// The bound is far above the length of a token and keeps a wrong file from filling
	// memory.
	line, err := untilDone(ctx, func() (string, error) {
		return bufio.NewReader(io.LimitReader(a.in, 4096)).ReadString('\n')
	})
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil && !errors.Is(err, io.EOF) {
		return "", usagef("read token: %v", err)
	}
	return checkToken(line)
}

// checkToken removes white space around a token and refuses anything that cannot be one.
// Control characters and blanks would be invalid in the HTTP header.
func checkToken(s string) (string, error) {
	s = strings.TrimSpace(s)
	if s == "" || strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		return "", &usageError{message: "not a token",
			hint: "a token looks like berth_<id>_<secret>; an operator creates one with berth token create NAME"}
	}
	return s, nil
}

// loopback reports whether a host is this machine, where a call without TLS crosses no
// network.
func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// storeContext stores a target under a name and selects that context. A context of the same
// name is replaced.
func storeContext(a *app, name string, t target) error {
	stored, err := loadContexts(a.Contexts)
	if err != nil {
		return err
	}
	if stored.Contexts == nil {
		stored.Contexts = map[string]*target{}
	}
	stored.Contexts[name], stored.Current = &t, name
	if err := stored.save(a.Contexts); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, "stored context %q for %s; it is now the current context\n", name, t.URL)
	return err
}

// newContext builds "berth context", which edits the file of contexts and calls no server.
func newContext(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "context", Short: "List, select and remove stored servers"}
	list := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List stored servers", Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return listContexts(a) },
	}
	use := &cobra.Command{
		Use: "use NAME", Short: "Select the current server", Args: cobra.ExactArgs(1),
		ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			return editContexts(a, args[0], func(c *contexts) { c.Current = args[0] },
				"context %q is now the current context")
		},
	}
	remove := &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm"}, Short: "Remove a stored server and its token",
		Args: cobra.ExactArgs(1), ValidArgsFunction: a.completeContexts,
		RunE: func(_ *cobra.Command, args []string) error {
			return editContexts(a, args[0], func(c *contexts) {
				delete(c.Contexts, args[0])
				if c.Current == args[0] {
					c.Current = ""
				}
			}, "removed context %q; its token stays valid until you revoke it")
		},
	}
	cmd.AddCommand(list, use, remove)
	return cmd
}

// editContexts applies one change to an existing context and saves the file. said is the
// format of the printed sentence, with a verb for the name. Removing a context does not revoke its token.
func editContexts(a *app, name string, edit func(*contexts), said string) error {
	stored, err := loadContexts(a.Contexts)
	if err != nil {
		return err
	}
	if stored.Contexts[name] == nil {
		return &usageError{message: fmt.Sprintf("context %q is not known", name),
			hint: "list contexts: berth context list"}
	}
	edit(stored)
	if err := stored.save(a.Contexts); err != nil {
		return err
	}
	_, err = fmt.Fprintf(a.out, said+"\n", name)
	return err
}

// listedContext is a stored context without its token, so that the output of "berth context
// list" can be shared.
type listedContext struct {
	Name    string `json:"name"`
	URL     string `json:"url"`
	Current bool   `json:"current"`
}

// listContexts prints the stored contexts by name.
func listContexts(a *app) error {
	stored, err := loadContexts(a.Contexts)
	if err != nil {
		return err
	}
	names := slices.Sorted(maps.Keys(stored.Contexts))
	items := make([]listedContext, len(names))
	t := table{screen: a.outTerm, head: []string{"CURRENT", "NAME", "URL"}}
	for i, name := range names {
		items[i] = listedContext{Name: name, URL: stored.Contexts[name].URL, Current: name == stored.Current}
		mark := ""
		if items[i].Current {
			mark = "*"
		}
		t.add(mark, name, items[i].URL)
	}
	return a.show(view{body: items, names: names, table: func(bool) error {
		if len(names) == 0 {
			a.say("no contexts; create one with berth login URL")
			return nil
		}
		return t.write(a.out)
	}})
}
