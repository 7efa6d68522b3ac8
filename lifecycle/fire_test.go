package lifecycle_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"berth"
	"berth/lifecycle"
	"berth/spec"
	"berth/wire"
)

// nightly catches up for ten minutes, and spreads its times over two.
var nightly = spec.Schedule{Name: "nightly", CatchUp: spec.Duration(10 * time.Minute),
	Jitter: spec.Duration(2 * time.Minute)}

// dueFire returns a punctual fire by the clock, of a schedule without other fires.
func dueFire(overlap spec.Overlap, changes ...func(*lifecycle.FireFacts)) lifecycle.FireFacts {
	f := lifecycle.FireFacts{At: start, Now: start, Source: wire.FireByClock, Status: wire.FireDue, Overlap: overlap}
	for _, change := range changes {
		change(&f)
	}
	return f
}

func lateBy(d time.Duration) func(*lifecycle.FireFacts) {
	return func(f *lifecycle.FireFacts) { f.Now = f.At.Add(d) }
}

func live(jobs ...berth.JobID) func(*lifecycle.FireFacts) {
	return func(f *lifecycle.FireFacts) { f.Live = jobs }
}

func paused(f *lifecycle.FireFacts)     { f.Paused = true }
func backfilled(f *lifecycle.FireFacts) { f.Source = wire.FireByBackfill }
func byHand(f *lifecycle.FireFacts)     { f.Source = wire.FireByHand }
func buffered(f *lifecycle.FireFacts)   { f.Status = wire.FireBuffered }
func waits(f *lifecycle.FireFacts)      { f.Waits = true }
func refused(f *lifecycle.FireFacts) {
	f.Refused = &berth.Reason{Code: "capacity", Message: "no machine could ever hold it"}
}

// With catch-up, jitter and the allowance for the way, nightly may be so late.
const latest = 13 * time.Minute

func TestAPauseAndALateTimeConcernOnlyNewTimesOfTheClock(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		claim string
		facts lifecycle.FireFacts
		want  wire.FireStatus
		code  berth.ReasonCode
	}{
		{"a punctual time is submitted", dueFire(spec.OverlapSkip), wire.FireSubmitted, ""},
		{"a paused schedule skips", dueFire(spec.OverlapSkip, paused), wire.FireSkipped, berth.ReasonPaused},
		{"a pause is the reason also for a late time", dueFire(spec.OverlapSkip, paused, lateBy(time.Hour)),
			wire.FireSkipped, berth.ReasonPaused},
		{"a backfill runs although the schedule is paused", dueFire(spec.OverlapSkip, paused, backfilled),
			wire.FireSubmitted, ""},
		{"a run by hand runs although the schedule is paused", dueFire(spec.OverlapSkip, paused, byHand),
			wire.FireSubmitted, ""},
		{"a buffered fire runs although the schedule is paused", dueFire(spec.OverlapBuffer, paused, buffered),
			wire.FireSubmitted, ""},
		{"the last moment is in time", dueFire(spec.OverlapSkip, lateBy(latest)), wire.FireSubmitted, ""},
		{"a later moment is missed", dueFire(spec.OverlapSkip, lateBy(latest+1)), wire.FireMissed, berth.ReasonTooLate},
		{"a backfill is never late", dueFire(spec.OverlapSkip, backfilled, lateBy(time.Hour)), wire.FireSubmitted, ""},
		{"a buffered fire is never late", dueFire(spec.OverlapBuffer, buffered, lateBy(time.Hour)),
			wire.FireSubmitted, ""},
		{"a pause comes before a refusal", dueFire(spec.OverlapSkip, paused, refused), wire.FireSkipped,
			berth.ReasonPaused},
		{"a refusal comes before an overlap", dueFire(spec.OverlapSkip, live("j1"), refused), wire.FireRefused,
			"capacity"},
		{"a backfill can be refused", dueFire(spec.OverlapAllow, backfilled, refused), wire.FireRefused, "capacity"},
	} {
		got := lifecycle.Fire(nightly, c.facts)
		var code berth.ReasonCode
		if got.Reason != nil {
			code = got.Reason.Code
		}
		if got.Status != c.want || code != c.code || got.Cancel != nil {
			t.Errorf("%s: %s because of %q, cancels %v", c.claim, got.Status, code, got.Cancel)
		}
	}
}

func TestTheOverlapPolicyDecidesWhatLiveJobsMean(t *testing.T) {
	t.Parallel()
	const (
		submitted = wire.FireSubmitted
		buffers   = wire.FireBuffered
		skipped   = wire.FireSkipped
	)
	// The situations in the order of the columns of the table below.
	situations := []struct {
		name  string
		facts []func(*lifecycle.FireFacts)
	}{
		{"nothing else", nil},
		{"a live job", []func(*lifecycle.FireFacts){live("j1")}},
		{"another buffered fire", []func(*lifecycle.FireFacts){waits}},
		{"a live job and another buffered fire", []func(*lifecycle.FireFacts){live("j1"), waits}},
		{"buffered before, nothing else", []func(*lifecycle.FireFacts){buffered}},
		{"buffered before, a live job", []func(*lifecycle.FireFacts){buffered, live("j1")}},
		{"buffered before, another buffered fire", []func(*lifecycle.FireFacts){buffered, waits}},
		{"buffered before, a live job and another buffered fire",
			[]func(*lifecycle.FireFacts){buffered, live("j1"), waits}},
	}
	for overlap, want := range map[spec.Overlap][]wire.FireStatus{
		spec.OverlapAllow:  {submitted, submitted, submitted, submitted, submitted, submitted, submitted, submitted},
		spec.OverlapCancel: {submitted, submitted, submitted, submitted, submitted, submitted, submitted, submitted},
		spec.OverlapSkip:   {submitted, skipped, skipped, skipped, submitted, skipped, submitted, skipped},
		spec.OverlapBuffer: {submitted, buffers, skipped, skipped, submitted, buffers, submitted, buffers},
	} {
		for i, s := range situations {
			got := lifecycle.Fire(nightly, dueFire(overlap, s.facts...))
			if got.Status != want[i] {
				t.Errorf("%s with %s: %s, want %s", overlap, s.name, got.Status, want[i])
			}
			explained := got.Reason != nil && got.Reason.Code == berth.ReasonOverlap
			if submits := got.Reason == nil; submits != (want[i] == submitted) || !submits && !explained {
				t.Errorf("%s with %s: reason is %+v", overlap, s.name, got.Reason)
			}
		}
	}
}

func TestOnlyTheOverlapCancelOtherGivesUpLiveJobs(t *testing.T) {
	t.Parallel()
	got := lifecycle.Fire(nightly, dueFire(spec.OverlapCancel, live("j1", "j2")))
	if diff := cmp.Diff([]berth.JobID{"j1", "j2"}, got.Cancel); diff != "" {
		t.Errorf("canceled jobs (-want +got):\n%s", diff)
	}
	if got.CancelReason == nil || got.CancelReason.Code != berth.ReasonOverlap ||
		got.CancelReason.Message != "schedule nightly started its next run (overlap: cancel_other)" {
		t.Errorf("reason is %+v", got.CancelReason)
	}
	for _, f := range []lifecycle.FireFacts{
		dueFire(spec.OverlapAllow, live("j1")), dueFire(spec.OverlapSkip, live("j1")),
		dueFire(spec.OverlapBuffer, live("j1")),
		dueFire(spec.OverlapCancel, live("j1"), refused), dueFire(spec.OverlapCancel, live("j1"), paused),
	} {
		if got := lifecycle.Fire(nightly, f); got.Cancel != nil {
			t.Errorf("%s, %s: cancels %v", f.Overlap, got.Status, got.Cancel)
		}
	}
}

func TestTheReasonOfAnOverlapNamesTheWorkInTheWay(t *testing.T) {
	t.Parallel()
	for want, f := range map[string]lifecycle.FireFacts{
		"an earlier run is still waiting to be submitted": dueFire(spec.OverlapSkip, waits),
		"job j1 has not ended":                            dueFire(spec.OverlapSkip, live("j1")),
		"3 jobs have not ended, the latest is j9":         dueFire(spec.OverlapBuffer, live("j1", "j2", "j9")),
		"the schedule was paused":                         dueFire(spec.OverlapSkip, paused),
		"13m1s late, more than catch_up (10m)":            dueFire(spec.OverlapSkip, lateBy(latest+time.Second)),
		"no machine could ever hold it":                   dueFire(spec.OverlapSkip, refused),
		"2 jobs have not ended, the latest is j2":         dueFire(spec.OverlapBuffer, buffered, live("j1", "j2")),
		"1h0m0s late, more than catch_up (10m)":           dueFire(spec.OverlapAllow, lateBy(time.Hour)),
		"job j2 has not ended":                            dueFire(spec.OverlapSkip, waits, live("j2")),
	} {
		got := lifecycle.Fire(nightly, f).Reason
		if got == nil || got.Message != want || f.Refused == nil && got.Hint == "" {
			t.Errorf("reason is %+v, want %q", got, want)
		}
	}
}

func TestOnlyAFinalErrorRefusesASubmission(t *testing.T) {
	t.Parallel()
	for code, final := range map[berth.Code]bool{
		berth.CodeInvalid: true, berth.CodeForbidden: true, berth.CodeConflict: true, berth.CodeCapacity: true,
		berth.CodeUnauthorized: false, berth.CodeNotFound: false, berth.CodeUnavailable: false,
		berth.CodeInternal: false,
	} {
		err := fmt.Errorf("submit: %w", berth.Errorf(code, "no"))
		if got := lifecycle.WhyRefused(err); (got != nil) != final {
			t.Errorf("%s: %+v", code, got)
		}
	}
	if got := lifecycle.WhyRefused(errors.New("broken pipe")); got != nil {
		t.Errorf("an unknown error refuses: %+v", got)
	}
	if got := lifecycle.WhyRefused(nil); got != nil {
		t.Errorf("no error refuses: %+v", got)
	}
}

func TestARefusalListsTheFirstFaults(t *testing.T) {
	t.Parallel()
	e := &berth.Error{Code: berth.CodeInvalid, Slug: berth.SlugInvalidSpec, Message: "the job is not valid"}
	for i := range 7 {
		e.Fields = append(e.Fields, berth.FieldError{Field: fmt.Sprint("f", i), Detail: "is wrong"})
	}
	e.Fields[1] = berth.FieldError{Detail: e.Message} // says nothing new
	got := lifecycle.WhyRefused(e)
	want := "the job is not valid; f0 is wrong; f2 is wrong; f3 is wrong; f4 is wrong"
	if got == nil || got.Message != want || got.Code != berth.ReasonCode(e.StableCode()) || got.Hint == "" {
		t.Errorf("reason is %+v, want %q", got, want)
	}
	e.Message, e.Fields = "", e.Fields[:1]
	if got := lifecycle.WhyRefused(e); got.Message != "f0 is wrong" {
		t.Errorf("without a message of its own: %q", got.Message)
	}
}
