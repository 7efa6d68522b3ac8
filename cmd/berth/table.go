package main

import (
	"io"
	"slices"
	"strings"
	"unicode"

	"charm.land/lipgloss/v2"
)

// cell is one field of a table, with its tone.
type cell struct {
	text string
	tone tone
}

// table is a list of rows under a heading, with columns two blanks apart. On a terminal the
// last column is cut at the edge, so that each row stays one line; a pipe receives the
// whole text. A table is held in memory until write, since the widest cell determines a
// column's width.
type table struct {
	screen screen
	head   []string
	rows   [][]cell

	// Columns by their heading, for a terminal that is too narrow for the last column: the
	// column drops is left out, and the columns shrinks are cut, the first one first. "" is no
	// column.
	shrinks []string
	drops   string
}

// Widths in columns of a terminal. The column drops is left out if the last column would have less than
// wholeReason, in which most reasons stand whole, such as "no room: needs 2 CPUs, most free 0.5 (m1)". The columns
// shrinks are cut, but not below leastShrunk, if the last column would have less than lastColumn.
const (
	wholeReason = 42
	lastColumn  = 30
	leastShrunk = 12
)

// add appends a row of strings and cells; any other type is an error of the program. Every
// text is made one line here, so no caller can forget to.
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

// write prints the heading and the rows. A row must not have more cells than the heading.
func (t *table) write(w io.Writer) error {
	widths := t.fit(t.widths())
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

// widths returns the width of each column, in columns on a terminal and not in bytes or
// characters: a wide character takes two.
func (t *table) widths() []int {
	widths := make([]int, len(t.head))
	for i, h := range t.head {
		widths[i] = lipgloss.Width(h)
	}
	for _, row := range t.rows {
		for i, c := range row {
			widths[i] = max(widths[i], lipgloss.Width(c.text))
		}
	}
	return widths
}

// fit makes room for the last column on a terminal and returns the new widths.
func (t *table) fit(widths []int) []int {
	missing := func(room int) int {
		used, last := 0, len(widths)-1
		for _, w := range widths[:last] {
			used += w + 2
		}
		return min(widths[last], room) - (t.screen.tableWidth() - used)
	}
	if !t.screen.terminal || missing(wholeReason) <= 0 {
		return widths
	}
	if i := slices.Index(t.head, t.drops); i >= 0 {
		// The caller's rows are not changed.
		t.head = slices.Delete(slices.Clone(t.head), i, i+1)
		rows := make([][]cell, len(t.rows))
		for r, row := range t.rows {
			if rows[r] = row; len(row) > i {
				rows[r] = slices.Delete(slices.Clone(row), i, i+1)
			}
		}
		t.rows, widths = rows, slices.Delete(widths, i, i+1)
	}
	for _, name := range t.shrinks {
		i := slices.Index(t.head, name)
		if i < 0 || missing(lastColumn) <= 0 {
			continue
		}
		widths[i] = max(min(widths[i], leastShrunk), widths[i]-missing(lastColumn))
		for r, row := range t.rows {
			if len(row) > i && lipgloss.Width(row[i].text) > widths[i] {
				t.rows[r] = slices.Clone(row)
				t.rows[r][i].text = cut(row[i].text, widths[i])
			}
		}
	}
	return widths
}

// line writes one row. Empty cells at its end are left out, so that no line ends in blanks.
func (t *table) line(b *strings.Builder, row []cell, widths []int) {
	used, last := 0, len(row)-1
	for last > 0 && row[last].text == "" {
		last--
	}
	for i, c := range row[:last+1] {
		if i == len(widths)-1 && t.screen.terminal {
			c.text = cut(c.text, t.screen.tableWidth()-used)
		}
		// Painted after the cut and padded by the unpainted width.
		b.WriteString(t.screen.paint(c.tone, c.text))
		if i < last {
			b.WriteString(strings.Repeat(" ", widths[i]-lipgloss.Width(c.text)+2))
		}
		used += widths[i] + 2
	}
	b.WriteByte('\n')
}

// cut shortens text to a width in columns, including the ellipsis. Below 8 columns the text
// stays whole, since a few letters say nothing; the terminal then wraps the line.
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

// wrap breaks a text with colours at blanks, so that no line has more than width columns unless a word has. Lines after
// the first one are indented, which does not count.
func wrap(text string, width, indent int) string {
	var b strings.Builder
	out := lipgloss.NewWrapWriter(&b) // ends colours before a line break, and continues them after it
	defer out.Close()
	used := 0
	for i, word := range strings.Split(text, " ") {
		before, n := " ", lipgloss.Width(word)
		switch {
		case i == 0:
			before = ""
		case used+1+n > width:
			before, used = "\n"+strings.Repeat(" ", indent), 0
		default:
			used++
		}
		_, _ = io.WriteString(out, before+word)
		used += n
	}
	return b.String()
}

// oneLine makes text of jobs and machines safe for one line of a terminal. Line breaks and
// tabs become blanks; control characters are removed, and so are characters that reverse
// the direction of text, which could disguise a name.
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

// shellLine quotes arguments for a POSIX shell, so that the line shows where each begins
// and ends and can be copied.
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

// needsQuotes reports whether a character may have a meaning for a shell. The list of safe
// characters is closed; all others are quoted.
func needsQuotes(r rune) bool {
	return !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("-_./:=,+@%", r)
}
