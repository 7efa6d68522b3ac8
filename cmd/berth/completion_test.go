package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// namesOfThings are the words of usage lines that stand for the name of an existing thing.
var namesOfThings = []string{"JOB", "PIPELINE", "MACHINE", "POOL", "TENANT", "WINDOW", "OFFER", "NAME", "ID", "STEP",
	"SOURCE", "TARGET", "PRIORITY"}

// otherWords are the words of usage lines that name no existing thing of the server.
var otherWords = []string{"FILE|-", "SCRIPT|-", "ARG", "URL", "PORT[:LOCAL]", "DOLLARS|none", "TAINT", "COMPONENT"}

// newNames are the commands and flags that give a name to a new thing.
var newNames = []string{"berth tenant create", "berth token create", "berth run --name", "berth login --name",
	"berth machine launch --machine"}

// freeFlags are the flags with a text that names no existing thing of the server. The shell completes the paths.
var freeFlags = []string{"address", "at", "checked-version", "checkpoint", "cron", "date", "description", "dir", "disk", "cpus", "email",
	"env", "file", "fingerprint", "for", "from", "from-file", "gpus", "grep", "idempotency-key", "image", "index", "key",
	"label", "machines", "max-cpus", "max-memory", "memory", "note", "reason", "set", "since", "svg", "taints",
	"time-limit", "time-zone", "to", "until", "url", "webhook", "workdir"}

// Every argument and every flag that takes a name of something, on every command, offers the names that exist.
func TestEveryNameIsCompleted(t *testing.T) {
	t.Parallel()
	a, _ := onTerminal(80, false)
	a.err, a.Contexts = io.Discard, filepath.Join(t.TempDir(), "contexts.yaml")
	if err := os.WriteFile(a.Contexts, []byte("contexts:\n  lab:\n    url: http://lab.test\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	a.URL, a.Token = thingsServer(t), adminToken
	offers := func(what string, cmd *cobra.Command, complete completer, args []string) {
		t.Helper()
		if complete == nil {
			t.Errorf("%s has no completion", what)
		} else if list, _ := complete(cmd, args, ""); len(list) == 0 {
			t.Errorf("%s offers nothing after the arguments %q", what, args)
		}
	}
	eachCommand(newRoot(a), func(cmd *cobra.Command) {
		path := cmd.CommandPath()
		var args []string
		for _, word := range argumentsOf(cmd.Use) {
			what := path + " " + word
			switch {
			case slices.Contains(otherWords, word), slices.Contains(newNames, path):
			case slices.Contains(namesOfThings, word):
				offers(what, cmd, cmd.ValidArgsFunction, args)
			default:
				t.Errorf("%s: add the word to namesOfThings or otherWords", what)
			}
			args = append(args, "first")
		}
		cmd.LocalNonPersistentFlags().VisitAll(func(f *pflag.Flag) {
			what := path + " --" + f.Name
			texts := []string{"string", "stringSlice", "stringArray", "stringToString"}
			switch {
			case !slices.Contains(texts, f.Value.Type()), slices.Contains(newNames, what):
			case slices.Contains(freeFlags, f.Name), f.Name == "name" && strings.Contains(path, "schedule"):
			case path == "berth quota set" && f.Name != "borrow": // amounts and patterns
			default:
				complete, _ := cmd.GetFlagCompletionFunc(f.Name)
				offers(what, cmd, complete, []string{"job.yaml"})
			}
		})
	})
}

// Schedules are offered with jobs, copies name a job with the colon before its path, and a list goes on after a comma.
func TestCompletionsOfSeveralKinds(t *testing.T) {
	t.Parallel()
	a, _ := onTerminal(80, false)
	a.URL, a.Token = thingsServer(t), adminToken
	for _, c := range []struct {
		complete completer
		args     []string
		word     string
		want     []string
	}{
		{completeWorks(a), nil, "", []string{"000001", "000002", "000003", "000004", "000005", "tick"}},
		{completeWorks(a), []string{"tick"}, "", nil},
		{completeCopy(a), nil, "fi", []string{"first:"}},
		{completeCopy(a), []string{"./x"}, "bi", []string{"big:"}},
		{completeCopy(a), []string{"first:/x"}, "bi", nil},
		{completeCopy(a), nil, "./fi", nil},
		{completeCopy(a), nil, "first:/wor", nil},
		{ofList(ofFlag(a.completeSecrets)), []string{"job.yaml"}, "TOKEN,H", []string{"TOKEN,HF"}},
		{inTurn(a.completeJobs(anyJob), completeOutputs(a)), []string{"first"}, "mo", []string{"model"}},
	} {
		list, _ := c.complete(nil, c.args, c.word)
		var got []string
		for _, line := range list {
			name, _, _ := strings.Cut(line, "\t")
			got = append(got, name)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("after %q, %q offers %q; want %q", c.args, c.word, got, c.want)
		}
	}
}

// All calls of one completion share its time: after a slow list of jobs, a list of schedules that does not come costs
// only the rest, and the jobs are offered.
func TestCompletionWaitsOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a, _ := onTerminal(80, false)
		a.URL, a.Token = "http://berth.test", adminToken
		a.transport = inProcess(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/v1/schedules" {
				<-r.Context().Done()
				panic(http.ErrAbortHandler)
			}
			time.Sleep(completionTime * 3 / 4)
			_, _ = io.WriteString(w, `{"items": [
				{"id": "0193a1b2-c3d4-7000-8000-000000000001", "handle": "000001", "name": "a"}]}`)
		})
		begun := time.Now()
		list, _ := completeWorks(a)(nil, nil, "")
		if took := time.Since(begun); took != completionTime {
			t.Errorf("the completion took %s, want %s", took, completionTime)
		}
		if len(list) != 1 || !strings.HasPrefix(list[0], "000001\t") {
			t.Errorf("it offers %q, want the job", list)
		}
	})
}

// argumentsOf returns the words of a usage line that stand for arguments.
func argumentsOf(use string) (words []string) {
	for _, word := range strings.Fields(use)[1:] {
		if regexp.MustCompile(`^[\[(]*-|^\[flags\]`).MatchString(word) {
			break
		}
		word = strings.TrimSuffix(word, "...")
		if strings.HasPrefix(word, "[") {
			word = strings.TrimSuffix(strings.TrimPrefix(word, "["), "]")
		}
		words = append(words, strings.TrimSuffix(word, "..."))
	}
	return words
}

// thingsServer is a server with one thing, or a few, of each kind.
func thingsServer(t *testing.T) string {
	t.Helper()
	job := func(n int, name, more string) string {
		return fmt.Sprintf(`{"id": "0193a1b2-c3d4-7000-8000-%012d", "handle": "00000%d", "name": %q, "tenant": "default", %s}`,
			n, n, name, more)
	}
	page := func(items ...string) string { return `{"items": [` + strings.Join(items, ",") + `]}` }
	first := job(1, "first", `"status": "running"`)
	answers := map[string]string{
		"/v1/jobs": page(first, job(2, "big", `"status": "queued"`), job(3, "nightly", `"status": "failed", "kind": "pipeline"`),
			job(4, "old", `"status": "failed"`), job(5, "later", `"status": "queued", "held": true`)),
		"/v1/jobs/outputs":     page(`{"name": "model"}`),
		"/v1/jobs/checkpoints": page(`{"step": 40, "state": "verified"}`),
		"/v1/machines":         page(`{"id": "m1", "state": "ready", "pool": "a", "gpus": [{"model": "H100"}]}`),
		"/v1/pools":            page(`{"name": "a", "machines": 1}`),
		"/v1/schedules":        page(`{"name": "tick", "every": "6h"}`),
		"/v1/secrets":          page(`{"name": "HF"}`),
		"/v1/tenants":          page(`{"id": "vision"}`),
		"/v1/whoami/tokens":    page(`{"id": "0123456789ab", "name": "root"}`),
		"/v1/channels":         page(`{"name": "team", "kind": "slack"}`),
		"/v1/maintenance":      page(`{"id": 3, "state": "planned", "reason": "new disk"}`),
		"/v1/offers":           page(`{"provider": "aws", "region": "eu", "zone": "eu-1", "type": "p5", "market": "spot"}`),
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := regexp.MustCompile(`^/v1/jobs/[^/]+`).ReplaceAllString(r.URL.Path, "/v1/jobs")
		body, ok := answers[path]
		switch {
		case path != r.URL.Path && path == "/v1/jobs":
			body = first
		case !ok:
			t.Errorf("no answer for %s", r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, body)
	}))
	t.Cleanup(server.Close)
	return server.URL
}
