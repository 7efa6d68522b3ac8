package notify

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"
	"unicode"

	"berth"
	"berth/db"
	"berth/spec"
	"berth/wire"
)

// maxText bounds a text of users in a message, in runes. Reasons can quote long output.
const maxText = 300

// line is the text of one notification. Link is empty where there is nothing to link to.
type line struct {
	before, name, after string // name is the part that becomes the link
	why                 string // reason; may be empty
	link                string
}

// title returns the line without the reason.
func (l line) title() string { return l.before + l.name + l.after }

// text returns the whole line.
func (l line) text() string { return l.title() + l.because() }

// because returns the reason as the end of a line.
func (l line) because() string {
	if l.why == "" {
		return ""
	}
	return ": " + l.why
}

// content is a message before its format: a title, and a line for each of the first notifications.
type content struct {
	title string
	lines []line
	more  int // further notifications
}

// describe returns the content of a message. api is the address of the dashboard; empty: no links.
func describe(m db.ChannelMessage, api string) (content, error) {
	var c content
	for _, n := range m.First {
		var parsed wire.Notification
		if err := json.Unmarshal([]byte(n.Body), &parsed); err != nil {
			return c, fmt.Errorf("notification %d is not valid JSON: %w", n.ID, err)
		}
		c.lines = append(c.lines, describeOne(parsed, api))
	}
	c.more = m.Total - len(c.lines)
	if m.Total == 1 && len(c.lines) == 1 {
		c.title = c.lines[0].title()
		return c, nil
	}
	parts := make([]string, len(m.Counts))
	for i, t := range m.Counts {
		parts[i] = fmt.Sprintf("%d x %s", t.N, t.Type)
	}
	c.title = strings.Join(parts, ", ")
	return c, nil
}

// describeOne returns the line of one notification.
func describeOne(n wire.Notification, api string) line {
	d := n.Data
	switch kind, event, _ := strings.Cut(n.Type, "."); kind {
	case "job":
		return describeJob(d, event, api)
	case "machine":
		return describeMachine(d, event, api)
	case "gpu":
		gpu := 0
		if d.GPU != nil {
			gpu = *d.GPU
		}
		return machineLine(fmt.Sprintf("GPU %d of machine ", gpu), " is "+clean(event), d, api)
	case "spend":
		effect := map[string]string{"warn": "the warning level",
			"stop_new": "the level above which no machines are launched",
			"drain":    "the level above which machines of clouds are drained"}[event]
		return line{after: fmt.Sprintf("tenant %s has reached %s: $%.2f of $%.2f", clean(string(d.Tenant)),
			cmp.Or(effect, clean(event)), d.Used, d.Limit)}
	}
	if n.Type == spec.EventTest {
		return line{after: fmt.Sprintf("test of channel %s of tenant %s, sent by %s", clean(d.Channel),
			clean(string(d.Tenant)), clean(d.By))}
	}
	return line{after: clean(n.Type)}
}

// describeMachine returns the line of a machine that has changed its state.
func describeMachine(d wire.NotificationData, event, api string) line {
	verb := map[string]string{"lost": "is lost", "draining": "is draining", "ready": "is ready"}[event]
	text := " " + cmp.Or(verb, "is "+clean(event))
	if d.Deadline != nil {
		text += ", jobs are moved away at " + d.Deadline.UTC().Format(time.RFC3339)
	}
	return machineLine("machine ", text, d, api)
}

// describeJob returns the line of a job, an array or a pipeline.
func describeJob(d wire.NotificationData, event, api string) line {
	kind := "job"
	if d.Kind != "" {
		kind = string(d.Kind)
	}
	name := clean(d.Name)
	if name == "" {
		name = string(d.ID)
	}
	text := fmt.Sprintf(" (%s) of tenant %s ", shortID(d.ID), clean(string(d.Tenant)))
	why := reason(d.Reason)
	switch {
	case event == spec.NotifyDraining:
		text += fmt.Sprintf("runs on machine %s, which is draining", clean(string(d.Machine)))
		if d.Deadline != nil {
			text += " and is left at " + d.Deadline.UTC().Format(time.RFC3339)
		}
		why = d.Drain
	case d.DeadLetter:
		text += "failed and has no retries left"
	case event == string(berth.Succeeded), event == string(berth.Failed):
		text += event
	default:
		text += "is " + clean(event)
	}
	l := line{before: kind + " ", name: name, after: text, why: clean(why)}
	if api != "" {
		l.link = strings.TrimSuffix(api, "/") + "/jobs/" + string(d.ID)
	}
	return l
}

// shortID returns the end of a job's id, which commands accept in place of the id.
func shortID(id berth.JobID) string { return string(id[max(0, len(id)-8):]) }

// machineLine returns a line with a link to a machine.
func machineLine(before, after string, d wire.NotificationData, api string) line {
	l := line{before: before, name: clean(string(d.Machine)), after: after, why: clean(d.Detail)}
	if api != "" {
		l.link = strings.TrimSuffix(api, "/") + "/machines/" + string(d.Machine)
	}
	return l
}

// reason returns the text of a job's reason.
func reason(r *berth.Reason) string {
	if r == nil {
		return ""
	}
	return cmp.Or(r.Message, string(r.Code))
}

// clean returns a text of users as one line without control characters, at most maxText runes long. It also removes
// characters that change the direction of the text, by which a name could hide another part of the line.
func clean(text string) string {
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\r' || r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, text)), " ")
	if runes := []rune(text); len(runes) > maxText {
		text = string(runes[:maxText]) + "…"
	}
	return text
}
