package web

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// jobsShown is the number of jobs on a page of the list.
const jobsShown = 50

// column is one column of the list of jobs. Key is part of addresses that readers keep, so it must not
// change.
type column struct {
	Key, Title string
	Shown      bool
}

// jobColumns are the columns of the list of jobs, in order, with the default choice. The job itself
// is always shown.
var jobColumns = []column{
	{"owner", "Owner", true}, {"tenant", "Tenant", false}, {"priority", "Priority", false},
	{"attempt", "Attempt", false}, {"submitted", "Submitted", true}, {"duration", "Duration", true},
	{"exit", "Exit", true}, {"labels", "Labels", false}, {"reason", "Reason", true},
}

// jobsView is the data of the list of jobs.
type jobsView struct {
	Search  string
	Problem string // fault of the search line
	Help    string
	Filters []filter
	Columns []column
	Chosen  string // value of the parameter cols
	Rows    []jobRow
	Total   string // of all pages
	First   string // address of the first page; "": this is it
	Next    string // address of the next page; "": this is the last
	None    string // why the list is empty
	Command string // the same list on the command line
	Now     time.Time
}

// filter is a search of one click.
type filter struct {
	Title, Address string
	Current        bool
}

// jobRow is one job of a list.
type jobRow struct {
	wire.Job
	Cells []cell
}

// cell is one value of a row. Its text is the user's or the server's and is escaped by the template.
type cell struct {
	Key, Text string
	At        *time.Time // shown as its distance from now
	Labels    map[string]string
}

// jobsPage lists jobs, newest first. A fault of the search line is shown above the list, with its
// status, since the reader corrects it there.
func jobsPage(ctx context.Context, v *visit) (result, error) {
	if chosen := v.r.URL.Query()["col"]; len(chosen) > 0 { // of the form of columns
		return result{redirect: v.link("col", "", "cols", strings.Join(chosen, ","))}, nil
	}
	view := jobsView{Search: strings.TrimSpace(v.query("q")), Help: searchHelp, Now: v.page.Now}
	view.Columns, view.Chosen = chosenColumns(v.query("cols"), v.page.Reader.Operates())
	view.Filters = searchFilters(v, view.Search)
	res := result{template: "jobs", title: "Jobs"}
	q, err := parseSearch(view.Search, v.page.Reader.Actor(), v.page.Now)
	if err != nil {
		view.Problem = sentence(messageOf(err))
		res.data, res.status = view, statusOf[berth.CodeInvalid]
		return res, nil
	}
	// The API bounds the count, see totalText, so it costs little more than the page.
	q.Limit, q.Cursor, q.Count = jobsShown, v.query("cursor"), true
	jobs, err := v.api.Jobs(ctx, q)
	switch code := berth.CodeOf(err); {
	case code == berth.CodeInvalid || code == berth.CodeNotFound:
		view.Problem = sentence(messageOf(err))
		res.data, res.status = view, statusOf[code]
		return res, nil
	case err != nil:
		return result{}, err
	}
	for _, j := range jobs.Items {
		view.Rows = append(view.Rows, rowOf(j, view.Columns, v.page.Now))
	}
	view.Total = totalText(jobs.Total)
	if q.Cursor != "" {
		view.First = v.link("cursor", "")
	}
	if jobs.NextCursor != "" {
		view.Next = v.link("cursor", jobs.NextCursor)
	}
	view.None = whyNoJobs(view, v.page.Reader)
	view.Command = listCommand(q)
	res.data = view
	return res, nil
}

// chosenColumns marks the columns that the parameter cols names; without it the default ones, and
// the tenant for readers who see all tenants.
func chosenColumns(cols string, all bool) (columns []column, chosen string) {
	columns = slices.Clone(jobColumns)
	if cols == "" {
		for i := range columns {
			columns[i].Shown = columns[i].Shown || columns[i].Key == "tenant" && all
		}
		return columns, ""
	}
	names := strings.Split(cols, ",")
	for i := range columns {
		columns[i].Shown = slices.Contains(names, columns[i].Key)
	}
	return columns, cols
}

// searchFilters are the searches above the list.
func searchFilters(v *visit, search string) []filter {
	filters := []filter{
		{Title: "All"}, {Title: "Mine", Address: "owner:me"}, {Title: "Waiting", Address: "status:waiting"},
		{Title: "Active", Address: "status:active"}, {Title: "Failed, 24 h", Address: "status:failed since:24h"},
		{Title: "Dead letters", Address: "dead:yes"},
	}
	for i, f := range filters {
		filters[i].Current = f.Address == search
		filters[i].Address = v.link("q", f.Address, "cursor", "")
	}
	return filters
}

// rowOf renders a job's values for the columns that are shown. Texts of users are clipped, so that one
// value cannot fill the page.
func rowOf(j wire.Job, columns []column, now time.Time) jobRow {
	row := jobRow{Job: j}
	for _, c := range columns {
		if !c.Shown {
			continue
		}
		value := cell{Key: c.Key}
		switch c.Key {
		case "owner":
			value.Text = clip(40, owner(j.SubmittedBy))
		case "tenant":
			value.Text = string(j.Tenant)
		case "priority":
			value.Text = number(float64(j.Priority))
		case "attempt":
			value.Text = count(j.Attempt)
		case "submitted":
			value.At = &j.SubmittedAt
		case "duration":
			if j.StartedAt != nil {
				value.Text = span(now, j.StartedAt, j.FinishedAt)
			}
		case "exit":
			if j.ExitCode != nil {
				value.Text = count(*j.ExitCode)
			}
		case "labels":
			value.Labels = j.Labels
		case "reason":
			value.Text = clip(140, reasonText(j))
		}
		row.Cells = append(row.Cells, value)
	}
	return row
}

// totalText is the number of jobs on all pages. The API counts up to 1001. nil means that the API did
// not count.
func totalText(total *int) string {
	switch {
	case total == nil:
		return ""
	case *total > 1000:
		return "more than " + count(1000) + " jobs"
	}
	return plural(*total, "job")
}

// whyNoJobs explains an empty list to its reader.
func whyNoJobs(view jobsView, r *reader) string {
	switch {
	case len(view.Rows) > 0:
		return ""
	case view.First != "":
		return "There are no further jobs."
	case view.Search != "" && r.Operates():
		return "No job matches this search."
	case view.Search != "":
		return "No job of tenant " + string(r.Tenant) + " matches this search."
	case r.Operates():
		return "There are no jobs yet."
	}
	return "Tenant " + string(r.Tenant) + " has no jobs yet."
}

// listCommand is the command that prints the same list. Values are quoted for a shell: a name that
// another user chose must not run a command where the reader pastes the line.
func listCommand(q client.JobsQuery) string {
	words := []string{"berth list"}
	for _, s := range q.Status {
		words = append(words, "--status "+string(s))
	}
	add := func(flag, value string) {
		if value != "" {
			words = append(words, flag+" "+shellWord(value))
		}
	}
	add("--name", q.Name)
	for _, k := range slices.Sorted(maps.Keys(q.Labels)) {
		add("--label", k+"="+q.Labels[k])
	}
	add("--tenant", string(q.Tenant))
	if q.DeadLetter {
		words = append(words, "--dead-letter")
	}
	add("--parent", string(q.Parent))
	if !q.Since.IsZero() {
		add("--since", q.Since.UTC().Format(time.RFC3339))
	}
	return strings.Join(words, " ")
}
