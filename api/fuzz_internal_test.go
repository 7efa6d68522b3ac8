package api

import (
	"bytes"
	"encoding/json"
	"net/http/httptest"
	"regexp/syntax"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/labstack/echo/v4"

	"berth"
	"berth/spec"
	"berth/wire"
)

// sent decodes a body as the calls of agents do.
func sent[T any](body []byte) (T, error) {
	w := httptest.NewRecorder()
	c := echo.New().NewContext(httptest.NewRequest("POST", "/agent/v1/x", bytes.NewReader(body)), w)
	return decodeAgent[T](c, maxAgentBody)
}

// FuzzAgentMessages: a message of an agent is refused as the agent's fault, or it is one JSON value,
// and the same message after a round.
func FuzzAgentMessages(f *testing.F) {
	for _, v := range []any{
		wire.RegisterRequest{HostBoot: "b", AgentBoot: "a", Containers: []wire.ContainerSeen{{Alloc: 1, Running: true}}},
		wire.SyncRequest{AgentBoot: "a", Epoch: 3, Seq: 9, Digest: "d", Gone: []berth.AllocationID{1, 2}},
		wire.ClaimRequest{}, wire.CheckpointReport{Job: "j", Step: 4, Bytes: 1 << 40}, wire.UseReport{}, wire.StageReport{},
	} {
		b, err := json.Marshal(v)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	for _, body := range []string{``, `null`, `{}`, `{}}`, `{}]`, `{} {}`, `{"epoch":1e400}`, `{"seq":-1}`, `{"gone":[{}]}`, `{"agent_boot":"\ud800"}`, `[`} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		roundTrips[wire.RegisterRequest](t, body)
		roundTrips[wire.SyncRequest](t, body)
		roundTrips[wire.ClaimRequest](t, body)
		roundTrips[wire.CheckpointReport](t, body)
		roundTrips[wire.UseReport](t, body)
		roundTrips[wire.StageReport](t, body)
		roundTrips[wire.StallReport](t, body)
		roundTrips[wire.HostQuestion](t, body)
	})
}

// roundTrips fails for a body that is accepted and is no JSON, or changes by a round.
func roundTrips[T any](t *testing.T, body []byte) {
	t.Helper()
	v, err := sent[T](body)
	if err != nil {
		if berth.CodeOf(err) != berth.CodeInvalid {
			t.Errorf("%q is refused with %v", body, err)
		}
		return
	}
	if !json.Valid(body) {
		t.Errorf("%q is no JSON, and accepted as a %T", body, v)
	}
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatalf("%q is accepted and cannot be written: %v", body, err)
	}
	again, err := sent[T](b)
	if err != nil {
		t.Fatalf("%q is accepted; as %s it is not: %v", body, b, err)
	}
	if c, err := json.Marshal(again); err != nil || !bytes.Equal(b, c) {
		t.Errorf("%s becomes %s, %v", b, c, err)
	}
}

// FuzzBody: a body without faults is read as encoding/json reads it. The list of faults is bounded.
func FuzzBody(f *testing.F) {
	for _, body := range []string{
		`{"name":"a","image":"i","command":["x"],"resources":{"cpus":1,"memory":"1GiB"}}`, `{"name":1,"nme":2,"name":3}`, `[]`,
		`{"env":{"A":null}}`, `{"array":{"size":3,"each":[{"A":"1"}]}}`, strings.Repeat(`{"array":`, 100) + `1` + strings.Repeat(`}`, 100), `{"time_limit":5}`,
		" { \"name\" :\t\"a\" , \"image\":\"i\\\"]}\", \"command\" : [ \"[\" , \"\\\\\" ] ,\n\"env\" : { } , \"labels\":{\"\\u0061\":\"b\"}}\r\n",
	} {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		var got spec.Job
		faults, err := decode("application/json", body, &got)
		if err != nil {
			if berth.CodeOf(err) != berth.CodeInvalid || json.Valid(body) {
				t.Errorf("%q is refused with %v", body, err)
			}
			return
		}
		if len(faults) > maxFaults {
			t.Errorf("%d faults in one answer", len(faults))
		}
		if len(faults) > 0 {
			return
		}
		var want spec.Job
		d := json.NewDecoder(bytes.NewReader(body))
		d.DisallowUnknownFields()
		if err := d.Decode(&want); err != nil {
			t.Fatalf("%q has no fault, but %v", body, err)
		}
		a, err1 := json.Marshal(got)
		b, err2 := json.Marshal(want)
		if err1 != nil || err2 != nil || !bytes.Equal(a, b) {
			t.Errorf("%q is read as %s, %v; want %s, %v", body, a, err1, b, err2)
		}
	})
}

// FuzzGrep: an accepted pattern is a small program, so that a search costs little for each byte.
func FuzzGrep(f *testing.F) {
	for _, seed := range []string{
		"(?i)error|nan", "loss=[0-9.]+", "(", "x{1001}", strings.Repeat("x{1000}", 142), "((((x{10}){10}){10}))", "(x{0,1000}y?){1}",
		strings.Repeat(`\pL{900}`, 100), strings.Repeat("(", 400) + strings.Repeat(")", 400), "(?:(?:a*)*)*$", "^$", "\xff",
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, pattern string) {
		if len(pattern) > 1000 {
			return // the parameter is no longer
		}
		re, err := grepPattern(pattern)
		if err != nil {
			return
		}
		parsed, err := syntax.Parse(re.String(), syntax.Perl)
		if err != nil {
			t.Fatalf("%q is accepted, but %v", pattern, err)
		}
		program, err := syntax.Compile(parsed.Simplify())
		if err != nil {
			t.Fatal(err)
		}
		if n := len(program.Inst); n > 3*maxGrepSize {
			t.Errorf("%q is a program of %d instructions", pattern, n)
		}
	})
}

// FuzzLogLine: a stored line is shown as one line of valid text, and a line in the form of agents
// has the parts that the agent wrote.
func FuzzLogLine(f *testing.F) {
	f.Add([]byte("2026-01-31T12:00:00.123456789Z o hello\n"), "text")
	f.Add([]byte("2026-01-31T12:00:00Z e "), "")
	f.Add([]byte("no stamp\xff\n"), "a\tb")
	f.Add([]byte("2026-01-31T12:00:00Z x hello"), "\xff\x00")
	f.Fuzz(func(t *testing.T, raw []byte, words string) {
		r := &logRead{ref: berth.LogRef{Attempt: 2, Rank: 1}}
		raw, _, _ = bytes.Cut(raw, []byte("\n")) // the reader cuts there
		line := r.parse(append(raw, '\n'))
		if !utf8.ValidString(line.Text) || len(line.Text) > 3*len(raw) {
			t.Errorf("%q is shown as %q", raw, line.Text)
		}
		if line.Stream != "stdout" && line.Stream != "stderr" || line.Attempt != 2 || line.Member != 1 {
			t.Errorf("%q is %+v", raw, line)
		}
		words = strings.ReplaceAll(strings.ToValidUTF8(words, ""), "\n", "")
		at := time.Date(2026, 1, 31, 12, 0, 0, len(words), time.UTC)
		line = r.parse([]byte(at.Format(time.RFC3339Nano) + " e " + words + "\n"))
		if !line.At.Equal(at) || line.Stream != "stderr" || line.Text != words {
			t.Errorf("%q comes back as %+v", words, line)
		}
	})
}
