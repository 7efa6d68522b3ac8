package notify

import (
	"encoding/json"
	"fmt"
	"strings"
)

// chatEscapes are the characters with a meaning in Slack's format of messages
// (docs.slack.dev, "Formatting message text"). Receivers that imitate Slack use the same ones.
var chatEscapes = strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;")

// maxChat bounds the text of a message, in bytes after the escapes: Discord refuses more than 2,000 characters.
const maxChat = 1900

// chatBody returns the body of a call of an incoming webhook of Slack. Only the key text is used, which Mattermost,
// Rocket.Chat, Google Chat and, at an address that ends in /slack, Discord accept too. Lines that do not fit are
// counted.
func chatBody(c content) (string, error) {
	var b strings.Builder
	if len(c.lines) > 1 || c.more > 0 {
		b.WriteString(cut(chatText(c.title), maxChat/4))
	}
	shown := 0
	for i, l := range c.lines {
		text := chatLine(l)
		if i == 0 && b.Len()+len(text) > maxChat {
			text = cut(chatText(l.title()), maxChat/2)
		}
		if b.Len()+len(text) > maxChat {
			break
		}
		if b.Len() > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(text)
		shown++
	}
	if more := c.more + len(c.lines) - shown; more > 0 {
		fmt.Fprintf(&b, "\nand %d more", more)
	}
	body, err := json.Marshal(map[string]string{"text": b.String()})
	return string(body), err
}

// cut returns at most most bytes of a text of whole runes, without half an escape at its end.
func cut(text string, most int) string {
	if len(text) <= most {
		return text
	}
	text = strings.ToValidUTF8(text[:most], "")
	if i := strings.LastIndexByte(text, '&'); i >= 0 && !strings.Contains(text[i:], ";") {
		text = text[:i]
	}
	return text + "…"
}

// chatText escapes a text of users. Slack needs the three escapes. Mattermost and Discord also read mentions and links
// in square brackets, which an invisible character and a blank break.
func chatText(text string) string {
	return strings.NewReplacer("@", "@\u200b", "](", "] (").Replace(chatEscapes.Replace(text))
}

// chatLine returns a line with its name as a link.
func chatLine(l line) string {
	if l.link == "" || l.name == "" || strings.ContainsAny(l.link, "<>|") {
		return chatText(l.text())
	}
	// A | would end the address, and has no escape.
	return fmt.Sprintf("%s<%s|%s>%s", chatText(l.before), chatEscapes.Replace(l.link),
		chatText(strings.ReplaceAll(l.name, "|", "/")), chatText(l.after+l.because()))
}
