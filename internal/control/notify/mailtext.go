package notify

import (
	"fmt"
	"strings"
)

// maxSubject bounds the subject of a mail, in runes; mail programs show fewer.
const maxSubject = 120

// mailText returns the subject and the body of a mail.
func mailText(c content) (subject, body string) {
	if subject = "[Berth] " + c.title; len([]rune(subject)) > maxSubject {
		subject = string([]rune(subject)[:maxSubject]) + "…"
	}
	var b strings.Builder
	for i, l := range c.lines {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(l.text() + "\n")
		if l.link != "" {
			b.WriteString(l.link + "\n")
		}
	}
	if c.more > 0 {
		fmt.Fprintf(&b, "\nand %d more\n", c.more)
	}
	return subject, b.String()
}
