package spec

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"berth"
)

// Notify is a webhook: a URL that Berth calls when the job, as a whole, enters one
// of these statuses.
type Notify struct {
	URL string   `json:"url" doc:"address of the receiver, https"`
	On  []string `json:"on,omitempty" doc:"statuses that cause a call; default: succeeded, failed, canceled"`
}

// Bounds of webhooks.
const (
	maxNotify    = 8 // of one job
	maxNotifyURL = 2048
)

// WebhookSecret is the tenant's secret that calls of webhooks are signed with.
const WebhookSecret = "WEBHOOK_SECRET"

// withDefaults fills in the default statuses.
func (n Notify) withDefaults() Notify {
	if len(n.On) == 0 {
		n.On = []string{string(berth.Succeeded), string(berth.Failed), string(berth.Canceled)}
	}
	return n
}

// withNotifyDefaults returns a list with defaults, and leaves the given one as it is.
func withNotifyDefaults(list []Notify) []Notify {
	list = slices.Clone(list)
	for i := range list {
		list[i] = list[i].withDefaults()
	}
	return list
}

// NotifiedOf returns the statuses that cause a call to any of these webhooks, each
// once; nil for none.
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

// PlainWebhooks returns a fault for each webhook that is not called by TLS: only
// an operator can say where that is safe.
func PlainWebhooks(list []Notify) []berth.FieldError {
	var faults []berth.FieldError
	for i, n := range list {
		if u, err := url.Parse(n.URL); err == nil && u.Scheme != "https" {
			faults = append(faults, berth.FieldError{Field: fmt.Sprintf("notify[%d].url", i), Detail: "is not https",
				Allowed: "https; http only into networks that the operator allows (berthd --webhook-allow)"})
		}
	}
	return faults
}

func (v *validation) notify(list []Notify) {
	v.require(len(list) <= maxNotify, "notify", "too many webhooks", fmt.Sprintf("at most %d", maxNotify))
	var statuses []string
	for _, s := range berth.States {
		if s != berth.Submitted {
			statuses = append(statuses, string(s))
		}
	}
	for i, n := range list {
		at := fmt.Sprintf("notify[%d]", i)
		u, err := url.Parse(n.URL)
		ok := err == nil && (u.Scheme == "https" || u.Scheme == "http") && u.Hostname() != "" && u.User == nil &&
			u.Fragment == "" && len(n.URL) <= maxNotifyURL
		v.require(ok, at+".url", "is no address that can be called",
			fmt.Sprintf("an https URL of at most %d bytes, without user, password and fragment", maxNotifyURL))
		v.require(len(n.On) <= len(statuses), at+".on", "too many statuses", "each once")
		for j, on := range n.On {
			v.oneOf(fmt.Sprintf("%s.on[%d]", at, j), on, statuses...)
		}
	}
}

// Bounds of a key that webhooks are signed with (Standard Webhooks 1.0).
const (
	webhookKeyPrefix = "whsec_"
	minWebhookKey    = 24
	maxWebhookKey    = 64
)

// ParseWebhookKeys reads the value of the secret WEBHOOK_SECRET: a key written
// whsec_ and base64, or several apart by blanks, while receivers change from one
// to the other. The error says nothing of the value.
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

var errBadWebhookKey = berth.Errorf(berth.CodeInvalid,
	"is not %s and %d to %d bytes in base64, or up to four of these apart by blanks", webhookKeyPrefix,
	minWebhookKey, maxWebhookKey)
