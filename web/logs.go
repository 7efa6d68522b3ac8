package web

import (
	"context"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// logShown is the number of lines of a log on a page without a choice, and logMost the greatest
// choice: a browser slows down with more rows. The whole log is a download.
const (
	logShown = 500
	logMost  = 3000
)

// logView is the data of the log of a job.
type logView struct {
	Lines    []logLine
	Attempts []filter
	Members  []filter
	Attempt  int
	Member   int
	Grep     string
	Problem  string
	More     string // address with more lines; "": all are shown
	Whole    string // address of the whole log
	Tail     string // address of the stream of further lines; "": there are none
	None     string
}

// logLine is one line of a log. Number counts the lines of this page.
type logLine struct {
	wire.LogLine
	Number int
	HTML   template.HTML
}

// logPart reads the end of a log, or its lines that match an expression. A fault of the expression is
// shown next to its field, since the reader corrects it there.
func logPart(ctx context.Context, v *visit, j wire.Job) (any, error) {
	tail, err := strconv.Atoi(v.query("tail"))
	if err != nil || tail < 1 || tail > logMost {
		tail = logShown
	}
	member, err := strconv.Atoi(v.query("member"))
	if err != nil || member < 0 {
		member = 0
	}
	view := logView{Grep: v.query("grep"), Member: member, Attempt: chosenAttempt(v, j)}
	view.Attempts, view.Members = attemptLinks(v, j, view.Attempt), memberLinks(v, j, member)
	view.Whole = fmt.Sprintf("/jobs/%s/log?attempt=%d&member=%d", j.ID, view.Attempt, member)
	if view.Attempt == 0 {
		view.None = "There is no log yet, because the job has not started."
		return view, nil
	}
	q := client.LogsQuery{Attempt: view.Attempt, Member: member, Tail: tail, Grep: view.Grep}
	err = v.api.Logs(ctx, j.ID, q, func(l wire.LogLine) error {
		view.Lines = append(view.Lines, logLine{l, len(view.Lines) + 1, ansi(l.Text)})
		return nil
	})
	switch code := berth.CodeOf(err); {
	case code == berth.CodeInvalid:
		view.Problem = sentence(messageOf(err))
	case code == berth.CodeNotFound:
		view.None = sentence(messageOf(err))
	case err != nil:
		return nil, err
	}
	if !j.Status.Terminal() && view.Grep == "" && view.Attempt == len(j.Attempts) {
		view.Tail = tailAddress(j, view)
	}
	if len(view.Lines) >= tail && tail < logMost {
		view.More = v.link("tail", strconv.Itoa(logMost))
	}
	if len(view.Lines) == 0 && view.None == "" && view.Problem == "" {
		view.None = "The log is empty."
		if view.Grep != "" {
			view.None = "No line matches."
		}
	}
	return view, nil
}

// tailAddress is the address of the lines that follow a page. It names the last line by its time,
// since a number of a line holds for one page only.
func tailAddress(j wire.Job, view logView) string {
	q := url.Values{"attempt": {strconv.Itoa(view.Attempt)}, "member": {strconv.Itoa(view.Member)},
		"after": {strconv.Itoa(len(view.Lines))}}
	if n := len(view.Lines); n > 0 {
		q.Set("since", view.Lines[n-1].At.UTC().Format(time.RFC3339Nano))
	}
	return "/jobs/" + string(j.ID) + "/tail?" + q.Encode()
}

// memberLinks are the links of the choice between the members of a gang; none for a single one. At most
// 64 members have a link; the address can name any other one.
func memberLinks(v *visit, j wire.Job, chosen int) (links []filter) {
	if j.Spec == nil || j.Spec.Members < 2 {
		return nil
	}
	for i := range min(j.Spec.Members, 64) {
		links = append(links, filter{fmt.Sprintf("Member %d", i), v.link("member", strconv.Itoa(i)), i == chosen})
	}
	return links
}

// wholeLog sends the whole log of a member as text, line by line. It sends lines as they arrive, so
// memory does not grow with the log. ErrAbortHandler breaks the connection, so that the browser does
// not take a part for the whole log.
func wholeLog(ctx context.Context, v *visit) (result, error) {
	attempt, _ := strconv.Atoi(v.query("attempt"))
	member, _ := strconv.Atoi(v.query("member"))
	out := &textStream{v: v, name: fmt.Sprintf("berth-%s-%d-%d.log", short(v.job(), ""), attempt, member)}
	err := v.api.Logs(ctx, v.job(), client.LogsQuery{Attempt: attempt, Member: member}, func(l wire.LogLine) error {
		return out.line(l.Text)
	})
	if err != nil && !out.begun {
		return result{}, err
	}
	if !out.begun {
		err = out.line("")
	}
	if err == nil {
		err = out.flush()
	}
	if err != nil { // the text has begun: only its end can show the fault
		panic(http.ErrAbortHandler)
	}
	return result{}, errWritten
}

// sgrClass reports whether the style has a class a<N> for a parameter of an escape sequence.
func sgrClass(n int) bool { return n >= 1 && n <= 4 || n >= 30 && n <= 37 || n >= 90 && n <= 97 }

// ansi renders a line of a log: colors and weights of terminals become classes, a carriage return
// starts the line again, as a progress bar does, and other control characters are dropped. The result
// is safe as HTML: text is escaped, and the names of classes contain numbers only.
func ansi(line string) template.HTML {
	line = strings.TrimRight(line, "\r")
	if i := strings.LastIndexByte(line, '\r'); i >= 0 {
		line = line[i+1:]
	}
	var b strings.Builder
	var open bool
	for len(line) > 0 {
		i := strings.IndexByte(line, '\x1b')
		if i < 0 {
			i = len(line)
		}
		template.HTMLEscape(&b, []byte(printable(line[:i])))
		codes, rest, ok := escapeSequence(line[i:])
		line = rest
		if !ok {
			continue
		}
		if open {
			b.WriteString("</span>")
			open = false
		}
		if class := sgrClasses(codes); class != "" {
			b.WriteString(`<span class="` + class + `">`)
			open = true
		}
	}
	if open {
		b.WriteString("</span>")
	}
	return template.HTML(b.String())
}

// escapeSequence takes the escape sequence at the beginning of a text. ok is true for a sequence
// of colors and weights, with its parameters.
func escapeSequence(text string) (codes, rest string, ok bool) {
	if len(text) == 0 {
		return "", "", false
	}
	if len(text) < 2 || text[1] != '[' {
		return "", text[1:], false
	}
	for i := 2; i < len(text); i++ {
		if c := text[i]; c >= 0x40 && c <= 0x7e {
			return text[2:i], text[i+1:], c == 'm'
		} else if c < 0x20 {
			return "", text[i:], false
		}
	}
	return "", "", false
}

// sgrClasses are the classes for the parameters of a sequence; "" resets.
func sgrClasses(codes string) string {
	var classes []string
	for code := range strings.SplitSeq(codes, ";") {
		n, err := strconv.Atoi(code)
		switch {
		case err != nil || n == 0:
			classes = nil
		case sgrClass(n):
			classes = append(classes, "a"+strconv.Itoa(n))
		}
	}
	return strings.Join(classes, " ")
}

// printable drops control characters but the tab.
func printable(text string) string {
	return strings.Map(func(r rune) rune {
		if r < 0x20 && r != '\t' || r == 0x7f {
			return -1
		}
		return r
	}, text)
}
