package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"berth"
	"berth/db"
	"berth/db/history"
	"berth/internal/lib/buildinfo"
	"berth/placement"
	engine "berth/placement/cluster"
	"berth/spec"
)

// snapshotFlags holds the flags of berth-sim snapshot.
type snapshotFlags struct {
	databaseURL, since, out string
	anonymise               bool
}

// snapshotCommand returns berth-sim snapshot, which exports the rows of a live cluster.
func snapshotCommand() *cobra.Command {
	f := &snapshotFlags{}
	cmd := &cobra.Command{
		Use:   "snapshot --database-url URL --out FILE",
		Short: "Export the machines and jobs of a live cluster",
		Long: `Snapshot reads the database of a cluster and writes the period up to now for berth-sim replay:
machines and the times at which they were in service, tenants with quotas, pools, burst policies, offers, launches
with their prices, and jobs with the times of their attempts. It only reads, from one snapshot, and takes no lock; a
standby serves as well.

The file never contains images, commands, variables, secrets, logs or results. With --anonymise it contains no names
either: tenants, machines, jobs, pools, labels, networks and providers get pseudonyms made with a random key that is
not stored. Models of GPUs, regions, zones, machine types, times, prices and amounts stay.

Jobs that are archived are left out (berthd --retention); their number is printed.`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if url, ok := os.LookupEnv("BERTH_DATABASE_URL"); ok && f.databaseURL == "" {
				f.databaseURL = url
			}
			return f.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&f.databaseURL, "database-url", "", "PostgreSQL, a standby too; environment BERTH_DATABASE_URL")
	flags.StringVar(&f.since, "since", "7d", "length of the period, such as 12h or 7d")
	flags.BoolVar(&f.anonymise, "anonymise", false, "replace names by pseudonyms")
	flags.StringVar(&f.out, "out", "", "file to write (JSON lines; compressed if the name ends with .gz)")
	return cmd
}

// maxSince bounds the period, against typing errors.
const maxSince = 366 * 24 * time.Hour

// validate returns the period, or a usageError that joins all faults.
func (f *snapshotFlags) validate() (time.Duration, error) {
	var errs []error
	if f.databaseURL == "" {
		errs = append(errs, errors.New("--database-url is missing: it names the database, such as "+
			"postgres://berth@standby.internal/berth"))
	}
	if f.out == "" {
		errs = append(errs, errors.New("--out is missing: it names the file to write"))
	}
	period, err := parsePeriod(f.since)
	if err != nil || period <= 0 || period > maxSince {
		errs = append(errs, fmt.Errorf("--since %q: allowed are periods up to 366d, such as 12h or 7d", f.since))
	}
	if err := errors.Join(errs...); err != nil {
		return 0, &usageError{err}
	}
	return period, nil
}

// parsePeriod reads a duration, or a number of days such as 7d.
func parsePeriod(s string) (time.Duration, error) {
	if days, ok := strings.CutSuffix(s, "d"); ok {
		n, err := strconv.ParseUint(days, 10, 16)
		return time.Duration(n) * 24 * time.Hour, err
	}
	d, err := spec.ParseDuration(s)
	return d.Std(), err
}

func (f *snapshotFlags) run(ctx context.Context, w io.Writer) (err error) {
	period, err := f.validate()
	if err != nil {
		return err
	}
	h, err := db.OpenHistoryAs(ctx, f.databaseURL, "berth-sim")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.Close()) }()
	out, err := createSnapshot(f.out)
	if err != nil {
		return &usageError{err}
	}
	x := &exporter{history: h, out: out}
	if f.anonymise {
		x.names = newPseudonyms()
	}
	now, err := h.Now(ctx)
	if err == nil {
		err = x.export(ctx, now, period)
	}
	if err != nil {
		out.abandon()
		return err
	}
	if err := out.finish(); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s: %d jobs and %d machines from %s to %s%s\n", f.out, x.jobs, x.machines,
		x.head.Since.UTC().Format(time.RFC3339), x.head.TakenAt.UTC().Format(time.RFC3339), x.missing())
	return err
}

// exporter copies the rows of one transaction to a file, a page at a time.
type exporter struct {
	history        *db.History
	out            *snapshotWriter
	names          pseudonyms
	head           snapshotHead
	constraints    []*engine.Class // by number less one
	jobs, machines int
}

// missing describes the jobs that the file lacks, "" for none.
func (x *exporter) missing() string {
	if x.head.Archived == 0 {
		return ""
	}
	return fmt.Sprintf("; %d archived jobs of the period are missing", x.head.Archived)
}

// export writes the period up to now, which is the time of the snapshot.
func (x *exporter) export(ctx context.Context, now time.Time, period time.Duration) error {
	since := now.Add(-period)
	c, err := x.history.RecordedCluster(ctx, since)
	if err != nil {
		return err
	}
	x.head = snapshotHead{Version: snapshotVersion, Program: buildinfo.Version(), TakenAt: now, Since: since,
		Anonymised: x.names.key != nil, Archived: c.Archived}
	if err := x.writeCluster(c); err != nil {
		return err
	}
	err = x.history.RecordedMachines(ctx, since, func(m history.RecordedMachine) error {
		x.machines++
		return x.out.write(snapshotLine{Machine: x.machine(m)})
	})
	if err != nil {
		return err
	}
	err = x.history.RecordedLaunches(ctx, since, func(l history.RecordedLaunch) error {
		x.names.launch(&l)
		return x.out.write(snapshotLine{Launch: &l})
	})
	if err != nil {
		return err
	}
	return x.history.RecordedJobs(ctx, since, func(j history.RecordedJob) error {
		x.jobs++
		x.names.job(&j)
		return x.out.write(snapshotLine{Job: &j})
	})
}

// writeCluster writes the lines of which there are few.
func (x *exporter) writeCluster(c history.RecordedCluster) error {
	lines := []snapshotLine{{Snapshot: &x.head}}
	for i := range c.Tenants {
		x.names.tenant(&c.Tenants[i])
		lines = append(lines, snapshotLine{Tenant: &c.Tenants[i]})
	}
	for i := range c.Pools {
		x.names.pool(&c.Pools[i])
		lines = append(lines, snapshotLine{Pool: &c.Pools[i]})
	}
	for i := range c.Bursts {
		x.names.burst(&c.Bursts[i])
		lines = append(lines, snapshotLine{Burst: &c.Bursts[i]})
	}
	for i := range c.Offers {
		c.Offers[i].Provider = x.names.of("provider", c.Offers[i].Provider)
		lines = append(lines, snapshotLine{Offer: &c.Offers[i]})
	}
	for _, class := range c.Classes {
		out := snapshotClass{Class: class.Class, Request: snapshotRequest{Request: class.Request}}
		out.Request.Labels = sortedLabels(class.Request.Labels)
		out.Request.Constraint = x.constraint(class)
		// The text of the constraint names labels and machines; its number replaces it.
		out.Request.Request.Constraint, out.Request.Request.Labels = "", nil
		x.names.class(&out)
		lines = append(lines, snapshotLine{Class: &out})
	}
	for _, l := range lines {
		if err := x.out.write(l); err != nil {
			return err
		}
	}
	return nil
}

// constraint returns the number of a class's constraint, 0 for none. Classes with GPUs differ from others, since a
// constraint on devices means nothing without a device.
func (x *exporter) constraint(c history.RecordedClass) int {
	if c.Request.Constraint == "" {
		return 0
	}
	for i, known := range x.constraints {
		if known.Request.Constraint == c.Request.Constraint && (known.Request.GPUs > 0) == (c.Request.GPUs > 0) {
			return i + 1
		}
	}
	x.constraints = append(x.constraints, engine.NewClass(c.Class, c.Request))
	return len(x.constraints)
}

// machine returns the line of a machine, with the constraints that hold for it.
func (x *exporter) machine(m history.RecordedMachine) *snapshotMachine {
	out := &snapshotMachine{RecordedMachine: m, Labels: sortedLabels(m.Labels)}
	out.RecordedMachine.Labels = nil
	row := placement.Machine{ID: m.ID, Epoch: 1, State: berth.MachineReady, Pool: m.Pool, Region: m.Region,
		Site: m.Site, Labels: m.Labels, Fences: m.Fences, Network: m.Network}
	if n := len(m.States); n > 0 {
		row.Total = m.States[n-1].Capacity
	}
	for _, g := range m.GPUs {
		row.GPUs = append(row.GPUs, placement.Device{Index: g.Index, Model: g.Model, MemoryMiB: g.MemoryMiB,
			Healthy: true})
	}
	for i, c := range x.constraints {
		for _, s := range engine.Selectors {
			if s.Name == "constraint" && s.Holds(c, &row) {
				out.Constraints = append(out.Constraints, i+1)
			}
		}
	}
	x.names.machine(out)
	return out
}

// sortedLabels returns labels by key. The order of the keys of a map would change with pseudonyms.
func sortedLabels(labels map[string]string) []labelPair {
	list := make([]labelPair, 0, len(labels))
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		list = append(list, labelPair{k, labels[k]})
	}
	return list
}
