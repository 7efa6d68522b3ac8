package main

import (
	"charm.land/lipgloss/v2"

	"berth"
	"berth/wire"
)

// screen describes the terminal behind a stream. The zero screen is a pipe or a file.
type screen struct {
	terminal bool
	colour   bool
	width    int
}

// tone is a meaning that is shown as a colour where there is colour.
type tone int

const (
	plain tone = iota
	faint
	bold
	good
	bad
	warn
	live
)

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
	}
	return style.Render(text)
}

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

func toneOfMachine(m wire.Machine) tone {
	if m.State == berth.MachineReady && m.EngineSilentSince != nil {
		return warn // it gets no new work
	}
	switch m.State {
	case berth.MachineReady:
		return good
	case berth.MachineLost:
		return bad
	case berth.MachineSuspect, berth.MachineDraining:
		return warn
	case berth.MachineJoining:
		return live
	case berth.MachineRetired:
		return faint
	default:
		return plain // a state of a newer server
	}
}
