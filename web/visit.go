package web

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/db"
	"berth/spec"
)

// visit is one request of a reader.
type visit struct {
	site *Site
	w    http.ResponseWriter
	r    *http.Request
	page page
	api  *client.Client // calls as the reader; nil on open routes

	reading bool // a live reading: only elements with a data-live are wanted
}

// readingKey marks the context of a live reading.
type readingKey struct{}

// pageLimit bounds the calls of one page. The API answers within a second while the database is
// well; a reader rather sees an error than a page that never comes.
const pageLimit = 12 * time.Second

// admit gives the calls of a visit the rights of a principal.
func (v *visit) admit(p db.Principal) {
	v.page.Reader = &reader{Name: p.Name, Tenant: p.Tenant, Role: p.Role, TokenID: p.TokenID}
	v.api = client.Over(v.site.API.RoundTripper(v.r, &p), "")
}

// limited returns the context of the calls of a visit.
func (v *visit) limited(stream bool) (context.Context, context.CancelFunc) {
	if stream {
		return context.WithCancel(v.r.Context())
	}
	return context.WithTimeout(v.r.Context(), pageLimit)
}

// query returns a parameter of the address.
func (v *visit) query(name string) string { return v.r.URL.Query().Get(name) }

// link returns this page's address with some parameters changed. A parameter with the value ""
// is removed.
func (v *visit) link(changes ...string) string { return linkOf(v.r.URL, changes...) }

// linkOf is visit.link for an address.
func linkOf(of *url.URL, changes ...string) string {
	q := of.Query()
	for i := 0; i+1 < len(changes); i += 2 {
		q.Del(changes[i])
		if changes[i+1] != "" {
			q.Set(changes[i], changes[i+1])
		}
	}
	if len(q) == 0 {
		return of.EscapedPath()
	}
	return of.EscapedPath() + "?" + q.Encode()
}

// job returns the id in the path of a page.
func (v *visit) job() berth.JobID { return berth.JobID(v.r.PathValue("id")) }

// reader is the person in front of a page, for its texts and for the choice of buttons. The
// rights are the API's to judge.
type reader struct {
	Name    string
	Tenant  berth.TenantID
	Role    spec.Role
	TokenID string
}

// Acts reports whether the reader may change jobs.
func (r *reader) Acts() bool {
	return r != nil && (r.Role == spec.RoleUser || r.Role == spec.RoleAdmin)
}

// Operates reports whether the reader may change machines and sees all tenants.
func (r *reader) Operates() bool { return r != nil && r.Role == spec.RoleAdmin }

// Actor is the reader as the actor of events and the owner of jobs.
func (r *reader) Actor() string { return "user:" + r.Name }

// localPath returns a path of this site for a redirect, or "/" for any other text: an address
// from a form must not lead to another host.
func localPath(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "" || u.Host != "" || u.User != nil || !strings.HasPrefix(text, "/") ||
		strings.HasPrefix(text, "//") || strings.ContainsAny(text, "\\\r\n\t") {
		return "/"
	}
	return text
}
