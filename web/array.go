package web

import (
	"context"
	"fmt"
	"html/template"
	"slices"
	"strconv"
	"strings"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// elementsView is the data of the heat map of an array.
type elementsView struct {
	Map      template.HTML
	From, To int // indexes of the map, To included
	Size     int
	Ranges   []filter
	Tally    []tallyPart
	Failed   []failedGroup
	ID       berth.JobID
	List     string // address of the list of all elements
}

// tallyPart is the number of elements with one status.
type tallyPart struct {
	Status  berth.State
	Count   int
	Address string
}

// failedGroup are failed elements with one reason. The message is that of the first element, since
// messages may differ within a group.
type failedGroup struct {
	Code, Message string
	Elements      []wire.Job
}

// mapElements is the number of elements of one heat map: it is a picture of less than 60 KB.
const mapElements = 2000

// elementsPart reads a range of the elements of an array, and the failed ones of all. The map costs at
// most three calls, regardless of the size of the array, since a page of the API has up to 1,000
// elements.
func elementsPart(ctx context.Context, v *visit, j wire.Job) (any, error) {
	view := elementsView{ID: j.ID, List: searchAddress("parent:" + string(j.ID))}
	if j.Tally != nil {
		view.Size = j.Tally.Total
		for _, s := range berth.States {
			if n := j.Tally.ByStatus[s]; n > 0 {
				view.Tally = append(view.Tally,
					tallyPart{s, n, searchAddress("parent:" + string(j.ID) + " status:" + string(s))})
			}
		}
	}
	from, err := strconv.Atoi(v.query("from"))
	if err != nil || from < 0 || from >= max(1, view.Size) {
		from = 0
	}
	// Ranges begin at multiples of mapElements, so that every address within a range shows the same
	// map.
	from -= from % mapElements
	view.From, view.To = from, min(max(0, view.Size-1), from+mapElements-1)
	for at := 0; at < view.Size && view.Size > mapElements && len(view.Ranges) < 60; at += mapElements {
		view.Ranges = append(view.Ranges, filter{fmt.Sprintf("%d–%d", at, min(view.Size, at+mapElements)-1),
			v.link("from", strconv.Itoa(at)), at == from})
	}
	cells := make([]string, view.To-view.From+1)
	q := client.JobsQuery{Parent: j.ID, Index: fmt.Sprintf("%d-%d", view.From, view.To), Limit: 1000}
	for range mapElements/1000 + 1 {
		page, err := v.api.Jobs(ctx, q)
		if err != nil {
			return nil, err
		}
		for _, e := range page.Items {
			if e.ArrayIndex != nil && *e.ArrayIndex >= view.From && *e.ArrayIndex <= view.To {
				cells[*e.ArrayIndex-view.From] = stateMark(e.Status).Class
			}
		}
		if q.Cursor = page.NextCursor; q.Cursor == "" {
			break
		}
	}
	view.Map = heatMap(cells, view.From)
	// The first 200 failures show the groups. The list of all elements has the others.
	failed, err := v.api.Jobs(ctx, client.JobsQuery{Parent: j.ID, Status: []berth.State{berth.Failed}, Limit: 200})
	if err != nil {
		return nil, err
	}
	view.Failed = groupFailures(failed.Items)
	return view, nil
}

// groupFailures groups failed elements by the code of their reason, the largest group first.
func groupFailures(jobs []wire.Job) (groups []failedGroup) {
	for _, j := range jobs {
		code, message := "unknown", ""
		if j.Reason != nil {
			code, message = string(j.Reason.Code), j.Reason.Message
		}
		i := slices.IndexFunc(groups, func(g failedGroup) bool { return g.Code == code })
		if i < 0 {
			i = len(groups)
			groups = append(groups, failedGroup{Code: code, Message: message})
		}
		groups[i].Elements = append(groups[i].Elements, j)
	}
	slices.SortStableFunc(groups, func(a, b failedGroup) int { return len(b.Elements) - len(a.Elements) })
	return groups
}

// Sizes of the heat map: cells in a row, and the side of a cell with its gap.
const (
	heatRow  = 50
	heatSide = 14
)

// heatMap draws a cell for each element, with one path for each color. A class of "" is an element that
// does not exist yet. from is the index of the first cell: the script finds the element of a click from
// data-heat.
func heatMap(cells []string, from int) template.HTML {
	rows := (len(cells) + heatRow - 1) / heatRow
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="-50 0 %d %d" width="%d" height="%d" role="img" data-heat="%d" `+
		`aria-label="Elements %d to %d by status">`, 50+heatRow*heatSide, rows*heatSide,
		50+heatRow*heatSide, rows*heatSide, from, from, from+len(cells)-1)
	for r := range rows {
		if r%5 == 0 {
			fmt.Fprintf(&b, `<text class="dim" x="-6" y="%d" text-anchor="end">%d</text>`, r*heatSide+11,
				from+r*heatRow)
		}
	}
	for _, class := range []string{"", "wait", "prep", "run", "good", "bad", "off"} {
		var path strings.Builder
		for i, c := range cells {
			if c == class {
				fmt.Fprintf(&path, "M%d %dh12v12h-12z", i%heatRow*heatSide, i/heatRow*heatSide)
			}
		}
		if path.Len() == 0 {
			continue
		}
		if class == "" {
			class = "none"
		}
		fmt.Fprintf(&b, `<path class="f-%s" d="%s"/>`, class, path.String())
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

// elementPage leads to the job of an element. An element that does not exist yet has no job, so it is
// not found.
func elementPage(ctx context.Context, v *visit) (result, error) {
	index := v.r.PathValue("index")
	if index == "-" { // of the form
		index = v.query("index")
	}
	n, err := strconv.Atoi(index)
	if err != nil || n < 0 {
		return result{}, berth.Errorf(berth.CodeInvalid,
			"element %q is not a number; allowed are indexes such as 0 or 17", clip(40, index))
	}
	page, err := v.api.Jobs(ctx, client.JobsQuery{Parent: v.job(), Index: strconv.Itoa(n), Limit: 1})
	if err != nil {
		return result{}, err
	}
	if len(page.Items) == 0 {
		return result{}, berth.Errorf(berth.CodeNotFound,
			"array %s has no element %d, or has not created it yet", v.job(), n)
	}
	return result{redirect: "/jobs/" + string(page.Items[0].ID)}, nil
}
