package main

import (
	"bytes"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// folded returns the last state of a line that was written over and over, as by a progress
// bar: the text after the last carriage return that is followed by text. A carriage return
// at the end, as in files with CRLF, is removed.
func folded(text string) string {
	text = strings.TrimRight(text, "\r")
	return text[strings.LastIndexByte(text, '\r')+1:]
}

// harmless makes the text of a job safe for a terminal. It keeps printable characters, tabs
// and colours (ESC [ ... m). It removes all other escape sequences and control characters,
// with which a log could rewrite the screen, the title or the clipboard, and the characters
// that change the direction of text, which could disguise a command. A line that sets a
// colour ends with a reset, so that the next line has none. text must be valid UTF-8, which
// decoding from JSON ensures.
func harmless(text string) string {
	if !strings.ContainsFunc(text, unsafeRune) {
		return text
	}
	const reset = "\x1b[0m"
	var b strings.Builder
	coloured := false
	for len(text) > 0 {
		if n := colourAt(text); n > 0 {
			b.WriteString(text[:n])
			coloured = text[:n] != reset && text[:n] != "\x1b[m"
			text = text[n:]
			continue
		}
		if n := escapeAt(text); n > 0 {
			text = text[n:]
			continue
		}
		r, size := utf8.DecodeRuneInString(text)
		if !unsafeRune(r) || r == utf8.RuneError {
			b.WriteString(text[:size])
		}
		text = text[size:]
	}
	if coloured {
		b.WriteString(reset)
	}
	return b.String()
}

// document returns a JSON document as it is printed. On a terminal, characters that may steer it
// are escaped; the document keeps its meaning. JSON itself escapes only the controls below 0x20.
func (s screen) document(b []byte) []byte {
	if !s.terminal || !bytes.ContainsFunc(b, steers) {
		return b
	}
	var out []byte
	for len(b) > 0 {
		r, size := utf8.DecodeRune(b)
		if steers(r) {
			out = fmt.Appendf(out, `\u%04x`, r)
		} else {
			out = append(out, b[:size]...)
		}
		b = b[size:]
	}
	return out
}

// steers is unsafeRune for JSON, in which line breaks and tabs stand between the values.
func steers(r rune) bool { return r >= ' ' && unsafeRune(r) }

// unsafeRune reports whether a character may steer a terminal: a C0 or C1 control other
// than the tab, DEL, or a character that changes the direction of text.
func unsafeRune(r rune) bool {
	return r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0 || unicode.Is(unicode.Bidi_Control, r)
}

// colourAt returns the length of the colour sequence (SGR) at the beginning of text, 0 if
// text begins with anything else.
func colourAt(text string) int {
	rest, ok := strings.CutPrefix(text, "\x1b[")
	if !ok {
		return 0
	}
	// Parameters are digits, semicolons and colons; any other final byte than m is a
	// command.
	end := strings.IndexFunc(rest, func(r rune) bool { return r != ';' && r != ':' && (r < '0' || r > '9') })
	if end < 0 || rest[end] != 'm' {
		return 0
	}
	return len("\x1b[") + end + 1
}

// escapeAt returns the length of the escape sequence at the beginning of text, by ECMA-48:
// a control sequence (CSI), a string (OSC, DCS, SOS, PM, APC) with its terminator, or a
// short sequence. A string without terminator counts as its introducer alone: it must not
// hide the rest of the line. The length is 0 if text begins with anything else.
func escapeAt(text string) int {
	kind, n := introducer(text)
	rest := text[n:]
	switch kind {
	case 0:
		return 0
	case '[':
		// Parameters and intermediates, then one final byte. A broken sequence ends before
		// the first byte that cannot belong to it.
		i := strings.IndexFunc(rest, func(r rune) bool { return r < 0x20 || r > 0x3f })
		if i < 0 {
			return len(text)
		}
		if rest[i] >= 0x40 && rest[i] <= 0x7e {
			i++
		}
		return n + i
	case ']', 'P', 'X', '^', '_':
		for _, end := range []string{"\a", "\x1b\\", "\u009c"} {
			if body, _, ok := strings.Cut(rest, end); ok && !strings.ContainsAny(body, "\a\x1b\u009c") {
				return n + len(body) + len(end)
			}
		}
		return n
	default:
		// ESC, intermediates (0x20 to 0x2f), one final byte.
		i := strings.IndexFunc(rest, func(r rune) bool { return r < 0x20 || r > 0x2f })
		if i >= 0 && rest[i] >= 0x30 && rest[i] <= 0x7e {
			return n + i + 1
		}
		return n
	}
}

// introducer returns the kind of the escape sequence at the beginning of text, as the second
// byte of its 7-bit form, and the length of its introducer. Kind 1 stands for a short
// sequence, whose introducer is ESC alone; kind 0 for no sequence.
func introducer(text string) (kind byte, n int) {
	const strings7 = "[]PX^_"
	if rest, ok := strings.CutPrefix(text, "\x1b"); ok {
		if rest != "" && strings.IndexByte(strings7, rest[0]) >= 0 {
			return rest[0], 2
		}
		return 1, 1
	}
	// The 8-bit form of ESC X is X + 0x40, one character of two bytes in UTF-8.
	if r, size := utf8.DecodeRuneInString(text); r >= 0x80 && r < 0xa0 &&
		strings.IndexByte(strings7, byte(r-0x40)) >= 0 {
		return byte(r - 0x40), size
	}
	return 0, 0
}
