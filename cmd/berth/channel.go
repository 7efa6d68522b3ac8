package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/spec"
	"berth/wire"
)

// newChannel builds "berth channel". Channels belong to the caller's tenant.
func newChannel(a *app) *cobra.Command {
	cmd := &cobra.Command{Use: "channel", Short: "Manage notifications by chat, mail and webhook"}
	cmd.AddCommand(newChannelSet(a), newChannelList(a), newChannelTest(a), newChannelDelete(a))
	return cmd
}

// newChannelSet builds "berth channel set" over PUT /v1/channels/{name}.
func newChannelSet(a *app) *cobra.Command {
	var c spec.Channel
	cmd := &cobra.Command{
		Use:   "set NAME (--slack-secret SECRET | --email ADDRESS,... | --webhook URL) [--on EVENT,...]",
		Short: "Create a notification channel, or replace its settings",
		Long: "Set creates a destination of notifications for your tenant and the tenants below. Jobs name it in\n" +
			"notify; with --on it is also notified of all these jobs, of limits of spend and, for admins, of\n" +
			"machines. The address of a chat is a secret, so store it with \"berth secret set\" first. Mattermost,\n" +
			"Rocket.Chat, Google Chat and Discord (address with /slack at its end) accept messages as Slack does.\n" +
			"Events: " + wrapped(spec.ChannelEvents) + ".",
		Example: "  berth secret set TEAM_CHAT < address.txt\n" +
			"  berth channel set team --slack-secret TEAM_CHAT --on job.failed,job.dead_letter\n" +
			"  berth channel set operators --email gpu-team@example.com --on machine.lost,gpu.unhealthy",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeChannels(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c.Kind = channelKind(c)
			if faults := append(spec.ChannelNameFaults(args[0]), c.Validate()...); len(faults) > 0 {
				return &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec, Fields: faults}
			}
			api, err := a.client()
			if err != nil {
				return err
			}
			after, created, err := api.SetChannel(cmd.Context(), args[0], c)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showSetChannel(a, after, created)
		},
	}
	f := cmd.Flags()
	f.StringVar(&c.Secret, "slack-secret", "", "name of the secret with the address of the chat's incoming webhook")
	f.StringSliceVar(&c.To, "email", nil, "mail addresses of the recipients (repeatable, or separated by commas)")
	f.StringVar(&c.URL, "webhook", "", "address of the receiver of signed calls, https")
	f.StringSliceVar(&c.Events, "on", nil,
		"events of all jobs of the tenant, of spend or of machines (default: only jobs that name the channel)")
	cmd.MarkFlagsMutuallyExclusive("slack-secret", "email", "webhook")
	cmd.MarkFlagsOneRequired("slack-secret", "email", "webhook")
	_ = cmd.RegisterFlagCompletionFunc("on",
		cobra.FixedCompletions(spec.ChannelEvents, cobra.ShellCompDirectiveNoFileComp))
	return cmd
}

// channelKind returns the kind of a channel from the field that is set.
func channelKind(c spec.Channel) string {
	switch {
	case c.Secret != "":
		return spec.ChannelSlack
	case len(c.To) > 0:
		return spec.ChannelEmail
	}
	return spec.ChannelWebhook
}

// showSetChannel prints a channel that was created or replaced.
func showSetChannel(a *app, c wire.ChannelStatus, created bool) error {
	return a.show(view{body: c, names: []string{c.Name}, table: func(bool) error {
		verb := "replaced"
		if created {
			verb = "created"
		}
		_, err := fmt.Fprintf(a.out, "%[1]s channel %[2]s; try it with: berth channel test %[2]s\n", verb, c.Name)
		return err
	}})
}

// wrapped joins words to lines of a help text.
func wrapped(words []string) string {
	var b strings.Builder
	width := len("Events: ")
	for i, w := range words {
		if i > 0 {
			b.WriteString(",")
			if width += len(w) + 2; width > 96 {
				b.WriteString("\n")
				width = len(w)
			} else {
				b.WriteString(" ")
			}
		} else {
			width += len(w)
		}
		b.WriteString(w)
	}
	return b.String()
}

// newChannelList builds "berth channel list" over GET /v1/channels.
func newChannelList(a *app) *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Aliases: []string{"ls"},
		Short:   "List the notification channels of your tenant and of the tenants above it",
		Args:    cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			list, err := c.Channels(cmd.Context())
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			return showChannels(a, list)
		},
	}
}

// showChannels prints channels with the state of their delivery.
func showChannels(a *app, list wire.Page[wire.ChannelStatus]) error {
	names := make([]string, len(list.Items))
	t := &table{screen: a.outTerm, head: []string{"NAME", "TENANT", "KIND", "TO", "EVENTS", "STATE"}}
	for i, c := range list.Items {
		names[i] = c.Name
		to := c.Secret + c.URL + strings.Join(c.To, ",")
		t.add(oneLine(c.Name), oneLine(string(c.Tenant)), c.Kind, orDash(oneLine(to)),
			orDash(strings.Join(c.Events, ",")), channelState(c, a.now()))
	}
	return a.show(view{body: list, names: names, table: func(bool) error {
		if len(names) == 0 {
			a.say("no channels")
			return nil
		}
		return t.write(a.out)
	}})
}

// channelState returns the state of the delivery in a few words.
func channelState(c wire.ChannelStatus, now time.Time) string {
	waiting := ""
	if c.Waiting > 0 {
		waiting = fmt.Sprintf(", %d waiting", c.Waiting)
	}
	switch {
	case c.FailingSince != nil:
		return oneLine(fmt.Sprintf("failing since %s%s: %s", stamp(c.FailingSince, now), waiting, c.Error))
	case c.DeliveredAt != nil:
		return "delivered " + ago(*c.DeliveredAt, now) + waiting
	}
	return "unused" + waiting
}

// newChannelTest builds "berth channel test" over POST /v1/channels/{name}/test.
func newChannelTest(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "test NAME",
		Short: "Send a notification to a channel, and wait for the result",
		Long: "Test sends a notification that names you, and waits until it is delivered or a try has failed. Mail\n" +
			"counts as delivered once the mail server has accepted it.",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeChannels(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			before, err := c.TestChannel(cmd.Context(), args[0])
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			after, err := awaitDelivery(cmd.Context(), c, before)
			if err != nil {
				return a.failed(cmd.Context(), err)
			}
			if after.Tests > 0 {
				return berth.Errorf(berth.CodeUnavailable, "channel %s: %s; Berth will try again", after.Name,
					oneLine(after.Error))
			}
			_, err = fmt.Fprintf(a.out, "delivered a test notification to channel %s\n", after.Name)
			return err
		},
	}
}

// testTime bounds the wait for a test: a channel of mail rests for a minute after a message.
const testTime = 2 * time.Minute

// awaitDelivery returns the channel after the delivery of its test, or after a failure.
func awaitDelivery(ctx context.Context, c *client.Client, before wire.ChannelStatus) (wire.ChannelStatus, error) {
	limit := time.After(testTime)
	for {
		after, err := c.Channel(ctx, before.Name)
		if err != nil {
			return after, err
		}
		if after.Tests == 0 || later(after.FailedAt, before.FailedAt) {
			return after, nil
		}
		select {
		case <-time.After(500 * time.Millisecond):
		case <-limit:
			return after, &timeoutError{
				message: fmt.Sprintf("no try of channel %s in %s", before.Name, spec.Duration(testTime)),
				hint: "an operator looks for a berthd with the role dispatch and --secret-key-file, and whether the " +
					"cluster waits for its adoption after a restore",
			}
		case <-ctx.Done():
			return after, ctx.Err()
		}
	}
}

// completeChannels offers the channels of the caller's tenant.
func completeChannels(a *app) completer {
	return a.completeNames(false, func(ctx context.Context, c *client.Client) ([]candidateName, error) {
		page, err := c.Channels(ctx)
		var list []candidateName
		for _, ch := range page.Items {
			if !ch.Inherited {
				list = append(list, candidateName{ch.Name, ch.Kind})
			}
		}
		return list, err
	})
}

// later reports whether a time was set or has changed.
func later(after, before *time.Time) bool {
	return after != nil && (before == nil || after.After(*before))
}

// newChannelDelete builds "berth channel delete" over DELETE /v1/channels/{name}.
func newChannelDelete(a *app) *cobra.Command {
	return &cobra.Command{
		Use:               "delete NAME",
		Short:             "Delete a notification channel; its waiting notifications are dropped",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: completeChannels(a),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			if err := c.DeleteChannel(cmd.Context(), args[0]); err != nil {
				return a.failed(cmd.Context(), err)
			}
			_, err = fmt.Fprintf(a.out, "deleted channel %s\n", args[0])
			return err
		},
	}
}
