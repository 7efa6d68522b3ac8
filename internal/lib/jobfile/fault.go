package jobfile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"berth"
	"berth/spec"
)

// maxShown is the number of faults that an error prints; further faults are counted.
const maxShown = 20

// Fault is one thing wrong with a job file. Line and Column count from 1, in lines and
// characters; a zero Line means that no place can be named.
type Fault struct {
	Line, Column int
	Width        int // characters to underline
	berth.FieldError
}

// Error is the list of all faults of one job file.
type Error struct {
	Name   string // of the file, as shown; empty for a spec that came from no file
	Source string
	Faults []Fault
}

// Error prints every fault: a line with its place, the fault and the allowed values,
// followed by the source around the fault.
func (e *Error) Error() string {
	var b strings.Builder
	lines := strings.Split(e.Source, "\n")
	for i, f := range e.Faults {
		if i > 0 {
			b.WriteByte('\n')
		}
		if i == maxShown {
			fmt.Fprintf(&b, "and %d more", len(e.Faults)-maxShown)
			break
		}
		b.WriteString(e.headline(f))
		writeFrame(&b, lines, f)
	}
	return b.String()
}

// headline is the first line of a fault: place, field, and the fault with its allowed
// values.
func (e *Error) headline(f Fault) string {
	var parts []string
	switch {
	case f.Line > 0:
		parts = append(parts, fmt.Sprintf("%s:%d:%d", e.Name, f.Line, f.Column))
	case e.Name != "":
		parts = append(parts, e.Name)
	}
	return strings.Join(append(parts, Line(f.FieldError)), ": ")
}

// Line is a whole fault: the field and its sentence. The field is empty for faults of the
// whole file.
func Line(f berth.FieldError) string {
	switch {
	case f.Field == "":
		return Sentence(f)
	case strings.HasPrefix(f.Detail, "is "), strings.HasPrefix(f.Detail, "has "):
		return f.Field + " " + Sentence(f)
	default:
		return f.Field + ": " + Sentence(f)
	}
}

// Sentence joins a fault and its allowed values. Allowed is an example, an instruction or a
// set of values, with a different joint for each.
func Sentence(f berth.FieldError) string {
	switch {
	case f.Allowed == "":
		return f.Detail
	case strings.HasPrefix(f.Allowed, "for example "):
		return f.Detail + ", " + f.Allowed
	case strings.HasPrefix(f.Allowed, "quote it"):
		return f.Detail + "; " + f.Allowed
	}
	for _, verb := range []string{"write ", "did you ", "give ", "leave ", "set ", "keep ", "submit ", "use ", "save ",
		"move ", "create ", "allowed "} {
		if strings.HasPrefix(f.Allowed, verb) {
			return f.Detail + ": " + f.Allowed
		}
	}
	return f.Detail + " (allowed: " + f.Allowed + ")"
}

// writeFrame draws the faulty line, the line above, and a mark under the faulty text.
func writeFrame(b *strings.Builder, lines []string, f Fault) {
	if f.Line < 1 || f.Line > len(lines) || strings.TrimSpace(lines[f.Line-1]) == "" {
		return
	}
	if f.Line > 1 && strings.TrimSpace(lines[f.Line-2]) != "" {
		fmt.Fprintf(b, "\n  %4d | %s", f.Line-1, clip(lines[f.Line-2]))
	}
	line := clip(lines[f.Line-1])
	fmt.Fprintf(b, "\n> %4d | %s", f.Line, line)
	before := []rune(line)
	if f.Column-1 > len(before) {
		return
	}
	// Tabs stay tabs, so that the mark stands below the marked text.
	pad := strings.Map(func(r rune) rune {
		if r == '\t' {
			return r
		}
		return ' '
	}, string(before[:f.Column-1]))
	width := max(1, min(f.Width, len(before)-f.Column+1))
	fmt.Fprintf(b, "\n       | %s%s", pad, strings.Repeat("^", width))
}

// clip shortens a line of the source and replaces its control characters, so that a
// generated file can neither flood nor reprogram the terminal.
func clip(line string) string {
	const most = 160
	runes := []rune(line)
	if len(runes) > most {
		runes = append(runes[:most], '…')
	}
	for i, r := range runes {
		if r < ' ' && r != '\t' || r == 0x7f {
			runes[i] = '�'
		}
	}
	return string(runes)
}

// sorted orders faults by place. Faults at one place keep their order.
func sorted(faults []Fault) []Fault {
	slices.SortStableFunc(faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return faults
}

// Check reports the faults of a spec that came from no file; nil for a valid spec. The
// spec may lack defaults.
func Check(jobSpec spec.Job) error {
	var faults []Fault
	for _, f := range jobSpec.WithDefaults().Validate() {
		faults = append(faults, Fault{FieldError: f})
	}
	if faults == nil {
		return nil
	}
	return &Error{Faults: faults}
}
