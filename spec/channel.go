package spec

import (
	"fmt"
	"net/mail"
	"net/url"
	"slices"
	"strings"

	"berth"
)

// Channel is a destination of notifications. It belongs to a tenant, and jobs of the tenant and of the tenants
// below can name it in notify.
type Channel struct {
	Kind   string   `json:"kind" enum:"slack,email,webhook" doc:"slack: webhook of a chat; webhook: signed calls"`
	Secret string   `json:"secret,omitempty" doc:"for slack: name of the tenant's secret with the chat's address"`
	To     []string `json:"to,omitempty" doc:"addresses of the recipients, for email"`
	URL    string   `json:"url,omitempty" doc:"address of the receiver, for webhook; https"`
	Events []string `json:"events,omitempty" doc:"notified of all jobs of the tenant and tenants below; unset: none"`
}

// The kinds of channels.
const (
	ChannelSlack   = "slack"
	ChannelEmail   = "email"
	ChannelWebhook = "webhook"
)

// ChannelKinds are all values of Channel.Kind.
var ChannelKinds = []string{ChannelSlack, ChannelEmail, ChannelWebhook}

// EventTest is the type of a notification that a user sends to try a channel. No channel can choose it.
const EventTest = "channel.test"

// ChannelEvents are the values of Channel.Events. Only an admin can choose events of machines and GPUs, since these
// belong to no tenant.
var ChannelEvents = []string{
	"job.succeeded", "job.failed", "job.canceled", "job.dead_letter",
	"spend.warn", "spend.stop_new", "spend.drain",
	"machine.lost", "machine.draining", "machine.ready", "gpu.unhealthy", "gpu.healthy",
}

// Bounds of channels.
const (
	MaxChannels   = 32 // of one tenant
	maxRecipients = 20
	maxMailLength = 254 // bytes of an address, RFC 5321 section 4.5.3.1.3
)

// OfMachines returns the events of machines and GPUs among the events of the channel.
func (c Channel) OfMachines() []string {
	var list []string
	for _, e := range c.Events {
		if strings.HasPrefix(e, "machine.") || strings.HasPrefix(e, "gpu.") {
			list = append(list, e)
		}
	}
	return list
}

// ChannelNameFaults returns the faults of the name of a new channel, or nil.
func ChannelNameFaults(name string) []berth.FieldError {
	v := &validation{}
	v.name("name", name)
	return v.faults
}

// Validate returns all faults of the channel at once, or nil.
func (c Channel) Validate() []berth.FieldError {
	v := &validation{}
	v.oneOf("kind", c.Kind, ChannelKinds...)
	only := func(kind, field string, set bool) {
		if slices.Contains(ChannelKinds, c.Kind) {
			v.require(set == (c.Kind == kind), field, onlyFault(set),
				"a channel of kind "+kind+" has it, and no other one")
		}
	}
	only(ChannelSlack, "secret", c.Secret != "")
	only(ChannelEmail, "to", len(c.To) > 0)
	only(ChannelWebhook, "url", c.URL != "")
	if c.Secret != "" {
		v.secretName("secret", c.Secret)
	}
	if c.URL != "" {
		v.require(isHookURL(c.URL), "url", "is not a valid URL", hookURLAllowed)
	}
	v.require(len(c.To) <= maxRecipients, "to", "too many recipients", fmt.Sprintf("at most %d", maxRecipients))
	for i, to := range c.To {
		v.require(IsMailAddress(to), fmt.Sprintf("to[%d]", i), "is not a mail address",
			"one address, such as team@example.com")
	}
	v.require(len(c.Events) <= len(ChannelEvents), "events", "too many events", "each once")
	for i, e := range c.Events {
		v.oneOf(fmt.Sprintf("events[%d]", i), e, ChannelEvents...)
	}
	return v.faults
}

// onlyFault describes a field that belongs to another kind of channel, or that the kind of the channel needs.
func onlyFault(set bool) string {
	if set {
		return "does not belong to this kind of channel"
	}
	return "is missing"
}

// hookURLAllowed describes the addresses that isHookURL accepts.
var hookURLAllowed = fmt.Sprintf("an https URL of at most %d bytes, without user, password and fragment", maxNotifyURL)

// isHookURL reports whether text is a URL that Berth may call, as far as its form shows.
func isHookURL(text string) bool {
	u, err := url.Parse(text)
	return err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil &&
		u.Fragment == "" && len(text) <= maxNotifyURL
}

// IsMailAddress reports whether text is the address of one recipient without a display name. It refuses characters by
// which mail servers send mail on to another server, as in user%other.example@example.com.
func IsMailAddress(text string) bool {
	a, err := mail.ParseAddress(text)
	return err == nil && a.Address == text && len(text) <= maxMailLength && strings.Count(text, "@") == 1 &&
		!strings.ContainsAny(text, "%!\"") &&
		strings.IndexFunc(text, func(r rune) bool { return r <= ' ' || r >= 0x7f }) < 0
}

// ParseChatAddress checks the value of the secret of a channel of kind slack and returns it without blanks around
// it. The error does not reveal the value.
func ParseChatAddress(value string) (string, error) {
	value = strings.TrimSpace(value)
	if !isHookURL(value) {
		return "", fmt.Errorf("does not contain %s", hookURLAllowed)
	}
	return value, nil
}
