package spec

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"berth"
)

// Notify is a webhook or a channel: Berth calls URL, or sends a message to the channel, when the job as a whole
// enters one of the statuses On, and for NotifyDraining when a machine of the running job is drained.
type Notify struct {
	URL     string   `json:"url,omitempty" doc:"address of the receiver, https; or channel"`
	Channel string   `json:"channel,omitempty" doc:"notification channel of the tenant or of a tenant above; or url"`
	On      []string `json:"on,omitempty" doc:"statuses of a call, or draining; default: succeeded, failed, canceled"`
}

// NotifyDraining in Notify.On asks for a call when a machine of the running job is drained.
const NotifyDraining = "draining"

// Bounds of webhooks.
const (
	maxNotify    = 8    // webhooks of one job
	maxNotifyURL = 2048 // bytes
)

// WebhookSecret is the name of the tenant's secret with the keys that sign webhook calls.
const WebhookSecret = "WEBHOOK_SECRET"

// withDefaults fills in the default statuses.
func (n Notify) withDefaults() Notify {
	if len(n.On) == 0 {
		n.On = []string{string(berth.Succeeded), string(berth.Failed), string(berth.Canceled)}
	}
	return n
}

// withNotifyDefaults returns a copy of the list with defaults filled in.
func withNotifyDefaults(list []Notify) []Notify {
	list = slices.Clone(list)
	for i := range list {
		list[i] = list[i].withDefaults()
	}
	return list
}

// NotifiedOf returns the statuses that cause a call to any of the webhooks, each once, or
// nil. The list must have its defaults filled in.
func NotifiedOf(list []Notify) []string {
	var all []string
	for _, n := range list {
		for _, on := range n.On {
			if !slices.Contains(all, on) {
				all = append(all, on)
			}
		}
	}
	return all
}

// WebhooksOf returns the entries of the list that name a URL.
func WebhooksOf(list []Notify) []Notify {
	return slices.DeleteFunc(slices.Clone(list), func(n Notify) bool { return n.URL == "" })
}

// PlainAllowed describes the addresses of webhooks that may be called.
const PlainAllowed = "https; http only to networks that an operator allows with berthd --webhook-allow"

// PlainWebhooks returns a fault for each webhook without TLS. Only an operator can decide in
// which networks plain http is safe.
func PlainWebhooks(list []Notify) []berth.FieldError {
	var faults []berth.FieldError
	for i, n := range list {
		if u, err := url.Parse(n.URL); n.URL != "" && err == nil && u.Scheme != "https" {
			faults = append(faults, berth.FieldError{Field: fmt.Sprintf("notify[%d].url", i),
				Detail:  "is not an https URL",
				Allowed: PlainAllowed})
		}
	}
	return faults
}

// notify checks a list of webhooks. The status submitted cannot cause a call.
func (v *validation) notify(list []Notify) {
	v.require(len(list) <= maxNotify, "notify", "too many webhooks", fmt.Sprintf("at most %d", maxNotify))
	var statuses []string
	for _, s := range berth.States {
		if s != berth.Submitted {
			statuses = append(statuses, string(s))
		}
	}
	statuses = append(statuses, NotifyDraining)
	for i, n := range list {
		at := fmt.Sprintf("notify[%d]", i)
		switch {
		case n.Channel == "":
			v.require(isHookURL(n.URL), at+".url", "is not a valid URL", hookURLAllowed+"; or channel in place of it")
		case n.URL != "":
			v.require(false, at+".channel", "is set together with url", "one of url and channel")
		default:
			v.name(at+".channel", n.Channel)
		}
		v.require(len(n.On) <= len(statuses), at+".on", "too many statuses", "each once")
		for j, on := range n.On {
			v.oneOf(fmt.Sprintf("%s.on[%d]", at, j), on, statuses...)
		}
	}
}

// Form of a key that signs webhooks, by Standard Webhooks 1.0; lengths in bytes.
const (
	webhookKeyPrefix = "whsec_"
	minWebhookKey    = 24
	maxWebhookKey    = 64
)

// ParseWebhookKeys parses the value of the secret WEBHOOK_SECRET: one to four keys in the
// form whsec_BASE64, separated by blanks. Several keys are for the time in which receivers
// change from one key to the other. The error does not reveal the value.
func ParseWebhookKeys(text string) ([][]byte, error) {
	var keys [][]byte
	for _, word := range strings.Fields(text) {
		digits, ok := strings.CutPrefix(word, webhookKeyPrefix)
		key, err := base64.StdEncoding.DecodeString(digits)
		if !ok || err != nil || len(key) < minWebhookKey || len(key) > maxWebhookKey {
			return nil, errBadWebhookKey
		}
		keys = append(keys, key)
	}
	if len(keys) == 0 || len(keys) > 4 {
		return nil, errBadWebhookKey
	}
	return keys, nil
}

// errBadWebhookKey describes the allowed form and does not quote the value.
var errBadWebhookKey = berth.Errorf(berth.CodeInvalid,
	"is not %s with %d to %d bytes in base64, or up to four such keys separated by blanks", webhookKeyPrefix,
	minWebhookKey, maxWebhookKey)
