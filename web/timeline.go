package web

import (
	"fmt"
	"html/template"
	"slices"
	"strings"
	"time"

	"berth"
	"berth/wire"
)

// Sizes of the time line in the units of its picture.
const (
	lineWidth  = 1000
	lineLeft   = 150 // room for labels
	lineRow    = 26
	lineTop    = 24
	lineBottom = 8
	lineRows   = 60 // bars at most; older attempts are left out
)

// bar is a stretch of time in which one thing happened.
type bar struct {
	from, to time.Time
	name     string
	class    string
}

// tick is a moment on the time line.
type tick struct {
	at   time.Time
	name string
}

// track is one row of the time line: an attempt, or a member of one.
type track struct {
	label string
	bars  []bar
	ticks []tick
}

// stagesOf names the part of a preparation that the event of each kind ends.
var stagesOf = map[wire.EventKind]string{
	wire.EventClaimed: "claiming", wire.EventImagePulled: "pulling", wire.EventFetched: "fetching",
	wire.EventRestored: "restoring",
}

// timeline draws the attempts of a job: waiting, preparing, running and saving as bars, checkpoints as
// ticks. Members of a gang have a row each. The line ends with the job, or now. The result is "" before
// the first attempt.
func timeline(j wire.Job, events []wire.Event, now time.Time) template.HTML {
	tracks := tracksOf(j, events, now)
	if len(tracks) == 0 {
		return ""
	}
	// The newest attempts are kept, since they explain the present state.
	hidden := max(0, len(tracks)-lineRows)
	tracks = tracks[hidden:]
	from, to := tracks[0].bars[0].from, now
	if j.FinishedAt != nil {
		to = *j.FinishedAt
	}
	for _, t := range tracks {
		for _, b := range t.bars {
			if b.from.Before(from) {
				from = b.from
			}
			if b.to.After(to) {
				to = b.to
			}
		}
	}
	// At least a second, so that x never divides by 0.
	total := max(to.Sub(from), time.Second)
	x := func(at time.Time) float64 {
		return lineLeft + (lineWidth-lineLeft-10)*float64(at.Sub(from))/float64(total)
	}
	height := lineTop + lineRow*len(tracks) + lineBottom
	var b strings.Builder
	fmt.Fprintf(&b, `<svg class="plot" viewBox="0 0 %d %d" role="img" aria-label="Time line of %s in %s">`,
		lineWidth, height, plural(len(j.Attempts), "attempt"), spanText(total))
	drawAxis(&b, total, height)
	for i, t := range tracks {
		y := lineTop + lineRow*i
		fmt.Fprintf(&b, `<text x="0" y="%d">%s</text>`, y+17, template.HTMLEscapeString(clip(22, t.label)))
		for _, s := range t.bars {
			// A stretch too short to see still has a sign.
			fmt.Fprintf(&b, `<rect class="f-%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="2">`+
				`<title>%s: %s, from %s</title></rect>`, s.class, x(s.from), y+5, max(1, x(s.to)-x(s.from)), lineRow-10,
				template.HTMLEscapeString(s.name), spanText(s.to.Sub(s.from)), s.from.UTC().Format(time.RFC3339))
		}
		for _, k := range t.ticks {
			fmt.Fprintf(&b, `<path class="tick" d="M%.1f %dv%d"><title>%s, %s</title></path>`, x(k.at), y+3, lineRow-6,
				template.HTMLEscapeString(k.name), k.at.UTC().Format(time.RFC3339))
		}
	}
	b.WriteString("</svg>")
	// The text is safe as HTML: labels and names were escaped.
	return template.HTML(b.String())
}

// drawAxis draws five times from the beginning of the line.
func drawAxis(b *strings.Builder, total time.Duration, height int) {
	for i := range 5 {
		at := lineLeft + (lineWidth-lineLeft-10)*i/4
		anchor := "middle"
		switch i {
		case 0:
			anchor = "start"
		case 4:
			anchor = "end"
		}
		fmt.Fprintf(b, `<path class="axis" d="M%d %dV%d"/><text class="dim" x="%d" y="12" text-anchor="%s">%s</text>`,
			at, lineTop-6, height-lineBottom, at, anchor, spanText(total*time.Duration(i)/4))
	}
}

// tracksOf derives the rows of the time line from the attempts and the history of a job. A gang has at
// most 16 rows for each attempt. An event without a rank belongs to all members.
func tracksOf(j wire.Job, events []wire.Event, now time.Time) (tracks []track) {
	waits := j.SubmittedAt
	for i, a := range j.Attempts {
		end := now
		if a.EndedAt != nil {
			end = *a.EndedAt
		}
		var of []wire.Event
		for _, e := range events {
			if e.Attempt == a.Number {
				of = append(of, e)
			}
		}
		members := 1
		if j.Spec != nil {
			members = max(1, j.Spec.Members)
		}
		wait := bar{waits, a.PlacedAt, "waiting", "off"}
		for m := range min(members, 16) {
			t := track{label: fmt.Sprintf("Attempt %d", a.Number)}
			mine := of
			if members > 1 {
				t.label = fmt.Sprintf("Attempt %d · %d", a.Number, m)
				mine = slices.DeleteFunc(slices.Clone(of), func(e wire.Event) bool {
					return e.Facts != nil && e.Facts.Rank != nil && *e.Facts.Rank != m
				})
			}
			if wait.to.After(wait.from) {
				t.bars = append(t.bars, wait)
			}
			t.bars = append(t.bars, attemptBars(a, mine, end)...)
			t.ticks = ticksOf(mine)
			if len(t.bars) > 0 {
				tracks = append(tracks, t)
			}
		}
		// The wait for the next attempt begins with the end of this one.
		waits = end
		if i == len(j.Attempts)-1 && j.Status.Waiting() {
			tracks = append(tracks, track{label: "Waiting", bars: []bar{{end, now, "waiting", "off"}}})
		}
	}
	return tracks
}

// attemptBars are the stretches of one attempt, in order and without gaps. Events mark the ends of the
// parts of the preparation, and the end of the container. An event that is earlier than the one before
// adds no bar, so bars never overlap.
func attemptBars(a berth.Attempt, events []wire.Event, end time.Time) (bars []bar) {
	at := a.PlacedAt
	add := func(to time.Time, name, class string) {
		if to.After(end) {
			to = end
		}
		if to.After(at) {
			bars = append(bars, bar{at, to, name, class})
			at = to
		}
	}
	for _, e := range events {
		if name, ok := stagesOf[e.Kind]; ok && (a.StartedAt == nil || e.At.Before(*a.StartedAt)) {
			add(e.At, name, "prep")
		}
	}
	if a.StartedAt == nil {
		add(end, "preparing", "prep")
		return bars
	}
	add(*a.StartedAt, "starting", "prep")
	// The color of the run is that of its outcome, once the attempt has ended.
	class := "run"
	if a.EndedAt != nil {
		switch {
		case a.Next == berth.Succeeded:
			class = "good"
		case a.Next == berth.Failed:
			class = "bad"
		case a.Outcome != nil:
			class = "wait"
		}
	}
	for _, e := range events {
		if e.Kind == wire.EventExited {
			add(e.At, "running", class)
		}
	}
	if len(bars) == 0 || bars[len(bars)-1].name != "running" {
		add(end, "running", class)
	}
	add(end, "saving logs and results", "prep")
	return bars
}

// marksOf names the events that are ticks on the time line.
var marksOf = map[wire.EventKind]string{
	wire.EventCheckpoint: "checkpoint", wire.EventCheckpointRejected: "checkpoint rejected",
	wire.EventCheckpointPassedOver: "checkpoint passed over",

	wire.EventOrphaned: "machine fell silent", wire.EventHung: "hangs", wire.EventCancelRequested: "cancel requested",
	wire.EventDraining: "machine is drained",
}

// ticksOf are the moments of an attempt: checkpoints, preemptions, losses of machines. It keeps the
// last 200, since a job that saves often has more than the picture can show.
func ticksOf(events []wire.Event) (ticks []tick) {
	for _, e := range events {
		name, ok := marksOf[e.Kind]
		if e.Kind == wire.EventState && e.To == berth.Preempting {
			name, ok = "preempted", true
		}
		if !ok {
			continue
		}
		if e.Facts != nil && e.Facts.Step != nil {
			name += fmt.Sprintf(" of step %d", *e.Facts.Step)
		}
		ticks = append(ticks, tick{e.At, name})
	}
	return ticks[max(0, len(ticks)-200):]
}
