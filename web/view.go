package web

import (
	"fmt"
	"html/template"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"berth"
	"berth/wire"
)

// functions are the functions of all templates.
var functions = template.FuncMap{
	"instant": instant, "ago": ago, "span": span, "count": count, "bytes": berth.BytesText,
	"state": stateMark, "machinestate": machineMark, "sessionstate": sessionMark,
	"clip": clip, "owner": owner, "cores": cores, "gpus": gpus,
	"devices": devices,
	"mib":     func(n int64) string { return berth.BytesText(n << 20) }, "percent": percent,
	"short": short, "add": func(a, b int) int { return a + b }, "plural": plural, "reason": reasonText,
	"list": func(items ...any) []any { return items }, "join": strings.Join, "number": number, "dollars": dollars,
	"seconds": func(s float64) string { return spanText(time.Duration(s * float64(time.Second))) },
}

// mark is the look of a state: a shape and a class beside its word, so that color is never the only
// sign.
type mark struct{ Word, Shape, Class string }

// stateMarks are the marks of the states of jobs.
var stateMarks = map[string]mark{
	string(berth.Submitted): {Shape: "○", Class: "wait"}, string(berth.Queued): {Shape: "○", Class: "wait"},
	string(berth.Scheduled): {Shape: "◐", Class: "prep"}, string(berth.Running): {Shape: "▶", Class: "run"},
	string(berth.Preempting): {Shape: "◧", Class: "prep"}, string(berth.Canceling): {Shape: "◨", Class: "prep"},
	string(berth.Retrying): {Shape: "↻", Class: "wait"}, string(berth.Succeeded): {Shape: "✓", Class: "good"},
	string(berth.Failed): {Shape: "✕", Class: "bad"}, string(berth.Canceled): {Shape: "■", Class: "off"},
	"held": {Shape: "‖", Class: "wait"}, "skipped": {Shape: "–", Class: "off"},
}

// stateMark returns the mark of a job's state.
func stateMark(s any) mark {
	word := fmt.Sprint(s)
	m, ok := stateMarks[word]
	if !ok {
		m = mark{Shape: "?", Class: "off"}
	}
	m.Word = word
	return m
}

// machineMarks are the marks of the states of machines.
var machineMarks = map[berth.MachineState]mark{
	berth.MachineReady: {Shape: "✓", Class: "good"}, berth.MachineJoining: {Shape: "◐", Class: "prep"},
	berth.MachineSuspect: {Shape: "?", Class: "wait"}, berth.MachineDraining: {Shape: "◧", Class: "wait"},
	wire.MachinePending: {Shape: "◔", Class: "wait"},
	wire.MachineDrained: {Shape: "‖", Class: "off"}, berth.MachineLost: {Shape: "✕", Class: "bad"},
	berth.MachineRetired: {Shape: "■", Class: "off"},
}

func machineMark(s berth.MachineState) mark {
	m, ok := machineMarks[s]
	if !ok {
		m = mark{Shape: "?", Class: "off"}
	}
	m.Word = string(s)
	return m
}

// sessionMarks are the marks of the states of sessions.
var sessionMarks = map[wire.SessionState]mark{
	wire.SessionWaiting: {Shape: "○", Class: "wait"}, wire.SessionOpen: {Shape: "▶", Class: "run"},
	wire.SessionEnded: {Shape: "■", Class: "off"},
}

func sessionMark(s wire.SessionState) mark {
	m, ok := sessionMarks[s]
	if !ok {
		m = mark{Shape: "?", Class: "off"}
	}
	m.Word = string(s)
	return m
}

// timed returns the time of t, which may be a time.Time or a pointer to one. ok is false without.
func timed(t any) (at time.Time, ok bool) {
	switch t := t.(type) {
	case time.Time:
		return t, !t.IsZero()
	case *time.Time:
		if t != nil {
			return *t, !t.IsZero()
		}
	}
	return time.Time{}, false
}

// instant renders a time as UTC to the second; the script shows it in the reader's own zone.
func instant(t any) template.HTML {
	at, ok := timed(t)
	if !ok {
		return "–"
	}
	at = at.UTC()
	full := at.Format(time.RFC3339)
	return template.HTML(`<time datetime="` + full + `" title="` + full + `">` + at.Format("2006-01-02 15:04:05") +
		`<span class="zone"> UTC</span></time>`)
}

// ago renders a time by its distance from now, with the full instant in its title.
func ago(now time.Time, t any) template.HTML {
	at, ok := timed(t)
	if !ok {
		return "–"
	}
	text := "in " + spanText(at.Sub(now))
	if !at.After(now) {
		text = spanText(now.Sub(at)) + " ago"
	}
	full := at.UTC().Format(time.RFC3339)
	return template.HTML(`<time class="ago" datetime="` + full + `" title="` + full + `">` + text + `</time>`)
}

// span returns the time from a to b in words; b may be absent, for a span that goes on until now.
func span(now time.Time, a, b any) string {
	from, ok := timed(a)
	if !ok {
		return "–"
	}
	to, ok := timed(b)
	if !ok {
		to = now
	}
	return spanText(to.Sub(from))
}

// spanText returns a duration with its two greatest units.
func spanText(d time.Duration) string {
	d = max(d, 0)
	switch {
	case d < time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < time.Hour:
		return fmt.Sprintf("%d min %02d s", int(d.Minutes()), int(d.Seconds())%60)
	case d < 48*time.Hour:
		return fmt.Sprintf("%d h %02d min", int(d.Hours()), int(d.Minutes())%60)
	default:
		return fmt.Sprintf("%d d %d h", int(d.Hours())/24, int(d.Hours())%24)
	}
}

// count returns a number with thin spaces between its thousands.
func count(n any) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0 && text[i-1] != '-'; i -= 3 {
		text = text[:i] + "\u202f" + text[i:]
	}
	return text
}

// plural returns "1 job" and "3 jobs".
func plural(n int, word string) string {
	if n == 1 {
		return "1 " + word
	}
	return count(n) + " " + word + "s"
}

// clip shortens a text of users, so that one value cannot fill a page.
func clip(most int, text any) string {
	s := fmt.Sprint(text)
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return string([]rune(s)[:most-1]) + "…"
}

// owner is the name of an actor without its kind.
func owner(actor string) string {
	_, name, ok := strings.Cut(actor, ":")
	if !ok {
		return actor
	}
	return name
}

// short is a job's handle, or the end of its id.
func short(id berth.JobID, handle string) string {
	if handle != "" {
		return handle
	}
	return string(id)[max(0, len(id)-8):]
}

// cores and gpus render thousandths.
func cores(milli int64) string { return number(float64(milli) / 1000) }

func gpus(milli int64) string { return number(float64(milli) / 1000) }

// number renders a number with at most two decimals.
func number(f float64) string {
	return strconv.FormatFloat(math.Round(f*100)/100, 'f', -1, 64)
}

// percent returns a part of a whole in percent, 0 for an empty whole.
func percent(part, whole int64) int {
	if whole <= 0 {
		return 0
	}
	return int(min(100, max(0, part*100/whole)))
}

// reasonText is the reason of a job's status, or of its wait, in a few words.
func reasonText(j wire.Job) string {
	switch {
	case j.Waiting != nil && !j.Status.Terminal():
		return j.Waiting.Message
	case j.Reason != nil && j.Reason.Message != "":
		return j.Reason.Message
	case j.Reason != nil:
		return string(j.Reason.Code)
	}
	return ""
}
