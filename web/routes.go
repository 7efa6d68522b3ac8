package web

import (
	"context"
)

// route is one page or action.
type route struct {
	pattern string // of http.ServeMux, with its method
	section string // entry of the navigation that is marked
	open    bool   // without a session
	stream  bool   // lasts as long as its reader
	script  bool   // opened by the script alone: no use of the session
	live    bool   // has rows that a stream may patch: the only pages that a live stream reads
	serve   func(ctx context.Context, v *visit) (result, error)
}

// result is the outcome of a page: a template with its data, or an address to go to. A page that has
// written its answer itself returns errWritten instead.
type result struct {
	template string
	title    string
	data     any
	status   int // 0: 200
	redirect string
}

// routes is the table of all pages and actions. Tests visit each of them as nobody, as a viewer and as
// a caller of another tenant. The row of a page decides about its time limit and about the need for a
// session, so a new page only needs a row here. Rights are the API's.
func (s *Site) routes() []route {
	return []route{
		{pattern: "GET /assets/{name}", open: true, serve: serveAsset},
		{pattern: "GET /login", open: true, serve: s.signInPage},
		{pattern: "POST /login", open: true, serve: s.signIn},
		{pattern: "POST /logout", open: true, serve: s.signOut},
		{pattern: "POST /preferences", open: true, serve: setPreferences},

		{pattern: "GET /{$}", section: "overview", live: true, serve: s.overviewPage},
		{pattern: "GET /queue", section: "queue", live: true, serve: queuePage},
		{pattern: "GET /machines", section: "machines", live: true, serve: machinesPage},
		{pattern: "GET /machines/{id}", section: "machines", live: true, serve: machinePage},
		{pattern: "GET /schedules", section: "schedules", live: true, serve: schedulesPage},
		{pattern: "GET /schedules/{name}", section: "schedules", serve: schedulePage},
		{pattern: "POST /schedules/{name}", section: "schedules", serve: actOnSchedule},
		{pattern: "GET /tenants", section: "tenants", live: true, serve: tenantsPage},
		{pattern: "GET /usage", section: "usage", live: true, serve: usagePage},
		{pattern: "GET /usage.csv", section: "usage", serve: usageFile},
		{pattern: "GET /me", serve: s.mePage},
		{pattern: "POST /me", serve: s.actOnMe},
		{pattern: "GET /submit", section: "submit", serve: submitPage},
		{pattern: "POST /submit", section: "submit", serve: submit},
		{pattern: "GET /act", serve: confirmPage},
		{pattern: "POST /act", serve: act},
		{pattern: "GET /pipelines/{id}", section: "jobs", serve: pipelinePage},
		{pattern: "GET /jobs/{id}/elements/{index}", section: "jobs", serve: elementPage},
		{pattern: "GET /jobs", section: "jobs", live: true, serve: jobsPage},
		{pattern: "GET /jobs/{id}", section: "jobs", live: true, serve: jobPage},
		{pattern: "GET /live", stream: true, script: true, serve: s.livePage},
		{pattern: "GET /jobs/{id}/tail", stream: true, script: true, serve: s.tailPage},
		{pattern: "GET /jobs/{id}/log", section: "jobs", stream: true, serve: wholeLog},
		{pattern: "GET /jobs/{id}/metrics", section: "jobs", serve: metricsPicture},
	}
}
