package main

import (
	"fmt"
	"math"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"berth"
	"berth/api/client"
	"berth/wire"
)

// newMetrics builds "berth metrics" over GET /v1/jobs/{id}/metrics. With --svg the server
// draws the chart.
func newMetrics(a *app) *cobra.Command {
	// Member 0 is a member, so "all" is below 0.
	q := client.MetricsQuery{Member: -1}
	var sinceText, svg string
	cmd := &cobra.Command{
		Use:   "metrics JOB",
		Short: "Show a job's resource usage: CPU, memory, disks, network, GPUs",
		Long: "Metrics draws one line for each series of the latest attempt, or of --attempt, and for each value\n" +
			"that the job reports in /workspace/.berth/progress. Rates are means, amounts maxima in\n" +
			"each step. Metrics outlive the machine. Members that ran for less than 10 seconds have no series;\n" +
			"berth show prints their total usage.",
		Example:           "  berth metrics digits\n  berth metrics digits --attempt 1 --svg use.svg",
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeJobs(anyJob),
		RunE: func(cmd *cobra.Command, args []string) error {
			if q.Attempt < 0 {
				return usagef("--attempt %d is out of range; allowed: 1 or more", q.Attempt)
			}
			ctx := cmd.Context()
			c, job, since, err := a.jobSince(ctx, args[0], sinceText)
			if err != nil {
				return err
			}
			q.Since = since
			if svg != "" {
				b, err := c.MetricsSVG(ctx, job.ID, q)
				if err != nil {
					return a.failed(ctx, err)
				}
				return writePicture(a, svg, b)
			}
			list, err := c.Metrics(ctx, job.ID, q)
			if err != nil {
				return a.failed(ctx, err)
			}
			return showMetrics(a, list)
		},
	}
	f := cmd.Flags()
	f.IntVar(&q.Attempt, "attempt", 0, "attempt number, from 1 (default: the latest)")
	f.IntVar(&q.Member, "member", -1, "gang member, from 0 (default: all)")
	f.StringVar(&sinceText, "since", "", "show only measurements since: 10m, 2h, or an RFC 3339 time")
	f.StringVar(&svg, "svg", "", "write an SVG chart to this file; - is standard output")
	return cmd
}

// writePicture writes a chart to a file, or to standard output for "-". An existing file is
// replaced.
func writePicture(a *app, path string, b []byte) error {
	if path == "-" {
		_, err := a.out.Write(b)
		return err
	}
	if err := os.WriteFile(path, b, 0o644); err != nil {
		return usagef("%v", err)
	}
	a.say("wrote %s", path)
	return nil
}

// showMetrics prints a table for each member of an attempt, with the machine, the start and
// the step: the length of time that one value stands for.
func showMetrics(a *app, list wire.Page[wire.MemberMetrics]) error {
	names := make([]string, len(list.Items))
	for i, m := range list.Items {
		names[i] = fmt.Sprintf("attempt-%d/member-%d", m.Attempt, m.Member)
	}
	return a.show(view{body: list, names: names, table: func(wide bool) error {
		if len(list.Items) == 0 {
			a.say("no metrics: the job has not run, or ran for less than 10 s")
			return nil
		}
		for i, m := range list.Items {
			if i > 0 {
				fmt.Fprintln(a.out)
			}
			fmt.Fprintf(a.out, "attempt %d, member %d on %s, from %s, step %s\n", m.Attempt, m.Member,
				oneLine(string(m.Machine)), m.StartedAt.UTC().Format("2006-01-02 15:04:05Z"), m.Step)
			if err := metricTable(a, m, wide).write(a.out); err != nil {
				return err
			}
		}
		return nil
	}})
}

// sparkWidth is the width of a drawn series in characters; longer series are condensed.
const sparkWidth = 60

// metricTable returns the table of one member: a row for each series, with the last, the
// mean and the largest value.
func metricTable(a *app, m wire.MemberMetrics, wide bool) *table {
	t := &table{screen: a.outTerm, head: []string{"METRIC", "LAST", "MEAN", "MAX", "LIMIT", "OVER TIME"}}
	for _, s := range m.Series {
		name := strings.ReplaceAll(string(s.Metric), "_", " ")
		if s.GPU != "" {
			// The beginning of a GPU's UUID is enough to distinguish the GPUs of one
			// machine.
			gpu := s.GPU
			if !wide && len(gpu) > 12 {
				gpu = gpu[:12]
			}
			name += " " + gpu
		}
		last, mean, most := figures(s.Values)
		limit := "-"
		if s.Limit != nil {
			limit = valueOf(*s.Limit, s.Unit)
		}
		t.add(name, valueOf(last, s.Unit), valueOf(mean, s.Unit), valueOf(most, s.Unit), limit,
			spark(s.Values, sparkWidth, s.Unit))
	}
	// The job's own values follow the measured ones.
	for _, s := range m.Progress {
		last, mean, most := figures(s.Values)
		t.add(oneLine(s.Name), valueOf(last, ""), valueOf(mean, ""), valueOf(most, ""), "-",
			spark(s.Values, sparkWidth, ""))
	}
	return t
}

// figures returns the last, the mean and the largest of the measured values, NaN if none
// was measured. Steps without a measurement are NaN and are skipped.
func figures(values wire.Values) (last, mean, most float64) {
	last, most = math.NaN(), math.NaN()
	sum, n := 0.0, 0.0
	for _, v := range values {
		if math.IsNaN(v) {
			continue
		}
		last, sum, n = v, sum+v, n+1
		// Negated, since a comparison with the initial NaN is false.
		if !(most >= v) {
			most = v
		}
	}
	// 0/0 is NaN: no measurement gives no mean.
	return last, sum / n, most
}

// valueOf formats a value in its unit: ratios as a percentage (1 is 100 %), bytes with
// binary units, cores with two decimals. NaN gives "-".
func valueOf(v float64, unit string) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case unit == wire.UnitRatio:
		return fmt.Sprintf("%.0f%%", 100*v)
	case unit == wire.UnitBytes:
		return bytesOf(int64(v))
	case unit == wire.UnitBytesPerSecond:
		return bytesOf(int64(v)) + "/s"
	case unit == "":
		return fmt.Sprintf("%.4g", v)
	default:
		return fmt.Sprintf("%.2f", v)
	}
}

// bars are the levels of a drawn value, from the lowest to the highest.
var bars = []rune("▁▂▃▄▅▆▇█")

// spark draws values as bars from 0 to the largest value, for ratios at least to 1, so that
// a low load looks low. A job's own values, without a unit, are drawn from their smallest value,
// since a loss or an accuracy may vary little. A bar that stands for several values shows the largest, so that no
// peak is lost. Gaps are blank.
func spark(values wire.Values, width int, unit string) string {
	n := min(width, len(values))
	out := make([]rune, n)
	_, _, top := figures(values)
	if unit == wire.UnitRatio {
		top = max(top, 1)
	}
	base := 0.0
	if unit == "" {
		base = smallest(values)
	}
	for i := range out {
		// Integer arithmetic gives each bar at least one value, as n is at most
		// len(values).
		_, _, v := figures(values[i*len(values)/n : (i+1)*len(values)/n])
		switch {
		case math.IsNaN(v):
			out[i] = ' '
		case top <= base:
			out[i] = bars[0]
		default:
			// The largest value itself would be one level too high, hence min.
			out[i] = bars[min(len(bars)-1, max(0, int((v-base)/(top-base)*float64(len(bars)))))]
		}
	}
	return string(out)
}

// smallest returns the smallest measured value, NaN without any.
func smallest(values wire.Values) float64 {
	least := math.NaN()
	for _, v := range values {
		if !math.IsNaN(v) && !(least <= v) {
			least = v
		}
	}
	return least
}

// measuredTable returns the table of each member's total usage, attempt by attempt. Totals
// exist also for members that ran too briefly for a series.
func measuredTable(a *app, attempts []berth.Attempt) *table {
	t := &table{screen: a.outTerm, head: []string{"ATTEMPT", "MEMBER", "CPU MEAN", "MEMORY PEAK", "GPU MEAN",
		"GPU MEMORY PEAK", "DISK R/W", "NETWORK IN/OUT"}}
	for _, at := range attempts {
		for _, m := range at.Measured {
			busy, held := "-", "-"
			if m.GPUMean != nil {
				busy = valueOf(*m.GPUMean, wire.UnitRatio)
			}
			if m.GPUMemoryPeak > 0 {
				held = bytesOf(m.GPUMemoryPeak)
			}
			t.add(fmt.Sprint(at.Number), fmt.Sprint(m.Member), valueOf(m.CPUMean, wire.UnitCores),
				bytesOf(m.MemoryPeak), busy, held,
				bytesOf(m.DiskRead)+"/"+bytesOf(m.DiskWritten), bytesOf(m.Received)+"/"+bytesOf(m.Sent))
		}
	}
	return t
}
