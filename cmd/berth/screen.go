package main

import (
	"image/color"

	"charm.land/lipgloss/v2"

	"berth"
	"berth/wire"
)

// screen describes the terminal behind a stream. The zero screen is a pipe or a file, where
// output has neither colours nor a width.
type screen struct {
	terminal bool
	colour   bool // false with NO_COLOR, even on a terminal
	width    int  // in columns, for text that is printed once

	// measure returns the present width in columns, for lines that are drawn again; nil: the width does not change.
	measure func() int

	// rows returns the present height in lines, for screens that are drawn again; nil or 0: not known.
	rows func() int
}

// usualWidth is the width of a terminal that does not report one.
const usualWidth = 80

// columns returns the present width in columns. The user may resize the window of a command that runs for hours.
func (s screen) columns() int {
	width := s.width
	if s.measure != nil {
		width = s.measure()
	}
	if width <= 0 {
		return usualWidth
	}
	return width
}

// narrowest is the least width of a table in columns: cut to less it would be useless.
const narrowest = 40

// tableWidth returns the present width for tables; a smaller window than narrowest wraps their rows.
func (s screen) tableWidth() int {
	if width := s.columns(); width >= narrowest {
		return width
	}
	return usualWidth
}

// tone is the meaning of a text, shown as a colour where the terminal has colours. Colour
// is never the only carrier of a meaning: the text itself states the status too.
type tone int

const (
	// The zero tone is plain, so a cell without a tone is not coloured.
	plain tone = iota
	faint
	bold
	good
	bad
	warn
	live
	// The tones from firstLabel on distinguish logs from each other and mean nothing.
	firstLabel
)

// labelColours are the colours of the tones from firstLabel on. Red and yellow, the colours
// of failures and warnings, are left out.
var labelColours = []color.Color{lipgloss.Cyan, lipgloss.Magenta, lipgloss.Blue, lipgloss.Green,
	lipgloss.BrightCyan, lipgloss.BrightMagenta}

// labelTones is the number of the tones from firstLabel on.
const labelTones = 6

// paint returns text in the colour of its tone. Pad and cut a text before painting: escape
// sequences count as characters for both. Only the 16 colours of a terminal's own palette
// are used, which users adapt to their background.
func (s screen) paint(t tone, text string) string {
	if !s.colour || text == "" || t == plain {
		return text
	}
	style := lipgloss.NewStyle()
	switch t {
	case faint:
		style = style.Faint(true)
	case bold:
		style = style.Bold(true)
	case good:
		style = style.Foreground(lipgloss.Green)
	case bad:
		style = style.Foreground(lipgloss.Red)
	case warn:
		style = style.Foreground(lipgloss.Yellow)
	case live:
		style = style.Foreground(lipgloss.Cyan)
	case plain:
	default:
		style = style.Foreground(labelColours[int(t-firstLabel)%labelTones])
	}
	return style.Render(text)
}

// toneOfState returns the tone of a job's status. Statuses in which a job holds nothing and
// has not ended are plain.
func toneOfState(s berth.State) tone {
	switch s {
	case berth.Succeeded:
		return good
	case berth.Failed:
		return bad
	case berth.Canceled:
		return faint
	case berth.Running:
		return live
	case berth.Preempting, berth.Canceling, berth.Retrying:
		return warn
	case berth.Submitted, berth.Queued, berth.Scheduled:
		return plain
	default:
		return plain // a status of a newer server
	}
}

// toneOfMachine returns the tone of a machine's state.
func toneOfMachine(m wire.Machine) tone {
	if m.State == berth.MachineReady && m.EngineSilentSince != nil {
		return warn // the container engine does not answer, so the machine gets no new work
	}
	switch m.State {
	case berth.MachineReady:
		return good
	case berth.MachineLost:
		return bad
	case berth.MachineSuspect, berth.MachineDraining, wire.MachinePending:
		return warn
	case berth.MachineJoining:
		return live
	case berth.MachineRetired, wire.MachineDrained:
		return faint
	default:
		return plain // a state of a newer server
	}
}
