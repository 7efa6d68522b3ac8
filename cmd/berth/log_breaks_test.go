package main

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// A log that the server cannot read on is printed as far as possible. The message names the cause and the log, and the
// exit code is that of a server that failed.
func TestALogThatBreaksOffIsAFailure(t *testing.T) {
	t.Parallel()
	const (
		id     = "0193a1b2-c3d4-7000-8000-000000000001"
		cause  = `{"status":500,"code":"log_damaged","detail":"the stored piece at byte 9 is missing"}`
		event  = "event: error\ndata: " + cause + "\n\n"
		reason = "the stored piece at byte 9 is missing\n" +
			"hint: ask an operator: the server's store has lost a part of the log\n"
	)
	for args, says := range map[string]string{
		"logs 0193a1b2": "berth: the log broke off after 1 lines: " + reason,
		"logs -f 0193a1b2": "berth: the log breaks off: the stored piece at byte 9 is missing; trying again\n" +
			"berth: " + reason,
		"logs sweep": "berth: log of sweep[1]: the log broke off after 1 lines: " + reason,
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				answer, _ := sweepServer(func(int, http.ResponseWriter) bool { return false })
				transport := inProcess(func(w http.ResponseWriter, r *http.Request) {
					whole := strings.Contains(r.URL.Path, string(firstID))
					switch stream := r.URL.Query().Has("follow"); {
					case r.URL.Path == "/v1/jobs" && r.URL.Query().Has("name"):
						fmt.Fprintf(w, `{"items":[{"id":%q,"name":"sweep"}]}`, sweepID)
					case !strings.HasSuffix(r.URL.Path, "/logs") && !strings.HasSuffix(r.URL.Path, "0193a1b2"):
						answer(w, r)
					case !strings.HasSuffix(r.URL.Path, "/logs"):
						fmt.Fprintf(w, `{"id":%q,"name":"digits","status":"succeeded"}`, id)
					case stream && r.Header.Get("Last-Event-ID") == "":
						fmt.Fprint(w, "id: 1-9\nevent: log\ndata: {\"text\":\"line\"}\n\n"+event)
					case stream:
						fmt.Fprint(w, event)
					case whole:
						fmt.Fprint(w, "{\"text\":\"line\"}\n")
					default:
						fmt.Fprint(w, "{\"text\":\"line\"}\n{\"error\":"+cause+"}\n")
					}
				})
				var out, errs bytes.Buffer
				a := &app{out: &out, err: &errs, now: time.Now, transport: transport}
				code := run(t.Context(), a, strings.Fields(args))
				lines := strings.Count(out.String(), "line\n")
				if code != int(exitUnreachable) || errs.String() != says || lines != strings.Count(says, "sweep")+1 {
					t.Errorf("exit code %d, output %q:\n%s\nwant\n%s", code, out.String(), errs.String(), says)
				}
			})
		})
	}
}
