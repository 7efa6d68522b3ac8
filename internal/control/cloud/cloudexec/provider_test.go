package cloudexec_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"berth/internal/control/cloud"
	"berth/internal/control/cloud/cloudexec"
)

const uid = "0197c1a2-5f3b-7d1e-9a55-1b2c3d4e5f60"

// launch returns a launch with a secret.
func launch() cloud.Launch {
	return cloud.Launch{
		Token: cloud.Token(uid, "1", "burst-1", 1), Cluster: uid, Pool: "burst", Machine: "burst-1", N: 1,
		Offering:  cloud.Offering{Region: "berlin", Type: "plain", Market: cloud.OnDemand},
		Bootstrap: cloud.Bootstrap{URL: "https://berth.example", JoinToken: "berth_SECRET_OF_THE_LAUNCH"},
	}
}

// instance returns the instance of the launch.
func instance() cloud.Instance {
	l := launch()
	return cloud.Instance{ID: "i-1", Token: l.Token, Cluster: l.Cluster, Pool: l.Pool, Machine: l.Machine, N: l.N,
		State: cloud.Running, Offering: l.Offering}
}

// provide returns a provider whose program is a script of the shell, which consumes its request first.
func provide(t *testing.T, body string, change ...func(*cloudexec.Options)) *cloudexec.Provider {
	t.Helper()
	o := cloudexec.Options{Name: "test", Command: []string{"/bin/sh", "-c", "request=$(cat); " + body},
		Timeout: cloudexec.MaxTimeout}
	for _, c := range change {
		c(&o)
	}
	p, err := cloudexec.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// answered returns a script that answers with a text.
func answered(answer string) string {
	return "cat <<'END_OF_ANSWER'\n" + answer + "\nEND_OF_ANSWER\n"
}

// encode returns an answer as JSON.
func encode(t *testing.T, answer any) string {
	t.Helper()
	text, err := json.Marshal(answer)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// want checks kind and text of an error.
func want(t *testing.T, err error, kind cloud.Kind, text string) *cloud.Error {
	t.Helper()
	var e *cloud.Error
	if !errors.As(err, &e) || e.Kind != kind || !strings.Contains(err.Error(), text) {
		t.Fatalf("error %v, want one of kind %s with %q", err, kind, text)
	}
	return e
}

func TestOptionsReportEveryFault(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		o    cloudexec.Options
		want []string
	}{
		{cloudexec.Options{}, []string{"command: it is empty"}},
		{cloudexec.Options{Command: []string{"sh"}}, []string{`"sh" is not an absolute path`}},
		{
			cloudexec.Options{Command: []string{"/bin/sh"}, Env: []string{"NAME"}, Timeout: time.Hour, Processes: 1000},
			[]string{`env: "NAME" is not NAME=value`, "timeout 1h0m0s: allowed are 1s to 1m30s", "processes 1000: allowed are 1 to 64"},
		},
	} {
		_, err := cloudexec.New(c.o)
		for _, text := range c.want {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%+v: error %v, want %q", c.o, err, text)
			}
		}
	}
}

// Anything but a valid answer proves nothing about the instance.
func TestBadAnswersAreUnknownOutcomes(t *testing.T) {
	t.Parallel()
	good := encode(t, map[string]any{"instance": instance()})
	with := func(change func(*cloud.Instance)) string {
		i := instance()
		change(&i)
		return answered(encode(t, map[string]any{"instance": i}))
	}
	for _, c := range []struct{ script, text string }{
		{"", "it is empty"},
		{answered("no JSON"), "invalid character"},
		{answered(good + good), "more data follows"},
		{answered(`{"instance": {"id": "i-1", "colour": "red"}}`), `unknown field "colour"`},
		{answered(`{}`), `neither "instance" nor "error"`},
		{answered(`{"instance": null}`), `neither "instance" nor "error"`},
		{answered(`{"instances": []}`), `"instances", which does not belong to the call "create"`},
		{answered(strings.TrimSuffix(good, "}") + `, "error": {"kind": "auth", "message": ""}}`), `"instance", which does not belong`},
		{answered(`{"error": {"kind": "bad_luck", "message": "m"}}`), `error.kind "bad_luck": allowed are not_found, capacity`},
		{answered(`{"error": {"kind": "throttle", "message": "m", "retry_after": "-5s"}}`), "-5s"},
		{with(func(i *cloud.Instance) { i.ID = "" }), "an instance has no id"},
		{with(func(i *cloud.Instance) { i.State = "stopped" }), `state "stopped": allowed are pending`},
		{with(func(i *cloud.Instance) { i.Token = "0" }), `has token "0", the launch has`},
		{with(func(i *cloud.Instance) { i.Machine = "burst-2" }), `has machine "burst-2"`},
		{with(func(i *cloud.Instance) { i.N = 2 }), `has n "2"`},
		{with(func(i *cloud.Instance) { i.Cluster = "" }), `has cluster ""`},
		{with(func(i *cloud.Instance) { i.Offering.Region = "" }), `has offering.region ""`},
		{answered(good) + "exit 3", "exit status 3"},
		{answered(good) + "kill -9 $$", "signal: killed"},
		{"exec /no/such/program", "exit status 127"},
	} {
		_, err := provide(t, c.script).Create(t.Context(), launch())
		want(t, err, cloud.Unknown, c.text)
	}
	if i, err := provide(t, answered(good)).Create(t.Context(), launch()); err != nil || i != instance() {
		t.Errorf("a good answer gives %+v, %v", i, err)
	}
}

// A list must be there, and have only instances of the cluster: its caller terminates
// unknown ones.
func TestListsOfOtherClustersAreRefused(t *testing.T) {
	t.Parallel()
	mine, other := instance(), instance()
	other.ID, other.Cluster = "i-2", "another"
	for _, c := range []struct{ answer, text string }{
		{`{}`, `neither "instances" nor "error"`},
		{`{"instances": null}`, `neither "instances" nor "error"`},
		{encode(t, map[string]any{"instances": []cloud.Instance{mine, other}}), `instance "i-2" has cluster "another"`},
		{encode(t, map[string]any{"instances": []cloud.Instance{mine, mine}}), `instance "i-1" is listed twice`},
	} {
		_, err := provide(t, answered(c.answer)).List(t.Context(), uid, nil)
		want(t, err, cloud.Unknown, c.text)
	}
	untagged := instance()
	untagged.Machine, untagged.N, untagged.Token = "", 0, ""
	answer := encode(t, map[string]any{"instances": []cloud.Instance{untagged}})
	if all, err := provide(t, answered(answer)).List(t.Context(), uid, nil); err != nil || len(all) != 1 {
		t.Errorf("an instance whose other tags were removed is not listed: %v, %v", all, err)
	}
}

func TestOffersArePossible(t *testing.T) {
	t.Parallel()
	for text, bad := range map[string]string{
		`no region or no type`: `{"type": "t", "market": "spot", "cpus": 1, "memory_mib": 1}`,
		`market ""`:            `{"region": "r", "type": "t", "cpus": 1, "memory_mib": 1}`,
		`0 cpus`:               `{"region": "r", "type": "t", "market": "spot", "memory_mib": 1}`,
		`price_per_hour -1`:    `{"region": "r", "type": "t", "market": "spot", "cpus": 1, "memory_mib": 1, "price_per_hour": -1}`,
	} {
		_, err := provide(t, answered(`{"offers": [`+bad+`]}`)).Offers(t.Context(), nil)
		want(t, err, cloud.Unknown, text)
	}
}

func TestErrorsOfAnAnswerKeepTheirFields(t *testing.T) {
	t.Parallel()
	p := provide(t, answered(`{"error": {"kind": "throttle", "message": "slow\ndown", "scope": "berlin", "retry_after": "90s"}}`))
	e := want(t, p.Terminate(t.Context(), instance()), cloud.Throttle, "throttle (berlin): slow down")
	if e.Scope != "berlin" || e.RetryAfter != 90*time.Second {
		t.Errorf("scope %q, retry after %s", e.Scope, e.RetryAfter)
	}
}

// A program over its limit is killed with its children, and its error has the end of its stderr
// without the join token, which a script with set -x would print.
func TestTheLimitKillsAndKeepsTheReasonWithoutTheSecret(t *testing.T) {
	t.Parallel()
	for limit := time.Second; ; limit *= 4 {
		var log bytes.Buffer
		p := provide(t, `echo "waiting for $request" >&2; sleep 1000 & wait`, func(o *cloudexec.Options) {
			o.Timeout, o.Logger = limit, slog.New(slog.NewTextHandler(&log, nil))
		})
		_, err := p.Create(t.Context(), launch())
		want(t, err, cloud.Unknown, "stopped after "+limit.String())
		if strings.Contains(err.Error()+log.String(), "SECRET") {
			t.Errorf("the join token is in the error or the log: %v %s", err, &log)
		}
		if !strings.Contains(err.Error(), "stderr") && 4*limit <= cloudexec.MaxTimeout {
			continue // a busy machine killed the program before it wrote
		}
		want(t, err, cloud.Unknown, "its stderr ends with: waiting for")
		if !strings.Contains(log.String(), "waiting for") {
			t.Errorf("the log lacks stderr: %s", &log)
		}
		return
	}
}

func TestAnswersAreBounded(t *testing.T) {
	t.Parallel()
	// One program that never ends and writes much at once: a process for each page would outlast the limit.
	_, err := provide(t, "cat /dev/zero").List(t.Context(), uid, nil)
	want(t, err, cloud.Unknown, "its answer is longer than 16 MiB")
}

// A program gets the named variables only, and the secret in its input alone.
func TestProgramsGetOnlyNamedVariables(t *testing.T) {
	t.Setenv("BERTH_DATABASE_URL", "postgres://secret")
	dir := t.TempDir()
	p := provide(t, `env >"$OUT/env"; printf %s "$request" >"$OUT/request"; cat /proc/$$/cmdline >"$OUT/cmdline"; echo '{}'`,
		func(o *cloudexec.Options) { o.Env = []string{"OUT=" + dir} })
	if _, err := p.Create(t.Context(), launch()); err == nil {
		t.Fatal("the answer {} is no instance")
	}
	env := read(t, filepath.Join(dir, "env"))
	for _, line := range strings.Split(strings.TrimSpace(env), "\n") {
		name, _, _ := strings.Cut(line, "=")
		if !slices.Contains([]string{"PATH", "HOME", "OUT", "BERTH_CLOUD_ANSWERS", "PWD", "SHLVL", "_", "OLDPWD"}, name) {
			t.Errorf("the program has the variable %s", line)
		}
	}
	if strings.Contains(env+read(t, filepath.Join(dir, "cmdline")), "SECRET") {
		t.Error("other users of the machine can read the join token")
	}
	if !strings.Contains(read(t, filepath.Join(dir, "request")), "SECRET_OF_THE_LAUNCH") {
		t.Error("the request lacks the join token")
	}
	if _, err := p.Find(t.Context(), launch()); err == nil {
		t.Fatal("the answer {} is no instance")
	}
	if request := read(t, filepath.Join(dir, "request")); strings.Contains(request, "SECRET") || !strings.Contains(request, `"call":"find"`) {
		t.Errorf("the request of find is %s", request)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Waiting for a free process ends with the context.
func TestProcessesAreBounded(t *testing.T) {
	t.Parallel()
	begun := filepath.Join(t.TempDir(), "begun")
	p := provide(t, `: >"$BEGUN"; sleep 1000`, func(o *cloudexec.Options) {
		o.Processes, o.Env = 1, []string{"BEGUN=" + begun}
	})
	first, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- p.Terminate(first, instance()) }()
	for deadline := time.Now().Add(5 * time.Minute); ; time.Sleep(5 * time.Millisecond) {
		if _, err := os.Stat(begun); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal("the first program did not start")
		}
	}
	if err := os.Remove(begun); err != nil {
		t.Fatal(err)
	}
	second, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err := p.Terminate(second, instance())
	if !errors.Is(want(t, err, cloud.Throttle, ""), context.DeadlineExceeded) { // nothing ran
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(begun); err == nil {
		t.Error("a second program ran")
	}
	stop()
	want(t, <-done, cloud.Unknown, "context canceled")
}

// recorder is a provider that returns fixed results.
type recorder struct {
	cloud.Provider
	err error
}

func (r recorder) Create(context.Context, cloud.Launch) (cloud.Instance, error) {
	return instance(), r.err
}

func (r recorder) List(context.Context, string, []string) ([]cloud.Instance, error) {
	return nil, r.err
}

func (r recorder) Offers(context.Context, []string) ([]cloud.Offer, error) { return nil, r.err }

func (r recorder) Terminate(context.Context, cloud.Instance) error { return r.err }

func TestServeAnswersEachRequest(t *testing.T) {
	t.Parallel()
	l := encode(t, launch())
	for _, c := range []struct {
		request string
		err     error
		answer  string
	}{
		{`{"protocol": 1, "call": "list", "cluster": "c"}`, nil, `{"instances":[]}`},
		{`{"protocol": 1, "call": "offers"}`, nil, `{"offers":[]}`},
		{`{"protocol": 1, "call": "terminate", "instance": {"id": "i-1"}}`, nil, `{}`},
		{`{"protocol": 1, "call": "create", "launch": ` + l + `}`, nil, `{"instance":` + encode(t, instance()) + `}`},
		{
			`{"protocol": 1, "call": "create", "launch": ` + l + `}`,
			fmt.Errorf("wrapped: %w", &cloud.Error{Kind: cloud.Quota, Scope: "berlin", RetryAfter: time.Minute, Err: errors.New("full")}),
			`{"error":{"kind":"quota","message":"full","scope":"berlin","retry_after":"1m"}}`,
		},
		{`{"protocol": 1, "call": "list", "cluster": "c"}`, errors.New("odd"), `{"error":{"kind":"unknown","message":"odd"}}`},
		{`{"protocol": 2, "call": "list"}`, nil, `{"error":{"kind":"spec","message":"the request is not valid: protocol 2: this program speaks 1"}}`},
		{`{"protocol": 1, "call": "create"}`, nil, `{"error":{"kind":"spec","message":"the request is not valid: call \"create\" needs \"launch\""}}`},
		{`{"protocol": 1, "call": "reboot"}`, nil, `{"error":{"kind":"spec","message":"the request is not valid: call \"reboot\": allowed are create, find, list, terminate, offers"}}`},
		{``, nil, `{"error":{"kind":"spec","message":"the request is not valid: it is empty"}}`},
	} {
		var out bytes.Buffer
		if err := cloudexec.Serve(t.Context(), recorder{err: c.err}, strings.NewReader(c.request), &out, ""); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSuffix(out.String(), "\n"); got != c.answer {
			t.Errorf("%s\nis answered with %s\nwant             %s", c.request, got, c.answer)
		}
	}
}

// A berthd that does not read the field unsent, since it is older than the field, gets an answer without the field.
func TestAnOlderBerthdGetsNoFieldsThatItRefuses(t *testing.T) {
	t.Parallel()
	for answers, want := range map[string]string{
		"":              `{"error":{"kind":"throttle","message":"no credentials"}}`,
		"later":         `{"error":{"kind":"throttle","message":"no credentials"}}`,
		"later, unsent": `{"error":{"kind":"throttle","message":"no credentials","unsent":true}}`,
		"unsent":        `{"error":{"kind":"throttle","message":"no credentials","unsent":true}}`,
	} {
		var out bytes.Buffer
		p := recorder{err: &cloud.Error{Kind: cloud.Throttle, Unsent: true, Err: errors.New("no credentials")}}
		if err := cloudexec.Serve(t.Context(), p, strings.NewReader(`{"protocol": 1, "call": "list", "cluster": "c"}`), &out, answers); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimSuffix(out.String(), "\n"); got != want {
			t.Errorf("with the fields %q the answer is %s, want %s", answers, got, want)
		}
	}
	_, err := provide(t, answered(`{"error": {"kind": "throttle", "unsent": true, "message": "x"}}`)).List(t.Context(), uid, nil)
	if !want(t, err, cloud.Throttle, "x").Unsent {
		t.Errorf("%v: the call counts as one that was made", err)
	}
	// Refused credentials must trip a breaker, although the cloud itself was not called.
	_, err = provide(t, answered(`{"error": {"kind": "auth", "unsent": true, "message": "x"}}`)).List(t.Context(), uid, nil)
	want(t, err, cloud.Unknown, `"throttle"`)
}

func FuzzAnswer(f *testing.F) {
	f.Add([]byte(`{}`), "list")
	f.Add([]byte(`{"instances": [{"id": "i-1", "state": "running", "cluster": "`+uid+`"}]}`), "list")
	f.Add([]byte(`{"error": {"kind": "auth", "message": "no"}}`), "create")
	f.Add([]byte(`{"offers": [{"region": "r", "type": "t", "market": "spot", "cpus": 1, "memory_mib": 1}]}`), "offers")
	f.Fuzz(func(t *testing.T, answer []byte, call string) {
		l, i := launch(), instance()
		r := cloudexec.Request{Protocol: 1, Call: cloudexec.Call(call), Launch: &l, Instance: &i, Cluster: uid}
		a, err := cloudexec.Read(answer, r)
		if err != nil {
			return
		}
		// An accepted answer has the field that the provider reads.
		switch {
		case a.Error != nil:
		case call == "create" || call == "find":
			if a.Instance == nil || a.Instance.Token != l.Token {
				t.Errorf("accepted as an instance: %s", answer)
			}
		case call == "list":
			if a.Instances == nil {
				t.Errorf("accepted as a list: %s", answer)
			}
		case call == "offers":
			if a.Offers == nil {
				t.Errorf("accepted as offers: %s", answer)
			}
		}
	})
}
