package web

import (
	"context"
	"fmt"
	"html/template"
	"strings"
	"time"

	"berth"
	"berth/wire"
)

// graphView is the data of the graph of a pipeline.
type graphView struct {
	Graph template.HTML
	Gantt template.HTML
	Steps []stepRow
	Now   time.Time
	Only  bool // only steps that did not succeed are listed
	All   string
	Some  string
}

// stepRow is a step in the list of steps.
type stepRow struct {
	wire.Step
	Text     string // of its tally, or the reason of its wait
	Critical bool
}

// graphPart draws the steps of a pipeline, also the ones that have not begun. The document of the job
// contains the steps, so the graph needs no further call.
func graphPart(_ context.Context, v *visit, j wire.Job) (any, error) {
	view := graphView{Now: v.page.Now, Only: v.query("only") != "", All: v.link("only", ""),
		Some: v.link("only", "unsuccessful")}
	critical := criticalPath(j.Steps, v.page.Now)
	view.Graph, view.Gantt = drawGraph(j.Steps, critical), gantt(j, v.page.Now)
	for _, s := range j.Steps {
		if view.Only && s.Status == berth.Succeeded {
			continue
		}
		view.Steps = append(view.Steps, stepRow{s, stepText(s), critical[s.Name]})
	}
	return view, nil
}

// pipelinePage leads to the graph of a pipeline, which is a job's page as any other. A link to a
// pipeline thus does not depend on the names of tabs.
func pipelinePage(_ context.Context, v *visit) (result, error) {
	return result{redirect: linkOf(v.r.URL.JoinPath("../../jobs", v.r.PathValue("id")), "tab", "graph")}, nil
}

// stepText is the tally of a step's children, or the reason of its wait. The first fact that applies
// decides: a cached step has neither children nor a wait.
func stepText(s wire.Step) string {
	switch {
	case s.CachedFrom != nil:
		return "cached"
	case s.Tally != nil:
		return tallyText(*s.Tally)
	case s.Waiting != nil && !s.Status.Terminal():
		return s.Waiting.Message
	case s.Reason != nil:
		return string(s.Reason.Code)
	}
	return ""
}

// tallyText counts children in a few words, such as "×128: 120 succeeded, 3 failed". Statuses come in
// the order of berth.States, so that the texts of two steps can be compared.
func tallyText(t wire.Tally) string {
	var parts []string
	for _, s := range berth.States {
		if n := t.ByStatus[s]; n > 0 {
			parts = append(parts, count(n)+" "+string(s))
		}
	}
	text := "×" + count(t.Total)
	if len(parts) > 0 {
		text += ": " + strings.Join(parts, ", ")
	}
	return text
}

// criticalPath returns the steps that decide when the pipeline ends: from the last step to end, back
// through the need that ended last. Steps that have not ended count until now. A step that has not
// started has no end and is never on the path. The walk stops at a step that it has visited, so it
// also ends for a faulty document whose needs form a circle.
func criticalPath(steps []wire.Step, now time.Time) map[string]bool {
	byName := map[string]wire.Step{}
	var last *wire.Step
	// end returns the zero time for a step that has not started.
	end := func(s wire.Step) time.Time {
		switch {
		case s.FinishedAt != nil:
			return *s.FinishedAt
		case s.StartedAt != nil:
			return now
		}
		return time.Time{}
	}
	for _, s := range steps {
		byName[s.Name] = s
		if !end(s).IsZero() && (last == nil || end(s).After(end(*last))) {
			last = &s
		}
	}
	critical := map[string]bool{}
	for last != nil && !critical[last.Name] {
		critical[last.Name] = true
		var next *wire.Step
		for _, name := range last.Needs {
			if s, ok := byName[name]; ok && !end(s).IsZero() && (next == nil || end(s).After(end(*next))) {
				next = &s
			}
		}
		last = next
	}
	return critical
}

// Sizes of the graph in the units of its picture.
const (
	nodeWidth  = 170
	nodeHeight = 38
	nodeGapX   = 60
	nodeGapY   = 14
)

// drawGraph draws steps from left to right. Each is a link to its job. The result is "" without steps.
func drawGraph(steps []wire.Step, critical map[string]bool) template.HTML {
	if len(steps) == 0 {
		return ""
	}
	g := layOut(needsOf(steps))
	tallest := 1
	for _, layer := range g.layers {
		tallest = max(tallest, len(layer))
	}
	const rowHeight = nodeHeight + nodeGapY
	width, height := len(g.layers)*(nodeWidth+nodeGapX)-nodeGapX+4, tallest*rowHeight-nodeGapY+4
	at := func(n *layoutNode) (x, y int) { // the left end and the middle
		top := (tallest - len(g.layers[n.layer])) * rowHeight / 2
		return 2 + n.layer*(nodeWidth+nodeGapX), 2 + top + n.place*rowHeight + nodeHeight/2
	}
	var b strings.Builder
	fmt.Fprintf(&b, `<svg viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="Graph of %s">`,
		width, height, width, height, plural(len(steps), "step"))
	for _, e := range g.edges {
		class := "edge"
		if critical[steps[e.from].Name] && critical[steps[e.to].Name] {
			class = "edge critical"
		}
		fmt.Fprintf(&b, `<path class="%s" d="`, class)
		x, y := at(e.points[0])
		x += nodeWidth
		fmt.Fprintf(&b, "M%d %d", x, y)
		for i, p := range e.points[1:] {
			px, py := at(p)
			// A Bézier curve with horizontal ends: its control points lie in the middle of the gap.
			fmt.Fprintf(&b, "C%d %d %d %d %d %d", x+nodeGapX/2, y, px-nodeGapX/2, py, px, py)
			if x, y = px, py; i < len(e.points)-2 { // through a layer that it crosses
				x += nodeWidth
				fmt.Fprintf(&b, "H%d", x)
			}
		}
		b.WriteString(`"/>`)
	}
	for i, s := range steps {
		x, y := at(g.nodes[i])
		drawStep(&b, s, x, y-nodeHeight/2, critical[s.Name])
	}
	b.WriteString("</svg>")
	// The text is safe as HTML: it contains numbers, own words, and texts that drawStep has
	// escaped.
	return template.HTML(b.String())
}

// needsOf returns the indexes of the steps before each step. A final step without needs of its own
// comes after all steps that no other one needs. A need that names no step is left out.
func needsOf(steps []wire.Step) [][]int {
	index, needed := map[string]int{}, map[string]bool{}
	for i, s := range steps {
		index[s.Name] = i
		for _, name := range s.Needs {
			needed[name] = needed[name] || !s.Final
		}
	}
	needs := make([][]int, len(steps))
	for i, s := range steps {
		for _, name := range s.Needs {
			if n, ok := index[name]; ok {
				needs[i] = append(needs[i], n)
			}
		}
		for k, other := range steps {
			if s.Final && len(s.Needs) == 0 && !other.Final && !needed[other.Name] {
				needs[i] = append(needs[i], k)
			}
		}
	}
	return needs
}

// drawStep draws the box of a step. x and y are its upper left corner.
func drawStep(b *strings.Builder, s wire.Step, x, y int, critical bool) {
	m := stateMark(s.Status)
	class := "node"
	if critical {
		class = "node critical"
	}
	text := stepText(s)
	if text == "" {
		text = m.Word
	}
	fmt.Fprintf(b, `<a href="/jobs/%s"><title>%s: %s %s</title>`, template.HTMLEscapeString(string(s.Job)),
		template.HTMLEscapeString(clip(100, s.Name)), m.Word, template.HTMLEscapeString(clip(200, text)))
	fmt.Fprintf(b, `<rect class="%s" x="%d" y="%d" width="%d" height="%d" rx="5"/>`, class, x, y,
		nodeWidth, nodeHeight)
	fmt.Fprintf(b, `<rect class="f-%s" x="%d" y="%d" width="5" height="%d" rx="2"/>`, m.Class, x, y, nodeHeight)
	fmt.Fprintf(b, `<text x="%d" y="%d">%s %s</text>`, x+12, y+16, m.Shape, template.HTMLEscapeString(clip(20, s.Name)))
	fmt.Fprintf(b, `<text class="dim" x="%d" y="%d">%s</text></a>`, x+12, y+31,
		template.HTMLEscapeString(clip(22, text)))
}

// gantt draws when each step waited and ran. The time line begins with the submission and ends with the
// pipeline, or now. It has at most lineRows steps, and none that has neither waited nor run. The result
// is "" without such a step.
func gantt(j wire.Job, now time.Time) template.HTML {
	to := now
	if j.FinishedAt != nil {
		to = *j.FinishedAt
	}
	from := j.SubmittedAt
	// At least a second, so that x never divides by 0.
	total := max(to.Sub(from), time.Second)
	x := func(at time.Time) float64 {
		return lineLeft + (lineWidth-lineLeft-10)*max(0, min(1, float64(at.Sub(from))/float64(total)))
	}
	rows := 0
	var b strings.Builder
	for _, s := range j.Steps {
		if s.QueuedAt == nil && s.StartedAt == nil || rows >= lineRows {
			continue
		}
		y := lineTop + lineRow*rows
		rows++
		fmt.Fprintf(&b, `<text x="0" y="%d">%s</text>`, y+17, template.HTMLEscapeString(clip(20, s.Name)))
		draw := func(a, e time.Time, class, name string) {
			fmt.Fprintf(&b, `<rect class="f-%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="2">`+
				`<title>%s: %s</title></rect>`, class, x(a), y+5, max(1, x(e)-x(a)), lineRow-10, name,
				spanText(e.Sub(a)))
		}
		end := to
		if s.FinishedAt != nil {
			end = *s.FinishedAt
		}
		if s.QueuedAt != nil {
			waited := end
			if s.StartedAt != nil {
				waited = *s.StartedAt
			}
			draw(*s.QueuedAt, waited, "off", "waiting")
		}
		if s.StartedAt != nil {
			draw(*s.StartedAt, end, stateMark(s.Status).Class, string(s.Status))
		}
	}
	if rows == 0 {
		return ""
	}
	height := lineTop + lineRow*rows + lineBottom
	var head strings.Builder
	fmt.Fprintf(&head, `<svg class="plot" viewBox="0 0 %d %d" role="img" aria-label="Time line of the steps">`,
		lineWidth, height)
	drawAxis(&head, total, height)
	return template.HTML(head.String() + b.String() + "</svg>")
}
