package main

import (
	"io"
	"strings"
	"unicode"

	"charm.land/lipgloss/v2"
)

// cell is one field of a table.
type cell struct {
	text string
	tone tone
}

// table is rows under a heading, columns two blanks apart. On a terminal the
// last column is cut at the edge, so that a row stays a line.
type table struct {
	screen screen
	head   []string
	rows   [][]cell
}

func (t *table) add(cells ...any) {
	row := make([]cell, len(cells))
	for i, c := range cells {
		switch c := c.(type) {
		case cell:
			row[i] = c
		case string:
			row[i] = cell{text: c}
		default:
			panic("a table cell is a string or a cell")
		}
		row[i].text = oneLine(row[i].text)
	}
	t.rows = append(t.rows, row)
}

func (t *table) write(w io.Writer) error {
	widths := make([]int, len(t.head))
	for i, h := range t.head {
		widths[i] = lipgloss.Width(h)
	}
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], lipgloss.Width(c.text))
		}
	}
	var b strings.Builder
	head := make([]cell, len(t.head))
	for i, h := range t.head {
		head[i] = cell{h, bold}
	}
	t.line(&b, head, widths)
	for _, row := range t.rows {
		t.line(&b, row, widths)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *table) line(b *strings.Builder, row []cell, widths []int) {
	used, last := 0, len(row)-1
	for last > 0 && row[last].text == "" {
		last--
	}
	for i, c := range row[:last+1] {
		if i == len(widths)-1 && t.screen.terminal {
			c.text = cut(c.text, t.screen.width-used)
		}
		b.WriteString(t.screen.paint(c.tone, c.text))
		if i < last {
			b.WriteString(strings.Repeat(" ", widths[i]-lipgloss.Width(c.text)+2))
		}
		used += widths[i] + 2
	}
	b.WriteByte('\n')
}

// cut shortens text to a width, an ellipsis included.
func cut(text string, width int) string {
	if width < 8 || lipgloss.Width(text) <= width {
		return text
	}
	out := []rune(text)
	for len(out) > 0 && lipgloss.Width(string(out))+1 > width {
		out = out[:len(out)-1]
	}
	return string(out) + "…"
}

// oneLine keeps text of jobs and machines from breaking the table or steering
// the terminal.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t' || r == '\r':
			return ' '
		case r < ' ' || r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Bidi_Control, r):
			return -1
		}
		return r
	}, text)
}

// shellLine writes arguments as one would type them, so that it shows where each
// begins and ends.
func shellLine(args []string) string {
	words := make([]string, len(args))
	for i, arg := range args {
		words[i] = arg
		if arg == "" || strings.ContainsFunc(arg, needsQuotes) {
			words[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(words, " ")
}

func needsQuotes(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:=,+@%", r)
}
