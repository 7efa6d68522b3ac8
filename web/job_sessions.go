package web

import (
	"context"
	"fmt"
	"strings"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// sessionsShown is the number of sessions on a page of the tab.
const sessionsShown = 50

// sessionsView is the data of the tab of sessions.
type sessionsView struct {
	Choice []filter // all, or open ones; none without sessions
	Rows   []sessionRow
	First  string // address of the first page; "": this is it
	Next   string // address of the next page; "": this is the last
	None   string // why the list is empty
	Enter  string // command that opens a session; "": the reader cannot open one
}

// sessionRow is one session of a job.
type sessionRow struct {
	wire.SessionRecord
	Result string // exit code, or why the session ended; "": it has not
}

// sessionsPart lists the sessions in the job's containers, newest first. A cursor that a reader has kept
// and that is no cursor is an error of the address, as on the list of jobs.
func sessionsPart(ctx context.Context, v *visit, j wire.Job) (any, error) {
	open := v.query("sessions") == "open"
	q := client.SessionsQuery{Open: open, Limit: sessionsShown, Cursor: v.query("cursor")}
	list, err := v.api.Sessions().List(ctx, j.ID, q)
	if err != nil {
		return nil, err
	}
	view := sessionsView{None: noSessions(j, open)}
	for _, s := range list.Items {
		view.Rows = append(view.Rows, sessionRow{s, sessionResult(s)})
	}
	// Without any session there is nothing to choose. An empty list of open ones keeps the way back to all.
	if open || len(view.Rows) > 0 {
		view.Choice = []filter{
			{"All", v.link("sessions", "", "cursor", ""), !open},
			{"Open", v.link("sessions", "open", "cursor", ""), open},
		}
	}
	if q.Cursor != "" {
		view.First = v.link("cursor", "")
	}
	if list.NextCursor != "" {
		view.Next = v.link("cursor", list.NextCursor)
	}
	if j.Status == berth.Running && v.page.Reader.Acts() {
		view.Enter = fmt.Sprintf("berth exec %s --tty -- bash", short(j.ID, j.Handle))
	}
	return view, nil
}

// sessionResult returns how a session ended: the exit code if it is known, else the cause.
func sessionResult(s wire.SessionRecord) string {
	if s.Exit != nil {
		return fmt.Sprintf("exit code %d", *s.Exit)
	}
	return strings.ReplaceAll(string(s.Cause), "_", " ")
}

// noSessions explains an empty list.
func noSessions(j wire.Job, open bool) string {
	switch {
	case open:
		return "No session is open."
	case j.Status == berth.Running:
		return "No user has opened a session in this job."
	default:
		return "There is no record of a session in this job. Only a running job can be entered."
	}
}
