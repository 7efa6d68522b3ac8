package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/internal/lib/jobfile"
	"berth/placement"
	"berth/spec"
)

// replayFlags holds the flags of berth-sim replay.
type replayFlags struct {
	order, policy   string
	machines, burst []string
}

// replayCommand returns berth-sim replay, which replays a snapshot of a cluster.
func replayCommand() *cobra.Command {
	f := &replayFlags{}
	cmd := &cobra.Command{
		Use:   "replay FILE",
		Short: "Replay a snapshot with another policy, or with more or fewer machines",
		Long: `Replay runs the jobs of a file of berth-sim snapshot through the production engine, in virtual time,
on the recorded machines and then in a changed setting. It prints waits, use, preemptions and costs beside the
recorded ones, and how far the replay of the recorded setting is from the record.

The database does not hold the settings of berthd. The replay uses its defaults; --policy names a file with the
settings that differ, such as "preempt_after: 30m". Keys are those of policy in a file of berth-sim cluster.

docs/design/simulation.md describes what a replay leaves out.`,
		Example: `  berth-sim replay week.jsonl.gz
  berth-sim replay week.jsonl.gz --machines +2:8xH100-64cpu-512GiB
  berth-sim replay week.jsonl.gz --machines -1 --order priority`,
		Args: oneSnapshot,
		RunE: func(cmd *cobra.Command, args []string) error { return f.run(cmd.Context(), cmd.OutOrStdout(), args[0]) },
	}
	flags := cmd.Flags()
	flags.StringVar(&f.order, "order", "", "order of the queue in the changed setting: fair, priority, fifo or srsf")
	flags.StringVar(&f.policy, "policy", "", "file with the policy of berthd during the record (YAML)")
	flags.StringArrayVar(&f.machines, "machines", nil,
		"machines to add or to leave out, +N:SHAPE or -N:SHAPE with a shape that the output lists; repeatable")
	flags.StringArrayVar(&f.burst, "burst", nil,
		"run the scaler, with another burst policy of a tenant: TENANT=FILE, a file of berth burst set; repeatable")
	return cmd
}

// oneSnapshot accepts one argument, the path of the snapshot.
func oneSnapshot(cmd *cobra.Command, args []string) error {
	if len(args) != 1 {
		return &usageError{fmt.Errorf("%s: got %d arguments: it takes the name of one file of berth-sim snapshot",
			cmd.CommandPath(), len(args))}
	}
	return nil
}

// defaultSettings is the policy of a berthd without flags (docs/adr/0010). A test compares both.
func defaultSettings() policySpec {
	d := func(x time.Duration) spec.Duration { return spec.Duration(x) }
	return policySpec{
		Order: placement.Fair.String(), BandWidth: 100, Aging: d(time.Hour), HalfLife: d(spec.DefaultHalfLife),
		Backfill: 32, Preempt: true, PreemptAfter: d(5 * time.Minute), MinRuntime: d(10 * time.Minute),
		Overdue: d(24 * time.Hour),
	}
}

// recordedPolicy returns the policy of the record: the defaults of berthd with the settings of a file, if there is
// one.
func recordedPolicy(path string) (policySpec, error) {
	p := defaultSettings()
	if path == "" {
		return p, nil
	}
	src, err := os.ReadFile(path)
	if err != nil {
		return p, err
	}
	err = jobfile.Decode(path, src, &p, func() []berth.FieldError {
		if _, ok := placement.ParseOrder(p.Order); !ok {
			return []berth.FieldError{{Field: "order", Detail: fmt.Sprintf("%q is no order", p.Order),
				Allowed: "fair, priority, fifo or srsf"}}
		}
		return nil
	})
	return p, err
}

// leaderPolicy returns the policy of the engine as berthd sets it up.
func leaderPolicy(p policySpec) placement.Policy {
	order, _ := placement.ParseOrder(p.Order)
	x := p.of(order)
	x.NominationFor, x.Outrank, x.KeepTenantsApart = 10*time.Minute, 2, true
	return x
}

func (f *replayFlags) run(ctx context.Context, w io.Writer, path string) error {
	policy, err := recordedPolicy(f.policy)
	if err != nil {
		return &usageError{err}
	}
	if _, ok := placement.ParseOrder(f.order); !ok && f.order != "" {
		return &usageError{fmt.Errorf("--order %q: allowed are fair, priority, fifo and srsf", f.order)}
	}
	rec, err := loadSnapshot(path)
	if err != nil {
		return &usageError{err}
	}
	changed := policy
	if f.order != "" {
		changed.Order = f.order
	}
	fleet := rec.fleet()
	shapes := rec.shapes(fleet)
	other, err := changeFleet(rec, fleet, shapes, f.machines)
	if err != nil {
		return &usageError{err}
	}
	settings := []setting{{policy: leaderPolicy(policy), tick: policy.tick(rec.period()), machines: fleet}}
	if f.order != "" || len(f.machines) > 0 || len(f.burst) > 0 {
		s := setting{policy: leaderPolicy(changed), tick: changed.tick(rec.period()), machines: other}
		if len(f.burst) > 0 {
			if s, err = rec.scaled(s, f.burst); err != nil {
				return &usageError{err}
			}
		}
		settings = append(settings, s)
	}
	lives := rec.lives()
	tallies := []*tally{rec.recorded(fleet)}
	for i, s := range settings {
		x := rec.build(s, lives)
		if err := x.runTo(ctx, origin.Add(rec.period())); err != nil {
			return err
		}
		tallies = append(tallies, rec.replayed([]string{"replayed", "changed"}[i], x, s))
	}
	return rec.report(w, lives, shapes, tallies)
}

// fleet returns the recorded machines.
func (r *recording) fleet() []fleetMachine {
	list := make([]fleetMachine, len(r.machines))
	for i, m := range r.machines {
		list[i].snapshotMachine = m
	}
	return list
}

// served returns how long a machine was in service during the period, and its latest capacity.
func (r *recording) served(m *fleetMachine) (d time.Duration, c berth.Capacity) {
	for i, s := range m.States {
		from, to := max2(r.at(s.At), origin), origin.Add(r.period())
		if i+1 < len(m.States) {
			to = max2(r.at(m.States[i+1].At), origin)
		}
		if !gone(s.State) {
			d += to.Sub(from)
			c = s.Capacity
		}
	}
	return d, c
}

// shape is a group of equal machines.
type shape struct {
	name     string
	machines []int // indexes, the machine with the longest service first
}

// shapes groups the machines that were in service, by the order of the file.
func (r *recording) shapes(fleet []fleetMachine) []shape {
	var list []shape
	for i := range fleet {
		served, c := r.served(&fleet[i])
		if served <= 0 {
			continue
		}
		name := shapeName(&fleet[i], c)
		at := slices.IndexFunc(list, func(s shape) bool { return s.name == name })
		if at < 0 {
			at = len(list)
			list = append(list, shape{name: name})
		}
		list[at].machines = append(list[at].machines, i)
	}
	for _, s := range list {
		slices.SortStableFunc(s.machines, func(a, b int) int {
			x, _ := r.served(&fleet[a])
			y, _ := r.served(&fleet[b])
			return int(sign(y - x))
		})
	}
	return list
}

// shapeName names a machine by its GPUs, cores and memory, such as 8xH100-64cpu-512GiB.
func shapeName(m *fleetMachine, c berth.Capacity) string {
	name := fmt.Sprintf("%dcpu-%dGiB", (c.CPUMilli+500)/1000, (c.MemoryMiB+512)/1024)
	for i, g := range m.GPUs {
		if n := len(m.GPUs); i == 0 || g.Model != m.GPUs[0].Model {
			model := strings.ReplaceAll(strings.ReplaceAll(g.Model, " ", "-"), ":", "-")
			name = fmt.Sprintf("%dx%s-%s", n, model, name)
		}
	}
	return name
}

// changeFleet returns a fleet with the changes of --machines. Added machines are copies of the machine of their shape
// with the longest service, and are in service for the whole period.
func changeFleet(r *recording, fleet []fleetMachine, shapes []shape, changes []string) ([]fleetMachine, error) {
	out := slices.Clone(fleet)
	left := map[int]bool{} // out
	for _, text := range changes {
		n, s, err := parseChange(text, shapes)
		if err != nil {
			return nil, err
		}
		for range n {
			m := fleet[s.machines[0]]
			_, c := r.served(&m)
			m.ID, m.added, m.copyOf = nodeName(len(out)), true, m.ID
			m.States = m.States[:0:0]
			m.States = append(m.States, ready(r.head.Since, c))
			m.Health = nil
			out = append(out, m)
		}
		gone := 0
		for i := len(s.machines) - 1; i >= 0 && gone < -n; i-- {
			// The machines with the longest service are at the front: an equal one at the end of the list goes.
			best, _ := r.served(&fleet[s.machines[0]])
			if d, _ := r.served(&fleet[s.machines[i]]); d == best && !left[s.machines[i]] {
				left[s.machines[i]] = true
				gone++
			}
		}
		for i := 0; i < len(s.machines) && gone < -n; i++ {
			if !left[s.machines[i]] {
				left[s.machines[i]] = true
				gone++
			}
		}
		if gone < -n {
			return nil, fmt.Errorf("--machines %s: there are %d machines of the shape left", text, gone)
		}
	}
	kept := out[:0:0]
	for i, m := range out {
		if !left[i] {
			kept = append(kept, m)
		}
	}
	if len(kept) > maxSimMachines {
		return nil, fmt.Errorf("--machines: there would be %d machines: allowed are %d", len(kept), maxSimMachines)
	}
	return kept, nil
}

// parseChange reads +N:SHAPE or -N:SHAPE. The shape may be left out if there is only one.
func parseChange(text string, shapes []shape) (n int, s shape, err error) {
	number, name, named := strings.Cut(text, ":")
	n, err = strconv.Atoi(number)
	if err != nil || n == 0 || n > maxSimMachines || n < -maxSimMachines || number[0] != '+' && number[0] != '-' {
		return 0, s, fmt.Errorf("--machines %q: allowed are +N:SHAPE and -N:SHAPE, such as +2:%s", text,
			append(shapeNames(shapes), "SHAPE")[0])
	}
	if !named && len(shapes) == 1 {
		return n, shapes[0], nil
	}
	for _, s := range shapes {
		if s.name == name {
			return n, s, nil
		}
	}
	if len(shapes) == 0 {
		return 0, s, errors.New("--machines: the snapshot has no machine that was in service, so no shape to copy")
	}
	return 0, s, fmt.Errorf("--machines %q: shape %q is not in the snapshot: allowed are %s", text, name,
		strings.Join(shapeNames(shapes), ", "))
}

func shapeNames(shapes []shape) []string {
	var names []string
	for _, s := range shapes {
		names = append(names, s.name)
	}
	return names
}
