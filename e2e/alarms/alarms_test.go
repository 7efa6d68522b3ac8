package alarms_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"text/tabwriter"
	"time"

	"berth/e2e/rig"
)

// alarm is an alert with the real fault that makes it fire.
type alarm struct {
	alert  string
	fault  string            // as the table shows it
	labels map[string]string // of the alert, in addition to its rule's
	begin  func(context.Context) error
	end    func(context.Context) error // repairs the fault, as the runbook says
	looks  []look                      // steps of the runbook's Diagnosis
	verify string                      // an expression that has a value once the runbook's Verification holds
	also   []alarm                     // further alerts that the fault makes fire, without faults of their own
}

// all returns the alarm and the alerts that fire with it.
func (a alarm) all() []alarm {
	list := []alarm{a}
	for _, other := range a.also {
		other.fault = "as " + a.alert
		list = append(list, other)
	}
	return list
}

// lane is a list of alarms that are tried one after the other.
type lane []alarm

// wave is a set of lanes that do not affect each other, so they are tried at the same time. A wave starts when the
// alerts of the wave before are silent.
type wave []lane

// finding holds the results of an alarm.
type finding struct {
	alarm
	firing, silence time.Duration
	err             error
}

// Limits of the waits: the longest time of a rule is an hour, five minutes here.
const (
	firesWithin  = 8 * time.Minute
	silentWithin = 4 * time.Minute
)

// BenchmarkAlarms injects each chosen fault, and prints the table of alerts.
func BenchmarkAlarms(b *testing.B) {
	p := startPlant(b)
	waves := p.waves()
	chosen, err := choose(*only, injected(waves))
	if err != nil {
		b.Fatal(err)
	}
	var all []finding
	for _, w := range waves {
		if w = w.only(chosen); len(w) > 0 {
			all = append(all, p.try(b.Context(), w)...)
		}
	}
	for _, f := range all {
		if f.err != nil {
			b.Errorf("%s: %v", f.alert, f.err)
		}
	}
	printTable(os.Stdout, all)
	_, alerts := readRules(b)
	seen := func(name string) bool {
		return slices.ContainsFunc(all, func(f finding) bool { return f.alert == name && f.err == nil })
	}
	missing := slices.DeleteFunc(slices.Clone(alerts), seen)
	for _, name := range missing {
		if _, absent := absences[name]; !absent && (*only == "" || slices.Contains(chosen, name)) {
			b.Errorf("%s was not seen", name)
		}
	}
	fmt.Printf("%d of %d alerts seen with their real faults. Not seen: %s\n\n", len(alerts)-len(missing), len(alerts),
		cmp.Or(strings.Join(missing, ", "), "none"))
	if err := p.Check(b.Context(), false); err != nil {
		b.Error(err)
	}
	b.ReportMetric(0, "ns/op")
}

// only returns the part of a wave with the named alerts.
func (w wave) only(names []string) wave {
	w = slices.Clone(w)
	for i := range w {
		w[i] = slices.DeleteFunc(slices.Clone(w[i]), func(a alarm) bool {
			return !slices.ContainsFunc(a.all(), func(x alarm) bool { return slices.Contains(names, x.alert) })
		})
	}
	return slices.DeleteFunc(w, func(l lane) bool { return len(l) == 0 })
}

// try tries a wave. An alert that is not of the wave and fires meanwhile is a finding with an error.
func (p *plant) try(ctx context.Context, w wave) []finding {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	expected := map[string]bool{}
	for _, l := range w {
		for _, a := range l {
			for _, x := range a.all() {
				expected[x.alert] = true
			}
		}
	}
	var watch sync.WaitGroup
	others := map[string]bool{}
	watch.Go(func() { p.watch(ctx, expected, others) })
	found := make([][]finding, len(w))
	var lanes sync.WaitGroup
	for i, l := range w {
		lanes.Go(func() {
			for _, a := range l {
				list := p.tryOne(ctx, a)
				for _, f := range list {
					fmt.Printf("%s  %-28s fired after %.0f s, silent after %.0f s, %v\n",
						time.Now().UTC().Format(time.TimeOnly), f.alert, f.firing.Seconds(), f.silence.Seconds(), f.err)
				}
				found[i] = append(found[i], list...)
			}
		})
	}
	lanes.Wait()
	cancel()
	watch.Wait()
	list := slices.Concat(found...)
	for _, name := range slices.Sorted(maps.Keys(others)) {
		list = append(list, finding{alarm: alarm{alert: name, fault: "(none of its own)"},
			err: errors.New("it fired, although only the faults of other alerts were there")})
	}
	return list
}

// watch collects the alerts that fire and are not expected, until the context ends.
func (p *plant) watch(ctx context.Context, expected, others map[string]bool) {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		list, err := p.prometheus.alerts(ctx)
		if err != nil && ctx.Err() == nil {
			p.t.Errorf("read the alerts: %v", err)
		}
		for _, a := range list {
			if a.State == "firing" && !expected[a.Labels["alertname"]] {
				others[a.Labels["alertname"]] = true
			}
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// tryOne tries an alarm, with all alerts that fire by its fault. The fault is repaired in any case.
func (p *plant) tryOne(ctx context.Context, a alarm) []finding {
	var found []finding
	for _, x := range a.all() {
		found = append(found, finding{alarm: x})
	}
	if !each(found, "before the fault", func(f *finding) error { return p.silent(ctx, f.alert, silentWithin) }) {
		return found
	}
	began := time.Now()
	err := a.begin(ctx)
	if each(found, "inject the fault", func(*finding) error { return err }) {
		each(found, "", func(f *finding) error {
			if err := p.fires(ctx, f.alarm); err != nil {
				return err
			}
			f.firing = time.Since(began)
			return p.diagnose(ctx, f.alarm)
		})
	}
	ended := time.Now()
	err = a.end(ctx)
	each(found, "repair the fault", func(*finding) error { return err })
	each(found, "after the repair", func(f *finding) error {
		if err := p.silent(ctx, f.alert, silentWithin); err != nil {
			return err
		}
		f.silence = time.Since(ended)
		return rig.AwaitEvery(ctx, time.Second, silentWithin, func(ctx context.Context) error {
			holds, err := p.prometheus.query(ctx, f.verify)
			if err == nil && !holds {
				err = fmt.Errorf("the verification of the runbook does not hold: %s", f.verify)
			}
			return err
		})
	})
	return found
}

// each calls do for all findings without an error at the same time, and stores the errors, with the name of the step.
// It reports whether all findings are without an error.
func each(found []finding, step string, do func(*finding) error) bool {
	var all sync.WaitGroup
	for i := range found {
		f := &found[i]
		if f.err != nil {
			continue
		}
		all.Go(func() {
			if f.err = do(f); f.err != nil && step != "" {
				f.err = fmt.Errorf("%s: %w", step, f.err)
			}
		})
	}
	all.Wait()
	return !slices.ContainsFunc(found, func(f finding) bool { return f.err != nil })
}

// fires waits until the alert fires with its labels, and fails if it fires with others.
func (p *plant) fires(ctx context.Context, a alarm) error {
	return rig.AwaitEvery(ctx, 500*time.Millisecond, firesWithin, func(ctx context.Context) error {
		list, err := p.prometheus.named(ctx, a.alert)
		if err != nil {
			return err
		}
		firing := 0
		for _, found := range list {
			for name, value := range a.labels {
				if found.Labels[name] != value {
					return fmt.Errorf("label %s is %q, want %q", name, found.Labels[name], value)
				}
			}
			if found.State == "firing" {
				firing++
			}
		}
		if firing != 1 {
			return fmt.Errorf("%d alerts fire, want one; the alerts are %v", firing, list)
		}
		return nil
	})
}

// silent waits until an alert is neither pending nor firing.
func (p *plant) silent(ctx context.Context, name string, within time.Duration) error {
	return rig.AwaitEvery(ctx, 500*time.Millisecond, within, func(ctx context.Context) error {
		list, err := p.prometheus.named(ctx, name)
		if err == nil && len(list) > 0 {
			err = fmt.Errorf("it is not silent: %v", list)
		}
		return err
	})
}

// printTable prints the findings.
func printTable(out io.Writer, list []finding) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "\nalert\tfault\tseconds to firing\tseconds to silence\t")
	for _, f := range list {
		if f.err != nil {
			fmt.Fprintf(w, "%s\t%s\tFAILED\t\t\n", f.alert, f.fault)
			continue
		}
		fmt.Fprintf(w, "%s\t%s\t%.0f\t%.0f\t\n", f.alert, f.fault, f.firing.Seconds(), f.silence.Seconds())
	}
	_ = w.Flush()
	fmt.Fprintf(out, "All times of the rules from a minute to a day are a %dth.\n", faster)
}
