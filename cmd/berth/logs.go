package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newLogs builds "berth logs" over GET /v1/jobs/{id}/logs. With --follow the client
// reconnects after the last line that it has received.
func newLogs(a *app) *cobra.Command {
	var q client.LogsQuery
	var sinceText string
	var stamps bool
	cmd := &cobra.Command{
		Use:   "logs JOB",
		Short: "Print a job's log",
		Long: "Logs prints the standard output and standard error of a job's latest attempt, or of --attempt.\n" +
			"Logs outlive the machine. With -o json each line is a document with time and stream.",
		Example:           "  berth logs -f digits\n  berth logs digits --attempt 1 --tail 20",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(anyJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case q.Attempt < 0:
				return usagef("--attempt %d is out of range; allowed: 1 or more", q.Attempt)
			case q.Member < 0:
				return usagef("--member %d is out of range; allowed: 0 or more", q.Member)
			case q.Tail < 0:
				return usagef("--tail %d is out of range; allowed: 0 or more", q.Tail)
			}
			c, job, since, err := a.jobSince(cmd.Context(), args[0], sinceText)
			if err != nil {
				return err
			}
			q.Since = since
			// A pipeline, an array and a cached step have no log. The message names the
			// command that works, since an empty log would look like a job that wrote
			// nothing.
			if isPipeline(job) {
				return usagef("%s is a pipeline, and a pipeline has no log of its own; see one of its steps: "+
					"berth logs %s.STEP (list them: berth pipeline show %[2]s)", named(job), args[0])
			}
			if job.Kind == berth.KindArray {
				return usagef("%s is an array, and an array has no log of its own; see one of its elements: "+
					"berth logs '%s[%d]'", named(job), args[0], firstIndex(job))
			}
			// No error: the step succeeded, and its log exists under the job that ran.
			if job.CachedFrom != nil {
				a.say("%s was cached and did not run; see the log of the job that ran: berth logs %s", named(job),
					*job.CachedFrom)
				return nil
			}
			err = c.Logs(cmd.Context(), job.ID, q, func(l wire.LogLine) error { return printLine(a, l, stamps) })
			return a.failed(cmd.Context(), err)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&q.Follow, "follow", "f", false, "follow the log until the job ends")
	f.IntVar(&q.Attempt, "attempt", 0, "attempt number, from 1 (default: the latest)")
	f.IntVar(&q.Member, "member", 0, "gang member, from 0")
	f.IntVar(&q.Tail, "tail", 0, "print only this many last lines (default: all)")
	f.StringVar(&sinceText, "since", "", "print only lines since: 10m, 2h, or an RFC 3339 time")
	f.BoolVarP(&stamps, "timestamps", "t", false, "print the time before each line")
	return cmd
}

// printLine prints one line of a log. On a terminal, control characters are removed except
// colours; a pipe or a file receives the text unchanged. -o json and -o yaml print one JSON
// document on each line.
func printLine(a *app, l wire.LogLine, stamps bool) error {
	if a.Output == "json" || a.Output == "yaml" {
		b, err := json.Marshal(l)
		if err != nil {
			return fmt.Errorf("print log line: %w", err)
		}
		_, err = fmt.Fprintf(a.out, "%s\n", b)
		return err
	}
	text := l.Text
	if a.outTerm.terminal {
		text = harmless(text)
	}
	if stamps {
		text = a.outTerm.paint(faint, l.At.UTC().Format(time.RFC3339)) + " " + text
	}
	_, err := fmt.Fprintln(a.out, text)
	return err
}

// harmless keeps colours (ESC [ ... m) and tabs and removes every other control character:
// a log could otherwise rewrite the terminal that shows it, or its title and clipboard.
// text must be valid UTF-8, which decoding from JSON ensures.
func harmless(text string) string {
	if !strings.ContainsFunc(text, control) {
		return text
	}
	// A progress bar rewrites its line. A terminal finally shows the text after the last
	// carriage return.
	text = strings.TrimRight(text, "\r")
	text = text[strings.LastIndexByte(text, '\r')+1:]
	var b strings.Builder
	for i := 0; i < len(text); {
		if n := colourAt(text[i:]); n > 0 {
			b.WriteString(text[i : i+n])
			i += n
			continue
		}
		// Bytes below 0x80 are characters; others begin a sequence, which range decodes. C1
		// controls (0x80 to 0x9f) are two bytes in UTF-8 and must be recognized as one
		// character.
		r, size := rune(text[i]), 1
		if r >= 0x80 {
			for _, full := range text[i:] {
				r, size = full, len(string(full))
				break
			}
		}
		if !control(r) {
			b.WriteString(text[i : i+min(size, len(text)-i)])
		}
		i += size
	}
	return b.String()
}

// control reports whether a character is a C0 or C1 control other than the tab, or DEL.
func control(r rune) bool { return r < ' ' && r != '\t' || r >= 0x7f && r < 0xa0 }

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
