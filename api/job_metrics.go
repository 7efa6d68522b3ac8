package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/danielgtaylor/huma/v2"
	"github.com/danielgtaylor/huma/v2/adapters/humaecho"

	"berth"
	"berth/internal/lib/svgplot"
	"berth/spec"
	"berth/wire"
)

// svgType is the media type of metrics drawn as charts.
const svgType = "image/svg+xml"

// metricHandlers serve the stored measurements of jobs.
type metricHandlers struct {
	jobReader
	blobStore
	log *slog.Logger
}

func (h *metricHandlers) mount(r *router) {
	op := r.operation("read-metrics", http.MethodGet, "/v1/jobs/{id}/metrics", "jobs",
		"Show a job's use of CPU, memory, disks, network and GPUs over time, and its own progress values")
	op.Description = "One document a member, of one attempt. A series has at most " + strconv.Itoa(wire.MaxPoints) +
		" values; their step grows with the time that the member runs. " +
		"Members that ran for less than 10 seconds have no series; what they used in all is in the job's attempts."
	series := r.huma.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[wire.Page[wire.MemberMetrics]](), true, "")
	document(&op, "The series, or with `format=svg` a picture of them", map[string]*huma.MediaType{
		"application/json": {Schema: series},
		svgType:            {Schema: &huma.Schema{Type: huma.TypeString}},
	})
	register(r, op, h.jobMetrics)
}

// jobMetricsInput selects members and a time range of one attempt. Cursor is the first
// member of the next page.
type jobMetricsInput struct {
	JobInput
	Attempt int    `query:"attempt" minimum:"0" doc:"default: the latest"`
	Member  int    `query:"member" minimum:"-1" default:"-1" doc:"default: all"`
	Since   string `query:"since" doc:"a time (RFC 3339), or how long ago (10m)"`
	Format  string `query:"format" enum:"json,svg" default:"json"`
	Limit   int    `query:"limit" minimum:"1" maximum:"64" default:"16" doc:"largest number of members in the answer"`
	Cursor  string `query:"cursor" maxLength:"10"`
}

// jobMetrics answers with the stored metrics of members, as JSON or as one SVG picture. A
// member without stored metrics is left out, so a page may have fewer entries than Limit.
func (h *metricHandlers) jobMetrics(ctx context.Context, in *jobMetricsInput) (*huma.StreamResponse, error) {
	job, err := h.showJob(ctx, &in.JobInput)
	if err != nil {
		return nil, err
	}
	first, last, since, err := in.ask(job.Body)
	if err != nil {
		return nil, err
	}
	list := wire.Page[wire.MemberMetrics]{Items: []wire.MemberMetrics{}}
	if last-first > in.Limit {
		last = first + in.Limit
		list.NextCursor = strconv.Itoa(last)
	}
	grown, err := h.grownMemory(ctx, job.Body, in.Attempt)
	if err != nil {
		return nil, err
	}
	ref := berth.LogRef{Tenant: job.Body.Tenant, Job: job.Body.ID, Attempt: in.Attempt}
	for ref.Rank = first; ref.Rank < last; ref.Rank++ {
		m, err := h.memberMetrics(ctx, ref)
		if err != nil {
			return nil, err
		}
		if m != nil {
			setLimits(m, job.Body, grown)
			list.Items = append(list.Items, m.Since(since))
		}
	}
	kind, body := svgType, []byte(nil)
	if in.Format == "svg" {
		body = drawMetrics(job.Body, in.Attempt, list.Items)
	} else if kind, body, err = asJSON(list); err != nil {
		return nil, err
	}
	return &huma.StreamResponse{Body: func(out huma.Context) {
		c := humaecho.UnwrapV4(out)
		// A picture that is opened by itself is a page of this site, so scripts in it
		// must not run.
		c.Response().Header().Set("Content-Security-Policy", "default-src 'none'; style-src 'unsafe-inline'; sandbox")
		if err := c.Blob(http.StatusOK, kind, body); err != nil {
			h.log.Debug("cannot send metrics", "err", err)
		}
	}}, nil
}

// grownMemory returns the memory of each member of an attempt of a gang with groups that an earlier out of memory
// may have changed; nil for other attempts. Only the groups of the members that ran out of memory get more.
func (h *metricHandlers) grownMemory(ctx context.Context, job wire.Job, attempt int) (map[int]spec.MiB, error) {
	if job.Spec == nil || len(job.Spec.Groups) == 0 || !grewBefore(job, attempt) {
		return nil, nil
	}
	return h.jobs.MemberMemory(ctx, job.ID, attempt)
}

// grewBefore reports whether an attempt follows an out of memory of a job with on_oom: grow.
func grewBefore(job wire.Job, attempt int) bool {
	return job.Spec.Retry.OnOOM == "grow" && slices.ContainsFunc(job.Attempts, func(a berth.Attempt) bool {
		return a.Number < attempt && a.Outcome != nil && a.Outcome.Code == berth.ReasonOOM
	})
}

func asJSON(v any) (kind string, body []byte, err error) {
	body, err = json.Marshal(v)
	return "application/json", body, err
}

// ask checks the input against the job, fills in the latest attempt as the default, and
// returns the half-open range of members to read.
func (in *jobMetricsInput) ask(job wire.Job) (first, last int, since time.Time, err error) {
	if in.Since != "" {
		if since, err = parseSince(in.Since); err != nil {
			return 0, 0, since, invalid("",
				[]berth.FieldError{{Field: "since", Detail: err.Error(),
					Allowed: "a time such as 2026-01-31T12:00:00Z, or how long ago, such as 10m"}}, nil)
		}
	}
	if in.Attempt == 0 {
		in.Attempt = job.Attempt
	}
	if in.Attempt > job.Attempt {
		return 0, 0, since, berth.Errorf(berth.CodeNotFound, "job %s has no attempt %d; its latest is %d", job.ID,
			in.Attempt, job.Attempt)
	}
	// A job without an attempt, or a parent, has no members to measure.
	members := 0
	if job.Spec != nil && in.Attempt > 0 && job.Kind == "" {
		members = job.Spec.Members
	}
	if in.Member >= members && in.Member > 0 {
		return 0, 0, since, berth.Errorf(berth.CodeNotFound, "job %s has no member %d; it has %d, counted from 0",
			job.ID, in.Member, members)
	}
	if in.Member >= 0 {
		return in.Member, min(in.Member+1, members), since, nil
	}
	if in.Cursor != "" {
		if first, err = strconv.Atoi(in.Cursor); err != nil || first < 0 {
			return 0, 0, since, berth.Errorf(berth.CodeInvalid,
				"cursor %.20q is not one that this list gave", in.Cursor)
		}
	}
	return first, members, since, nil
}

// memberMetrics reads the stored metrics of one member; nil if none are stored, or if
// their format is wrong. Damaged metrics are logged and skipped, so that one bad object
// does not hide the metrics of the other members.
func (h *metricHandlers) memberMetrics(ctx context.Context, ref berth.LogRef) (*wire.MemberMetrics, error) {
	store, err := h.blobs()
	if err != nil {
		return nil, err
	}
	b, err := store.ReadAll(ctx, berth.MetricsKey(ref.Tenant, ref.Job, ref.Attempt, ref.Rank), wire.MaxMetricBytes)
	if berth.CodeOf(err) == berth.CodeNotFound {
		return nil, nil
	}
	if err != nil && berth.CodeOf(err) != berth.CodeInvalid {
		return nil, err
	}
	m, damage := wire.ParseMemberMetrics(b)
	if err != nil || damage != nil {
		h.log.Warn("stored metrics invalid", "job_id", ref.Job, "attempt", ref.Attempt, "member", ref.Rank,
			"err", errors.Join(err, damage))
		return nil, nil
	}
	m.Attempt, m.Member = ref.Attempt, ref.Rank
	return &m, nil
}

// setLimits adds the limits of the member to the series of CPU and memory. An attempt after an out of
// memory of a job with on_oom: grow has half as much memory again; of a gang with groups grown has the memory of
// each member. An archived gang with groups has no known limit then.
func setLimits(m *wire.MemberMetrics, job wire.Job, grown map[int]spec.MiB) {
	if job.Spec == nil {
		return
	}
	limits := map[wire.Metric]float64{}
	for _, a := range job.Attempts {
		if a.Number == m.Attempt && a.Alternative != nil { // not of the hardware of the newest attempt
			job.Alternative = a.Alternative
		}
	}
	resources := job.Resources()
	if len(job.Spec.Groups) > 0 {
		resources = spec.ChooseMember(job.Spec.WithDefaults(), m.Member).Resources
	}
	if c := resources.CPUs; c != nil {
		limits[wire.MetricCPU] = float64(*c) / 1000
	}
	if memory := resources.Memory; memory != nil {
		limits[wire.MetricMemory] = float64(*memory) * (1 << 20)
		switch grew := grewBefore(job, m.Attempt); {
		case grew && len(job.Spec.Groups) > 0:
			limits[wire.MetricMemory] = float64(grown[m.Member]) * (1 << 20)
		case grew:
			limits[wire.MetricMemory] *= 1.5
		}
	}
	for i := range m.Series {
		if limit, ok := limits[m.Series[i].Metric]; ok && limit > 0 {
			m.Series[i].Limit = &limit
		}
	}
}

// panels are the charts of the picture, in order.
var panels = []struct {
	metric wire.Metric
	title  string
}{
	{wire.MetricCPU, "CPU (cores)"}, {wire.MetricMemory, "Memory"}, {wire.MetricGPU, "GPU busy"},
	{wire.MetricGPUMemory, "GPU memory"},
	{wire.MetricDiskRead, "Disk read"}, {wire.MetricDiskWritten, "Disk written"},
	{wire.MetricReceived, "Network received"}, {wire.MetricSent, "Network sent"},
}

// shortGPU is the length of a UUID prefix that distinguishes a machine's devices.
const shortGPU = 12

// drawMetrics draws one chart per metric with a line for each member and GPU. Charts
// without data are left out.
func drawMetrics(job wire.Job, attempt int, members []wire.MemberMetrics) []byte {
	c := svgplot.Chart{
		Title: fmt.Sprintf("%s (%s), attempt %d", job.Name, job.ID, attempt),
		Empty: "Nothing was measured: it has not run yet, or ran for less than 10 seconds, or where nothing can be " +
			"measured.",
	}
	for _, p := range panels {
		drawn := svgplot.Panel{Title: p.title, Unit: p.metric.Unit()}
		for _, m := range members {
			for _, line := range m.Series {
				if line.Metric != p.metric {
					continue
				}
				if line.Limit != nil {
					drawn.Limit = *line.Limit
				}
				drawn.Lines = append(drawn.Lines, svgplot.Line{
					Label: lineLabel(members, m.Member, line.GPU[:min(len(line.GPU), shortGPU)]),
					Start: m.StartedAt, Step: m.Step.Std(), Values: line.Values,
				})
			}
		}
		if len(drawn.Lines) > 0 {
			c.Panels = append(c.Panels, drawn)
		}
	}
	c.Panels = append(c.Panels, progressPanels(members)...)
	return c.SVG()
}

// lineLabel names a line by its member in a gang, and by its device.
func lineLabel(members []wire.MemberMetrics, member int, device string) string {
	if len(members) == 1 {
		return device
	}
	return strings.TrimSpace(fmt.Sprintf("member %d %s", member, device))
}

// progressPanels returns a panel for each value that the job itself reports, by name.
func progressPanels(members []wire.MemberMetrics) []svgplot.Panel {
	byName := map[string]*svgplot.Panel{}
	for _, m := range members {
		for _, s := range m.Progress {
			p := byName[s.Name]
			if p == nil {
				p = &svgplot.Panel{Title: s.Name}
				byName[s.Name] = p
			}
			p.Lines = append(p.Lines, svgplot.Line{Label: lineLabel(members, m.Member, ""), Start: m.StartedAt,
				Step: m.Step.Std(), Values: s.Values})
		}
	}
	var all []svgplot.Panel
	for _, name := range slices.Sorted(maps.Keys(byName)) {
		all = append(all, *byName[name])
	}
	return all
}
