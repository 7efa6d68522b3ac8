package api

import (
	"context"
	"log/slog"
	"net/http"
	"strings"

	"berth"
	"berth/db"
	"berth/internal/control/notify"
	"berth/spec"
	"berth/wire"
)

// channelHandlers serve the calls about notification channels. A caller reaches the channels of its own
// tenant; the list also shows the ones above, which jobs can name.
type channelHandlers struct {
	channels *db.Channels
	rules    secretRules
	mail     *notify.Mailer // nil: this cluster sends no mail
	log      *slog.Logger
}

func (h *channelHandlers) mount(r *router) {
	const tag, path, one = "notifications", "/v1/channels", "/v1/channels/{name}"
	register(r, r.operation("list-channels", http.MethodGet, path, tag,
		"List the notification channels of your tenant and of the tenants above it"), h.list)
	register(r, r.operation("show-channel", http.MethodGet, one, tag,
		"Show a notification channel of your tenant"), h.show)
	set := r.operation("set-channel", http.MethodPut, one, tag,
		"Create a notification channel of your tenant, or replace its settings")
	set.Description = "201 if it is new, 200 otherwise. Jobs of the tenant and of the tenants below can name it in " +
		"`notify`. With `events` it is also notified of all these jobs. Events of machines and GPUs need an admin " +
		"token (403)."
	set.DefaultStatus = http.StatusCreated
	registerWithBody[spec.Channel](r, set, h.set)
	remove := r.operation("delete-channel", http.MethodDelete, one, tag,
		"Delete a notification channel; its waiting notifications are dropped")
	remove.DefaultStatus = http.StatusNoContent
	register(r, remove, h.delete)
	test := r.operation("test-channel", http.MethodPost, one+"/test", tag, "Send a notification to try a channel")
	test.Description = "The notification is delivered within seconds; `delivered_at` and `error` of the channel then " +
		"show the result."
	test.DefaultStatus = http.StatusAccepted
	register(r, test, h.test)
}

type (
	// ChannelInput names a channel in the path. huma reads exported types only.
	ChannelInput struct {
		Name string `path:"name" maxLength:"63" doc:"of a channel of your tenant"`
	}
	channelSetInput struct {
		ChannelInput
		Request
	}
	channelOutput struct {
		Status int
		Body   wire.ChannelStatus
	}
	channelListOutput struct{ Body wire.Page[wire.ChannelStatus] }
)

// list returns a page of the channels that jobs of the caller's tenant can name.
func (h *channelHandlers) list(ctx context.Context, in *Paging) (*channelListOutput, error) {
	list, next, err := h.channels.List(ctx, caller(ctx).Tenant, in.long())
	if err != nil {
		return nil, err
	}
	return &channelListOutput{page(list, next)}, nil
}

// show returns a channel of the caller's own tenant. Any other one is not found.
func (h *channelHandlers) show(ctx context.Context, in *ChannelInput) (*channelOutput, error) {
	c, err := h.channels.Get(ctx, caller(ctx).Tenant, in.Name)
	if err != nil {
		return nil, err
	}
	return &channelOutput{http.StatusOK, c}, nil
}

// set creates or replaces a channel of the caller's tenant. The answer is read again after the change,
// since it contains the state of the delivery.
func (h *channelHandlers) set(ctx context.Context, in *channelSetInput) (*channelOutput, error) {
	c, err := readValid[spec.Channel](in.Request, nil)
	if err != nil {
		return nil, err
	}
	if err := h.mayKeep(ctx, in.Name, c); err != nil {
		return nil, err
	}
	tenant := caller(ctx).Tenant
	created, err := h.channels.Set(ctx, tenant, in.Name, c, actor(ctx))
	if err != nil {
		return nil, err
	}
	h.log.Info("notification channel set", "tenant", tenant, "channel", in.Name, "kind", c.Kind, "by", actor(ctx))
	after, err := h.channels.Get(ctx, tenant, in.Name)
	if err != nil {
		return nil, err
	}
	return &channelOutput{createdStatus(created), after}, nil
}

// mayKeep refuses a channel that could never be used, and events of machines for callers that are not
// admins. All faults are returned at once. A channel needs secret keys, since its address or its
// signing key is a secret.
func (h *channelHandlers) mayKeep(ctx context.Context, name string, c spec.Channel) error {
	faults := spec.ChannelNameFaults(name)
	if c.Kind == spec.ChannelEmail {
		faults = append(faults, h.mailFaults(c)...)
	}
	if c.Kind == spec.ChannelWebhook && !h.rules.plainWebhooks && !strings.HasPrefix(c.URL, "https:") {
		faults = append(faults, berth.FieldError{Field: "url", Detail: "is not an https URL",
			Allowed: spec.PlainAllowed})
	}
	if err := invalid(berth.SlugInvalidSpec, nil, faults); err != nil {
		return err
	}
	if events := c.OfMachines(); len(events) > 0 && scope(ctx) != "" {
		return berth.Errorf(berth.CodeForbidden, "the events %s concern every tenant and need an admin token; yours "+
			"has the role %s", strings.Join(events, ", "), caller(ctx).Role)
	}
	return h.rules.keepsSecrets()
}

// mailFaults returns the faults of recipients that this cluster sends no mail to. It names the allowed
// kinds or domains.
func (h *channelHandlers) mailFaults(c spec.Channel) []berth.FieldError {
	// Refused now, since all messages to such a channel would fail.
	if h.mail == nil {
		return []berth.FieldError{{Field: "kind", Detail: "this cluster sends no mail",
			Allowed: "slack, webhook; an operator can set berthd --smtp"}}
	}
	if to := h.mail.RefusedRecipient(c.To); to != "" {
		return []berth.FieldError{{Field: "to", Detail: "this cluster sends no mail to " + to,
			Allowed: h.mail.Allowed()}}
	}
	return nil
}

// delete removes a channel of the caller's tenant, with its notifications that are not delivered.
func (h *channelHandlers) delete(ctx context.Context, in *ChannelInput) (*struct{}, error) {
	if err := h.channels.Delete(ctx, caller(ctx).Tenant, in.Name); err != nil {
		return nil, err
	}
	h.log.Info("notification channel deleted", "tenant", caller(ctx).Tenant, "channel", in.Name, "by", actor(ctx))
	return nil, nil
}

// test adds a notification that says who sent it. It returns before the delivery: the status 202
// promises an attempt and no result.
func (h *channelHandlers) test(ctx context.Context, in *ChannelInput) (*channelOutput, error) {
	tenant := caller(ctx).Tenant
	if err := h.channels.Test(ctx, tenant, in.Name, actor(ctx)); err != nil {
		return nil, err
	}
	c, err := h.channels.Get(ctx, tenant, in.Name)
	if err != nil {
		return nil, err
	}
	return &channelOutput{http.StatusAccepted, c}, nil
}
